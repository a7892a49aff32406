"""Sparse features as kernels take them: compressed rows with their transposed layout, with dropout or without.

Comes in: :class:`SparseFeatures`; :func:`graphweft.train.settle.settle_features` makes them of a dense matrix where
that is faster. Goes out: :class:`SparseOperand`, which adds dropout without copying their structure. A sparse input
never becomes dense. Source: Morphling, section IV-B (threshold).
"""

from __future__ import annotations

from torch import Tensor

from graphweft.graph.adjacency import Adjacency
from graphweft.runtime import sparse
from graphweft.storage.feature import SparseFeatures

DEFAULT_THRESHOLD = 0.80  # 1 - gamma with Morphling's default efficiency ratio gamma = 0.20


class SparseOperand:
    """Sparse features, with dropout of their stored entries or without."""

    def __init__(self, base: SparseFeatures, dropout: tuple[float, int, int] | None = None) -> None:
        self.base, self._dropout = base, dropout

    @classmethod
    def of(cls, x: SparseFeatures | SparseOperand) -> SparseOperand:
        """``x`` as an operand."""
        return x if isinstance(x, SparseOperand) else cls(x)

    def dropped(self, p: float, seed: int, stream: int) -> SparseOperand:
        """With dropout: each stored entry kept with probability 1 - p by (seed, stream, node, feature)."""
        return SparseOperand(self.base, (p, seed, stream))

    def by_row(self) -> tuple[Adjacency, Tensor]:
        """Rows are nodes, columns are features."""
        return self._with_dropout(self.base.adjacency, self.base.values, transposed=False)

    def by_column(self) -> tuple[Adjacency, Tensor]:
        """Rows are features, columns are nodes."""
        adjacency, values = self.base.transposed
        return self._with_dropout(adjacency, values, transposed=True)

    def take_rows(self, rows: Tensor) -> SparseFeatures:
        """Rows ``rows[i]`` one after the other, with the dropout of the nodes that they are."""
        return self.base.with_values(self.by_row()[1]).take_rows(rows)

    def _with_dropout(self, adjacency: Adjacency, values: Tensor, *, transposed: bool) -> tuple[Adjacency, Tensor]:
        if self._dropout is None:
            return adjacency, values
        p, seed, stream = self._dropout
        kept = sparse.sparse_dropout(
            adjacency, values, width=self.base.width, transposed=transposed, p=p, seed=seed, stream=stream
        )
        return adjacency, kept
