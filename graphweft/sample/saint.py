"""GraphSAINT: subgraphs from independent draws of nodes, edges or walks, and the factors that take their bias away.

Comes in: numbers of draws. Goes out: the subgraph between the drawn nodes with ``node_norm`` and ``edge_norm``. Called
by the loader. Source: Zeng et al., ICLR 2020.

One draw gives a few nodes: node v with probability h(v), both ends of edge (u, v) with h(u, v). Of n independent draws
at least one gives v with p(v) = 1 - (1 - h(v))^n, and both ends of an edge are given with
p(u, v) = p(u) + p(v) - 1 + (1 - h(u) - h(v) + h(u, v))^n. Losses are divided by p(v), values of edges into v multiplied
by p(v) / p(u, v). For nodes and edges h is known, so sums are unbiased; for walks it is counted over many walks.
"""

from __future__ import annotations

import abc
from typing import Any

import torch

from graphweft._errors import ConfigError, GraphError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.graph import Graph
from graphweft.sample.pieces import Pieces, seeds_first
from graphweft.sample.sampler import GroupSampler, Sample
from graphweft.sample.shadow import Groups
from graphweft.sample.walk import Walker
from graphweft.sample.weights import as_weights, weights_identity

_draw_items = declare("gw_draw_items")

_COUNTED = 1  # the stage of walks that are only counted
_CHUNK = 1 << 14  # of them, in one go


