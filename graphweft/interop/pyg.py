"""Graphs and their data from PyTorch Geometric.

Comes in: ``Data``, ``HeteroData``, a ``Batch`` of several or ``TemporalData``. Goes out: :class:`GraphParts`. Called by
users who come from there; nothing of PyTorch Geometric is imported. The way back is ``to_pyg.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphweft._errors import ConfigError, DtypeError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import borrow
from graphweft.graph.select import as_selection
from graphweft.graph.typed import Relation
from graphweft.interop.parts import Features, GraphParts
from graphweft.storage.feature import SparseFeatures

_WHO = "from_pyg"
_STRUCTURE = ("edge_index", "adj_t", "adj", "num_nodes")
_SPLITS = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}  # ours, and what others call them
_FORMS = ("mask", "idx", "index")
_ON_EDGES = ("edge_attr", "edge_weight")


def from_pyg(data: Any, split: int | Mapping[str, Any] | None = None) -> GraphParts:
    """The parts of a ``torch_geometric.data.Data``, ``HeteroData`` or ``TemporalData``; nothing is left behind.

    Edges come from ``edge_index`` (row 0 sources) or a sparse ``adj_t`` (rows destinations), whose values are the edge
    tensor ``edge_weight``, unless all are one (``edge_attr`` where they have columns). Node tensors other than features
    and labels become ``ndata``, edge tensors ``edata`` (typed graphs: tables by type and relation), and what is
    neither is ``extra``. Masks also stay among the node tensors.

    Args:
        data: The object.
        split: Which column to take of masks that hold several splits, (N, S); or a dict of ids or masks for "train",
            "val" ("valid") and "test", by node type for typed graphs, in place of what ``data`` has.

    Warns: UserWarning for masks with several splits while none is chosen.

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
    if split is not None and not isinstance(split, int | Mapping):
        raise ConfigError(f"{_WHO}: expected split as a number or a dict of ids, got {type(split).__name__}")
    column = split if isinstance(split, int) else None
    whole = _from_hetero(data, column) if "HeteroData" in kinds else _from_data(data, column)
    if isinstance(split, Mapping):
        return _with_split(whole, split)
    tables = whole.node_tables.values() if whole.graph.is_typed else [whole.graph.ndata]
    open_masks = {name for table in tables for name in table if column is None and _is_open(name, table[name])}
    if open_masks:
        names = ", ".join(sorted(open_masks))
        warnings.warn(f"{_WHO}: several splits in {names}; none is taken, split=0 takes the first", stacklevel=2)
    return whole


@dataclass
class _Store:
    """What one node type, or an untyped graph, has."""

    x: Features | None = None
    y: Tensor | None = None
    splits: dict[str, Tensor | None] = field(default_factory=dict)
    nodes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, Tensor] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def _from_data(data: Any, column: int | None) -> GraphParts:
    stored = data.to_dict()
    src, dst, values = _ends(_WHO, stored)
    graph = Graph(src, dst, num_nodes=data.num_nodes)
    ptr = _graph_ptr(stored, graph.num_nodes)
    if ptr is not None:
        stored = {name: value for name, value in stored.items() if name not in ("ptr", "batch")}
    labelled = graph.num_nodes if ptr is None else ptr.numel() - 1
    found = _sorted(_WHO, stored, data, graph.num_nodes, labelled, column, num_edges=graph.num_edges)
    found.edges.update(values)
    graph.ndata.update(found.nodes)
    graph.edata.update(found.edges)
    train, val, test = (found.splits[f"{part}_idx"] for part in _SPLITS)
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
        stores[name] = found = _sorted(f"{_WHO}: {name}", stored[name], data[name], rows, rows, column)
        extra.update({(name, key): value for key, value in found.extra.items()})

    def flat(part: str) -> Tensor | None:
        """Ids of one part among all nodes."""
        ids = {name: found.splits[part] for name, found in stores.items()}
        moved = [own + graph.layout.node_range(name).start for name, own in ids.items() if own is not None]
        return torch.cat(moved) if moved else None

    return GraphParts(
        graph,
        train_idx=flat("train_idx"),
        val_idx=flat("val_idx"),
        test_idx=flat("test_idx"),
        features={name: found.x for name, found in stores.items() if found.x is not None},
        labels={name: found.y for name, found in stores.items() if found.y is not None},
        node_tables={name: found.nodes for name, found in stores.items() if found.nodes},
        edge_tables={relation: found for relation, found in tables.items() if found},
        extra=extra,
    )


