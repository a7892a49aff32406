"""Type rules of the products with a matrix per type: of nodes by their type, of edges by their relation.

Comes in: operand types and attributes. Goes out: the result type, or an IRError. Listed in ``ops.py``. Rows of
relations are ``T``, of node types ``A``; an edge keeps no copy of its matrix. Source: Graphiler, MLSys 2022, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from graphweft.ir.expect import expect_dense, expect_graph, require
from graphweft.ir.movement import EDGE_TYPES, NODE_TYPES
from graphweft.ir.residency import Residency, StructType, TensorType, Type


def _graph(op: str, type_: Type) -> StructType:
    graph = expect_graph(op, type_)
    require(op, graph.square, "a graph over one set of nodes", graph)
    return graph


def _matrices(op: str, type_: Type, rows: str, rank: int) -> TensorType:
    w = expect_dense(op, type_)
    require(op, w.rows == rows and len(w.dims) == rank, f"rows {rows} of {rank} dimensions", w)
    return w


def _weight(op: str, graph: StructType, type_: Type, heads: int) -> None:
    w = expect_dense(op, type_)
    require(op, w.rows == graph.edge and w.dims in ((), (heads,)), f"one number per {graph.edge}, or {heads}", w)


def typed_spmm(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Source rows (H, I) and matrices T (H, I, O), or stored (H, O, I): destination rows (H, O)."""
    op = "typed_spmm"
    graph, x = _graph(op, types[0]), expect_dense(op, types[1])
    w = _matrices(op, types[2], EDGE_TYPES, 3)
    heads, inner, outer = (w.dims[0], *(w.dims[:0:-1] if attrs["transposed"] else w.dims[1:]))
    require(op, x.rows == graph.src and x.dims == (heads, inner), f"rows {graph.src} of {heads} x {inner}", x)
    if len(types) == 4:
        _weight(op, graph, types[3], heads)
    return replace(x, residency=Residency.DST, rows=graph.dst, dims=(heads, outer))


def typed_sddmm(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Source rows (H, I), matrices, destination rows (H, O): edge rows (H,), or one number an edge."""
    op = "typed_sddmm"
    graph, x = _graph(op, types[0]), expect_dense(op, types[1])
    made = typed_spmm(types[:3], attrs)
    y = expect_dense(op, types[3])
    require(op, y.rows == graph.dst and y.dims == expect_dense(op, made).dims, f"rows like {made}", y)
    return replace(x, residency=Residency.EDGE, rows=graph.edge, dims=x.dims[:1] if attrs["by_head"] else ())


def typed_outer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Source rows (H, I), destination rows (H, O): matrices T (H, I, O)."""
    op = "typed_outer"
    graph, x, y = _graph(op, types[0]), expect_dense(op, types[1]), expect_dense(op, types[2])
    require(op, x.rows == graph.src and y.rows == graph.dst, "source and destination rows", x, y)
    require(op, len(x.dims) == len(y.dims) == 2 and x.dims[0] == y.dims[0], "equal heads", x, y)
    if len(types) == 4:
        _weight(op, graph, types[3], x.dims[0])
    return replace(x, residency=Residency.ETYPE, rows=EDGE_TYPES, dims=(*x.dims, y.dims[1]))


def type_matmul(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Node rows (I,) and matrices A (I, O), or stored (O, I), perhaps biases A (O,): node rows (O,)."""
    op = "type_matmul"
    graph, x = _graph(op, types[0]), expect_dense(op, types[1])
    w = _matrices(op, types[2], NODE_TYPES, 2)
    inner, outer = w.dims[::-1] if attrs["transposed"] else w.dims
    require(op, x.rows == graph.dst and x.dims == (inner,), f"rows {graph.dst} of {inner}", x)
    if len(types) == 4:
        bias = _matrices(op, types[3], NODE_TYPES, 1)
        require(op, bias.dims == (outer,), f"{outer} numbers a type", bias)
    return replace(x, dims=(outer,))


def type_outer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Node rows (I,) and (O,): matrices A (I, O)."""
    op = "type_outer"
    graph, x, y = _graph(op, types[0]), expect_dense(op, types[1]), expect_dense(op, types[2])
    require(op, x.rows == y.rows == graph.dst and len(x.dims) == len(y.dims) == 1, f"rows {graph.dst}", x, y)
    return replace(x, residency=Residency.NTYPE, rows=NODE_TYPES, dims=(*x.dims, *y.dims))


def same_degree(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """One number per edge."""
    graph = _graph("same_degree", types[0])
    return TensorType(Residency.EDGE, graph.edge, (), attrs.get("dtype", torch.float32))