class SaintSampler(GroupSampler):
    """What the three samplers share: draws become a subgraph, probabilities become factors."""

    def __init__(self, graph: Graph, num_items: int | None, nodes_of_a_draw: int) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        if num_items is None:
            num_items = -(-graph.num_nodes // nodes_of_a_draw)
        if not isinstance(num_items, int) or isinstance(num_items, bool) or num_items < 0:
            raise ConfigError(f"{who}: expected num_items as an integer >= 0, got {num_items!r}")
        self.graph, self.num_items = graph, num_items
        self._pieces = Pieces(graph)

    def draw(self, items: torch.Tensor, wanted: torch.Tensor, *, seed: int = 0, epoch: int = 0) -> Sample:
        """The subgraph between the nodes that the draws ``items`` give, those where ``wanted`` holds first."""
        drawn = self._nodes(items.contiguous(), (seed, epoch, 0))
        n_id, count = seeds_first(self._pieces.distinct(drawn)[0], wanted)
        sample = self._pieces.induced(n_id, count)
        draws, single = items.numel(), self._single()[n_id]
        inside = _at_least_once(single, draws)
        src, dst = sample.edge_index
        both = inside[src] + inside[dst] - _at_least_once(single[src] + single[dst] - self._pairs()[sample.e_id], draws)
        loops = src == dst
        both[loops] = inside[dst[loops]]
        sample.node_norm = (1.0 / (inside * max(int(wanted.sum()), 1))).float()
        sample.edge_norm = (inside[dst] / both).float()
        return sample

    @abc.abstractmethod
    def _nodes(self, items: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
        """int64 nodes that the draws give, in any number and with repeats."""

    @abc.abstractmethod
    def _single(self) -> torch.Tensor:
        """float64 (num_nodes,): chance that one draw gives a node."""

    @abc.abstractmethod
    def _pairs(self) -> torch.Tensor:
        """float64 (num_edges,): chance that one draw gives both ends of an edge."""


class SaintNodeSampler(SaintSampler):
    """GraphSAINT with nodes: each draw takes a node, with replacement; a batch has ``batch_size`` draws.

    Args:
        graph: A square graph.
        importance: Chances of the nodes. "norm": proportional to the squared norm of the node's column of the mean over
            in-edges, as in the paper. "uniform". Or (num_nodes,) weights >= 0.
        num_items: Draws of an epoch; None: the number of nodes.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> sampler = SaintNodeSampler(Graph([0, 1], [1, 0]), "uniform")
        >>> sample = sampler.draw(torch.arange(40), torch.tensor([True, True]))
        >>> sorted(sample.n_id.tolist()), sample.num_edges, sample.edge_norm.tolist()
        ([0, 1], 2, [1.0, 1.0])
    """

    def __init__(self, graph: Graph, importance: Any = "norm", num_items: int | None = None) -> None:
        super().__init__(graph, num_items, 1)
        who = type(self).__name__
        if isinstance(importance, str) and importance not in ("norm", "uniform"):
            raise ConfigError(f"{who}: expected importance norm, uniform or weights, got {importance!r}")
        self.importance = importance if isinstance(importance, str) else "given"
        if self.importance == "given":
            weight = as_weights(who, importance, graph.num_nodes, "node").double()
        elif self.importance == "uniform":
            weight = torch.ones(graph.num_nodes, dtype=torch.float64)
        else:
            src, dst = graph.edges()
            norms = graph.in_degrees().clamp(min=1).double() ** -2
            weight = torch.zeros(graph.num_nodes, dtype=torch.float64).index_add_(0, src, norms[dst])
            if not bool(weight.any()):
                weight += 1.0  # without edges no node is of more importance
        self._weights_identity = weights_identity(weight) if self.importance == "given" else {}
        self._chance, self._running = _distribution(who, weight)
        self._none = torch.zeros((), dtype=torch.float64).expand(graph.num_edges)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        options = {"saint": "node", "importance": self.importance, "num_items": self.num_items}
        return {**options, **self._weights_identity}

    def _nodes(self, items: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
        return draw_items(items, self._running, key)

    def _single(self) -> torch.Tensor:
        return self._chance

    def _pairs(self) -> torch.Tensor:
        return self._none


class SaintEdgeSampler(SaintSampler):
    """GraphSAINT with edges: each draw takes both ends of an edge, with replacement; a batch has ``batch_size`` draws.

    An edge from u to v has a chance proportional to 1 / out-degree(u) + 1 / in-degree(v), as in the paper.

    Args:
        graph: A square graph with edges.
        weight: (num_edges,) weights >= 0 by edge id in place of these chances.
        num_items: Draws of an epoch; None: half the number of nodes.

    Raises: ConfigError, GraphError, ShapeError.

    Example:
        >>> sample = SaintEdgeSampler(Graph([0, 2], [1, 0])).draw(torch.arange(50), torch.ones(3, dtype=torch.bool))
        >>> sorted(sample.n_id.tolist()), sorted(sample.e_id.tolist())
        ([0, 1, 2], [0, 1])
    """

    def __init__(self, graph: Graph, weight: Any = None, num_items: int | None = None) -> None:
        super().__init__(graph, num_items, 2)
        who = type(self).__name__
        self._src, self._dst = graph.edges()
        if weight is None:
            chance = 1.0 / graph.out_degrees().double()[self._src] + 1.0 / graph.in_degrees().double()[self._dst]
        else:
            chance = as_weights(who, weight, graph.num_edges, "edge").double()
        self._weights_identity = weights_identity(None if weight is None else chance)
        chance, self._running = _distribution(who, chance)
        nodes = graph.num_nodes
        self._touched = torch.zeros(nodes, dtype=torch.float64).index_add_(0, self._src, chance)
        straight = self._src != self._dst
        self._touched.index_add_(0, self._dst[straight], chance[straight])
        pair = torch.minimum(self._src, self._dst) * nodes + torch.maximum(self._src, self._dst)
        _, same = torch.unique(pair, return_inverse=True)
        self._joined = torch.zeros(int(same.max()) + 1, dtype=torch.float64).index_add_(0, same, chance)[same]

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {"saint": "edge", **self._weights_identity, "num_items": self.num_items}

    def _nodes(self, items: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
        edges = draw_items(items, self._running, key)
        return torch.stack([self._src[edges], self._dst[edges]], dim=1).reshape(-1)

    def _single(self) -> torch.Tensor:
        return self._touched

    def _pairs(self) -> torch.Tensor:
        return self._joined


class SaintWalkSampler(SaintSampler):
    """GraphSAINT with walks: each draw is a uniform root and a walk from it, against the edges; a batch has
    ``batch_size`` roots.

    The chances of nodes and edges are estimated once, from enough walks to visit a node ``coverage`` times on average.

    Args:
        graph: A square graph with nodes.
        length: Steps of a walk.
        coverage: Average number of visits of a node by the walks of this estimate.
        num_items: Walks of an epoch; None: as many as visit the number of nodes of the graph.
        seed: Key of the walks of this estimate.

    Raises: ConfigError, GraphError.

    Example:
        >>> sampler = SaintWalkSampler(Graph([1, 2, 0], [0, 1, 2]), length=1)
        >>> sample = sampler.draw(torch.arange(1), torch.ones(3, dtype=torch.bool))
        >>> sample.num_nodes, sample.num_edges, sampler.num_items
        (2, 1, 2)
    """

    def __init__(
        self, graph: Graph, length: int = 2, coverage: int = 50, num_items: int | None = None, seed: int = 0
    ) -> None:
        who = type(self).__name__
        if not isinstance(coverage, int) or isinstance(coverage, bool) or coverage < 1:
            raise ConfigError(f"{who}: expected coverage as an integer >= 1, got {coverage!r}")
        super().__init__(graph, num_items, length + 1 if isinstance(length, int) and length >= 0 else 1)
        self._walker = Walker(who, graph.reverse(), length)
        if graph.num_nodes == 0:
            raise ConfigError(f"{who}: expected a graph with nodes, got {graph!r}")
        self.coverage, self._seed = coverage, seed
        self._met, self._met_both = self._count()

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        counted = {"coverage": self.coverage, "counted_seed": self._seed}
        return {"saint": "walk", **self._walker.identity(), **counted, "num_items": self.num_items}

    def _nodes(self, items: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
        visited = self._visited(items, key).reshape(-1)
        return visited[visited >= 0]

    def _single(self) -> torch.Tensor:
        return self._met

    def _pairs(self) -> torch.Tensor:
        return self._met_both

    def _visited(self, items: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
        roots = draw_items(items, self.graph.num_nodes, key)
        return self._walker.walk(roots, items, key)

    def _count(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Shares of the counted walks that meet a node, and both ends of an edge; at least what is known of them.

        A walk starts at v with probability 1 / N, and its first step takes an edge into v with 1 / in-degree(v).
        """
        graph, walks = self.graph, -(-self.coverage * self.graph.num_nodes // (self._walker.length + 1))
        groups = Groups(graph)
        met = torch.zeros(graph.num_nodes, dtype=torch.int64)
        both = torch.zeros(graph.num_edges, dtype=torch.int64)
        for first in range(0, walks, _CHUNK):
            visited = self._visited(torch.arange(first, min(walks, first + _CHUNK)), (self._seed, 0, _COUNTED))
            lengths = (visited >= 0).sum(1)
            starts = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
            torch.cumsum(lengths, 0, out=starts[1:])
            union = groups.given(starts, visited[visited >= 0].contiguous())
            met += torch.bincount(union.n_id, minlength=graph.num_nodes)
            both += torch.bincount(union.e_id, minlength=graph.num_edges)
        single = (met.double() / walks).clamp(min=1.0 / graph.num_nodes)
        least = torch.zeros(graph.num_edges, dtype=torch.float64)
        if self._walker.length > 0:
            least = 1.0 / (graph.num_nodes * graph.in_degrees().double()[graph.edges()[1]])
        return single, torch.maximum(both.double() / walks, least)


def draw_items(items: torch.Tensor, of: torch.Tensor | int, key: tuple[int, int, int]) -> torch.Tensor:
    """int64 (n,): a place for each item, by running sums (float64) or uniformly below a number."""
    out = empty((items.numel(),), torch.int64)
    running, count = (None, of) if isinstance(of, int) else (of, of.numel())
    _draw_items(items.numel(), items.data_ptr(), count, pointer(running), *key, out.data_ptr())
    return out


def _distribution(who: str, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and the running sums to draw from.

    Raises: ConfigError when nothing has a positive weight.
    """
    total = float(weight.sum())
    if not total > 0:
        raise ConfigError(f"{who}: expected a positive weight among {weight.numel()}, got none")
    return weight / total, torch.cumsum(weight, 0)


def _at_least_once(single: torch.Tensor, draws: int) -> torch.Tensor:
    """``1 - (1 - single)^draws``, also for small ones."""
    return -torch.expm1(draws * torch.log1p(-single.clamp(max=1.0)))
