"""Pooling that keeps some nodes of every graph: those with the best learned scores.

Comes in: graphs side by side, rows of their nodes and their offsets. Goes out: the same of the nodes that are kept,
with the edges between them. Called within models of graphs, between their layers.
"""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.graph.side_by_side import owners
from graphweft.nn.gcn import GCNConv
from graphweft.nn.readout import check_ptr, graph_softmax


class Pooled(NamedTuple):
    """Graphs side by side after some of their nodes were taken.

    Attributes:
        graph: The nodes that were kept, renumbered graph after graph, with the edges between them in their order.
        x: (kept, C) their rows times their scores.
        ptr: int64 (graphs + 1,) offsets of the graphs.
        nodes: int64 (kept,): which nodes they are, in each graph by descending score (with ``min_score`` by id).
        scores: (kept,) their scores.
        edges: int64: which edges were kept.
    """

    graph: Graph
    x: Float[Tensor, "kept c"]
    ptr: Int64[Tensor, "offsets"]
    nodes: Int64[Tensor, "kept"]
    scores: Float[Tensor, "kept"]
    edges: Int64[Tensor, "edges"]


class _ByScore(nn.Module, abc.ABC):
    """What both ways of scoring share.

    Args:
        width: Columns of the rows.
        ratio: Share of the nodes that every graph keeps, rounded up, as a fraction up to 1; an integer: so many.
        min_score: Keep the nodes whose score, then a softmax over the graph, is above this instead, at least one.
        multiplier: Factor of the kept rows.
    """

    def __init__(self, width: int, ratio: float | int, min_score: float | None, multiplier: float) -> None:
        super().__init__()
        who = type(self).__name__
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ConfigError(f"{who}: expected width >= 1, got {width!r}")
        fraction = isinstance(ratio, float) and 0 < ratio <= 1
        if not fraction and (isinstance(ratio, bool) or not isinstance(ratio, int) or ratio < 1):
            raise ConfigError(f"{who}: expected ratio as a fraction in (0, 1] or a number of nodes >= 1, got {ratio!r}")
        self.width, self.ratio, self.min_score, self.multiplier = width, ratio, min_score, multiplier

    @abc.abstractmethod
    def score(self, graph: Graph, x: Float[Tensor, "nodes c"]) -> Float[Tensor, "nodes"]:
        """A number for every node, (N,)."""

    def forward(self, graph: Graph, x: Float[Tensor, "nodes c"], ptr: Int64[Tensor, "offsets"]) -> Pooled:
        """Shape: x (N, width), ptr (graphs + 1,).

        Raises: ShapeError for rows that do not fit.
        """
        who = type(self).__name__
        check_ptr(who, x, ptr)
        if tuple(x.shape) != (graph.num_nodes, self.width):
            expected = (graph.num_nodes, self.width)
            raise ShapeError(f"{who}: expected rows of shape {expected}, got {tuple(x.shape)}")
        raw = self.score(graph, x)
        if self.min_score is None:
            scores = raw.tanh()
            nodes = _best(scores.detach(), ptr, self.ratio)
        else:
            scores = graph_softmax(raw[:, None], ptr).squeeze(1)
            nodes = _above(scores.detach(), ptr, self.min_score)
        counts = torch.bincount(owners(ptr)[nodes], minlength=ptr.numel() - 1)
        made, edges = _between(graph, nodes)
        kept = scores[nodes]
        rows = x[nodes] * kept[:, None]
        rows = rows if self.multiplier == 1 else rows * self.multiplier
        return Pooled(made, rows, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), nodes, kept, edges)

    def extra_repr(self) -> str:
        """Width and share."""
        kept = f"ratio={self.ratio}" if self.min_score is None else f"min_score={self.min_score}"
        return f"{self.width}, {kept}"


