"""Edges split for link prediction, by seed, so that nothing that is held out is seen in training.

Comes in: a graph. Goes out: a :class:`LinkSplit`: the graph to train on, and the edges of every part. Called by the
trainer and by users. What is split are pairs of nodes, not edges: parallel edges, and in an undirected graph both
directions, go to one part, and no edge of a held-out pair stays in the training graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweft._errors import ConfigError, DataError, GraphError
from graphweft.graph.graph import Graph
from graphweft.sample.permutation import permutation

_LOOKED_AT = 1_000  # pairs, before all are: most directed graphs have one among them that does not run back


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """Pairs of nodes joined by an edge, each in one part.

    Attributes:
        graph: The graph for messages: all nodes, with the edges of training pairs and the self-loops.
        known: The whole graph, whose edges are never negatives.
        train, val, test: int64 (2, P) pairs with sources in row 0; for undirected pairs, the smaller node is in row 0.
        undirected: Whether a pair stands for both directions.
        kept: int64 ids of the edges of ``graph`` in the whole graph.
    """

    graph: Graph
    known: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    undirected: bool
    kept: Tensor


def split_links(
    graph: Graph, val: float = 0.05, test: float = 0.1, seed: int = 0, undirected: bool | None = None
) -> LinkSplit:
    """Splits the linked pairs of nodes at random and holds out the shares ``val`` and ``test``.

    ``undirected``: whether a pair and its reverse are one; None: True if every linked pair is linked both ways,
        whatever the numbers of parallel edges. A graph in which only some pairs are is directed: there, the reverse of
        a held-out edge may be trained on, unless ``undirected=True``. Self-loops stay in the graph and are never
        predicted.

    Raises: ConfigError for shares that leave nothing to train on, GraphError for a graph that is not square, DataError
    for one without edges between different nodes.

    Example:
        >>> split = split_links(Graph([0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]), val=0.0, test=0.34)
        >>> split.train.shape, split.test.shape, split.graph.num_edges
        (torch.Size([2, 2]), torch.Size([2, 1]), 4)
    """
    shares = {"val": val, "test": test}
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ConfigError(f"split_links: expected {name} as a share in [0, 1), got {share!r}")
    if val + test >= 1:
        raise ConfigError(f"split_links: expected shares that leave something to train on, got {val} and {test}")
    if not graph.is_square:
        raise GraphError(f"split_links: expected a graph over one set of nodes, got {graph!r}")
    undirected = _runs_both_ways(graph) if undirected is None else bool(undirected)
    src, dst = graph.edges()
    low, high = (torch.minimum(src, dst), torch.maximum(src, dst)) if undirected else (src, dst)
    pairs, pair_of = torch.unique(low * graph.num_nodes + high, return_inverse=True)
    ends = torch.stack([pairs // max(graph.num_nodes, 1), pairs % max(graph.num_nodes, 1)])
    able = (ends[0] != ends[1]).nonzero().reshape(-1)
    if able.numel() == 0:
        raise DataError("split_links: expected edges between different nodes, got none")
    order = able[permutation(able.numel(), seed)]
    counts = [int(share * order.numel()) for share in (val, test)]
    parts = torch.split(order, [*counts, order.numel() - sum(counts)])
    held = torch.zeros(pairs.numel(), dtype=torch.bool)
    held[torch.cat(parts[:2])] = True
    kept = (~held[pair_of]).nonzero().reshape(-1)
    left = graph.edge_subgraph(kept)
    val_pairs, test_pairs, train_pairs = (ends[:, part] for part in parts)
    return LinkSplit(left, graph, train_pairs, val_pairs, test_pairs, undirected, kept)


def _runs_both_ways(graph: Graph) -> bool:
    """Whether every linked pair is linked in both directions; parallel edges count once."""
    if graph.is_symmetric:
        return True
    src, dst = graph.edges()
    keys = torch.unique(src * graph.num_nodes + dst)
    del src, dst

    def run_back(some: Tensor) -> bool:
        back = some % graph.num_nodes * graph.num_nodes + some // graph.num_nodes
        places = torch.searchsorted(keys, back).clamp_(max=keys.numel() - 1)
        return torch.equal(keys[places], back)

    return run_back(keys[:_LOOKED_AT]) and run_back(keys)
