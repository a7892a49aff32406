"""Sampling of typed graphs by importance: some nodes of every type a hop, likely those with most edges into the batch.

Comes in: seeds. Goes out: a :class:`Subgraph` between all nodes that were drawn. Called by the loader. Source:
HGSampling (Hu et al., Heterogeneous graph transformer, WWW 2020, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from graphweft._distinct import distinct
from graphweft._errors import ConfigError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.sample.in_edges import Ints, in_edges
from graphweft.sample.keyed import keyed_uniforms
from graphweft.sample.pieces import Pieces
from graphweft.sample.sampler import Sample, ShownBySettings, as_seeds, check_fanouts


class HGTSampler(ShownBySettings):
    """Draws ``num_samples[type][h]`` nodes of every type in hop h, and keeps all edges between the nodes of the batch.

    A node that joins the batch adds 1 / d to the budget of the source of each of its d in-edges of a relation, if that
    source is not in the batch. A hop draws nodes of each type without replacement, with chances proportional to the
    squares of their budgets. Budgets grow after all types were drawn, and nodes that were not drawn keep theirs. A
    batch has about equally many nodes of every type. Draws are keyed by (seed, epoch, stage, node, hop).

    Args:
        graph: A square graph; without types, all nodes have one type.
        num_samples: List of the nodes of every type per hop, or a dict from node type to such a list; other types are
            not drawn.

    Raises: ConfigError, GraphError.

    Example:
        >>> edges = {("a", "to", "p"): ([0, 1, 2], [0, 0, 1]), ("p", "by", "a"): ([0, 1], [0, 0])}
        >>> sampler = HGTSampler(Graph.hetero(edges, {"a": 3, "p": 2}), {"a": [2], "p": [1]})
        >>> sampler.sample([3]).n_id.tolist()
        [3, 0, 1]
    """

    def __init__(self, graph: Graph, num_samples: Any) -> None:
        who = type(self).__name__
        if not isinstance(graph, Graph) or not graph.is_square:
            raise GraphError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
        self.graph, self.num_samples = graph, num_samples
        self._nodes = np.array(graph.layout.node_offsets if graph.is_typed else (0, graph.num_nodes))
        self._edges = np.array(graph.layout.edge_offsets if graph.is_typed else (0, graph.num_edges))
        self._counts = _counts(who, graph, num_samples)
        self._pieces = Pieces(graph)

    def identity(self) -> dict[str, Any]:
        """Settings that decide the draws, in addition to graph and random keys."""
        return {"hgt_samples": self._counts.tolist()}

    def sample(self, seeds: Ids, *, seed: int = 0, epoch: int = 0, stage: int = 0) -> Sample:
        """The batch of ``seeds``: distinct node ids, a mask or a slice.

        Raises: IndexRangeError for an id that is no node, ConfigError for one that comes twice.
        """
        first = as_seeds(self._pieces.distinct, seeds, self.graph.num_nodes)
        drawn = first.numpy()
        parts, held, ids = [drawn], np.sort(drawn), drawn[:0]
        budget: Any = np.zeros(0)
        for hop, counts in enumerate(self._counts.T):
            source, share = self._shares(drawn)
            ids, places = np.unique(np.concatenate([ids, source]), return_inverse=True)
            budget = np.bincount(places, np.concatenate([budget, share]), len(ids))
            outside = ~np.isin(ids, held)
            ids, budget = ids[outside], budget[outside]
            taken = self._taken(ids, budget, counts, (seed, epoch, stage, hop))
            drawn, ids, budget = ids[taken], ids[~taken], budget[~taken]
            parts.append(drawn)
            held = distinct(np.concatenate([held, drawn]))
        return self._pieces.induced(torch.from_numpy(np.concatenate(parts)), first.numel())

    def _shares(self, rows: Ints) -> tuple[Ints, np.ndarray[Any, np.dtype[np.float64]]]:
        """Source of every in-edge of ``rows``, and one over the row's in-edges of its relation."""
        found, edge_ids = in_edges(self.graph, rows), self.graph.csc.edge_ids
        edges = found.place if edge_ids is None else edge_ids.numpy()[found.place]
        kinds = len(self._edges) - 1
        group = found.row * kinds + np.searchsorted(self._edges, edges, "right") - 1
        return found.source, 1 / np.bincount(group, minlength=len(rows) * kinds)[group]

    def _taken(self, ids: Ints, budget: Any, counts: Ints, key: tuple[int, ...]) -> Any:
        """Which of ``ids`` are drawn: of every type those with the smallest exponential keys."""
        kind = np.searchsorted(self._nodes, ids, "right") - 1
        order = np.lexsort((-np.log(keyed_uniforms(key, ids)) / budget**2, kind))
        per_type = np.bincount(kind, minlength=len(self._nodes) - 1)
        rank = np.arange(len(ids)) - (np.cumsum(per_type) - per_type)[kind[order]]
        limit = counts[kind[order]]
        taken = np.zeros(len(ids), np.bool_)
        taken[order[(limit == -1) | (rank < limit)]] = True
        return taken


def _counts(who: str, graph: Graph, given: Any) -> Ints:
    """Nodes to draw, type by hop. Raises: ConfigError."""
    types = graph.node_types if graph.is_typed else ("node",)
    if not isinstance(given, Mapping):
        return np.array([check_fanouts(who, given)] * len(types), np.int64)
    if not graph.is_typed:
        raise ConfigError(f"{who}: expected num_samples as a list for a graph without types, got a dict")
    unknown = [name for name in given if name not in types]
    if unknown or not given:
        got = unknown[0] if unknown else given
        raise ConfigError(f"{who}: expected num_samples by node type ({', '.join(types)}), got {got!r}")
    hops = {name: check_fanouts(f"{who} {name}", numbers) for name, numbers in given.items()}
    most = max(map(len, hops.values()))
    return np.array([(*hops.get(name, ()), *(0,) * most)[:most] for name in types], np.int64)
