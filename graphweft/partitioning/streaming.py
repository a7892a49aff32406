"""GAP: a streaming partitioner with balance per label, in O(E + N log k) time and O(N + k L) memory a pass.

Comes in: a graph, a number of parts, labels. Goes out: the part of every node. Called by
:mod:`graphweft.partitioning.partition`. Source: Hanoi, section 4.3.2 and algorithm 2, after Fennel (Tsourakakis et al.,
WSDM 2014), whose cost x^1.5 and weight it takes over.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft._native import declare, pointer
from graphweft.graph.graph import Graph

_stream = declare("gw_partition_stream")

_MOST_COUNTS = 1 << 31  # k times labels


@dataclass(frozen=True)
class Steps:
    """Operations of a pass.

    Attributes:
        entries: Neighbours looked at.
        tree_nodes: Nodes of ordered sets that were set anew.
        scores: Parts scored.
    """

    entries: int
    tree_nodes: int
    scores: int


def cost_scale(graph: Graph, k: int, balance: float = 1.0) -> float:
    """What sqrt(nodes / mu) is multiplied by in a score: Fennel's 1.5 sqrt(k) m / n^1.5, m being half the entries.

    Example:
        >>> cost_scale(Graph([0, 1], [1, 0]), 4)
        1.0606601717798212
    """
    n, m = graph.num_nodes, max(graph.num_edges, 1) / 2
    return balance * 1.5 * math.sqrt(k) * m / n**1.5 if n else 0.0


def stream(
    graph: Graph,
    k: int,
    labels: Tensor | None,
    part: Tensor,
    balance: float = 1.0,
    exhaustive: bool = False,
) -> Steps:
    """One pass over the nodes by ascending id; ``part`` is changed in place.

    A node goes to the part p with the largest |in-neighbours in p| - scale * sqrt(nodes of its label in p / mu), mu
    being the label's share of all nodes; the lowest p among equals.

    Shape: labels (N,) int32 in [0, L) or None, part (N,) int32 in [0, k), or -1 where a node has none yet.

    Args:
        graph: A square graph.
        k: Number of parts.
        labels: What is balanced.
        part: The assignment so far.
        balance: Weight of balance against neighbours; 1 is Fennel's.
        exhaustive: Look at all k parts for every node, as Fennel does: the same parts in O(E + N k).

    Raises: ConfigError when k times labels is too many.
    """
    classes = 1 if labels is None or labels.numel() == 0 else int(labels.max()) + 1
    if k * classes > _MOST_COUNTS:
        raise ConfigError(f"partition: expected k times labels up to {_MOST_COUNTS}, got {k} times {classes}")
    steps = (ctypes.c_int64 * 3)()
    scale = cost_scale(graph, k, balance)
    _stream(graph.csc.native, k, classes, pointer(labels), scale, exhaustive, part.data_ptr(), steps)
    return Steps(*steps)


def gap(graph: Graph, k: int, labels: Tensor | None, passes: int, balance: float, initial: Tensor | None) -> Tensor:
    """Several passes of :func:`stream`; (N,) int32."""
    part = torch.full((graph.num_nodes,), -1, dtype=torch.int32) if initial is None else initial.clone()
    for _ in range(passes):
        stream(graph, k, labels, part, balance)
    return part
