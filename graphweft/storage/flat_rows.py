"""Rows of features of a typed graph whose types have columns of their own, as one sparse matrix has them.

Comes in: nodes in the numbers of the source, and the rows of those that have features. Goes out: sparse rows: the
columns of all types side by side, and a column for every node of a type without features, so that a matrix of weights
holds an embedding of each. Called for batches and inference from a store; a dataset in memory gives the same rows.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.store import Store

_VALUES = 1 << 16  # of dense rows whose places are looked at together


class FlatRows:
    """Makes sparse rows of nodes.

    Args:
        node_offsets: Where the nodes of each type begin, and the number of all.
        widths: Columns of each type's features, 0 without.

    Attributes:
        width: Columns of all types.
        stored_width: Columns of the widest type.
        widths: int64 columns of each type's features, 0 without.
        starts: int64 first column of each type.

    Example:
        >>> rows = FlatRows((0, 2, 4), (0, 3))
        >>> found = rows.rows(torch.tensor([1, 3]), torch.tensor([[5.0, 0.0, 6.0]]))
        >>> found.to_dense().tolist()
        [[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0, 6.0]]
    """

    def __init__(self, node_offsets: tuple[int, ...], widths: tuple[int, ...]) -> None:
        own = [w or b - a for w, a, b in zip(widths, node_offsets[:-1], node_offsets[1:], strict=True)]
        self.starts, self.widths = torch.tensor([0, *accumulate(own)]), torch.tensor(widths, dtype=torch.int64)
        self._ends, self._firsts = torch.tensor(node_offsets[1:]), torch.tensor(node_offsets[:-1])
        self._is_stored = torch.tensor([width > 0 for width in widths])
        self.width, self.stored_width = sum(own), max(widths, default=0)
        self._step = max(_VALUES // max(self.stored_width, 1), 1)

    def is_stored(self, ids: Tensor) -> Tensor:
        """Whether each node has features of its own."""
        return self._is_stored[self.types(ids)]

    def types(self, ids: Tensor) -> Tensor:
        """int64 type of each node."""
        return torch.searchsorted(self._ends, ids, right=True)

    def columns(self, ids: Tensor, types: Tensor) -> Tensor:
        """The column of each node of a type without features, among those of all."""
        return self.starts[types] + ids - self._firsts[types]

    def rows(self, ids: Tensor, own: Tensor) -> SparseFeatures:
        """(n, :attr:`width`) rows of nodes; ``own``: the features of those that have some, in their order.

        A row of ``own`` that has fewer columns than the widest ends in zeros.
        """
        types = self.types(ids)
        stored = self._is_stored[types].numpy()
        counts = np.ones(len(stored), np.int64)
        pieces = range(0, len(own), self._step)
        some = [np.count_nonzero(own[first : first + self._step].float().numpy(), axis=1) for first in pieces]
        counts[stored] = np.concatenate([np.empty(0, np.int64), *some])
        indptr = np.concatenate([[0], np.cumsum(counts)])
        columns = np.empty(indptr[-1], np.int32 if self.width < 2**31 else np.int64)
        values = np.empty(len(columns), np.float32)
        alone = indptr[:-1][~stored]
        columns[alone] = self.columns(ids, types).numpy()[~stored]
        values[alone] = 1.0
        # pieces of dense rows, as the place of a value takes several times what it does
        starts, shifts = indptr[:-1][stored], self.starts[types].numpy()[stored]
        for first in pieces:
            self._put(own[first : first + self._step], starts[first:], shifts[first:], columns, values)
        found = (torch.from_numpy(indptr), torch.from_numpy(columns), torch.from_numpy(values))
        return SparseFeatures(*found, (ids.numel(), self.width))

    @staticmethod
    def _put(own: Tensor, starts: Ids, shifts: Ids, columns: NDArray[Any], values: NDArray[np.float32]) -> None:
        """Values and columns of dense rows, each from its start on."""
        dense = own.float().numpy()
        row, column = np.nonzero(dense)
        firsts = np.searchsorted(row, np.arange(len(dense)))
        at = np.arange(len(row)) + (starts[: len(dense)] - firsts)[row]
        columns[at] = column + shifts[row]
        values[at] = dense[row, column]


def flat_rows_of(store: Store) -> FlatRows | None:
    """The rows of a typed store whose types have columns of their own; None for another."""
    types, widths = store.types, store.manifest.shape.type_widths
    return FlatRows(types.node_offsets, widths) if types is not None and widths else None


__all__ = ["FlatRows", "flat_rows_of"]
