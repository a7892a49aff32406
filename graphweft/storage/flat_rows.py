"""Rows of features of a typed graph whose types have columns of their own, as one sparse matrix has them.

Comes in: nodes in the numbers of the source, and the rows of those that have features. Goes out: sparse rows: the
columns of all types side by side, and a column for every node of a type without features, so that a matrix of weights
holds an embedding of each. Called for batches and inference from a store; a dataset in memory gives the same rows.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from graphweft.storage.feature import SparseFeatures
from graphweft.storage.store import Store


class FlatRows:
    """Makes sparse rows of nodes.

    Args:
        node_offsets: Where the nodes of each type begin, and the number of all.
        widths: Columns of each type's features, 0 without.

    Attributes:
        width: Columns of all types.
        stored_width: Columns of the widest type.

    Example:
        >>> rows = FlatRows((0, 2, 4), (0, 3))
        >>> found = rows.rows(torch.tensor([1, 3]), torch.tensor([[5.0, 0.0, 6.0]]))
        >>> found.to_dense().tolist()
        [[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0, 6.0]]
    """

    def __init__(self, node_offsets: tuple[int, ...], widths: tuple[int, ...]) -> None:
        own = [w or b - a for w, a, b in zip(widths, node_offsets[:-1], node_offsets[1:], strict=True)]
        self._starts = torch.tensor([0, *accumulate(own)])
        self._ends, self._firsts = torch.tensor(node_offsets[1:]), torch.tensor(node_offsets[:-1])
        self._is_stored = torch.tensor([width > 0 for width in widths])
        self.width, self.stored_width = sum(own), max(widths, default=0)

    def is_stored(self, ids: Tensor) -> Tensor:
        """Whether each node has features of its own."""
        return self._is_stored[self._types(ids)]

    def _types(self, ids: Tensor) -> Tensor:
        return torch.searchsorted(self._ends, ids, right=True)

    def rows(self, ids: Tensor, own: Tensor) -> SparseFeatures:
        """(n, :attr:`width`) rows of nodes; ``own``: the features of those that have some, in their order.

        A row of ``own`` that has fewer columns than the widest ends in zeros.
        """
        types = self._types(ids)
        stored = self._is_stored[types]
        found = SparseFeatures.from_dense(own.float())
        counts = torch.ones(ids.numel(), dtype=torch.int64)
        counts[stored] = found.indptr.diff()
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        columns = torch.empty(int(indptr[-1]), dtype=torch.int64)
        values = torch.ones(columns.numel())
        alone = ~stored
        single = torch.zeros(columns.numel(), dtype=torch.bool)
        single[indptr[:-1][alone]] = True
        columns[single] = (self._starts[types] + ids - self._firsts[types])[alone]
        shift = self._starts[types[stored]].repeat_interleave(counts[stored])
        columns[~single] = found.indices.long() + shift
        values[~single] = found.values
        narrow = torch.int32 if self.width < 2**31 else torch.int64
        return SparseFeatures(indptr, columns.to(narrow), values, (ids.numel(), self.width))


def flat_rows_of(store: Store) -> FlatRows | None:
    """The rows of a typed store whose types have columns of their own; None for another."""
    types, widths = store.types, store.manifest.shape.type_widths
    return FlatRows(types.node_offsets, widths) if types is not None and widths else None


__all__ = ["FlatRows", "flat_rows_of"]
