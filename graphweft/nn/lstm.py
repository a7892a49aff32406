"""An LSTM over the in-neighbours of each node.

Comes in: a graph, rows of its sources, an LSTM of torch. Goes out: its last state for every destination, after the
sources of its in-edges in the order in which edges were given; zeros without any. Nodes of one in-degree are a batch,
so nothing is padded and a state does not depend on the degrees of other nodes. Called by ``sage.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph


def last_states(graph: Graph, x: Tensor, lstm: nn.LSTM) -> Tensor:
    """The last hidden states.

    Shape: x (num_src, width), lstm from width to ``hidden_size`` with the batch first -> (num_dst, hidden_size).
    """
    out = x.new_zeros(graph.num_dst, lstm.hidden_size)
    for nodes, sources in derived(graph, _by_degree):
        states = lstm(x[sources])[1][0][-1]
        out = out.index_copy(0, nodes, states)
    return out


def _by_degree(graph: Graph) -> list[tuple[Tensor, Tensor]]:
    """Of every in-degree but 0: the nodes (n,), and the sources of their in-edges (n, degree)."""
    sources, targets = (ids.long() for ids in graph.edges())
    order = torch.argsort(targets, stable=True)
    degrees = torch.bincount(targets, minlength=graph.num_dst)
    starts = degrees.cumsum(0) - degrees
    found = []
    for degree in sorted(set(degrees.tolist())):
        if degree:
            nodes = (degrees == degree).nonzero().reshape(-1)
            places = starts[nodes][:, None] + torch.arange(degree)
            found.append((nodes, sources[order[places]]))
    return found
