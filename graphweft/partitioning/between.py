"""The graph between clusters of nodes: entries of equal ends become one, beyond a bound a sample of them.

Comes in: rows of a structure in pieces, the cluster of every node. Goes out: an adjacency over clusters and the weight
of each of its entries. Called by :mod:`graphweft.partitioning.multilevel`. A structure in one piece is counted first
and then written where it stays, so nothing is held beside the result.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._native import declare
from graphweft.graph.adjacency import Adjacency

_contract = declare("gw_multilevel_contract")

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Between:
    """The entries between clusters, put together piece by piece.

    Args:
        clusters: How many there are.
        most: Entries that are kept; of more a sample is taken, by pairs of clusters.
    """

    def __init__(self, clusters: int, most: int) -> None:
        self._clusters, self._most, self._kept = clusters, most, 1.0
        self._whole: tuple[Longs, Ints, Ints] | None = None
        self._found: list[tuple[Longs, NDArray[Any]]] = []  # keys, weights
        self._count = 0

    def add(self, first: int, rows: Adjacency, edge_weight: Ints | None, of: Ints) -> None:
        """The entries of some rows."""
        made = self._contracted(first, rows, edge_weight, of)
        if rows.num_rows == of.size:
            self._whole = made
            return
        indptr, indices, weights = made
        keys = np.repeat(np.arange(self._clusters, dtype=np.int64) * self._clusters, np.diff(indptr))
        keys += indices
        self._found.append((keys, weights))
        self._count += keys.size
        if self._count > self._most:
            self._merge()
            while self._count > self._most // 2:
                self._kept *= 0.5
                keys, weights = self._found[0]
                taken = self._sampled(keys)
                self._found, self._count = [(keys[taken], weights[taken])], int(taken.sum())

    def graph(self) -> tuple[Adjacency, Ints]:
        """Structure and weights of entries."""
        if self._whole is not None:
            return Adjacency(*map(torch.from_numpy, self._whole[:2]), None, self._clusters), self._whole[2]
        self._merge()
        keys, weights = self._found[0]
        rows = np.bincount(keys // self._clusters, minlength=self._clusters)
        indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(rows)]))
        indices = torch.from_numpy((keys % self._clusters).astype(np.int32))
        most = np.iinfo(np.int32).max
        return Adjacency(indptr, indices, None, self._clusters), np.minimum(weights, most).astype(np.int32)

    def _contracted(self, first: int, rows: Adjacency, edge_weight: Ints | None, of: Ints) -> tuple[Longs, Ints, Ints]:
        """Offsets, indices and weights of the entries of some rows; of fewer pairs where they alone are too many."""
        indptr, most = np.empty(self._clusters + 1, np.int64), self._most
        while True:
            given = (ctypes.byref(rows.native), first, address(edge_weight), address(of), self._clusters)
            _contract(*given, self._kept, address(indptr), None, None)
            count = int(indptr[-1])
            if count <= most:
                break
            self._kept, most = 0.5 * self._kept, self._most // 2
        indices, weights = np.empty(count, np.int32), np.empty(count, np.int32)
        if count:  # an array of no elements has an address, but it stands for the call that counts
            _contract(*given, self._kept, address(indptr), address(indices), address(weights))
        return indptr, indices, weights

    def _sampled(self, keys: Longs) -> NDArray[np.bool_]:
        """Whether each entry is kept, by the rule of ``in_sample`` in multilevel.h."""
        one, other = keys // self._clusters, keys % self._clusters
        mixed = (np.minimum(one, other) * self._clusters + np.maximum(one, other)).astype(np.uint64)
        for shift in (np.uint64(33), np.uint64(29)):
            mixed = (mixed ^ (mixed >> shift)) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(11)).astype(np.float64) < self._kept * 2.0**53

    def _merge(self) -> None:
        """Equal entries become one, in ascending order."""
        keys = np.concatenate([pair[0] for pair in self._found])
        weights = np.concatenate([pair[1] for pair in self._found])
        self._found.clear()
        order = np.argsort(keys, kind="stable")
        keys, weights = keys[order], weights[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
        merged = np.add.reduceat(weights, starts, dtype=np.int64) if len(starts) else weights
        self._found, self._count = [(keys[starts], merged)], len(starts)


def address(array: NDArray[Any] | None) -> int | None:
    """Of the first element."""
    return None if array is None else array.ctypes.data


__all__ = ["Between", "address"]
