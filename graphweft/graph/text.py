"""How a graph shows itself.

Comes in: counts and types. Goes out: one line, or a table for notebooks. Used by :class:`graphweft.graph.graph.Graph`.
"""

from __future__ import annotations

from typing import Any

from graphweft import _html
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


class ShownAsTable:
    """Sizes by type, and the tensors that lie at nodes and edges, for notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _html.facts(type(self).__name__, _rows(self))


def _rows(graph: Any) -> list[tuple[str, str]]:
    """Names and texts of the table."""
    if graph.is_typed:
        layout = graph.layout
        rows = [(f"nodes: {name}", f"{len(layout.node_range(name)):,}") for name in layout.node_types]
        rows += [(f"edges: {'-'.join(name)}", f"{len(layout.edge_range(name)):,}") for name in layout.relations]
    else:
        square = graph.is_square
        ends = [("nodes", graph.num_dst)] if square else [("sources", graph.num_src), ("destinations", graph.num_dst)]
        rows = [(name, f"{count:,}") for name, count in (*ends, ("edges", graph.num_edges))]
    for where in ("ndata", "edata") if graph.is_square else ("edata",):
        fields = getattr(graph, where)
        for key in fields:
            tensor = fields[key]
            kind = str(tensor.dtype).removeprefix("torch.")
            rows.append((f'{where}["{key}"]', f"{tuple(tensor.shape)} {kind}"))
    return rows
