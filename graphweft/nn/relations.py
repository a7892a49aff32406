"""The relations of a typed graph one by one, each as a graph of its own between its two node types.

Comes in: a typed graph. Goes out: bipartite graphs, or square ones within a type, kept with the typed graph; results by
destination type. Called by ``hetero.py`` and ``multi_update.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError, GraphError, ShapeError
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph

Relation = tuple[str, str, str]
WAYS = ("sum", "mean", "min", "max", "cat", "stack")


def relation_of(graph: Graph, relation: Relation) -> Graph:
    """The graph of one relation, made once; square where it leads from a type to itself."""
    return derived(graph, _relation_of, relation)


def _relation_of(graph: Graph, relation: Relation) -> Graph:
    made = graph.relation_graph(relation)
    if relation[0] != relation[2]:
        return made
    return Graph(*made.edges(), num_nodes=made.num_dst)


def check_typed(who: str, graph: Any) -> None:
    """A typed graph with ids of types. Raises: GraphError."""
    if not isinstance(graph, Graph) or not graph.is_typed:
        got = repr(graph) if isinstance(graph, Graph) else type(graph).__name__
        raise GraphError(f"{who}: expected a typed graph, as of gw.Graph.hetero, got {got}")


def check_relations(who: str, graph: Graph, wanted: Sequence[Relation]) -> None:
    """Relations that the graph has. Raises: GraphError naming those it has."""
    for relation in wanted:
        if relation not in graph.relations:
            known = ", ".join(map(str, graph.relations))
            raise GraphError(f"{who}: expected relations among {known}, got {relation!r}")


def rows_by_type(who: str, graph: Graph, x: Any) -> dict[str, Any]:
    """Rows of nodes by type: a dict as it is, or one matrix of all nodes, type after type. Raises: ShapeError."""
    if isinstance(x, Mapping):
        for name, rows in x.items():
            if name not in graph.node_types:
                raise ShapeError(f"{who}: expected node types among {', '.join(graph.node_types)}, got {name!r}")
            count = len(graph.layout.node_range(name))
            if rows.shape[0] != count:
                raise ShapeError(f"{who}: expected {count} rows of type {name!r}, got {rows.shape[0]}")
        return dict(x)
    if not isinstance(x, Tensor) or x.dim() < 1 or x.shape[0] != graph.num_nodes:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(f"{who}: expected a dict of rows by node type, or {graph.num_nodes} rows, got {got}")
    found = {}
    for name in graph.node_types:
        ids = graph.layout.node_range(name)
        found[name] = x[ids.start : ids.stop]
    return found


def all_rows(who: str, graph: Graph, rows: Mapping[str, Tensor]) -> Tensor:
    """Rows by type as one matrix of all nodes; zeros for types without any. Raises: ShapeError for several widths."""
    widths = {tuple(one.shape[1:]) for one in rows.values()}
    if len(widths) != 1:
        raise ShapeError(f"{who}: expected results of one width for all types together, got {sorted(widths)}")
    like = next(iter(rows.values()))
    parts = [
        rows[name] if name in rows else like.new_zeros(len(graph.layout.node_range(name)), *like.shape[1:])
        for name in graph.node_types
    ]
    return torch.cat(parts)


def joined(who: str, rows: Sequence[Tensor], way: str) -> Tensor:
    """Results of several relations into one type, in the order of the relations.

    Raises: ShapeError for results of several widths that are not put side by side.
    """
    if way == "cat":
        return torch.cat(list(rows), dim=-1)
    widths = {tuple(one.shape[1:]) for one in rows}
    if len(widths) > 1:
        raise ShapeError(f"{who}: expected results of one width to take their {way}, got {sorted(widths)}")
    if way == "stack":
        return torch.stack(list(rows), dim=1)
    if len(rows) == 1:
        return rows[0]
    over = torch.stack(list(rows))
    if way == "sum":
        return over.sum(0)
    if way == "mean":
        return over.mean(0)
    return over.amax(0) if way == "max" else over.amin(0)


def check_way(who: str, name: str, way: str) -> None:
    """One of :data:`WAYS`. Raises: ConfigError."""
    if way not in WAYS:
        raise ConfigError(f"{who}: expected {name} among {', '.join(WAYS)}, got {way!r}")
