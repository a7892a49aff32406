"""Graphs and their data to and from PyTorch Geometric.

Comes in: ``Data`` or ``HeteroData``, or a Graph with tensors. Goes out: the other. Called by users who move between the
two. PyTorch Geometric is optional and is imported only where one of its objects is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from graphweft._errors import DtypeError, GraphError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures

_KNOWN = {"edge_index", "adj_t", "x", "y", "num_nodes", "batch", "ptr"}


@dataclass(frozen=True)
class PygParts:
    """What a PyTorch Geometric object holds, in our terms.

    Attributes:
        graph: The edges, in the order of ``edge_index``; all other edge tensors are its ``edata``.
        x: Node features, dense or sparse; None where there are none. Typed graphs: None, see ``features``.
        y: Labels of the nodes, if any.
        train_idx, val_idx, test_idx: int64 ids from the masks, if any.
        features: Typed graphs: features per node type.
        labels: Typed graphs: labels per node type.
    """

    graph: Graph
    x: torch.Tensor | SparseFeatures | None = None
    y: torch.Tensor | None = None
    train_idx: torch.Tensor | None = None
    val_idx: torch.Tensor | None = None
    test_idx: torch.Tensor | None = None
    features: dict[str, torch.Tensor | SparseFeatures] = field(default_factory=dict)
    labels: dict[str, torch.Tensor] = field(default_factory=dict)


def from_pyg(data: Any) -> PygParts:
    """The parts of a ``torch_geometric.data.Data`` or ``HeteroData``.

    Edges come from ``edge_index`` (row 0 sources) or a torch sparse ``adj_t`` (rows destinations). Node tensors other
    than features, labels and masks become ``ndata``, edge tensors ``edata``.

    Raises: DtypeError for other objects; errors of Graph for ids out of range.
    """
    if hasattr(data, "edge_types") and hasattr(data, "node_types"):
        return _from_hetero(data)
    if not hasattr(data, "edge_index") and not hasattr(data, "adj_t"):
        raise DtypeError(f"from_pyg: expected a Data or HeteroData, got {type(data).__name__}")
    graph = _graph(data)
    stored: Mapping[str, Any] = data.to_dict() if hasattr(data, "to_dict") else vars(data)
    tensors = {key: value for key, value in stored.items() if isinstance(value, torch.Tensor) and key not in _KNOWN}
    splits: dict[str, Any] = {}
    for split in ("train", "val", "test"):
        mask = tensors.pop(f"{split}_mask", None)
        if mask is not None and mask.dim() != 1:
            tensors[f"{split}_mask"], mask = mask, None  # several splits: the user chooses one
        splits[f"{split}_idx"] = None if mask is None else mask.nonzero().reshape(-1)
    for key, value in tensors.items():
        if data.is_edge_attr(key) and value.shape[:1] == (graph.num_edges,):
            graph.edata[key] = value
        elif value.shape[:1] == (graph.num_nodes,):
            graph.ndata[key] = value
    return PygParts(graph, _features(stored.get("x")), stored.get("y"), **splits)


def _graph(data: Any) -> Graph:
    index = getattr(data, "edge_index", None)
    if index is not None:
        if index.dim() != 2 or index.shape[0] != 2:
            raise GraphError(f"from_pyg: expected edge_index of shape (2, E), got {tuple(index.shape)}")
        return Graph(index[0], index[1], num_nodes=data.num_nodes)
    adjacency = getattr(data, "adj_t", None)
    if not isinstance(adjacency, torch.Tensor):
        raise DtypeError(f"from_pyg: expected edge_index or a torch sparse adj_t, got {type(adjacency).__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR layout a beta
        rows = adjacency.to_sparse_csr()
    return Graph.from_csc(rows.crow_indices(), rows.col_indices(), num_src=rows.shape[1])


def _features(x: Any) -> torch.Tensor | SparseFeatures | None:
    if not isinstance(x, torch.Tensor) or x.layout == torch.strided:
        return x if isinstance(x, torch.Tensor) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rows = x.to_sparse_csr()
    return SparseFeatures(rows.crow_indices(), rows.col_indices(), rows.values(), (rows.shape[0], rows.shape[1]))


def _from_hetero(data: Any) -> PygParts:
    counts = {name: int(data[name].num_nodes) for name in data.node_types}
    edges = {relation: (data[relation].edge_index[0], data[relation].edge_index[1]) for relation in data.edge_types}
    features = {name: _features(data[name].x) for name in data.node_types if "x" in data[name]}
    labels = {name: data[name].y for name in data.node_types if "y" in data[name]}
    kept = {name: value for name, value in features.items() if value is not None}
    return PygParts(Graph.hetero(edges, counts), features=kept, labels=labels)


def _edge_index(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return torch.stack([src, dst])


def _as_pyg_x(x: torch.Tensor | SparseFeatures) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(x.indptr, x.indices.long(), x.values, x.shape)


def to_pyg(graph: Graph, *, x: Any = None, y: torch.Tensor | None = None, **tensors: torch.Tensor | None) -> Any:
    """A ``torch_geometric.data.Data`` (typed graphs: ``HeteroData``) with the graph's edges and named tensors.

    Edges keep their order in ``edge_index``. ``x``: dense or SparseFeatures (becomes a torch CSR tensor), for a typed
    graph a dict by node type. ``train_idx=...`` and its like become masks; other tensors are passed on.

    Raises: MissingPackageError without PyTorch Geometric; GraphError for a bipartite untyped graph.
    """
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError:
        raise MissingPackageError(
            "to_pyg: expected the package torch_geometric, which is not installed (pip install torch_geometric)"
        ) from None
    if graph.is_typed:
        return _to_hetero(HeteroData(), graph, x, y)
    if not graph.is_square:
        raise GraphError(f"to_pyg: expected one set of nodes, got {graph!r}")
    data = Data(edge_index=_edge_index(*graph.edges()), num_nodes=graph.num_nodes)
    if x is not None:
        data.x = _as_pyg_x(x)
    if y is not None:
        data.y = y
    for name, tensor in (*graph.ndata.items(), *graph.edata.items(), *tensors.items()):
        if tensor is None:
            continue
        if name in ("train_idx", "val_idx", "test_idx"):
            mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
            mask[tensor] = True
            data[name.replace("_idx", "_mask")] = mask
        else:
            data[name] = tensor
    return data


def _to_hetero(data: Any, graph: Graph, x: Mapping[str, Any] | None, y: Any) -> Any:
    src, dst = graph.edges()
    for name in graph.node_types:
        data[name].num_nodes = len(graph.layout.node_range(name))
        if x is not None and name in x:
            data[name].x = _as_pyg_x(x[name])
        if isinstance(y, Mapping) and name in y:
            data[name].y = y[name]
    for relation in graph.relations:
        ids = graph.layout.edge_range(relation)
        starts = (graph.layout.node_range(relation[0]).start, graph.layout.node_range(relation[2]).start)
        here = slice(ids.start, ids.stop)
        data[relation].edge_index = _edge_index(src[here] - starts[0], dst[here] - starts[1])
    return data
