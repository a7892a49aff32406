"""Einsums with one matrix per head, ``nhf,fhc->nhc``, and what flows back to the matrices, ``nhf,nhc->fhc``; and those
with one vector per head.

Comes in: a spec. Goes out: which of them it is and how letters lie. Read by the cost of a program, by the lowering to
native products and by the writer of programs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from graphweft.ir.trailing import ROWS


class HeadProduct(NamedTuple):
    """An einsum of rows by head.

    Attributes:
        outer: Of two operands with rows, summed over them; else of rows and a shared operand.
        swapped: The operand whose columns come first in ``order`` is the second of the einsum.
        order: Of a product, the axes (f, h, c) in the shared operand; of an outer one, where the result's axes are in
            (f, h, c).
    """

    outer: bool
    swapped: bool
    order: tuple[int, ...]


def head_product(spec: str) -> HeadProduct | None:
    """What ``spec`` is, or None.

    Example:
        >>> head_product("nhf,fhc->nhc")
        HeadProduct(outer=False, swapped=False, order=(0, 1, 2))
    """
    letters = re.split(",|->", spec)
    if len(letters) != 3 or any(len(part) != 3 for part in letters):
        return None
    left, right, result = letters
    for swapped, x, y in ((False, left, right), (True, right, left)):
        if x[0] != ROWS:
            continue
        if y[0] == ROWS and x[1] == y[1] and sorted(result) == sorted({x[1], x[2], y[2]} - {ROWS}):
            made = x[2] + x[1] + y[2]
            return HeadProduct(True, swapped, tuple(made.index(letter) for letter in result))
        if ROWS not in y and result[:2] == x[:2] and sorted(y) == sorted({x[1], x[2], result[2]}):
            return HeadProduct(False, swapped, tuple(y.index(letter) for letter in (x[2], x[1], result[2])))
    return None


class VectorProduct(NamedTuple):
    """An einsum of rows and one vector per head.

    Attributes:
        kind: "dots" ``nhc,hc->nh``, "sums" ``nh,nhc->hc`` or "products" ``nh,hc->nhc``.
        swapped: The operands come the other way round.
    """

    kind: str
    swapped: bool


def vector_product(spec: str) -> VectorProduct | None:
    """What ``spec`` is, or None; rows may be those of a shared operand, as in ``fhc,hc->fh``.

    Example:
        >>> vector_product("hc,fhc->fh")
        VectorProduct(kind='dots', swapped=True)
    """
    letters = re.split(",|->", spec)
    if len(letters) != 3 or any(len(set(part)) != len(part) for part in letters):
        return None
    left, right, result = letters
    for swapped, x, y in ((False, left, right), (True, right, left)):
        if (len(x), len(y)) == (3, 2) and y == x[1:] and result == x[:2]:
            return VectorProduct("dots", swapped)
        if (len(x), len(y)) == (2, 3) and x == y[:2] and result == y[1:]:
            return VectorProduct("sums", swapped)
        if (len(x), len(y)) == (2, 2) and y[0] == x[1] and result == x + y[1]:
            return VectorProduct("products", swapped)
    return None
