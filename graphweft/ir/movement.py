"""Type rules of the operations that move rows: softmax over in-edges, types to nodes and edges, extrema, blocks.

Comes in: operand types and attributes. Goes out: the result type, or an IRError. Rows of node type tables are called
``A``, of edge type tables ``T``. Listed in ``ops.py``; exact semantics in docs/ir.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from graphweft.ir.expect import expect_dense, expect_graph, expect_tensor, require
from graphweft.ir.residency import IndexType, Residency, TensorType, Type

NODE_TYPES, EDGE_TYPES = "A", "T"
TIES = ("first", "split")


def _extremum(op: str, attrs: dict[str, Any]) -> None:
    require(op, attrs.get("kind") in ("max", "min"), "max or min", attrs.get("kind"))
    require(op, attrs.get("ties") in TIES, "ties first or split", attrs.get("ties"))


def edge_softmax(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Edge rows, floating."""
    graph, x = expect_graph("edge_softmax", types[0]), expect_dense("edge_softmax", types[1])
    require("edge_softmax", x.rows == graph.edge, f"rows {graph.edge}", x)
    require("edge_softmax", x.dtype.is_floating_point, "a floating dtype", x)
    return x


def edge_margin(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Edge rows, floating."""
    graph, x = expect_graph("edge_margin", types[0]), expect_dense("edge_margin", types[1])
    require("edge_margin", x.rows == graph.edge, f"rows {graph.edge}", x)
    require("edge_margin", x.dtype.is_floating_point, "a floating dtype", x)
    return x


def edge_margin_grad(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(graph, scores, gradient of the margins) -> edge rows."""
    x = edge_margin(types[:2], attrs)
    require("edge_margin_grad", types[2] == x, str(x), types[2])
    return x


def edge_softmax_grad(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Edge rows: the softmax, and the gradient of it."""
    made, g = edge_softmax(types[:2], attrs), expect_dense("edge_softmax_grad", types[2])
    require("edge_softmax_grad", g == made, f"a gradient like {made}", g)
    return made


def reduce_mask(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Edge rows."""
    graph, x = expect_graph("reduce_mask", types[0]), expect_dense("reduce_mask", types[1])
    _extremum("reduce_mask", attrs)
    require("reduce_mask", x.rows == graph.edge, f"rows {graph.edge}", x)
    return x


def _typed(op: str, types: Sequence[Type], edge: bool, to_types: bool) -> Type:
    """Between rows of types and rows of nodes or edges."""
    graph, x = expect_graph(op, types[0]), expect_dense(op, types[1])
    require(op, graph.square, "a graph over one set of nodes", graph)
    few, many = (EDGE_TYPES, graph.edge) if edge else (NODE_TYPES, graph.dst)
    require(op, x.rows == (many if to_types else few), f"rows {many if to_types else few}", x)
    if to_types:
        return replace(x, residency=Residency.ETYPE if edge else Residency.NTYPE, rows=few)
    return replace(x, residency=Residency.EDGE if edge else Residency.DST, rows=many)


def broadcast_ntype(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Rows A to nodes."""
    return _typed("broadcast_ntype", types, edge=False, to_types=False)


def broadcast_etype(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Rows T to edges."""
    return _typed("broadcast_etype", types, edge=True, to_types=False)


def reduce_ntype(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Nodes to rows A."""
    return _typed("reduce_ntype", types, edge=False, to_types=True)


def reduce_etype(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Edges to rows T."""
    return _typed("reduce_etype", types, edge=True, to_types=True)


def broadcast_shared(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Shared to the rows that ``to`` names."""
    graph, x = expect_graph("broadcast_shared", types[0]), expect_dense("broadcast_shared", types[1])
    require("broadcast_shared", x.rows is None, "a shared value", x)
    rows = {
        "edge": (Residency.EDGE, graph.edge),
        "src": (Residency.SRC, graph.src),
        "dst": (Residency.DST, graph.dst),
    }
    require("broadcast_shared", attrs.get("to") in rows, "edge, src or dst", attrs.get("to"))
    residency, symbol = rows[attrs["to"]]
    return replace(x, residency=residency, rows=symbol)


def lookup(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """A shared table (k, ...) and integer rows: one table row for every number."""
    table, index = expect_dense("lookup", types[0]), expect_dense("lookup", types[1])
    require("lookup", table.rows is None and len(table.dims) >= 1, "a shared table", table)
    require("lookup", _is_integer(index), "int32 or int64 numbers", index)
    return replace(table, residency=index.residency, rows=index.rows, dims=(*index.dims, *table.dims[1:]))


def lookup_sum(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Rows and their numbers: a shared table of ``size`` rows."""
    x, index = expect_dense("lookup_sum", types[0]), expect_dense("lookup_sum", types[1])
    require("lookup_sum", _is_integer(index), "int32 or int64 numbers", index)
    depth = len(index.dims)
    require("lookup_sum", x.rows == index.rows and x.dims[:depth] == index.dims, "one number per row", x, index)
    return TensorType(Residency.SHARED, None, (attrs["size"], *x.dims[depth:]), x.dtype)


def _is_integer(type_: TensorType) -> bool:
    return str(type_.dtype) in ("torch.int32", "torch.int64")


def max_rows(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Rows to shared."""
    x = expect_dense("max_rows", types[0])
    _extremum("max_rows", attrs)
    require("max_rows", x.rows is not None, "rows", x)
    return replace(x, residency=Residency.SHARED, rows=None)


def max_rows_mask(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """As the operand."""
    max_rows(types, attrs)
    return expect_tensor("max_rows_mask", types[0])


def src_degree(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """One number per source."""
    graph = expect_graph("src_degree", types[0])
    return TensorType(Residency.SRC, graph.src, (), attrs.get("dtype", torch.float32))


def receivers(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Ids of destinations, as many as have in-edges."""
    graph = expect_graph("receivers", types[0])
    return IndexType(f"{graph.dst}-receivers", graph.dst)


def own_rows(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Source rows to destination rows."""
    graph, x = expect_graph("own_rows", types[0]), expect_dense("own_rows", types[1])
    require("own_rows", x.rows == graph.src, f"rows {graph.src}", x)
    return replace(x, residency=Residency.DST, rows=graph.dst)


def pad_rows(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Destination rows to source rows."""
    graph, x = expect_graph("pad_rows", types[0]), expect_dense("pad_rows", types[1])
    require("pad_rows", x.rows == graph.dst, f"rows {graph.dst}", x)
    return replace(x, residency=Residency.SRC, rows=graph.src)
