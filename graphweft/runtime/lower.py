"""From one group of IR values to one call.

Comes in: a :class:`Group` and the slots of its operands. Goes out: a closure over a list of slots that launches the
kernel; everything that can be decided is decided here, so that a call compares no strings and tests no formats.
Operations without a kernel of their own, and dtypes other than float32 in epilogues, run by the oracle's plain torch.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft._pieces import total
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.typed_pairs import typed_edges, typed_nodes, typed_pairs
from graphweft.ir.interpret import evaluate
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import TensorType
from graphweft.passes.fuse import Group
from graphweft.runtime import attention_calls, by_head, dense, sparse, term_calls, typed
from graphweft.runtime.edge_kernels import Walk, Walks
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.features import SparseOperand
from graphweft.runtime.row_kernels import row_kernel
from graphweft.runtime.term_calls import epilogue_of
from graphweft.storage.feature import is_dense
from graphweft.storage.gather import gather_rows

Slots = list[Any]
Call = Callable[[Slots], None]


def lower(
    group: Group,
    slot: Mapping[Value, int],
    also: Value | None = None,
    *,
    over: bool = False,
    walks: Walks | None = None,
) -> Call:
    """The call that computes ``group`` (and ``also``, the arg of a maximum) from slots into slots.

    ``over``: an aggregation, or a softmax over edges, writes over what it reads. ``walks``: the generated kernels.
    """
    value = group.anchor
    if value is None:
        return _rows(group, slot)
    if group.terms:
        return term_calls.lower(group, slot)
    if group.walk is not None:
        return _walk(group, slot, (walks or {}).get(group.result))
    if group.chain:
        return _chain(group, slot)
    if value.op is Op.SPMM:
        return _spmm(group, slot, over)
    if value.op is Op.MATMUL:
        return _matmul(group, slot)
    if value.op in (Op.DROPOUT, Op.MUL_SCALAR) and group.gather is not None:
        return _gathered(group, slot)
    if value.op is Op.SPMM_MAX:
        return _spmm_max(group, slot, also)
    if value.op in (Op.ATTENTION, Op.ATTENTION_GRAD) and value.tensor.dtype == torch.float32:
        return attention_calls.lower(group, slot)
    if value.op is Op.EINSUM:
        call = attention_calls.lower_einsum(group, slot) or by_head.lower(value, slot[group.result], slot)
        if call is not None:
            return call
    if _is_inverse_degree(value):
        of, out = slot[value.inputs[0].inputs[0]], slot[group.result]
        return lambda env: _put(env, out, env[of].csc.float_degrees(inverse=True))
    simple = _SIMPLE.get(value.op)
    if simple is None and isinstance(value.type, TensorType) and value.tensor.dtype == torch.float32:
        simple = _TYPED.get(value.op)
        if simple is not None and over:
            simple = functools.partial(simple, over=True)
    operands = [slot[v] for v in value.inputs]
    out = slot[group.result]
    if simple is None:
        return lambda env: _put(env, out, _contiguous(evaluate(value, [env[i] for i in operands])))
    return lambda env: _put(env, out, simple(value, *[env[i] for i in operands]))


def _is_inverse_degree(value: Value) -> bool:
    """Whether it is 1 over the in-degrees of a sampled block, 0 where there are none; blocks lie by destination."""
    if value.op is not Op.POW or value["exponent"] != -1.0 or value.get("eps") or value.tensor.dtype != torch.float32:
        return False
    degree = value.inputs[0]
    return degree.op is Op.IN_DEGREE and _is_block(degree.inputs[0])


def _is_block(graph: Value) -> bool:
    return graph.op is Op.SAMPLE and not graph.get("turned")


def _in_degree(value: Value, graph: Graph) -> Tensor:
    return graph.csc.float_degrees() if _is_block(value.inputs[0]) else evaluate(value, [graph])


def _chain(group: Group, slot: Mapping[Value, int]) -> Call:
    """One generated kernel, or the values one by one where nothing can be compiled."""
    out, found = slot[group.result], row_kernel(group.chain)
    if found is not None:
        kernel, read = found
        places = [slot[v] for v in read]
        return lambda env: _put(env, out, kernel([env[i] for i in places]))
    return _one_by_one(group, slot)


def _one_by_one(group: Group, slot: Mapping[Value, int]) -> Call:
    """The values of a group by the oracle; those that nobody reads any more are let go."""
    given = {v: slot[v] for v in group.operands()}
    results = {v: slot[v] for v in (group.result, *group.taps)}
    last = {operand: value for value in group.chain for operand in value.inputs}

    def call(env: Slots) -> None:
        known = {v: env[i] for v, i in given.items()}
        for value in group.chain:
            known[value] = evaluate(value, [known[operand] for operand in value.inputs])
            for operand in set(value.inputs):
                if last[operand] is value and operand not in results:
                    del known[operand]
        for value, out in results.items():
            env[out] = _contiguous(known[value])

    return call


def _walk(group: Group, slot: Mapping[Value, int], found: tuple[Walk, tuple[Value, ...]] | None) -> Call:
    """One generated kernel over edges, or the values one by one where nothing can be compiled."""
    if found is None:
        return _one_by_one(group, slot)
    kernel, read = found
    assert group.walk is not None  # a walk
    graph, places = slot[group.walk], [slot[v] for v in read]
    outs = [slot[v] for v in (group.result, *group.taps)]

    def call(env: Slots) -> None:
        for out, made in zip(outs, kernel(env[graph], [env[i] for i in places]), strict=True):
            env[out] = made

    return call


def _put(env: Slots, index: int, result: Any) -> None:
    env[index] = result


def _contiguous(result: Any) -> Any:
    return result.contiguous() if isinstance(result, Tensor) else result


def _rows(group: Group, slot: Mapping[Value, int]) -> Call:
    assert group.source is not None  # a group without anchor has a source
    out, epilogue = slot[group.result], epilogue_of(group, slot)
    source, ids = _left(group, group.source, slot)

    def call(env: Slots) -> None:
        env[out] = dense.rows_apply(env[source], epilogue(env) or Epilogue(), rows=None if ids is None else env[ids])

    return call


def _spmm(group: Group, slot: Mapping[Value, int], over: bool) -> Call:
    value = group.anchor
    assert value is not None
    graph, x, out = slot[value.inputs[0]], slot[group.scaled or value.inputs[1]], slot[group.result]
    weight = slot[value.inputs[2]] if len(value.inputs) == 3 else None
    scale = slot[group.src_scale] if group.src_scale is not None else None
    coefficient, epilogue = float(value.get("self_coef", 0.0)), epilogue_of(group, slot)

    def call(env: Slots) -> None:
        env[out] = sparse.spmm(
            env[graph].csc_structure if weight is None else env[graph].csc,
            env[x],
            weight=None if weight is None else env[weight],
            src_scale=None if scale is None else env[scale],
            self_coef=coefficient,
            epilogue=epilogue(env),
            out=env[x].detach() if over else None,
        )

    return call


def _matmul(group: Group, slot: Mapping[Value, int]) -> Call:
    value = group.anchor
    assert value is not None
    (a, ids), b, out = _left(group, value.inputs[0], slot), slot[value.inputs[1]], slot[group.result]
    epilogue, transposed = epilogue_of(group, slot), bool(value.get("tb"))
    if value.inputs[0].tensor.sparse:
        by_column = bool(value.get("ta"))

        def sparse_call(env: Slots) -> None:
            operand = SparseOperand.of(env[a])
            adjacency, values = operand.by_column() if by_column else operand.by_row()
            right = env[b].t().contiguous() if transposed else env[b]
            env[out] = sparse.spmm(adjacency, right, weight=values, epilogue=epilogue(env))

        return sparse_call
    if value.get("ta"):
        tap = slot[group.taps[0]] if group.taps else None

        def contract(env: Slots) -> None:
            sums = None
            if tap is not None:
                sums = env[tap] = torch.empty(env[b].shape[1], dtype=env[b].dtype)
            env[out] = dense.matmul_tn(env[a], env[b], col_sum=sums, rows=None if ids is None else env[ids])

        return contract

    def multiply(env: Slots) -> None:
        rows = None if ids is None else env[ids]
        env[out] = dense.matmul(env[a], env[b], transposed=transposed, epilogue=epilogue(env), rows=rows)

    return multiply


def _left(group: Group, value: Value, slot: Mapping[Value, int]) -> tuple[int, int | None]:
    """Slots of the first operand: its rows, or a table and the ids of those rows."""
    if group.gather is None:
        return slot[value], None
    table, ids = group.gather.inputs
    return slot[table], slot[ids]


def _gathered(group: Group, slot: Mapping[Value, int]) -> Call:
    """One function of rows read by index, in one pass."""
    value = group.anchor
    assert value is not None
    (x, ids), other, out = _left(group, value.inputs[0], slot), slot[value.inputs[1]], slot[group.result]
    assert ids is not None  # chosen so
    if value.op is Op.DROPOUT:

        def drop(env: Slots) -> None:
            env[out] = dense.dropout(env[x], value["p"], int(env[other]), value["stream"], rows=env[ids])

        return drop

    def scale(env: Slots) -> None:
        factor = env[other].expand(env[ids].numel()).contiguous()
        env[out] = dense.rows_apply(env[x], Epilogue(row_scale=factor), rows=env[ids])

    return scale


def _spmm_max(group: Group, slot: Mapping[Value, int], also: Value | None) -> Call:
    value = group.anchor
    assert value is not None
    graph, x, out = slot[value.inputs[0]], slot[value.inputs[1]], slot[group.result]
    arg = slot[also] if also is not None else None
    minimum = value["kind"] == "min"

    def call(env: Slots) -> None:
        env[out], found = sparse.spmm_max(env[graph].csc, env[x], minimum=minimum, want_arg=arg is not None)
        if arg is not None:
            env[arg] = found

    return call


def _dropout(value: Value, x: Any, seed: int) -> Any:
    if is_dense(x):
        rows = x if x.dim() == 2 else x.reshape(x.shape[0] if x.dim() else 1, -1)
        if x.dtype != torch.float32:
            mask = dense.dropout(torch.ones(rows.shape), value["p"], int(seed), value["stream"])
            return x * mask.to(x.dtype).reshape(x.shape)
        return dense.dropout(rows, value["p"], int(seed), value["stream"]).reshape(x.shape)
    return SparseOperand.of(x).dropped(value["p"], int(seed), value["stream"])


def _take_rows(value: Value, x: Any, rows: Tensor) -> Any:
    return gather_rows(x, rows if rows.dtype == torch.int64 else rows.long())


def _pad_rows(value: Value, graph: Any, x: Tensor) -> Tensor:
    out = empty((graph.num_src, *x.shape[1:]), x.dtype)
    out[: graph.num_dst] = x
    out[graph.num_dst :].zero_()
    return out


def _scatter_rows(value: Value, x: Tensor, rows: Tensor, like: Any) -> Tensor:
    out = empty((like.shape[0], *x.shape[1:]), x.dtype)
    return out.zero_().index_copy_(0, rows, x)


_SORTED: weakref.WeakKeyDictionary[Adjacency, Adjacency] = weakref.WeakKeyDictionary()


def _side_by_side(adjacency: Adjacency) -> Adjacency:
    """The same with parallel edges next to each other, as the gradient of an extremum wants them."""
    if adjacency not in _SORTED:
        _SORTED[adjacency] = adjacency if adjacency.columns_ascend() else adjacency.with_sorted_columns()
    return _SORTED[adjacency]


_SIMPLE: dict[Op, Callable[..., Any]] = {
    Op.DROPOUT: _dropout,
    Op.RESHAPE: lambda v, x: x.contiguous().view((*x.shape[: x.dim() - len(v.inputs[0].tensor.dims)], *v["dims"])),
    Op.TAKE_ROWS: _take_rows,
    Op.OWN_ROWS: lambda v, g, x: x[: g.num_dst],
    Op.PAD_ROWS: _pad_rows,
    Op.SCATTER_ROWS: _scatter_rows,
    Op.COL_SUM: lambda v, x: dense.col_sum(x) / max(x.shape[0], 1) if v.get("mean") else dense.col_sum(x),
    Op.SPMM_ARG: lambda v, g, x: sparse.spmm_max(g.csc, x, minimum=v["kind"] == "min", want_arg=True)[1],
    Op.SPMM_MAX_GRAD: lambda v, g, arg, dy: sparse.spmm_max_grad(_side_by_side(g.reverse().csc), arg, dy),
    Op.EDGE_MARGIN: lambda v, g, e: sparse.edge_margins(g.csc, e),
    Op.EDGE_MARGIN_GRAD: lambda v, g, e, d: sparse.edge_margins_grad(g.csc, e, d, closed=bool(v.get("closed"))),
    Op.SDDMM: lambda v, g, a, b: sparse.sddmm_dot(g.csc, a, b),
    Op.DOT: lambda v, x, y: total(x * y),
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


def _type_outer(value: Value, graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    return typed.outer_rows(typed_nodes(graph), x.contiguous(), y.contiguous())


def _edge_softmax(value: Value, graph: Graph, x: Tensor, over: bool = False) -> Tensor:
    if value.get("log"):
        return evaluate(value, [graph, x])  # type: ignore[no-any-return]
    return sparse.edge_softmax(graph.csc, x.contiguous(), over)


def _edge_softmax_grad(value: Value, graph: Graph, s: Tensor, g: Tensor, over: bool = False) -> Tensor:
    return sparse.edge_softmax_grad(graph.csc, s.contiguous(), g.contiguous(), over)


# in float32; other dtypes are the oracle's
_TYPED: dict[Op, Callable[..., Any]] = {
    Op.IN_DEGREE: _in_degree,
    Op.TYPED_SPMM: _typed_spmm,
    Op.TYPED_OUTER: _typed_outer,
    Op.TYPED_SDDMM: _typed_sddmm,
    Op.TYPE_MATMUL: _type_matmul,
    Op.TYPE_OUTER: _type_outer,
    Op.REDUCE_NTYPE: _reduce_types,
    Op.REDUCE_ETYPE: _reduce_types,
    Op.BROADCAST_NTYPE: _broadcast_types,
    Op.BROADCAST_ETYPE: _broadcast_types,
    Op.EDGE_SOFTMAX: _edge_softmax,
    Op.EDGE_SOFTMAX_GRAD: _edge_softmax_grad,
}
