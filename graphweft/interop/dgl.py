"""Graphs and their data to and from DGL.

Comes in: a ``DGLGraph`` of one or many types, or a graph, a dataset or parts of ours. Goes out: the other. Called by
users who move between the two. DGL is optional and is imported only where one of its graphs is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DtypeError, GraphError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.interop.entries import Store, as_tensor, column_of, flat_splits, settle_split, sort_entries
from graphweft.interop.parts import GraphParts
from graphweft.storage.feature import is_dense

_WHO = "from_dgl"
_NEEDED = ("canonical_etypes", "ntypes", "edges", "nodes", "num_nodes", "batch_num_nodes")
_SPLITS = ("train_idx", "val_idx", "test_idx")


def from_dgl(
    graph: Any, split: int | Mapping[str, Any] | None = None, *, features: str = "feat", labels: str = "label"
) -> GraphParts:
    """Converts a ``DGLGraph``. Edges keep their ids, and all tensors of nodes and edges are kept.

    Args:
        graph: A graph of one or many types, but no block.
        split: As for :func:`from_pyg`.
        features: Name of the node tensors that are ``x``.
        labels: Name of the node tensors that are ``y``.

    Warns: UserWarning for masks with several splits without ``split``.

    Raises: DtypeError for other objects; GraphError for a block.
    """
    if not all(hasattr(graph, name) for name in _NEEDED):
        raise DtypeError(f"{_WHO}: expected a DGLGraph, got {type(graph).__name__}")
    if graph.is_block:
        raise GraphError(f"{_WHO}: expected a graph, got a block")
    column, counts = column_of(_WHO, split), {kind: int(graph.num_nodes(kind)) for kind in graph.ntypes}
    stores = {
        kind: _store(f"{_WHO}: {kind}", dict(graph.nodes[kind].data), rows, column, features, labels)
        for kind, rows in counts.items()
    }
    ends = {relation: graph.edges(etype=relation, order="eid") for relation in graph.canonical_etypes}
    tables = {relation: {name: as_tensor(t) for name, t in graph.edges[relation].data.items()} for relation in ends}
    extra = {}
    for kind in counts:
        sizes = graph.batch_num_nodes(kind).cpu()
        if sizes.numel() > 1:
            extra["batch_num_nodes" if len(counts) == 1 else (kind, "batch_num_nodes")] = sizes
    if len(counts) == len(ends) == 1:
        (rows,), (store,), ((src, dst),), (table,) = counts.values(), stores.values(), ends.values(), tables.values()
        whole = Graph(src, dst, num_nodes=rows)
        whole.ndata.update(store.nodes)
        whole.edata.update(table)
        train, val, test = (store.splits[name] for name in _SPLITS)
        return settle_split(_WHO, GraphParts(whole, store.x, store.y, train, val, test, extra=extra), split)
    whole = Graph.hetero(ends, counts)
    train, val, test = flat_splits(whole, stores)
    parts = GraphParts(
        whole,
        train_idx=train,
        val_idx=val,
        test_idx=test,
        features={kind: store.x for kind, store in stores.items() if store.x is not None},
        labels={kind: store.y for kind, store in stores.items() if store.y is not None},
        node_tables={kind: store.nodes for kind, store in stores.items() if store.nodes},
        edge_tables={relation: table for relation, table in tables.items() if table},
        extra=extra,
    )
    return settle_split(_WHO, parts, split)


def to_dgl(source: Any, *, features: str = "feat", labels: str = "label") -> Any:
    """Converts to a ``DGLGraph``, with the edges in their order and all tensors of nodes and edges.

    Args:
        source: A graph, a dataset, or a result of :func:`from_dgl` or :func:`from_pyg`.
        features: Name for ``x``.
        labels: Name for ``y``.

    Warns: UserWarning with the names of fields that a DGLGraph cannot contain.

    Raises: MissingPackageError without DGL; GraphError for another object, or for a bipartite graph without types;
    DtypeError for sparse features.
    """
    try:
        import dgl
    except ImportError:
        raise MissingPackageError("to_dgl: expected the package dgl, which is not installed") from None
    graph = source if isinstance(source, Graph) else getattr(source, "graph", None)
    if not isinstance(graph, Graph) or not graph.is_square:
        raise GraphError(f"to_dgl: expected a graph over one set of nodes, a dataset or parts, got {source!r}")
    src, dst = graph.edges()
    nodes: dict[str, range] = {"_N": range(graph.num_nodes)}
    edges: dict[Any, range] = {("_N", "_E", "_N"): range(graph.num_edges)}
    if graph.is_typed:
        nodes = {kind: graph.layout.node_range(kind) for kind in graph.node_types}
        edges = {relation: graph.layout.edge_range(relation) for relation in graph.relations}
    ends = {}
    for relation, ids in edges.items():
        here, shifts = slice(ids.start, ids.stop), (nodes[relation[0]].start, nodes[relation[2]].start)
        ends[relation] = src[here] - shifts[0], dst[here] - shifts[1]
    out = dgl.heterograph(ends, {kind: len(ids) for kind, ids in nodes.items()})
    for (kind, name), rows in _node_tensors(source, graph, nodes, features, labels).items():
        out.nodes[kind].data[name] = rows
    for (relation, name), rows in _edge_tensors(source, graph, edges).items():
        out.edges[relation].data[name] = rows
    if left := sorted(str(name) for name in getattr(source, "extra", {})):
        warnings.warn(f"to_dgl: expected tensors of nodes and edges, got {', '.join(left)}, left out", stacklevel=2)
    return out


def _store(who: str, tensors: dict[str, Any], rows: int, column: int | None, features: str, labels: str) -> Store:
    """The tensors of a node type, those that are features and labels under our names."""
    named = {"x": tensors.pop(features, None), "y": tensors.pop(labels, None)}
    others = {name: tensors.pop(name) for name in named if name in tensors}
    given = {name: value for name, value in named.items() if value is not None}
    found = sort_entries(who, {**tensors, **given}, None, rows, rows, column)
    found.nodes.update({name: as_tensor(value) for name, value in others.items()})
    return found


def _node_tensors(
    source: Any, graph: Graph, nodes: Mapping[str, range], features: str, labels: str
) -> dict[tuple[str, str], Tensor]:
    """Rows by node type and name."""
    out = {}
    flat = {**graph.ndata, **_flat(source, {"x": features, "y": labels})}
    for part in _SPLITS:
        ids = getattr(source, part, None)
        if ids is not None:
            flat[part.replace("_idx", "_mask")] = torch.zeros(graph.num_nodes, dtype=torch.bool)
            flat[part.replace("_idx", "_mask")][ids] = True
    for name, table in flat.items():
        if table.shape[0] == graph.num_nodes:
            out.update({(kind, name): table[ids.start : ids.stop] for kind, ids in nodes.items()})
    for kind, tables in getattr(source, "node_tables", {}).items():
        out.update({(kind, name): table for name, table in tables.items()})
    for ours, name in (("features", features), ("labels", labels)):
        for kind, table in getattr(source, ours, {}).items():
            out[kind, name] = _dense(table)
    return out


def _edge_tensors(source: Any, graph: Graph, edges: Mapping[Any, range]) -> dict[tuple[Any, str], Tensor]:
    """Rows by relation and name."""
    flat = {**graph.edata, **_flat(source, {"edge_features": "edge_attr", "edge_weight": "edge_weight"})}
    out = {(relation, name): t[ids.start : ids.stop] for name, t in flat.items() for relation, ids in edges.items()}
    for relation, tables in getattr(source, "edge_tables", {}).items():
        out.update({(relation, name): table for name, table in tables.items()})
    return out


def _flat(source: Any, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tables of all nodes or edges that stand beside the graph, under the names that they get."""
    found = {theirs: getattr(source, ours, None) for ours, theirs in names.items()}
    return {name: _dense(table) for name, table in found.items() if table is not None}


def _dense(table: Any) -> Tensor:
    if not is_dense(table):
        raise DtypeError(f"to_dgl: expected dense features, got {type(table).__name__}")
    return table
