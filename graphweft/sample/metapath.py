"""Walks that follow given relations, and the neighbours that walks visit most.

Comes in: a graph, where walks start and which relations they take. Goes out: visited nodes, or a graph of the most
visited ones. Called by users. Sources: metapath2vec (Dong et al., KDD 2017), PinSAGE (Ying et al., KDD 2018).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.graph.typed import Relation
from graphweft.sample.keyed import keyed_uniforms
from graphweft.sample.walk import Walker
from graphweft.sample.weights import flat_weights

_PIECE = 1 << 16  # nodes whose walks are counted together
_STEP_STAGE = 1 << 40  # steps of a metapath are keyed apart
_END_STAGE = 1 << 60  # draws that end a walk


def metapath_walk(
    graph: Graph,
    starts: Ids,
    metapath: Sequence[Relation],
    repeat: int = 1,
    *,
    weight: Any = None,
    seed: int = 0,
    epoch: int = 0,
    stage: int = 0,
) -> Int64[Tensor, "starts nodes"]:
    """Random walks along the given relations in turn, from source to destination.

    Walk i is keyed by (seed, epoch, stage, i) and does not depend on the number of threads.

    Args:
        graph: A typed graph.
        starts: (n,) nodes of the first relation's source type, numbered within it; repeats allowed.
        metapath: Relations (source type, name, destination type). Each begins at the destination type of the previous
            one.
        repeat: Number of times that the metapath is walked. If it is more than 1, the metapath must end at the type
            where it begins.
        weight: (num_edges,) weights >= 0 by edge id, or a dict by relation; None: uniform.
        seed: Part of the key of the draws: equal seed, epoch and stage give equal draws.
        epoch: Part of the key of the draws.
        stage: Part of the key of the draws.

    Returns: int64 (n, len(metapath) * repeat + 1). Nodes are numbered within the types along the path; -1 after a node
    without an edge to follow.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError.

    Example:
        >>> likes, liked = ("user", "likes", "film"), ("film", "liked", "user")
        >>> g = Graph.hetero({likes: ([0, 1], [0, 1]), liked: ([0, 1], [0, 1])}, {"user": 2, "film": 2})
        >>> metapath_walk(g, [0, 1], [likes, liked], repeat=2).tolist()
        [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    """
    path = _Path("metapath_walk", graph, metapath, repeat, weight)
    first = len(graph.layout.node_range(path.types[0]))
    ids = as_selection("metapath_walk", "start", starts, first)
    return path.walk(ids, torch.arange(ids.numel()), (seed, epoch, stage))


class _Path:
    """A checked metapath, with a walker for each of its relations."""

    def __init__(self, who: str, graph: Graph, metapath: Any, repeat: int, weight: Any) -> None:
        if not isinstance(graph, Graph) or not graph.is_typed:
            raise GraphError(f"{who}: expected a typed graph, got {graph!r}; gw.sampling.random_walk takes others")
        relations = [tuple(relation) for relation in metapath]
        if not relations:
            raise ConfigError(f"{who}: expected a metapath of one relation at least, got none")
        self.repeat = _count(who, "repeat", repeat)
        for relation in relations:
            graph.layout.edge_range(relation)
        again = [*relations, relations[0]] if self.repeat > 1 else relations
        for before, after in itertools.pairwise(again):
            if before[2] != after[0]:
                names = f"{'-'.join(before)} and {'-'.join(after)}"
                raise ConfigError(f"{who}: expected a relation that begins at {before[2]}, got {names} in turn")
        self.types = (relations[0][0], *(relation[2] for relation in relations))
        self._layout, self._walkers = graph.layout, dict[Any, Walker]()
        weights = flat_weights(who, graph, weight)
        for relation in relations:
            if relation not in self._walkers:
                edges = graph.layout.edge_range(relation)
                of = None if weights is None else torch.as_tensor(weights)[edges.start : edges.stop]
                kept = graph.edge_subgraph(slice(edges.start, edges.stop))
                self._walkers[relation] = Walker(who, kept, 1, weight=of)
        self._relations = relations * self.repeat

    def walk(self, starts: Tensor, items: Tensor, key: tuple[int, int, int]) -> Tensor:
        """int64 (n, steps + 1) nodes, numbered within their types, -1 behind the end of a walk."""
        out = torch.full((starts.numel(), len(self._relations) + 1), -1)
        out[:, 0] = starts
        alive = torch.arange(starts.numel())
        seed, epoch, stage = key
        for step, relation in enumerate(self._relations):
            first = self._layout.node_range(relation[0]).start
            here = (out[alive, step] + first).contiguous()
            keyed = (seed, epoch, stage + (step + 1) * _STEP_STAGE)
            reached = self._walkers[relation].walk(here, items[alive].contiguous(), keyed)[:, 1]
            alive = alive[reached >= 0]
            out[alive, step + 1] = reached[reached >= 0] - self._layout.node_range(relation[2]).start
        return out


def visited_neighbors(
    graph: Graph,
    k: int = 10,
    *,
    nodes: Ids | None = None,
    metapath: Sequence[Relation] | None = None,
    walks: int = 10,
    length: int = 3,
    restart: float = 0.5,
    weight: Any = None,
    seed: int = 0,
    epoch: int = 0,
    stage: int = 0,
) -> Graph:
    """PinSAGE neighbourhoods: a graph with edges into each node from the ``k`` nodes that walks from it visit most.

    ``gw.Loader`` and ``gw.LinkLoader`` take the result, and layers take its ``edata["weight"]``. Of nodes that are
    visited equally often, those with smaller ids are kept. Walks are keyed by (seed, epoch, stage, node), so another
    epoch gives other neighbours.

    Args:
        graph: A square graph; walks follow its edges. With ``metapath``, a typed graph.
        k: Most neighbours of a node.
        nodes: The nodes whose neighbours are computed; None: all.
        metapath: Relations of one step, from a type back to the same type, such as item to user to item. The result has
            the nodes of that type.
        walks: Walks from each node.
        length: Steps of a walk.
        restart: Probability that a walk ends before a step; without ``metapath`` it starts again at its node.
        weight: As for :func:`random_walk` and :func:`metapath_walk`.
        seed: Part of the key of the draws: equal seed, epoch and stage give equal draws.
        epoch: Part of the key of the draws.
        stage: Part of the key of the draws.

    Returns: A graph. ``edata["visits"]``, int64, has the number of visits of the source by walks from the destination.
    ``edata["weight"]``, float32, has its share of the visits of all kept neighbours.

    Raises: ConfigError, GraphError, IndexRangeError, ShapeError.

    Example:
        >>> ring = Graph([0, 1, 2], [1, 2, 0])
        >>> near = visited_neighbors(ring, 1, length=2, restart=0.0)
        >>> [ends.tolist() for ends in near.edges()], near.edata["weight"].tolist()
        ([[1, 0, 0], [0, 1, 2]], [1.0, 1.0, 1.0])
    """
    who = "visited_neighbors"
    k, walks, length = _count(who, "k", k), _count(who, "walks", walks), _count(who, "length", length)
    if isinstance(restart, bool) or not isinstance(restart, int | float) or not 0 <= restart < 1:
        raise ConfigError(f"{who}: expected restart as a share in [0, 1), got {restart!r}")
    key = (seed, epoch, stage)
    if metapath is None:
        if isinstance(graph, Graph) and graph.is_typed:
            raise GraphError(
                f"{who}: expected metapath for a typed graph, relations that lead back to a type, got None"
            )
        walker = Walker(who, graph, length, restart=float(restart), weight=weight)
        size, visit = graph.num_nodes, lambda ids, items: walker.walk(ids, items, key)[:, 1:]
    else:
        path = _Path(who, graph, metapath, length, weight)
        if path.types[0] != path.types[-1]:
            raise ConfigError(f"{who}: expected a metapath that ends at {path.types[0]}, got one to {path.types[-1]}")
        size = len(graph.layout.node_range(path.types[0]))
        visit = lambda ids, items: _until_end(path, ids, items, float(restart), key)  # noqa: E731
    chosen = as_selection(who, "node", slice(None) if nodes is None else nodes, size)
    found = [_most_visited(piece, walks, k, size, visit) for piece in torch.unique(chosen).split(_PIECE)]
    src, dst, visits = (
        (torch.cat(parts) for parts in zip(*found, strict=True)) if found else [torch.zeros(0).long()] * 3
    )
    made = Graph(src, dst, num_nodes=size)
    total = torch.zeros(size, dtype=torch.int64).index_add_(0, dst, visits)
    made.edata["visits"], made.edata["weight"] = visits, (visits.double() / total[dst]).float()
    return made


def _until_end(path: _Path, ids: Tensor, items: Tensor, restart: float, key: tuple[int, int, int]) -> Tensor:
    """Nodes at the end of every turn of the metapath, -1 once the walk has ended."""
    visited = path.walk(ids, items, key)[:, len(path.types) - 1 :: len(path.types) - 1]
    turns = visited.shape[1]
    marks = torch.from_numpy(
        keyed_uniforms((*key, _END_STAGE), items.repeat_interleave(turns), np.tile(range(turns), len(items)))
    )
    ended = (marks.reshape(-1, turns) < restart).cumsum(1) > 0
    return visited.masked_fill(ended, -1)


def _most_visited(nodes: Tensor, walks: int, k: int, size: int, visit: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbours, nodes and counts, node by node, the most visited first."""
    starts = nodes.repeat_interleave(walks)
    items = (nodes[:, None] * walks + torch.arange(walks)).reshape(-1)
    visited = visit(starts, items)
    whose = starts[:, None].expand_as(visited)
    counted = (visited >= 0) & (visited != whose)
    codes, counts = torch.unique(whose[counted] * size + visited[counted], return_counts=True)
    node, neighbor = codes // size, codes % size
    order = torch.from_numpy(np.lexsort((neighbor.numpy(), -counts.numpy(), node.numpy())))
    node, neighbor, counts = node[order], neighbor[order], counts[order]
    place = torch.arange(node.numel()) - torch.searchsorted(node, node)
    return neighbor[place < k], node[place < k], counts[place < k]


def _count(who: str, name: str, value: Any) -> int:
    number = as_integer(value)
    if number is None or not 0 < number < 2**31:
        raise ConfigError(f"{who}: expected {name} as an integer >= 1, got {value!r}")
    return number


__all__ = ["metapath_walk", "visited_neighbors"]
