"""Graphs and their data to PyTorch Geometric.

Comes in: a graph, a dataset or what :func:`from_pyg` gave. Goes out: ``Data``, or ``HeteroData`` of a typed graph.
Called by users who move between the two. PyTorch Geometric is optional and is imported only here, when it is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import ConfigError, GraphError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features, SparseFeatures, is_dense

_SPLITS = ("train_idx", "val_idx", "test_idx")


def to_pyg(source: Any, *, x: Any = None, y: Any = None, **tensors: Any) -> Any:
    """Converts to a ``torch_geometric.data.Data``, for typed graphs to ``HeteroData``, with the edges and named
    tensors.

    Edges keep their order in ``edge_index``. ``source``: a Graph with its ``ndata`` and ``edata``, or a dataset or a
    result of :func:`from_pyg` with all fields. ``x``: dense features or SparseFeatures (which become a torch CSR
    tensor), for a typed graph a dict by node type. ``train_idx``, ``val_idx`` and ``test_idx`` become masks. Other
    tensors are passed on, for a typed graph as a dict by type or relation.

    Raises: MissingPackageError without PyTorch Geometric; GraphError for a bipartite untyped graph, or for a name that
    both nodes and edges have; ConfigError for tensors of a typed graph without their type.

    Example:
        >>> to_pyg(Graph([0, 1], [1, 0]), x=torch.ones(2, 4), train_idx=torch.tensor([1])).train_mask.tolist()
        [False, True]
    """
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError:
        raise MissingPackageError(
            "to_pyg: expected the package torch_geometric, which is not installed (pip install torch_geometric)"
        ) from None
    graph = source if isinstance(source, Graph) else getattr(source, "graph", None)
    if not isinstance(graph, Graph):
        raise GraphError(f"to_pyg: expected a graph, a dataset or parts, got {type(source).__name__}")
    held = {} if isinstance(source, Graph) else _held(source)
    held.update({name: value for name, value in {"x": x, "y": y, **tensors}.items() if value is not None})
    if graph.is_typed:
        return _typed(HeteroData(), graph, source, held)
    if not graph.is_square:
        raise GraphError(f"to_pyg: expected one set of nodes, got {graph!r}")
    data = Data(edge_index=torch.stack(graph.edges()), num_nodes=graph.num_nodes)
    if both := graph.ndata.keys() & graph.edata.keys():
        raise GraphError(f"to_pyg: expected other names for tensors of nodes and of edges, got both {min(both)!r}")
    ptr = held.pop("graph_ptr", None)
    if ptr is not None:
        data.ptr, data.batch = ptr, torch.arange(ptr.numel() - 1).repeat_interleave(ptr.diff())
    rows = graph.num_nodes if ptr is None else ptr.numel() - 1
    for name, value in {**getattr(source, "extra", {}), **graph.ndata, **graph.edata, **held}.items():
        if name in _SPLITS:
            data[name.replace("_idx", "_mask")] = _mask(value, rows)
        else:
            data[name] = _as_pyg_x(value) if name == "x" else value
    return data


def _held(source: Any) -> dict[str, Any]:
    """What a dataset or parts hold beside the graph, under the names of PyTorch Geometric."""
    names = {name: name for name in ("x", "y", *_SPLITS, "edge_weight", "graph_ptr")}
    found = {theirs: getattr(source, ours, None) for ours, theirs in {**names, "edge_features": "edge_attr"}.items()}
    target = getattr(source, "target_type", None)
    if target is not None:  # the other types have no labels
        nodes = source.graph.layout.node_range(target)
        found["y"] = {target: source.y[nodes.start : nodes.stop]}
    return {name: value for name, value in found.items() if value is not None}


def _typed(data: Any, graph: Graph, source: Any, held: dict[str, Any]) -> Any:
    nodes = {name: graph.layout.node_range(name) for name in graph.node_types}
    edges = {relation: graph.layout.edge_range(relation) for relation in graph.relations}
    src, dst = graph.edges()
    for name, ids in nodes.items():
        data[name].num_nodes = len(ids)
    for relation, ids in edges.items():
        here = slice(ids.start, ids.stop)
        starts = nodes[relation[0]].start, nodes[relation[2]].start
        data[relation].edge_index = torch.stack([src[here] - starts[0], dst[here] - starts[1]])
    for fields, ranges in ((graph.ndata, nodes), (graph.edata, edges)):
        for key, table in fields.items():
            _hand_out(data, ranges, key, table)
    for name in ("node_tables", "edge_tables"):
        for kind, tables in getattr(source, name, {}).items():
            for key, table in tables.items():
                data[kind][key] = table
    for key, ours in (("x", "features"), ("y", "labels")):
        for kind, table in getattr(source, ours, {}).items():
            data[kind][key] = _as_pyg_x(table) if key == "x" else table
    for key, value in getattr(source, "extra", {}).items():
        if isinstance(key, str):
            setattr(data, key, value)
        else:
            data[key[0]][key[1]] = value
    for key, value in held.items():
        _place(data, graph, key, value)
    return data


def _place(data: Any, graph: Graph, key: str, value: Any) -> None:
    """A tensor by name: of all nodes, of all edges, or by type or relation."""
    nodes = {name: graph.layout.node_range(name) for name in graph.node_types}
    edges = {relation: graph.layout.edge_range(relation) for relation in graph.relations}
    if key in _SPLITS:
        mask = _mask(value, graph.num_nodes)
        mine = {name: ids for name, ids in nodes.items() if bool(mask[ids.start : ids.stop].any())}
        _hand_out(data, mine, key.replace("_idx", "_mask"), mask)
    elif isinstance(value, Mapping):
        for kind, table in value.items():
            if kind not in nodes and kind not in edges:
                raise ConfigError(f"to_pyg: expected {key} by node type or relation, got {kind!r}")
            data[kind][key] = _as_pyg_x(table) if key == "x" else table
    elif key in ("x", "y") and is_dense(value) and value.shape[:1] == (graph.num_nodes,):
        _hand_out(data, nodes, key, value)
    elif key in ("edge_attr", "edge_weight") and value.shape[:1] == (graph.num_edges,):
        _hand_out(data, edges, key, value)
    elif isinstance(value, Tensor | SparseFeatures):
        raise ConfigError(f"to_pyg: expected {key} of a typed graph as a dict by type or relation, got a tensor")
    else:
        setattr(data, key, value)


def _hand_out(data: Any, ranges: Mapping[Any, range], key: str, table: Tensor) -> None:
    """Every type its stretch of a table over all."""
    for kind, ids in ranges.items():
        data[kind][key] = table[ids.start : ids.stop]


def _mask(ids: Tensor, rows: int) -> Tensor:
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[ids] = True
    return mask


def _as_pyg_x(x: Features) -> Tensor:
    if not isinstance(x, SparseFeatures):
        return x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(x.indptr, x.indices.long(), x.values, x.shape)
