"""Sizes of a kind of graph, in place of those of one graph.

Comes in: a program, and the class sizes of what it is given. Goes out: sizes of all structures in it. Called where a
plan for batches is decided: it must follow from what every batch of a class has in common.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphweft.ir.ops import STRUCTURE, Op
from graphweft.ir.program import Program
from graphweft.ir.residency import IndexType, StructType


def class_size(count: int) -> int:
    """The middle of the sizes with as many bits.

    Example:
        >>> [class_size(n) for n in (0, 1, 5, 7, 8)]
        [0, 1, 6, 6, 12]
    """
    return (3 << count.bit_length()) >> 2


_FINE_FROM = 15  # bits of a size from which a class is an eighth of those with as many bits


def size_class(count: int) -> int:
    """The class of a size: its bits, and for large sizes the three after the first one.

    Example:
        >>> size_class(5) == size_class(7), size_class(100_000) == size_class(120_000)
        (True, False)
    """
    shift = count.bit_length() - 4
    return -count.bit_length() if count.bit_length() <= _FINE_FROM else (shift << 4) | (count >> shift)


def fine_size(count: int) -> int:
    """The middle of the class of ``count``, at most 1/16 away from a large size.

    Example:
        >>> [fine_size(n) for n in (0, 1, 5, 100_000)]
        [0, 1, 6, 102400]
    """
    if count.bit_length() <= _FINE_FROM:
        return class_size(count)
    shift = count.bit_length() - 4
    return ((count >> shift) << shift) + (1 << shift >> 1)


def derived_sizes(program: Program, given: Mapping[str, int]) -> dict[str, int]:
    """``given``, sizes by symbol, and those of the structures that ``program`` makes, as if degrees were all alike."""
    rows = dict(given)
    for value in program.values:
        made = value.type
        if value.op not in STRUCTURE or not isinstance(made, StructType):
            continue
        of = value.inputs[0].type
        assert isinstance(of, StructType)  # what structures are made from
        edges = rows.get(of.edge, 1)
        if value.op is Op.ONE_LOOP:
            edges += rows.get(of.dst, 1)
        if value.op is Op.TAKE_DST:
            index = value.inputs[1].type
            assert isinstance(index, IndexType)  # the destinations that are kept
            kept = rows.get(index.rows or "", 1)
            rows.setdefault(made.dst, kept)
            edges = edges * kept // max(rows.get(of.dst, 1), 1) + (kept if value.get("loops") else 0)
        rows.setdefault(made.src, rows.get(of.src, 1))
        rows.setdefault(made.dst, rows.get(of.dst, 1))
        rows.setdefault(made.edge, edges)
    return rows
