"""Edges sorted by the part of their destination with bounded memory: an external bucket sort.

Comes in: edges in chunks, in the numbers of the source. Goes out: for every part its edges in the numbers of the store,
read back from sorted runs in one file. Called by :mod:`graphweft.data.store_build`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphweft.data.edge_deal import dealt
from graphweft.data.store_input import Edges, check_ends
from graphweft.data.store_writes import Behind, opened, settle, write_all
from graphweft.storage.block_io import array_bytes, expect_no_more, forget_pages, read_bytes

_EDGE_BYTES = 72  # of a chunk's edge at its peak: ends as read and as int64, pairs, and those that are being written
_CUT = 8  # bytes of where a part begins in a run


class EdgeRuns:
    """Runs of edges, each sorted by part.

    Args:
        path: The file of all runs.
        parts: Number of parts.
        dtype: Of ids in the store.
        cuts: For every run the first edge of each part and the end, (parts + 1,), counted over the file.
        columns: What a run has of an edge beside its ends: "relation", "weight".
        of_relation: Edges of each relation.
    """

    def __init__(
        self,
        path: Path,
        parts: int,
        dtype: np.dtype[np.signedinteger],
        cuts: list[NDArray[np.int64]],
        columns: tuple[str, ...] = (),
        of_relation: list[int] | None = None,
    ) -> None:
        self.path, self.parts, self.dtype, self.cuts, self.columns = path, parts, dtype, cuts, columns
        self.of_relation = of_relation or []

    @property
    def width(self) -> int:
        """Bytes of an edge."""
        return (2 + len(self.columns)) * self.dtype.itemsize

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the edges of each relation begin, and the number of all."""
        return (0, *accumulate(self.of_relation))

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.width * self.num_edges

    @property
    def resident(self) -> int:
        """Bytes of memory: where parts begin in every run."""
        return _CUT * (self.parts + 1) * len(self.cuts)

    @property
    def num_edges(self) -> int:
        """Edges of all runs."""
        return int(self.cuts[-1][-1]) if self.cuts else 0

    def count(self, part: int) -> int:
        """Edges into a part."""
        return sum(int(cut[part + 1] - cut[part]) for cut in self.cuts)

    def whole(self, part: int) -> NDArray[np.signedinteger]:
        """(n, 2 and more) as :meth:`read`, all at once. Raises: DataError."""
        found, filled = np.empty((self.count(part), 2 + len(self.columns)), self.dtype), 0
        for pairs in self.read(part, max(len(found), 1), found):
            filled += len(pairs)
        return found

    def read(
        self, part: int, most: int, out: NDArray[np.signedinteger] | None = None
    ) -> Iterator[NDArray[np.signedinteger]]:
        """(n, 2 and more) destination, source and columns, at most ``most`` at a time; into ``out``, one after another.

        Raises: DataError.
        """
        width, filled = self.width, 0
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        expect_no_more(handle)  # a run is read at the place of one part, and there are many
        try:
            for cut in self.cuts:
                for first in range(int(cut[part]), int(cut[part + 1]), most):
                    last = min(first + most, int(cut[part + 1]))
                    if out is None:
                        pairs = np.empty((last - first, 2 + len(self.columns)), self.dtype)
                    else:
                        pairs = out[filled : filled + last - first]
                    filled += len(pairs)
                    read_bytes(handle, str(self.path), first * width, array_bytes(pairs))
                    forget_pages(handle, first * width, pairs.nbytes)
                    yield pairs
            forget_pages(handle)
        finally:
            os.close(handle)