class TopKPool(_ByScore):
    """Keeps the nodes with the largest projections on a learned direction ``p`` (Gao and Ji, ICML 2019).

    The score of a node is ``tanh(x p / |p|)``. The kept rows are multiplied by it, so that ``p`` gets a gradient.

    Args:
        width: Columns of the rows.
        ratio: Share of the nodes that every graph keeps, a fraction up to 1, rounded up; an integer is their number.
        min_score: In place of ``ratio``: keep the nodes whose softmax over the graph is above this, but at least one.
        multiplier: Factor of the kept rows.

    Example:
        >>> pool = TopKPool(2, ratio=0.5)
        >>> out = pool(Graph([0, 1, 2], [1, 2, 3]), torch.randn(4, 2), torch.tensor([0, 4]))
        >>> out.graph.num_nodes, out.ptr.tolist()
        (2, [0, 2])
    """

    def __init__(
        self, width: int, ratio: float | int = 0.5, min_score: float | None = None, multiplier: float = 1.0
    ) -> None:
        super().__init__(width, ratio, min_score, multiplier)
        bound = 1.0 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def score(self, graph: Graph, x: Float[Tensor, "nodes c"]) -> Float[Tensor, "nodes"]:
        """``x p``, divided by the length of ``p`` where the share of nodes decides."""
        raw = (x * self.weight).sum(1)
        return raw if self.min_score is not None else raw / self.weight.norm()


class SAGPool(_ByScore):
    """Keeps the nodes with the highest scores of a graph convolution (Lee, Lee and Kang, ICML 2019).

    Args:
        width: Columns of the rows.
        ratio: As for :class:`TopKPool`.
        scorer: A layer called as ``scorer(graph, x)`` that returns (N, 1); None: a :class:`gw.nn.GCNConv`.
        min_score: As for :class:`TopKPool`.
        multiplier: Factor of the kept rows.

    Example:
        >>> SAGPool(2)(Graph([0, 1, 2], [1, 2, 3]), torch.randn(4, 2), torch.tensor([0, 4])).x.shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        width: int,
        ratio: float | int = 0.5,
        scorer: nn.Module | None = None,
        min_score: float | None = None,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__(width, ratio, min_score, multiplier)
        self.scorer = GCNConv(width, 1) if scorer is None else scorer

    def score(self, graph: Graph, x: Float[Tensor, "nodes c"]) -> Float[Tensor, "nodes"]:
        """What the layer says."""
        found = self.scorer(graph, x)
        if tuple(found.shape) != (graph.num_nodes, 1):
            expected = (graph.num_nodes, 1)
            raise ShapeError(f"SAGPool: expected scores of shape {expected}, got {tuple(found.shape)}")
        return found.squeeze(1)  # type: ignore[no-any-return]


def _best(scores: Tensor, ptr: Tensor, ratio: float | int) -> Tensor:
    """Ids of the nodes with the best scores of every graph, graph after graph, by descending score."""
    sizes = ptr.diff()
    if isinstance(ratio, int):
        counts = torch.minimum(sizes, sizes.new_tensor(ratio))
    else:
        counts = (ratio * sizes.to(scores.dtype)).ceil().long()
    order = _by_graph(scores, ptr)
    place = torch.arange(order.numel()) - ptr[:-1].repeat_interleave(sizes)
    return order[place < counts.repeat_interleave(sizes)]


def _above(scores: Tensor, ptr: Tensor, least: float) -> Tensor:
    """Ids of the nodes above ``least``, or, in a graph where all are below, near its best one."""
    sizes = ptr.diff()
    whose = owners(ptr)
    best = scores.new_full((sizes.numel(),), -math.inf).scatter_reduce(0, whose, scores, "amax")
    floor = torch.minimum(best - 1e-7, best.new_tensor(least))
    return (scores > floor[whose]).nonzero().reshape(-1)


def _by_graph(scores: Tensor, ptr: Tensor) -> Tensor:
    """All nodes, graph after graph, within each by descending score; equal scores keep their order."""
    first = torch.argsort(scores, descending=True, stable=True)
    return first[torch.argsort(owners(ptr)[first], stable=True)]


def _between(graph: Graph, nodes: Tensor) -> tuple[Graph, Tensor]:
    """The graph of ``nodes``, numbered in that order, with the edges between them, and which edges those are."""
    number = torch.full((graph.num_nodes,), -1)
    number[nodes] = torch.arange(nodes.numel())
    src, dst = (number[ends] for ends in graph.edges())
    edges = ((src >= 0) & (dst >= 0)).nonzero().reshape(-1)
    made = Graph(src[edges], dst[edges], num_nodes=nodes.numel())
    return made.as_drawn() if graph.is_drawn else made, edges
