"""Named tensors of foreign objects, sorted into features, labels, splits and the rest.

Comes in: what a node type, or an untyped graph, holds by name. Goes out: :class:`Store`. Called by the converters
beside this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
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
from graphweft.interop.parts import GraphParts
from graphweft.storage.feature import Features, SparseFeatures

STRUCTURE = ("edge_index", "adj_t", "adj", "num_nodes")
ON_EDGES = ("edge_attr", "edge_weight")
_SPLITS = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}  # ours, and what others call them
_FORMS = ("mask", "idx", "index")


@dataclass
class Store:
    """What one node type, or an untyped graph, has."""

    x: Features | None = None
    y: Tensor | None = None
    splits: dict[str, Tensor | None] = field(default_factory=dict)
    nodes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, Tensor] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def sort_entries(
    who: str,
    stored: Mapping[str, Any],
    kinds: Any,
    rows: int,
    labelled: int,
    column: int | None,
    num_edges: int | None = None,
) -> Store:
    """The entries of a store where they belong; ``kinds`` knows which are node and edge tensors."""
    found = Store()
    taken: set[str] = set()
    for part, others in _SPLITS.items():
        names = [f"{other}_{form}" for other in others for form in _FORMS]
        names = [name for name in names if stored.get(name) is not None]
        chosen = [_split(who, name, as_tensor(stored[name]), labelled, column) for name in names]
        ids = [each for each in chosen if each is not None]
        if len(ids) > 1 and not torch.equal(ids[0].sort().values, ids[1].sort().values):
            raise GraphError(f"{who}: expected {names[0]} and {names[1]} to name the same rows, got others")
        found.splits[f"{part}_idx"] = ids[0] if ids else None
        taken.update(name for name in names if not name.endswith("mask"))
    for name, value in stored.items():
        if name in STRUCTURE or name in taken or value is None:
            continue
        value = as_tensor(value)
        if name == "x":
            found.x = _features(who, value, rows)
        elif name == "y" and isinstance(value, Tensor):
            if num_edges is None and value.shape[:1] != (rows,):
                raise GraphError(f"{who}: expected y with {rows} rows, one per node, got {described(value)}")
            found.y = value
        elif not isinstance(value, Tensor) or value.layout != torch.strided or value.dim() == 0:
            found.extra[name] = value
        elif num_edges is not None and kinds.is_edge_attr(name) and value.shape[0] == num_edges:
            found.edges[name] = value
        elif num_edges is not None and name in ON_EDGES:
            raise GraphError(f"{who}: expected {name} with {num_edges} rows, one per edge, got {described(value)}")
        elif value.shape[0] == rows and (num_edges is None or kinds.is_node_attr(name)):
            found.nodes[name] = value
        else:
            found.extra[name] = value
    return found


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


def column_of(who: str, split: Any) -> int | None:
    """The column that a split names. Raises: ConfigError for what is neither a number nor a dict."""
    if split is not None and not isinstance(split, int | Mapping):
        raise ConfigError(f"{who}: expected split as a number or a dict of ids, got {type(split).__name__}")
    return split if isinstance(split, int) else None


def settle_split(who: str, parts: GraphParts, split: Any) -> GraphParts:
    """``parts`` with the split that a dict names, and a word on masks with several while none is chosen."""
    if isinstance(split, Mapping):
        return _with_split(who, parts, split)
    tables: Iterable[Mapping[str, Tensor]] = parts.node_tables.values() if parts.graph.is_typed else [parts.graph.ndata]
    open_masks = {name for table in tables for name in table if split is None and _is_open(name, table[name])}
    if open_masks:
        names = ", ".join(sorted(open_masks))
        warnings.warn(f"{who}: several splits in {names}; none is taken, split=0 takes the first", stacklevel=3)
    return parts


def flat_splits(graph: Graph, stores: Mapping[str, Store]) -> list[Tensor | None]:
    """Ids of the training, validation and test nodes among all nodes of a typed graph."""
    out: list[Tensor | None] = []
    for part in _SPLITS:
        ids = {name: store.splits[f"{part}_idx"] for name, store in stores.items()}
        moved = [own + graph.layout.node_range(name).start for name, own in ids.items() if own is not None]
        out.append(torch.cat(moved) if moved else None)
    return out


def _with_split(who: str, parts: GraphParts, split: Mapping[str, Any]) -> GraphParts:
    """``parts`` with the ids that the caller gave, and with masks that say the same."""
    known = {other: part for part, others in _SPLITS.items() for other in others}
    ids: dict[str, Any] = {f"{part}_idx": None for part in _SPLITS}
    graph, ptr = parts.graph, parts.graph_ptr
    rows = graph.num_nodes if ptr is None else ptr.numel() - 1
    for name, chosen in split.items():
        if name not in known:
            raise ConfigError(f"{who}: expected split with train, val (valid) and test, got {name!r}")
        if isinstance(chosen, Mapping):
            ranges = {kind: graph.layout.node_range(kind) for kind in chosen}
            flat = [as_selection(who, kind, chosen[kind], len(own)) + own.start for kind, own in ranges.items()]
            ids[f"{known[name]}_idx"] = torch.cat(flat) if flat else None
        else:
            ids[f"{known[name]}_idx"] = as_selection(who, name, chosen, rows)
    tables = {kind: dict(table) for kind, table in parts.node_tables.items()}
    for part in _SPLITS if ptr is None else ():
        mask, named = torch.zeros(rows, dtype=torch.bool), f"{part}_mask"
        chosen = ids[f"{part}_idx"]
        mask[[] if chosen is None else chosen] = True
        if not graph.is_typed and (chosen is not None or named in graph.ndata):
            graph.ndata[named] = mask
        for kind in graph.node_types if graph.is_typed else ():
            own = graph.layout.node_range(kind)
            rest = mask[own.start : own.stop]
            if bool(rest.any()) or named in tables.get(kind, {}):
                tables.setdefault(kind, {})[named] = rest
    return replace(parts, **ids, node_tables=tables)


def as_tensor(value: Any) -> Any:
    """A tensor on the CPU, apart from any graph of gradients, where ``value`` is one or an array of numbers."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return borrow(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else value


def _features(who: str, x: Any, rows: int) -> Features:
    if sp.issparse(x):
        found: Features = SparseFeatures.from_scipy(x)
    elif isinstance(x, SparseFeatures):
        found = x
    elif hasattr(x, "csr"):
        indptr, indices, values = x.csr()
        values = torch.ones(indices.numel()) if values is None else values
        found = SparseFeatures(indptr, indices, values, (x.size(0), x.size(1)))
    elif isinstance(x, Tensor) and x.layout != torch.strided:
        ordered = as_csr(x)
        shape = (ordered.shape[0], ordered.shape[1])
        found = SparseFeatures(ordered.crow_indices(), ordered.col_indices(), ordered.values(), shape)
    elif isinstance(x, Tensor) and x.dim() > 0:
        found = x
    else:
        raise DtypeError(f"{who}: expected x as a matrix, got {described(x)}")
    count = found.num_rows if isinstance(found, SparseFeatures) else found.shape[0]
    if count != rows:
        raise GraphError(f"{who}: expected x with {rows} rows, one per node, got {count}")
    return found


def as_csr(matrix: Tensor) -> Tensor:
    """A sparse matrix as compressed rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR layout a beta
        return matrix.to_sparse_csr()


def described(value: Any) -> str:
    """What came, for messages: the shape of a tensor, else the type."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
