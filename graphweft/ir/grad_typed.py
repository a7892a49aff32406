"""Gradient rules of the products with a matrix per type.

``sum_e w[e] <x[src e] W[relation e], y[dst e]>`` is linear in each of x, W, w and y: the gradient of each is one of the
same three operations on the graph or its reverse. Part of the table in ``grad.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value


def _outer(b: Builder, turned: bool, graph: Value, x: Value, y: Value, weight: Sequence[Value]) -> Value:
    """The gradient of the matrices, as they are stored."""
    if turned:
        return b.add(Op.TYPED_OUTER, b.add(Op.REVERSE, graph), y, x, *weight)
    return b.add(Op.TYPED_OUTER, graph, x, y, *weight)


def _typed_spmm(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, w, *weight = v.inputs
    turned = v["transposed"]
    dx = b.add(Op.TYPED_SPMM, b.add(Op.REVERSE, graph), g, w, *weight, transposed=not turned)
    dw = _outer(b, turned, graph, x, g, weight)
    if not weight:
        return None, dx, dw
    by_head = bool(weight[0].tensor.dims)
    return None, dx, dw, b.add(Op.TYPED_SDDMM, graph, x, w, g, transposed=turned, by_head=by_head)


def _typed_sddmm(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, w, y = v.inputs
    turned = v["transposed"]
    dx = b.add(Op.TYPED_SPMM, b.add(Op.REVERSE, graph), y, w, g, transposed=not turned)
    dy = b.add(Op.TYPED_SPMM, graph, x, w, g, transposed=turned)
    return None, dx, _outer(b, turned, graph, x, y, [g]), dy


def _typed_outer(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, y, *weight = v.inputs
    dx = b.add(Op.TYPED_SPMM, b.add(Op.REVERSE, graph), y, g, *weight, transposed=True)
    dy = b.add(Op.TYPED_SPMM, graph, x, g, *weight, transposed=False)
    if not weight:
        return None, dx, dy
    by_head = bool(weight[0].tensor.dims)
    return None, dx, dy, b.add(Op.TYPED_SDDMM, graph, x, g, y, transposed=False, by_head=by_head)


def _type_matmul(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, w, *bias = v.inputs
    turned = v["transposed"]
    dx = b.add(Op.TYPE_MATMUL, graph, g, w, transposed=not turned)
    dw = b.add(Op.TYPE_OUTER, graph, *((g, x) if turned else (x, g)))
    return None, dx, dw, *([b.add(Op.REDUCE_NTYPE, graph, g)] if bias else [])


def _type_outer(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, y = v.inputs
    dx = b.add(Op.TYPE_MATMUL, graph, y, g, transposed=True)
    return None, dx, b.add(Op.TYPE_MATMUL, graph, x, g, transposed=False)


RULES = {
    Op.TYPED_SPMM: _typed_spmm,
    Op.TYPED_SDDMM: _typed_sddmm,
    Op.TYPED_OUTER: _typed_outer,
    Op.TYPE_MATMUL: _type_matmul,
    Op.TYPE_OUTER: _type_outer,
}
