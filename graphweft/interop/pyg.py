"""Graphs and their data from PyTorch Geometric.

Comes in: ``Data``, ``HeteroData``, a ``Batch`` of several or ``TemporalData``. Goes out: :class:`GraphParts`. Called by
users who come from there; nothing of PyTorch Geometric is imported. The way back is ``to_pyg.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DtypeError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.interop.entries import (
    ON_EDGES,
    STRUCTURE,
    as_csr,
    as_tensor,
    column_of,
    described,
    flat_splits,
    settle_split,
    sort_entries,
)
from graphweft.interop.parts import GraphParts

_WHO = "from_pyg"


def from_pyg(data: Any, split: int | Mapping[str, Any] | None = None) -> GraphParts:
    """Converts a ``torch_geometric.data.Data``, ``HeteroData`` or ``TemporalData`` with all fields.

    Edges come from ``edge_index`` (sources in row 0) or a sparse ``adj_t`` (rows are destinations). Values of ``adj_t``
    become the edge tensor ``edge_weight``, unless all are one; values with columns become ``edge_attr``. Node tensors
    other than features and labels become ``ndata``, and edge tensors ``edata`` (for typed graphs, tables by type and
    relation). Other fields become ``extra``. Masks also stay among the node tensors.

    Args:
        data: The object.
        split: Column of masks with several splits, (N, S). Or a dict of ids or masks for "train", "val" ("valid") and
            "test", by node type for typed graphs, in place of the masks of ``data``.

    Warns: UserWarning for masks with several splits without ``split``.

    Raises: DtypeError for other objects; GraphError for parts that do not fit; errors of Graph for ids out of range.

    Example:
        >>> from torch_geometric.data import Data
        >>> edges, mask = torch.tensor([[0, 1], [1, 2]]), torch.tensor([True, False, False])
        >>> parts = from_pyg(Data(edge_index=edges, num_nodes=3, edge_attr=torch.ones(2, 4), train_mask=mask))
        >>> parts.graph.num_nodes, parts.train_idx.tolist(), parts.graph.edata["edge_attr"].shape
        (3, [0], torch.Size([2, 4]))
    """
    kinds = {kind.__name__ for kind in type(data).__mro__}
    if "TemporalData" in kinds:
        return _from_temporal(data)
    if not hasattr(data, "to_dict") or not {"Data", "HeteroData"} & kinds:
        raise DtypeError(f"{_WHO}: expected a Data or HeteroData, got {type(data).__name__}")
    column = column_of(_WHO, split)
    whole = _from_hetero(data, column) if "HeteroData" in kinds else _from_data(data, column)
    return settle_split(_WHO, whole, split)


def _from_data(data: Any, column: int | None) -> GraphParts:
    stored = data.to_dict()
    src, dst, values = _ends(_WHO, stored)
    graph = Graph(src, dst, num_nodes=data.num_nodes)
    ptr = _graph_ptr(stored, graph.num_nodes)
    if ptr is not None:
        stored = {name: value for name, value in stored.items() if name not in ("ptr", "batch")}
    labelled = graph.num_nodes if ptr is None else ptr.numel() - 1
    found = sort_entries(_WHO, stored, data, graph.num_nodes, labelled, column, num_edges=graph.num_edges)
    found.edges.update(values)
    graph.ndata.update(found.nodes)
    graph.edata.update(found.edges)
    train, val, test = (found.splits[f"{part}_idx"] for part in ("train", "val", "test"))
    return GraphParts(graph, found.x, found.y, train, val, test, graph_ptr=ptr, extra=found.extra)


def _from_hetero(data: Any, column: int | None) -> GraphParts:
    stored = data.to_dict()
    extra: dict[Any, Any] = stored.pop("_global_store")
    ends, tables = {}, {}
    for relation in data.edge_types:
        who = f"{_WHO}: {'-'.join(relation)}"
        src, dst, values = _ends(who, stored[relation])
        ends[relation] = src, dst
        tables[relation], rest = _edge_table(who, stored[relation], data[relation], src.numel(), values)
        extra.update({(relation, name): value for name, value in rest.items()})
    graph = Graph.hetero(ends, _counts(data, ends))
    stores = {}
    for name in data.node_types:
        rows = len(graph.layout.node_range(name))
        stores[name] = found = sort_entries(f"{_WHO}: {name}", stored[name], data[name], rows, rows, column)
        extra.update({(name, key): value for key, value in found.extra.items()})

    train, val, test = flat_splits(graph, stores)
    return GraphParts(
        graph,
        None,
        None,
        train,
        val,
        test,
        features={name: found.x for name, found in stores.items() if found.x is not None},
        labels={name: found.y for name, found in stores.items() if found.y is not None},
        node_tables={name: found.nodes for name, found in stores.items() if found.nodes},
        edge_tables={relation: found for relation, found in tables.items() if found},
        extra=extra,
    )


def _from_temporal(data: Any) -> GraphParts:
    stored = {name: as_tensor(value) for name, value in data.to_dict().items()}
    src, dst = stored.pop("src"), stored.pop("dst")
    graph = Graph(src, dst, num_nodes=stored.pop("num_nodes", data.num_nodes))
    extra = {}
    for name, value in stored.items():
        if isinstance(value, Tensor) and value.shape[:1] == (graph.num_edges,):
            graph.edata[name] = value
        else:
            extra[name] = value
    return GraphParts(graph, extra=extra)


def _edge_table(
    who: str, stored: Mapping[str, Any], kinds: Any, count: int, values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Edge tensors of a relation, and what else it has."""
    table, rest = dict(values), {}
    for name, value in stored.items():
        if name in STRUCTURE or value is None:
            continue
        value = as_tensor(value)
        dense = isinstance(value, Tensor) and value.layout == torch.strided and value.shape[:1] == (count,)
        if dense and kinds.is_edge_attr(name):
            table[name] = value
        elif name in ON_EDGES:
            raise GraphError(f"{who}: expected {name} with {count} rows, one per edge, got {described(value)}")
        else:
            rest[name] = value
    return table, rest


