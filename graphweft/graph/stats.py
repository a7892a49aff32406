"""The numbers about a graph that decisions are made from.

Comes in: a graph's compressed form. Goes out: a frozen :class:`GraphStats`. Called by cost models and passes through
``Graph.stats``; pure data, so that a policy can be tested without a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweft.graph.adjacency import Adjacency


@dataclass(frozen=True)
class GraphStats:
    """Sizes and degrees.

    Attributes:
        num_src: Source nodes.
        num_dst: Destination nodes.
        num_edges: Edges, parallel ones counted.
        max_in_degree: Edges into the busiest destination.
        mean: Edges per destination.
        has_loops: Some node has an edge to itself; False where the sides differ.
        square: Sources and destinations are the same nodes.
    """

    num_src: int
    num_dst: int
    num_edges: int
    max_in_degree: int
    mean: float
    has_loops: bool
    square: bool


def measure(csc: Adjacency, *, has_loops: bool, square: bool) -> GraphStats:
    """Statistics of in-edges listed by destination."""
    top = int(csc.degrees().max()) if csc.num_rows else 0
    mean = csc.num_edges / max(csc.num_rows, 1)
    return GraphStats(csc.num_cols, csc.num_rows, csc.num_edges, top, mean, has_loops, square)