def _from_temporal(data: Any) -> GraphParts:
    stored = {name: _tensor(value) for name, value in data.to_dict().items()}
    src, dst = stored.pop("src"), stored.pop("dst")
    graph = Graph(src, dst, num_nodes=stored.pop("num_nodes", data.num_nodes))
    extra = {}
    for name, value in stored.items():
        if isinstance(value, Tensor) and value.shape[:1] == (graph.num_edges,):
            graph.edata[name] = value
        else:
            extra[name] = value
    return GraphParts(graph, extra=extra)


def _sorted(
    who: str,
    stored: Mapping[str, Any],
    kinds: Any,
    rows: int,
    labelled: int,
    column: int | None,
    num_edges: int | None = None,
) -> _Store:
    """The entries of a store where they belong; ``kinds`` knows which are node and edge tensors."""
    found = _Store()
    taken: set[str] = set()
    for part, others in _SPLITS.items():
        names = [f"{other}_{form}" for other in others for form in _FORMS]
        names = [name for name in names if stored.get(name) is not None]
        chosen = [_split(who, name, _tensor(stored[name]), labelled, column) for name in names]
        ids = [each for each in chosen if each is not None]
        if len(ids) > 1 and not torch.equal(ids[0].sort().values, ids[1].sort().values):
            raise GraphError(f"{who}: expected {names[0]} and {names[1]} to name the same rows, got others")
        found.splits[f"{part}_idx"] = ids[0] if ids else None
        taken.update(name for name in names if not name.endswith("mask"))
    for name, value in stored.items():
        if name in _STRUCTURE or name in taken or value is None:
            continue
        value = _tensor(value)
        if name == "x":
            found.x = _features(who, value, rows)
        elif name == "y" and isinstance(value, Tensor):
            if num_edges is None and value.shape[:1] != (rows,):
                raise GraphError(f"{who}: expected y with {rows} rows, one per node, got {_described(value)}")
            found.y = value
        elif not isinstance(value, Tensor) or value.layout != torch.strided or value.dim() == 0:
            found.extra[name] = value
        elif num_edges is not None and kinds.is_edge_attr(name) and value.shape[0] == num_edges:
            found.edges[name] = value
        elif num_edges is not None and name in _ON_EDGES:
            raise GraphError(f"{who}: expected {name} with {num_edges} rows, one per edge, got {_described(value)}")
        elif value.shape[0] == rows and (num_edges is None or kinds.is_node_attr(name)):
            found.nodes[name] = value
        else:
            found.extra[name] = value
    return found