def _ends(who: str, stored: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sources, destinations, and the values of a sparse adjacency under the name of an edge tensor."""
    index = stored.get("edge_index")
    if index is not None:
        if not isinstance(index, Tensor) or index.dim() != 2 or index.shape[0] != 2:
            raise GraphError(f"{who}: expected edge_index of shape (2, E), got {described(index)}")
        _check_same(who, stored, index.shape[1])
        src, dst = index.as_subclass(Tensor)
        return src, dst, {}
    for name in ("adj_t", "adj"):
        if stored.get(name) is not None:
            rows, columns, values = _entries(who, name, stored[name])
            src, dst = (columns, rows) if name == "adj_t" else (rows, columns)
            if values is None or (values.dim() == 1 and bool((values == 1).all())):
                return src, dst, {}
            return src, dst, {"edge_weight" if values.dim() == 1 else "edge_attr": values.detach().cpu()}
    raise GraphError(f"{who}: expected edge_index or a sparse adj_t, got none")


def _check_same(who: str, stored: Mapping[str, Any], count: int) -> None:
    """Where an adjacency stands beside ``edge_index`` it is of as many edges."""
    for name in ("adj_t", "adj"):
        if stored.get(name) is not None:
            other = _entries(who, name, stored[name])[0].numel()
            if other != count:
                raise GraphError(f"{who}: expected {name} with the {count} edges of edge_index, got {other}")


def _entries(who: str, name: str, adjacency: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows, columns and values of a sparse matrix of torch or torch_sparse."""
    if hasattr(adjacency, "coo"):
        rows, columns, values = adjacency.coo()
        return rows, columns, values
    if not isinstance(adjacency, Tensor) or adjacency.layout == torch.strided:
        raise DtypeError(f"{who}: expected {name} as a sparse matrix, got {described(adjacency)}")
    if adjacency.layout == torch.sparse_coo:
        rows, columns = adjacency._indices()
        return rows, columns, adjacency._values()
    ordered = as_csr(adjacency)
    counts = ordered.crow_indices().diff()
    return torch.arange(counts.numel()).repeat_interleave(counts.cpu()), ordered.col_indices(), ordered.values()


def _counts(data: Any, ends: Mapping[Relation, tuple[Tensor, Tensor]]) -> dict[str, int]:
    """Nodes of every type: as declared, else one more than the largest id."""
    largest: dict[str, int] = {}
    for (source, _, destination), sides in ends.items():
        for name, ids in zip((source, destination), sides, strict=True):
            largest[name] = max(largest.get(name, 0), int(ids.max()) + 1 if ids.numel() else 0)
    counts: dict[str, int] = {}
    for name in data.node_types:
        store = data[name]
        known = store.num_nodes if store.can_infer_num_nodes else None
        if known is None:  # labels and masks have a row a node as well
            tables = [store[key] for key in store if key == "y" or key.endswith("_mask")]
            known = max((table.shape[0] for table in tables), default=largest.get(name, 0))
        counts[name] = int(known)
    return {**largest, **counts}


def _graph_ptr(stored: Mapping[str, Any], num_nodes: int) -> Tensor | None:
    """Where the graphs of a batch begin, unless it is the nodes that have the labels."""
    ptr, y = stored.get("ptr"), stored.get("y")
    if not isinstance(ptr, Tensor) or (isinstance(y, Tensor) and y.shape[:1] == (num_nodes,)):
        return None
    return ptr.detach().cpu().long()
