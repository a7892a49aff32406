"""The graph between clusters of nodes: entries of equal ends become one, beyond a bound a sample of them.

Comes in: rows of a structure in pieces, the cluster of every node. Goes out: an adjacency over clusters and the weight
of each of its entries. Called by :mod:`graphweft.partitioning.multilevel`. All is counted first and then written where
it stays, so nothing is held beside the result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._native import declare
from graphweft.graph.adjacency import Adjacency

_contract = declare("gw_multilevel_contract")
_merge = declare("gw_multilevel_merge")

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


_Rows = tuple[Longs, Ints, Ints]  # offsets, indices and weights


class Between:
    """The entries between clusters, put together piece by piece.

    Args:
        clusters: How many there are.
        most: Entries that are kept; of more a sample is taken, by pairs of clusters.
    """

    def __init__(self, clusters: int, most: int) -> None:
        self._clusters, self._most, self._kept = clusters, most, 1.0
        self._found: _Rows | None = None

    def add(self, first: int, rows: Adjacency, edge_weight: Ints | None, of: Ints) -> None:
        """The entries of some rows."""
        given = (ctypes.byref(rows.native), first, address(edge_weight), address(of), self._clusters)
        made, former = self._counted(lambda *out: _contract(*given, self._kept, *out)), self._found
        if former is None:
            self._found = made
            return
        both = (*(array.ctypes.data for array in (*former, *made)), self._clusters)
        self._found = self._counted(lambda *out: _merge(*both, self._kept, *out))

    def graph(self) -> tuple[Adjacency, Ints]:
        """Structure and weights of entries."""
        none = (np.zeros(self._clusters + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
        ends, columns, weight = none if self._found is None else self._found
        return Adjacency(torch.from_numpy(ends), torch.from_numpy(columns), None, self._clusters), weight

    def _counted(self, call: Callable[..., Any]) -> _Rows:
        """What two calls make, of which the first counts; of fewer pairs where all are too many."""
        indptr, most = np.empty(self._clusters + 1, np.int64), self._most
        while True:
            call(address(indptr), None, None)
            count = int(indptr[-1])
            if count <= most:
                break
            self._kept, most = 0.5 * self._kept, self._most // 2
        indices, weights = np.empty(count, np.int32), np.empty(count, np.int32)
        if count:  # an array of no elements has an address, but it stands for the call that counts
            call(address(indptr), address(indices), address(weights))
        return indptr, indices, weights


def address(array: NDArray[Any] | None) -> int | None:
    """Of the first element."""
    return None if array is None else array.ctypes.data


__all__ = ["Between", "address"]
