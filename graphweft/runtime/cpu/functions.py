"""Functions of whole values that need no launcher of their own: one native call, or a view, each.

Comes in: a value and its operands. Goes out: its result. ``SIMPLE`` holds for every dtype, ``TYPED`` for float32.
Registered in ``cpu/target.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft.cost import winners_pay
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.degrees import float_degrees
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.typed_pairs import typed_edges, typed_nodes, typed_pairs
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.runtime import dense, row_sums, sparse, typed
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.features import SparseOperand
from graphweft.storage.feature import is_dense
from graphweft.storage.gather import gather_rows


def _dropout(value: Value, x: Any, seed: int) -> Any:
    if is_dense(x):
        rows = x if x.dim() == 2 else x.reshape(x.shape[0] if x.dim() else 1, -1)
        if x.dtype != torch.float32:
            mask = dense.dropout(torch.ones(rows.shape, dtype=torch.float32), value["p"], int(seed), value["stream"])
            return x * mask.to(x.dtype).reshape(x.shape)
        return dense.dropout(rows, value["p"], int(seed), value["stream"]).reshape(x.shape)
    return SparseOperand.of(x).dropped(value["p"], int(seed), value["stream"])


def _mul_scalar(value: Value, x: Any, s: Tensor) -> Any:
    return torch.mul(x, s, out=empty(tuple(x.shape), x.dtype)) if is_dense(x) and x.dtype == s.dtype else x * s


def _take_rows(value: Value, x: Any, rows: Tensor) -> Any:
    rows = rows if rows.dtype == torch.int64 else rows.long()
    return x.take_rows(rows) if isinstance(x, SparseOperand) else gather_rows(x, rows)


def _pad_rows(value: Value, graph: Any, x: Tensor) -> Tensor:
    out = empty((graph.num_src, *x.shape[1:]), x.dtype)
    out[: graph.num_dst] = x
    out[graph.num_dst :].zero_()
    return out


def _scatter_rows(value: Value, x: Tensor, rows: Tensor, like: Any) -> Tensor:
    out = empty((like.shape[0], *x.shape[1:]), x.dtype)
    return out.zero_().index_copy_(0, rows, x)


def _sorted_columns(adjacency: Adjacency) -> Adjacency | None:
    """The same with parallel edges next to each other, as the gradient of an extremum wants them; None: as it is."""
    return None if adjacency.columns_ascend() else adjacency.with_sorted_columns()


def _side_by_side(adjacency: Adjacency) -> Adjacency:
    return derived(adjacency, _sorted_columns) or adjacency


def _extremum_gradient(value: Value, graph: Graph, arg: Tensor, dy: Tensor) -> Tensor:
    if winners_pay(graph.num_dst, graph.num_edges):
        return sparse.spmm_max_winners(graph.num_src, arg, dy)
    return sparse.spmm_max_grad(_side_by_side(graph.reverse().csc), arg, dy)


SIMPLE: dict[Op, Callable[..., Any]] = {
    Op.DROPOUT: _dropout,
    Op.RESHAPE: lambda v, x: x.contiguous().view((*x.shape[: x.dim() - len(v.inputs[0].tensor.dims)], *v["dims"])),
    Op.DETACH: lambda v, x: x.detach(),
    Op.MUL_SCALAR: _mul_scalar,
    Op.MOVE_START: lambda v, x, tier: tier.begin(x),
    Op.MOVE_WAIT: lambda v, arriving: arriving.wait(),
    Op.TAKE_ROWS: _take_rows,
    Op.OWN_ROWS: lambda v, g, x: x[: g.num_dst],
    Op.PAD_ROWS: _pad_rows,
    Op.SCATTER_ROWS: _scatter_rows,
    Op.COL_SUM: lambda v, x: dense.col_sum(x) / max(x.shape[0], 1) if v.get("mean") else dense.col_sum(x),
    Op.SPMM_ARG: lambda v, g, x: sparse.spmm_max(g.csc, x, minimum=v["kind"] == "min", want_arg=True)[1],
    Op.SPMM_MAX_GRAD: _extremum_gradient,
    Op.EDGE_MARGIN: lambda v, g, e: sparse.edge_margins(g.csc, e),
    Op.EDGE_MARGIN_GRAD: lambda v, g, e, d: sparse.edge_margins_grad(g.csc, e, d, closed=bool(v.get("closed"))),
    Op.SDDMM: lambda v, g, a, b: sparse.sddmm_dot(g.csc, a, b),
    Op.DOT: lambda v, x, y: dense.dot(x, y),
}


def _typed_spmm(value: Value, graph: Graph, x: Tensor, w: Tensor, weight: Tensor | None = None) -> Tensor:
    per_edge = None if weight is None else weight.contiguous()
    return typed.spmm(*typed_pairs(graph), x.contiguous(), w.contiguous(), value["transposed"], per_edge)


def _typed_outer(value: Value, graph: Graph, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    pairs, turned = typed_pairs(graph)
    x, y, weight = x.contiguous(), y.contiguous(), None if weight is None else weight.contiguous()
    return typed.outer(pairs, y, x, weight).transpose(2, 3) if turned else typed.outer(pairs, x, y, weight)


def _typed_sddmm(value: Value, graph: Graph, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    pairs, turned = typed_pairs(graph)
    x, w, y, transposed = x.contiguous(), w.contiguous(), y.contiguous(), bool(value["transposed"])
    if turned:
        x, y, transposed = y, x, not transposed
    return typed.sddmm(pairs, x, w, transposed, y, value["by_head"])


def _type_matmul(value: Value, graph: Graph, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    bias = None if bias is None else bias.contiguous()
    return typed.matmul(typed_nodes(graph), x.contiguous(), w.contiguous(), value["transposed"], bias)


def _reduce_types(value: Value, graph: Graph, x: Tensor) -> Tensor:
    rows = typed_nodes(graph) if value.op is Op.REDUCE_NTYPE else typed_edges(graph)
    width = math.prod(value.tensor.dims)
    flat = x.contiguous().view(x.shape[0], width)
    return (
        typed.row_sums(rows, flat).view(-1, *value.tensor.dims)
        if width
        else x.new_zeros((rows.num_types, *x.shape[1:]))
    )


def _broadcast_types(value: Value, graph: Graph, x: Tensor) -> Tensor:
    rows = typed_nodes(graph) if value.op is Op.BROADCAST_NTYPE else typed_edges(graph)
    return torch.index_select(x, 0, rows.kinds, out=empty((rows.num_rows, *x.shape[1:]), x.dtype))


def _edge_softmax(value: Value, graph: Graph, x: Tensor, over: bool = False) -> Tensor:
    if value.get("log"):
        return evaluate(value, [graph, x])  # type: ignore[no-any-return]
    return sparse.edge_softmax(graph.csc, x.contiguous(), over)


def _edge_softmax_grad(value: Value, graph: Graph, s: Tensor, g: Tensor, over: bool = False) -> Tensor:
    return sparse.edge_softmax_grad(graph.csc, s.contiguous(), g.contiguous(), over)


def _slice(value: Value, x: Tensor) -> Tensor:
    """Neighbouring columns of rows, copied; other slices are the interpreter's."""
    if x.dim() != 2 or value.tensor.rows is None or value["step"] != 1:
        made: Tensor = evaluate(value, [x])
        return made if made.is_contiguous() else made.clone(memory_format=torch.contiguous_format)
    return dense.rows_apply(x[:, value["start"] : value["stop"]], _AS_IS)


