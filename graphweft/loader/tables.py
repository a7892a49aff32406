"""Tables that belong to all nodes or edges of a graph, where a dataset or the graph has them.

Comes in: a dataset, or a graph alone. Goes out: its graph and its tables. Called by batches and their views.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures

ON_EDGES = {"edge_features": "edge_attr", "edge_weight": "edge_weight"}  # what a graph calls them in its ``edata``


def whole_graph(data: Any) -> Graph:
    """The graph of a dataset, or the graph itself."""
    graph: Graph = data if isinstance(data, Graph) else data.graph
    return graph


def edge_table(data: Any, name: str) -> Tensor | None:
    """The dataset's table of all edges, or else the graph's own."""
    table = getattr(data, name, None)
    if table is None:
        table = whole_graph(data).edata.get(ON_EDGES[name])
    return table if isinstance(table, Tensor) else None


def edge_tables(data: Any) -> dict[str, Tensor]:
    """All tables with a row for every edge of the whole graph, under the names that batches have."""
    own = {theirs: edge_table(data, name) for name, theirs in ON_EDGES.items()}
    return {**whole_graph(data).edata, **{name: table for name, table in own.items() if table is not None}}


def width_of(rows: Any) -> int:
    """Columns of a table as PyTorch Geometric counts them: 0 without one, 1 for a vector."""
    if isinstance(rows, SparseFeatures):
        return int(rows.shape[1])
    if not isinstance(rows, Tensor):
        return 0
    return 1 if rows.dim() == 1 else int(rows.shape[-1])
