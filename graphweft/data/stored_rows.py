"""The structure of a graph larger than memory in one file, by node, for partitioners that read it pass after pass.

Comes in: edges in chunks. Goes out: every node's neighbours, whatever the direction of an edge, each once and without
itself, in pieces of consecutive nodes. Called by :mod:`graphweft.data.prepare_store`. An external bucket sort makes
the file; 8 bytes a node and one piece are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft.data.edge_runs import EdgeRuns, sort_edges
from graphweft.data.store_input import Edges, StoreInput
from graphweft.data.store_writes import opened, settle, write_all
from graphweft.graph.adjacency import Adjacency
from graphweft.storage.block_io import array_bytes, forget_pages, read_bytes

_EDGE_BYTES = 40  # of an entry of a bucket at its peak: pair as read, key, sorted and unique keys, column
_ROW_BYTES = 28  # of an entry while a piece is worked on: column, and the entries between clusters with their keys


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
        """The first node of each piece, and its rows. Raises: DataError for a file that cannot be read."""
        indptr, nodes, first = self._indptr, self.num_nodes, 0
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while first < nodes:
                begin = int(indptr[first])
                last = max(int(np.searchsorted(indptr, begin + self._most, "right")) - 1, first + 1)
                columns = np.empty(int(indptr[last]) - begin, np.int32)
                read_bytes(handle, str(self._path), 4 * begin, array_bytes(columns))
                forget_pages(handle, 4 * begin, columns.nbytes)
                offsets = torch.from_numpy(indptr[first : last + 1] - begin)
                yield first, Adjacency(offsets, torch.from_numpy(columns), None, nodes)
                first = last
        finally:
            os.close(handle)


def sorted_rows(source: StoreInput, folder: Path, memory: int, done: Callable[[int], None]) -> StoredRows:
    """Writes the file; ``folder`` is where, ``memory`` bytes for sorting.

    Raises: DataError for ids out of range, or a disk that is full.
    """
    nodes, count = source.num_nodes, 2 * (source.num_edges or 0)
    buckets = int(min(max(4 * count * _EDGE_BYTES // max(memory, 1), 1), 1 << 16, max(nodes, 1)))
    bucket: NDArray[np.unsignedinteger] = np.empty(nodes, np.uint8 if buckets <= 1 << 8 else np.uint16)
    for first in range(0, nodes, 1 << 18):
        ids = np.arange(first, min(first + (1 << 18), nodes))
        bucket[first : first + len(ids)] = ids * buckets // nodes
    starts = np.searchsorted(bucket, np.arange(buckets + 1))

    def both(most: int) -> Iterator[Edges]:
        for edges in source.edges(max(most // 2, 1)):
            yield Edges(np.concatenate([edges.src, edges.dst]), np.concatenate([edges.dst, edges.src]))

    runs_file, path = folder / "rows.runs", folder / "rows.sorted"
    runs = sort_edges(source.name, both, bucket, np.arange(nodes, dtype=np.int32), buckets, runs_file, memory, done)
    del bucket
    indptr = np.zeros(nodes + 1, np.int64)
    written = 0
    with opened(path, fresh=True) as handle:
        for number in range(buckets):
            first, last = int(starts[number]), int(starts[number + 1])
            keys = _keys(runs, number, first, nodes, max(memory // _EDGE_BYTES, 1024))
            rows, columns = keys // nodes, (keys % nodes).astype(np.int32)
            indptr[first + 1 : last + 1] = np.bincount(rows, minlength=last - first)
            write_all(handle, path, columns, 4 * written)
            written += len(columns)
            settle(handle, path)
    np.cumsum(indptr, out=indptr)
    runs_file.unlink()
    return StoredRows(path, indptr, memory)


def _keys(runs: EdgeRuns, number: int, first: int, nodes: int, most: int) -> NDArray[np.int64]:
    """Row times nodes plus column of the entries of a bucket, ascending, each once, without self-loops."""
    found = np.empty(runs.count(number), np.int64)
    filled = 0
    for pairs in runs.read(number, most):
        inside = pairs[pairs[:, 0] != pairs[:, 1]]
        found[filled : filled + len(inside)] = (inside[:, 0].astype(np.int64) - first) * nodes + inside[:, 1]
        filled += len(inside)
    found = found[:filled]
    found.sort()
    again = np.zeros(filled, np.bool_)
    np.equal(found[1:], found[:-1], out=again[1:])
    return found[~again]


__all__ = ["StoredRows", "sorted_rows"]