def sort_edges(
    who: str,
    edges: Callable[[int], Iterator[Edges]],
    part: NDArray[np.integer],
    new_id: NDArray[np.signedinteger] | None,
    parts: int,
    path: Path,
    memory: int,
    done: Callable[[int], None],
    columns: tuple[str, ...] = (),
    relations: int = 0,
    total: int | None = None,
    dtype: np.dtype[np.signedinteger] | None = None,
) -> EdgeRuns:
    """Writes all edges as sorted runs.

    Args:
        who: Name of the dataset, for messages.
        edges: Gives the edges, so many at a time.
        part: (N,) part of every node of the source.
        new_id: (N,) its id in the store; None: that of the source, as ``dtype``, without columns.
        parts: Number of parts.
        path: The file to write.
        memory: Bytes that may be used.
        done: Told how many edges were read.
        columns: What is kept of an edge beside its ends: "relation", "weight".
        relations: Their number.
        total: Edges, where that is known: what they are given in runs shares the memory with where these are cut.
        dtype: Of ids; that of ``new_id``.

    Raises: DataError for ids out of range, or a disk that is full.
    """
    kind = new_id.dtype if new_id is not None else dtype
    assert kind is not None  # one of them is given
    runs = EdgeRuns(path, parts, kind, [], columns)
    most = max(_edges_of_run(memory, parts, total or 0, _EDGE_BYTES + 2 * kind.itemsize * len(columns)), 1024)
    written = 0
    of_relation = np.zeros(relations, np.int64)

    def write(pairs: NDArray[np.signedinteger], first: int) -> None:
        write_all(handle, path, pairs, first * runs.width)
        settle(handle, path)
        done(first + len(pairs))

    with opened(path, fresh=True) as handle, Behind() as writing:
        for chunk in edges(most):
            check_ends(who, chunk.src, chunk.dst, len(part))
            if columns or part.dtype.kind != "u":
                assert new_id is not None  # without columns alone
                pairs, cut = _with_columns(chunk, part, new_id, parts, columns)
            else:
                pairs, cut = dealt(chunk.src, chunk.dst, part, new_id, parts, kind)
            if chunk.relation is not None:
                of_relation += np.bincount(chunk.relation, minlength=relations)
            del chunk
            runs.cuts.append(cut + written)
            writing.begin(write, pairs, written)
            written += len(pairs)
            del pairs
    runs.of_relation = of_relation.tolist()
    return runs


def _edges_of_run(memory: int, parts: int, total: int, width: int) -> int:
    """As many edges at a time as there is memory for, with the cuts of all runs; the fewest bytes where there is none.

    ``x`` edges take ``width * x`` bytes, and the cuts ``cuts / x``.
    """
    cuts = _CUT * (parts + 1) * total
    left = memory * memory - 4 * width * cuts
    return (memory + math.isqrt(left)) // (2 * width) if left > 0 else math.isqrt(cuts // width)


def least_to_sort(parts: int, total: int) -> int:
    """Bytes that sorting so many edges without columns takes at the least.

    Example:
        >>> least_to_sort(64, 10_000), least_to_sort(64, 1_000_000_000)
        (38698, 12237646)
    """
    return 2 * math.isqrt(_EDGE_BYTES * _CUT * (parts + 1) * total)


def _with_columns(
    edges: Edges, part: NDArray[np.integer], new_id: NDArray[np.signedinteger], parts: int, columns: tuple[str, ...]
) -> tuple[NDArray[np.signedinteger], NDArray[np.int64]]:
    """Edges by part with what they have beside their ends, and where each part begins."""
    of = part[edges.dst]
    order = np.argsort(of, kind="stable")  # of small integers by radix
    pairs = np.empty((len(of), 2 + len(columns)), new_id.dtype)
    pairs[:, 0], pairs[:, 1] = new_id[edges.dst][order], new_id[edges.src][order]
    for place, name in enumerate(columns, 2):
        values = edges.relation if name == "relation" else edges.weight
        assert values is not None  # of an input with such columns
        kept = values[order]
        pairs[:, place] = kept if name == "relation" else kept.astype(np.float32).view(np.int32)
    cut = np.zeros(parts + 1, np.int64)
    np.cumsum(np.bincount(of, minlength=parts), out=cut[1:])
    return pairs, cut