def _cat(value: Value, *parts: Tensor) -> Tensor:
    """Rows side by side; anything else is the interpreter's."""
    if any(x.dim() != 2 for x in parts) or any(v.tensor.rows is None for v in value.inputs):
        made: Tensor = evaluate(value, list(parts))
        return made
    out, begin = empty((parts[0].shape[0], *value.tensor.dims), torch.float32), 0
    for x in parts:
        dense.rows_apply(x, _AS_IS, out=out[:, begin : begin + x.shape[1]])
        begin += x.shape[1]
    return out


def _sum_dims(value: Value, x: Tensor) -> Tensor:
    """Over heads, or over all columns; other sums are the interpreter's."""
    if value.tensor.rows is not None and x.dim() == 3 and value["axes"] == (0,):
        return row_sums.part_sum(x)
    if value.tensor.rows is not None and x.dim() == 2 and value["axes"] == (0,):
        return row_sums.row_sum(x)
    made: Tensor = evaluate(value, [x])
    return made


def _pow(value: Value, x: Tensor) -> Tensor:
    """Inverses and inverse roots; other powers are the interpreter's."""
    if value["exponent"] in row_sums.EXPONENTS:
        return row_sums.power(x, value["exponent"], value.get("eps", 0.0))
    made: Tensor = evaluate(value, [x])
    return made


_AS_IS = Epilogue()

# in float32; other dtypes are the oracle's
TYPED: dict[Op, Callable[..., Any]] = {
    Op.IN_DEGREE: lambda v, g: float_degrees(g),
    Op.SLICE: _slice,
    Op.CAT: _cat,
    Op.ROW_SUM: lambda v, x: row_sums.row_sum(x),
    Op.SUM_DIMS: _sum_dims,
    Op.POW: _pow,
    Op.TYPED_SPMM: _typed_spmm,
    Op.TYPED_OUTER: _typed_outer,
    Op.TYPED_SDDMM: _typed_sddmm,
    Op.TYPE_MATMUL: _type_matmul,
    Op.TYPE_OUTER: lambda v, g, x, y: typed.outer_rows(typed_nodes(g), x.contiguous(), y.contiguous()),
    Op.REDUCE_NTYPE: _reduce_types,
    Op.REDUCE_ETYPE: _reduce_types,
    Op.BROADCAST_NTYPE: _broadcast_types,
    Op.BROADCAST_ETYPE: _broadcast_types,
    Op.EDGE_SOFTMAX: _edge_softmax,
    Op.EDGE_SOFTMAX_GRAD: _edge_softmax_grad,
}
