"""Broadcast-compute-reduce fusion: a reduction over edges of what nodes sent becomes one sparse product.

Comes in: programs with BROADCAST_SRC and REDUCE. Goes out: SPMM and SPMM_MAX, so no value of size edges x features is
left; a dot product of both ends becomes SDDMM. The self-loop that every node gets in a GCN becomes the self term of the
product instead of extra edges.
Sources: Graphiler, MLSys 2022, section 5; GraphTensor's Pull.
"""

from __future__ import annotations

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value
from graphweft.passes.attention import contracted_ends


def fuse_messages(program: Program) -> Program:
    """``reduce(broadcast_src(x))`` -> ``spmm(x)``; mean becomes a sum and a division by the degree."""
    return rewrite(program, _fuse)


def _fuse(b: Builder, v: Value) -> Value | None:
    if v.op in (Op.SUM_DIMS, Op.EINSUM):
        return _sampled(b, v)
    if v.op is not Op.REDUCE:
        return None
    graph, message = v.inputs
    factored = _without_destination(b, v)
    if factored is not None:
        return factored
    weight, message = _weighted(b, message)
    if message.op is not Op.BROADCAST_SRC or message.inputs[0] is not graph or len(message.tensor.dims) != 1:
        return None
    if not message.tensor.dtype.is_floating_point or v.get("ties") == "split":
        return None
    x = message.inputs[1]
    if v["kind"] in ("max", "min"):
        return None if weight is not None else b.add(Op.SPMM_MAX, graph, x, kind=v["kind"])
    total = _sum(b, graph, x, weight)
    if v["kind"] == "sum":
        return total
    degree = b.add(Op.IN_DEGREE, graph, dtype=x.tensor.dtype)
    return b.add(Op.ROW_SCALE, total, b.add(Op.POW, degree, exponent=-1.0))


def _without_destination(b: Builder, v: Value) -> Value | None:
    """A factor that is the destination's own comes out of its sum or mean: ``sum x_j y_i = y_i sum x_j``.

    Without in-edges the result is 0 whatever y is, also where y is infinite, such as one over a degree of 0.
    """
    graph, message = v.inputs
    dtype = v.tensor.dtype
    product = message.op is Op.MUL or (message.op is Op.EWISE and message["fn"] == "mul")
    if v["kind"] not in ("sum", "mean") or not dtype.is_floating_point or not product:
        return None
    for x, y in (message.inputs, message.inputs[::-1]):
        if y.op is not Op.BROADCAST_DST or y.inputs[0] is not graph:
            continue
        if x.tensor.rows is None or x.tensor.dims != v.tensor.dims:
            continue
        inner = b.add(Op.REDUCE, graph, x, **dict(v.attrs))
        zero = b.add(Op.CONST, value=0.0, dtype=dtype)
        receives = b.add(Op.EWISE, b.add(Op.IN_DEGREE, graph, dtype=dtype), zero, fn="gt")
        own = b.add(Op.EWISE, receives, y.inputs[1], zero, fn="where")
        return b.add(Op.EWISE, _fuse(b, inner) or inner, own, fn="mul")
    return None


def _sampled(b: Builder, v: Value) -> Value | None:
    """Dot products of both ends of every edge, without copies of either end."""
    pair = contracted_ends(v) if not v.tensor.dims and v.tensor.dtype.is_floating_point else None
    for x, y in (pair, pair[::-1]) if pair is not None else ():
        if x.op is Op.BROADCAST_SRC and y.op is Op.BROADCAST_DST and x.inputs[0] is y.inputs[0]:
            same = x.tensor.dims == y.tensor.dims and len(x.tensor.dims) == 1
            return b.add(Op.SDDMM, x.inputs[0], y.inputs[1], x.inputs[1]) if same else None
    return None


def _weighted(b: Builder, message: Value) -> tuple[Value | None, Value]:
    """A message as (weight per edge, message), where it is one source row times one number."""
    if message.op is Op.ROW_SCALE and message.inputs[0].op is Op.BROADCAST_SRC:
        return message.inputs[1], message.inputs[0]
    if message.op is Op.EWISE and message["fn"] == "mul" and len(message.tensor.dims) == 1:
        for x, y in (message.inputs, message.inputs[::-1]):
            per_edge = (
                y.tensor.rows is not None and y.tensor.dims in ((), (1,)) and x.tensor.dims == message.tensor.dims
            )
            if x.op is Op.BROADCAST_SRC and per_edge and message.tensor.dims != (1,):
                return (y if not y.tensor.dims else b.add(Op.RESHAPE, y, dims=())), x
    return None, message


def _sum(b: Builder, graph: Value, x: Value, weight: Value | None) -> Value:
    if weight is not None:
        return b.add(Op.SPMM, graph, x, weight, self_coef=0.0)
    if graph.op is Op.ONE_LOOP:
        return b.add(Op.SPMM, b.add(Op.WITHOUT_LOOPS, graph.inputs[0]), x, self_coef=1.0)
    return b.add(Op.SPMM, graph, x, self_coef=0.0)
