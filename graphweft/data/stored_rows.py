"""The structure of a graph larger than memory in one file, by node, for partitioners that read it pass after pass.

Comes in: edges in chunks. Goes out: every node's neighbours, whatever the direction of an edge, each once and without
itself, in pieces of consecutive nodes. Called by :mod:`graphweft.data.prepare_store`. An external bucket sort makes
the file; 8 bytes a node and one piece are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._workers import become_worker
from graphweft.data.edge_deal import compressed
from graphweft.data.edge_runs import sort_edges
from graphweft.data.store_input import Edges, StoreInput
from graphweft.data.store_writes import Behind, opened, settle, write_all
from graphweft.graph.adjacency import Adjacency
from graphweft.storage.block_io import array_bytes, expect_no_more, forget_pages, read_bytes

_PIECE = 1 << 15  # nodes that are given buckets at a time
_EDGE_BYTES = 40  # of an entry of a bucket at its peak: pair as read, column, place; column that is being written
_ROW_BYTES = 32  # of an entry while a piece is worked on: two columns, and the entries between clusters with their keys


class StoredRows:
    """Neighbours of every node, in a file.

    Args:
        path: The file: int32 neighbours, node after node, ascending.
        indptr: int64 (N + 1,) offsets.
        memory: Bytes for a piece.
    """

    def __init__(self, path: Path, indptr: NDArray[np.int64], memory: int) -> None:
        self._path, self._indptr = path, indptr
        self._most = max(memory // _ROW_BYTES, 1024)

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return len(self._indptr) - 1

    @property
    def num_entries(self) -> int:
        """Neighbours of all nodes."""
        return int(self._indptr[-1])

    def remove(self) -> None:
        """Deletes the file."""
        self._path.unlink(missing_ok=True)

    def pieces(self) -> Iterator[tuple[int, Adjacency]]:
        """The first node of each piece, and its rows; the next piece is read meanwhile.

        Raises: DataError for a file that cannot be read.
        """
        nodes = self.num_nodes
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        expect_no_more(handle)
        try:
            with ThreadPoolExecutor(1, "graphweft-rows", become_worker) as reading:
                first, end = 0, self._end(0)
                coming = reading.submit(self._columns, handle, first, end)
                while first < nodes:
                    columns, after = coming.result(), self._end(end)
                    if end < nodes:
                        coming = reading.submit(self._columns, handle, end, after)
                    offsets = torch.from_numpy(self._indptr[first : end + 1] - self._indptr[first])
                    yield first, Adjacency(offsets, torch.from_numpy(columns), None, nodes)
                    del columns
                    first, end = end, after
        finally:
            os.close(handle)

    def _end(self, first: int) -> int:
        """The node after the piece that begins with this one."""
        if first >= self.num_nodes:
            return first
        most = int(self._indptr[first]) + self._most
        return max(int(np.searchsorted(self._indptr, most, "right")) - 1, first + 1)

    def _columns(self, handle: int, first: int, end: int) -> NDArray[np.int32]:
        """Neighbours of the nodes from ``first`` to ``end``. Raises: DataError."""
        begin = int(self._indptr[first])
        columns = np.empty(int(self._indptr[end]) - begin, np.int32)
        read_bytes(handle, str(self._path), 4 * begin, array_bytes(columns))
        forget_pages(handle, 4 * begin, columns.nbytes)
        return columns


def sorted_rows(source: StoreInput, folder: Path, memory: int, done: Callable[[int], None]) -> StoredRows:
    """Writes the file; ``folder`` is where, ``memory`` bytes for sorting.

    Raises: DataError for ids out of range, or a disk that is full.
    """
    nodes, count = source.num_nodes, (1 if source.both_ways else 2) * (source.num_edges or 0)
    buckets = int(min(max(4 * count * _EDGE_BYTES // max(memory, 1), 1), 1 << 16, max(nodes, 1)))
    bucket: NDArray[np.unsignedinteger] = np.empty(nodes, np.uint8 if buckets <= 1 << 8 else np.uint16)
    for first in range(0, nodes, _PIECE):
        ids = np.arange(first, min(first + _PIECE, nodes))
        bucket[first : first + len(ids)] = ids * buckets // nodes
    starts = np.searchsorted(bucket, np.arange(buckets + 1))

    def both(most: int) -> Iterator[Edges]:
        for edges in source.edges(most):
            yield edges
            if not source.both_ways:
                yield Edges(edges.dst, edges.src)

    runs_file, path, kind = folder / "rows.runs", folder / "rows.sorted", np.dtype(np.int32)
    given = (source.name, both, bucket, None, buckets, runs_file, memory, done)
    runs = sort_edges(*given, total=count, dtype=kind)
    del bucket
    indptr = np.zeros(nodes + 1, np.int64)
    written = 0
    with opened(path, fresh=True) as handle, Behind() as writing:

        def write(columns: NDArray[np.signedinteger[Any]], first: int) -> None:
            write_all(handle, path, columns, 4 * first)
            settle(handle, path)

        for number in range(buckets):
            first, last = int(starts[number]), int(starts[number + 1])
            offsets, columns = compressed(runs.whole(number), first, last - first, once=True)
            indptr[first + 1 : last + 1] = offsets[1:] + written
            writing.begin(write, columns, written)
            written += len(columns)
            del columns, offsets
    runs_file.unlink()
    return StoredRows(path, indptr, memory)


__all__ = ["StoredRows", "sorted_rows"]
