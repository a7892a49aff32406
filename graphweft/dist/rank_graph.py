"""A rank's part as the graph that models are called with.

Comes in: a rank's :class:`LocalPart`. Goes out: :class:`RankGraph`: message passing on it borrows the rows of ghosts,
while rows that need none are computed. Called by full batches over ranks, for models that are no stack of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from graphweft.dist.halo import fetched, pieces_over_ranks
from graphweft.dist.local_part import LocalPart
from graphweft.graph.block import Block
from graphweft.graph.shared import SharedGraph

T = TypeVar("T")


class RankGraph(SharedGraph):
    """The part of one rank as a graph; all ranks call the same model with theirs.

    Example:
        >>> import torch
        >>> from graphweft.dist.ranks import Ranks
        >>> from graphweft.graph.graph import Graph
        >>> part = LocalPart(Ranks(), Graph([0, 1], [1, 2]), torch.zeros(3, dtype=torch.int64))
        >>> RankGraph.of(part).num_nodes
        3
    """

    __slots__ = ("_known", "_part", "_splits")

    _known: tuple[Any, Any] | None
    _part: LocalPart
    _splits: bool

    @classmethod
    def of(cls, part: LocalPart, splits: bool = True) -> RankGraph:
        """The graph of a part. ``splits``: rows that need no ghost may be computed apart from the others."""
        graph: RankGraph = cls.around(part.block)
        graph._known, graph._part, graph._splits = None, part, splits
        return graph

    def know(self, own: Any, table: Any) -> None:
        """Rows that stay as they are, and the same with those of ghosts: they need not travel."""
        self._known = own, table

    def over(self, rows: Any, run: Callable[[Block, Any], T]) -> list[T]:
        """As every shared graph's."""
        if self._known is not None and rows is self._known[0]:
            return [run(self.block, self._known[1])]
        return pieces_over_ranks(self._part, rows.contiguous(), run, splits=self._splits)

    def fetched(self, rows: Tensor) -> Tensor:
        """As every shared graph's."""
        return fetched(self._part, rows.contiguous())

    def span(self, block: Block) -> slice:
        """As every shared graph's."""
        part = self._part
        if block is part.inner:
            return slice(0, part.interior)
        return slice(part.interior, None) if block is part.outer else slice(0, None)
