"""One message-passing call: the functions, the graph, and every field checked and laid out flat.

Comes in: what the user gave to ``update_all`` or ``propagate``. Goes out: a :class:`Call` in which every field is one
tensor with one row per node, edge or type. Dicts per type are joined here. Called by ``nn.message_passing``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DtypeError, FieldError, GraphError, ShapeError, UserCodeError
from graphweft.frontend.habits import as_code
from graphweft.frontend.source import current_line
from graphweft.graph.graph import Graph
from graphweft.storage.dense_rows import dense_rows
from graphweft.storage.feature import SparseFeatures

Function = Callable[..., Any]
Fields = dict[str, Tensor]


def absent(*_: Any) -> Any:
    """The function of a stage that a call does not have."""
    raise UserCodeError("a stage that the call does not have was run")


@dataclass(frozen=True)
class Call:
    """What one call computes from.

    Attributes:
        graph: The graph.
        message, reduce, update: The user's functions; update may be None, and :func:`absent` stands where a call has
            no message or no reduce. The result is that of the last one.
        src, dst: Node fields of sources and destinations; the same dict on a square graph.
        edata: Edge fields, row i is edge i.
        ntype, etype: Type tables, rows in the order of the graph's types.
        params: Extra positional arguments of message.
    """

    graph: Graph
    message: Function
    reduce: Function
    update: Function | None
    src: Fields
    dst: Fields
    edata: Fields
    ntype: Fields
    etype: Fields
    params: tuple[Any, ...]

    def remedy(self, where: str, field: str) -> str:
        """How a missing ``field`` comes into a call; ``where``: ``src``, ``dst`` or ``edge``."""
        keyword = "edata" if where == "edge" else "ndata"
        store = keyword if where == "edge" or self.graph.is_square else f"{where}data"
        if field in self.graph.stored(store):
            return f"; graph.{store} has it, which a call reads only without {keyword}="
        pair = where != "edge" and not self.graph.is_square
        given = "(source rows, destination rows)" if pair else "..."
        return f"; give {keyword}={{{field!r}: {given}}} or set graph.{store}[{field!r}]"


def make_call(
    graph: Graph,
    message: Function,
    reduce: Function,
    update: Function | None = None,
    *,
    who: str = "update_all",
    ndata: Mapping[str, Any] | None = None,
    edata: Mapping[str, Any] | None = None,
    ntype_data: Mapping[str, Any] | None = None,
    etype_data: Mapping[str, Any] | None = None,
    params: Sequence[Any] = (),
) -> Call:
    """A checked call.

    Raises: GraphError, ShapeError, DtypeError, FieldError, UserCodeError naming the field, both sizes and the line.
    """
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{who}: expected a graphweft Graph first, got {type(graph).__name__}{_as_graph(graph)} ({current_line()})"
        )
    for name, function in (("message", message), ("reduce", reduce), ("update", update)):
        if not callable(function) and not (name == "update" and function is None):
            raise UserCodeError(
                f"{who}: expected {name} to be a function, got {function!r}{as_code(name, function)} ({current_line()})"
            )
    src, dst = _node_fields(graph, stored_nodes(graph) if ndata is None else _named("ndata", ndata))
    edges = {
        name: _rows(f"edata[{name!r}]", value, graph.num_edges, "edge", _edge_counts, graph)
        for name, value in (graph.stored("edata") if edata is None else _named("edata", edata)).items()
    }
    tables = {
        "ntype_data": (_named("ntype_data", ntype_data), "node_types", "node type"),
        "etype_data": (_named("etype_data", etype_data), "relations", "edge type"),
    }
    ntype, etype = (
        {name: _table(f"{who}[{name!r}]", value, getattr(graph, types), what) for name, value in given.items()}
        for who, (given, types, what) in tables.items()
    )
    extra = tuple(params) if isinstance(params, list | tuple) else (params,)
    return Call(graph, message, reduce, update, src, dst, edges, ntype, etype, extra)


def stored_nodes(graph: Graph) -> Mapping[str, Any]:
    """The node fields that the graph itself holds, in the form of ``ndata``."""
    if graph.is_square:
        return graph.stored("ndata")
    src, dst = graph.stored("srcdata"), graph.stored("dstdata")
    return {name: (src.get(name), dst.get(name)) for name in (*src, *(name for name in dst if name not in src))}


def _named(who: str, fields: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if fields is None:
        return {}
    if not isinstance(fields, Mapping):
        raise FieldError(
            f"{who}: expected a dict from field name to tensor, got {type(fields).__name__} ({current_line()})"
        )
    for name in fields:
        if not isinstance(name, str):
            raise FieldError(f"{who}: expected names of fields as strings, got {name!r} ({current_line()})")
    return fields


def _as_graph(given: Any) -> str:
    """How what was given in place of a graph becomes one."""
    if isinstance(given, Tensor) and given.dim() == 2 and given.shape[0] == 2:
        return ": give gw.Graph(edge_index[0], edge_index[1], num_nodes=n)"
    return ": a layer takes one block of a batch, batch.blocks[i]" if isinstance(given, list | tuple) else ""


def _node_fields(graph: Graph, ndata: Mapping[str, Any]) -> tuple[Fields, Fields]:
    if graph.is_square:
        fields = {n: _rows(f"ndata[{n!r}]", v, graph.num_dst, "node", _node_counts, graph) for n, v in ndata.items()}
        return fields, fields
    src: Fields = {}
    dst: Fields = {}
    for name, value in ndata.items():
        if not isinstance(value, tuple) or len(value) != 2:
            raise FieldError(
                f"ndata[{name!r}]: expected a pair (source rows, destination rows) on a bipartite graph, got "
                f"{type(value).__name__} ({current_line()})"
            )
        for fields, rows, count, what in (
            (src, value[0], graph.num_src, "source node"),
            (dst, value[1], graph.num_dst, "destination node"),
        ):
            if rows is not None:
                fields[name] = _rows(f"ndata[{name!r}]", rows, count, what)
    return src, dst


_Counts = Callable[[Graph], dict[Any, int] | None]


def _node_counts(graph: Graph) -> dict[Any, int] | None:
    if not graph.is_square:
        return None
    return {name: len(graph.layout.node_range(name)) for name in graph.node_types}


def _edge_counts(graph: Graph) -> dict[Any, int] | None:
    if not graph.is_square:
        return None
    return {relation: len(graph.layout.edge_range(relation)) for relation in graph.relations}


def _rows(
    who: str, value: Any, count: int, what: str, counts: _Counts | None = None, graph: Graph | None = None
) -> Tensor:
    """One tensor with ``count`` rows, from a tensor or, with ``counts`` of a graph, a dict by type."""
    if isinstance(value, Mapping):
        by_type = None if counts is None or graph is None else counts(graph)
        if by_type is None:
            raise FieldError(f"{who}: expected a tensor, got a dict by type on a bipartite graph ({current_line()})")
        parts = _by_type(who, value, tuple(by_type), what)
        rows = [_rows(f"{who}[{key!r}]", parts[key], size, what) for key, size in by_type.items() if key in parts]
        _check_alike(who, dict(zip(parts, rows, strict=True)))
        value = torch.cat(rows)
    tensor = _tensor(who, value)
    if tensor.dim() == 0 or tensor.shape[0] != count:
        got = "a scalar" if tensor.dim() == 0 else f"{tensor.shape[0]} rows"
        raise ShapeError(f"{who}: expected {count} rows, one per {what}, got {got} ({current_line()})")
    return tensor


def _table(who: str, value: Any, types: tuple[Any, ...], what: str) -> Tensor:
    """One row per type, from a tensor or a dict by type."""
    if isinstance(value, Mapping):
        parts = _by_type(who, value, types, what)
        _check_alike(who, parts, rows=True)
        value = torch.stack([parts[key] for key in types])
    tensor = _tensor(who, value)
    if tensor.dim() == 0 or tensor.shape[0] != len(types):
        got = "a scalar" if tensor.dim() == 0 else f"{tensor.shape[0]} rows"
        raise ShapeError(f"{who}: expected {len(types)} rows, one per {what}, got {got} ({current_line()})")
    return tensor


def _by_type(who: str, value: Mapping[Any, Any], types: tuple[Any, ...], what: str) -> dict[Any, Tensor]:
    """The parts in the order of the types; a relation may be called by its name alone where that is unique."""
    names = {key: key for key in types}
    relations = [key for key in types if isinstance(key, tuple)]
    for relation in relations:
        if sum(other[1] == relation[1] for other in relations) == 1:
            names.setdefault(relation[1], relation)
    unknown = [key for key in value if key not in names]
    given = {names[key]: part for key, part in value.items() if key in names}
    missing = [key for key in types if key not in given]
    if unknown or missing:
        got = f"{unknown[0]!r}" if unknown else f"none for {missing[0]!r}"
        raise FieldError(f"{who}: expected one entry for each of {len(types)} {what}s, got {got} ({current_line()})")
    return {key: _tensor(f"{who}[{key!r}]", given[key]) for key in types}


def _check_alike(who: str, parts: Mapping[Any, Tensor], rows: bool = False) -> None:
    """All parts have the same dtype and sizes, but for the number of rows unless ``rows``."""
    kinds = {key: (part.dtype, tuple(part.shape if rows else part.shape[1:])) for key, part in parts.items()}
    first = next(iter(kinds), None)
    for key, kind in kinds.items():
        if kind != kinds[first]:
            raise ShapeError(
                f"{who}: expected {kinds[first][1]} {kinds[first][0]} for every type as for {first!r}, got {kind[1]} "
                f"{kind[0]} for {key!r} ({current_line()})"
            )


def _tensor(who: str, value: Any) -> Tensor:
    if isinstance(value, SparseFeatures):
        return dense_rows(who, value, kept=True)[0]
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)  # which goes to the default device
    except (TypeError, ValueError, RuntimeError):
        raise DtypeError(f"{who}: expected a tensor, got {type(value).__name__} ({current_line()})") from None