def _edge_table(
    who: str, stored: Mapping[str, Any], kinds: Any, count: int, values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Edge tensors of a relation, and what else it has."""
    table, rest = dict(values), {}
    for name, value in stored.items():
        if name in _STRUCTURE or value is None:
            continue
        value = _tensor(value)
        dense = isinstance(value, Tensor) and value.layout == torch.strided and value.shape[:1] == (count,)
        if dense and kinds.is_edge_attr(name):
            table[name] = value
        elif name in _ON_EDGES:
            raise GraphError(f"{who}: expected {name} with {count} rows, one per edge, got {_described(value)}")
        else:
            rest[name] = value
    return table, rest


def _split(who: str, name: str, value: Any, rows: int, column: int | None) -> Tensor | None:
    """int64 ids of a mask or of ids; None while the column of a mask with several is not chosen."""
    if not isinstance(value, Tensor):
        raise GraphError(f"{who}: expected {name} as a tensor, got {type(value).__name__}")
    if not name.endswith("mask"):
        return as_selection(who, name, value, rows)
    if value.dim() not in (1, 2) or value.shape[0] != rows:
        raise GraphError(f"{who}: expected {name} with {rows} rows, one per node, got shape {tuple(value.shape)}")
    if value.dim() == 2:
        if column is None and _is_open(name, value):
            return None
        if not 0 <= (column or 0) < value.shape[1]:
            raise ConfigError(f"{who}: expected split in [0, {value.shape[1]}), as {name} holds, got {column}")
        value = value[:, column or 0]
    ids: Tensor = value.nonzero().reshape(-1)
    return ids


def _is_open(name: str, value: Tensor) -> bool:
    """Whether a mask holds several splits."""
    known = {f"{other}_mask" for others in _SPLITS.values() for other in others}
    return name in known and value.dim() == 2 and value.shape[1] != 1


def _with_split(parts: GraphParts, split: Mapping[str, Any]) -> GraphParts:
    """``parts`` with the ids that the caller gave."""
    known = {other: part for part, others in _SPLITS.items() for other in others}
    ids: dict[str, Any] = {f"{part}_idx": None for part in _SPLITS}
    graph, ptr = parts.graph, parts.graph_ptr
    rows = graph.num_nodes if ptr is None else ptr.numel() - 1
    for name, chosen in split.items():
        if name not in known:
            raise ConfigError(f"{_WHO}: expected split with train, val (valid) and test, got {name!r}")
        if isinstance(chosen, Mapping):
            ranges = {kind: graph.layout.node_range(kind) for kind in chosen}
            flat = [as_selection(_WHO, kind, chosen[kind], len(own)) + own.start for kind, own in ranges.items()]
            ids[f"{known[name]}_idx"] = torch.cat(flat) if flat else None
        else:
            ids[f"{known[name]}_idx"] = as_selection(_WHO, name, chosen, rows)
    return replace(parts, **ids)


def _ends(who: str, stored: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sources, destinations, and the values of a sparse adjacency under the name of an edge tensor."""
    index = stored.get("edge_index")
    if index is not None:
        if not isinstance(index, Tensor) or index.dim() != 2 or index.shape[0] != 2:
            raise GraphError(f"{who}: expected edge_index of shape (2, E), got {_described(index)}")
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
        raise DtypeError(f"{who}: expected {name} as a sparse matrix, got {_described(adjacency)}")
    if adjacency.layout == torch.sparse_coo:
        rows, columns = adjacency._indices()
        return rows, columns, adjacency._values()
    ordered = _as_csr(adjacency)
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


def _tensor(value: Any) -> Any:
    """A tensor on the CPU, apart from any graph of gradients, where ``value`` is one or an array of numbers."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return borrow(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else value


def _features(who: str, x: Any, rows: int) -> Features:
    if sp.issparse(x):
        found: Features = SparseFeatures.from_scipy(x)
    elif hasattr(x, "csr"):
        indptr, indices, values = x.csr()
        values = torch.ones(indices.numel()) if values is None else values
        found = SparseFeatures(indptr, indices, values, (x.size(0), x.size(1)))
    elif isinstance(x, Tensor) and x.layout != torch.strided:
        ordered = _as_csr(x)
        shape = (ordered.shape[0], ordered.shape[1])
        found = SparseFeatures(ordered.crow_indices(), ordered.col_indices(), ordered.values(), shape)
    elif isinstance(x, Tensor) and x.dim() > 0:
        found = x
    else:
        raise DtypeError(f"{who}: expected x as a matrix, got {_described(x)}")
    count = found.num_rows if isinstance(found, SparseFeatures) else found.shape[0]
    if count != rows:
        raise GraphError(f"{who}: expected x with {rows} rows, one per node, got {count}")
    return found


def _as_csr(matrix: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR layout a beta
        return matrix.to_sparse_csr()


def _described(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
