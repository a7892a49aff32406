"""How a graph shows itself.

Comes in: counts and types. Goes out: one line. Called by :class:`graphweft.graph.graph.Graph`.
"""

from __future__ import annotations

from graphweft.graph.typed import TypedLayout


def describe(num_src: int, num_dst: int, num_edges: int, square: bool, layout: TypedLayout | None) -> str:
    """``Graph(num_nodes=..., num_edges=...)``, by type where there are some.

    Example:
        >>> describe(3, 2, 5, False, None)
        'Graph(num_src=3, num_dst=2, num_edges=5)'
    """
    if layout is not None:
        nodes = {t: len(layout.node_range(t)) for t in layout.node_types}
        edges = {r: len(layout.edge_range(r)) for r in layout.relations}
        return f"Graph(num_nodes={nodes}, num_edges={edges})"
    if square:
        return f"Graph(num_nodes={num_dst}, num_edges={num_edges})"
    return f"Graph(num_src={num_src}, num_dst={num_dst}, num_edges={num_edges})"
