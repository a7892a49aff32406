"""Type rules of attention as one operation: softmax-weighted sums over in-edges, head by head.

Comes in: operand types and attributes. Goes out: the result type, or an IRError. ``score`` names how an edge is scored
and with it what the two operands after the values are:

- ``add`` (GAT): ``leaky_relu(a[j] + b[i])``, a of the sources and b of the destinations (H,);
- ``add2`` (GATv2): ``<b, leaky_relu(value[j] + a[i])>``, a of the destinations (H, C), b shared (H, C);
- ``dot``: ``scale <a[j], b[i]>``, a of the sources and b of the destinations (H, C).

With ``add`` the values may have one head, (1, C), that all H heads of the scores share.

Listed in ``ops.py``; exact semantics in docs/ir.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from graphweft.ir.expect import expect_dense, expect_graph, expect_index, require
from graphweft.ir.residency import Residency, StructType, TensorType, Type

SCORES = ("add", "add2", "dot")


def attention(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(graph, value, a, b[, seed]) -> destination rows (H, C); a seed exactly when ``p`` is not 0."""
    graph, value = expect_graph("attention", types[0]), expect_dense("attention", types[1])
    require("attention", value.rows == graph.src and len(value.dims) == 2, f"rows {graph.src} of (heads, C)", value)
    require("attention", attrs.get("score") in SCORES, f"a score among {', '.join(SCORES)}", attrs.get("score"))
    given = [expect_dense("attention", type_) for type_ in types[2:4]]
    heads = given[0].dims[0] if attrs["score"] == "add" and value.dims[0] == 1 and given[0].dims else value.dims[0]
    result = replace(value, dims=(heads, value.dims[1]), residency=Residency.DST, rows=graph.dst)
    expected = _operands(value, result, attrs["score"])
    for wanted, got in zip(expected, given, strict=True):
        require("attention", (wanted.rows, wanted.dims) == (got.rows, got.dims), str(wanted), got)
    require("attention", len(types) == 4 + bool(attrs.get("p")), "a seed exactly when p is not 0", attrs.get("p"))
    if attrs.get("p"):
        require("attention", expect_index("attention", types[4]).rows is None, "a seed", types[4])
    return result


def attention_stats(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """As attention -> destination rows of what its gradient reads."""
    out = attention(types, attrs)
    assert isinstance(out, TensorType)  # by construction
    heads, channels = out.dims
    return replace(out, dims=(heads * (3 + channels),) if attrs["score"] == "add" else (2 * heads,))


def attention_grad(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(graph, reversed graph, value, a, b[, seed], out, stats, dout) -> the gradient of operand ``wrt`` of three."""
    graph, turned = expect_graph("attention_grad", types[0]), expect_graph("attention_grad", types[1])
    require("attention_grad", turned == StructType(graph.dst, graph.src, graph.edge), "the reversed graph", turned)
    forward = [types[0], *types[2:-3]]
    out, stats = attention(forward, attrs), attention_stats(forward, attrs)
    assert isinstance(out, TensorType) and isinstance(stats, TensorType)  # by construction
    for wanted, given in zip((out, stats, out), types[-3:], strict=True):
        got = expect_dense("attention_grad", given)  # a block's destinations are the next one's sources
        same = (wanted.rows, wanted.dims, wanted.dtype) == (got.rows, got.dims, got.dtype)
        require("attention_grad", same, str(wanted), got)
    return forward[1 + int(attrs["wrt"])]


def _operands(value: TensorType, dst: TensorType, score: str) -> tuple[TensorType, TensorType]:
    heads = dst.dims[:1]
    if score == "add":
        return replace(value, dims=heads), replace(dst, dims=heads)
    return (dst, replace(value, residency=Residency.SHARED, rows=None)) if score == "add2" else (value, dst)
