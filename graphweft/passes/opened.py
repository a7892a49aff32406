"""Operations over edges written out as what a walk computes: a softmax and its gradient, the edges that attain an
extremum, sums of rows, products by weights with the numbers of a result side by side.

Comes in: a joint program, forward and backward. Goes out: the same with exponentials, sums and comparisons in place of
the operations. What is compared with its own extremum must have the same bits in both walks: here is told which values
have, whichever walk computes them. Called by ``pipeline.py`` and ``edges.py``; what has kernels of its own, as sums and
the gradient of a softmax, is opened for ``runtime/described.py``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch

from graphweft.ir.elementwise_grad import Formula
from graphweft.ir.ops import Op
from graphweft.ir.pattern import end_of, rewrite
from graphweft.ir.program import Builder, Program, Value, reached
from graphweft.ir.residency import StructType

REALS = (torch.float32, torch.float64)  # what walks are written for: one of both in a program
_WIDE = 8  # numbers of a result from which vectors run along it
_SUMS = frozenset({Op.ADD, Op.BIAS, Op.ROW_ADD, Op.ADD_CONST, "add", "sub"})
_PRODUCTS = frozenset({Op.MUL, Op.ROW_SCALE, Op.COL_SCALE, Op.MUL_SCALAR, Op.SCALE, "mul", "leaky_relu"})
_CHOICES = frozenset({"neg", "abs", "relu", "maximum", "minimum", "copy", "where", "eq", "ne", "lt", "le", "gt", "ge"})
_LOOKS = frozenset({
    Op.BROADCAST_SRC, Op.BROADCAST_DST, Op.BROADCAST_SHARED, Op.FILL_COLS, Op.FILL_ROWS, Op.DETACH, Op.RESHAPE,
    Op.EXPAND, Op.PERMUTE, Op.SLICE, Op.UNSLICE, Op.CAT, Op.RELU,
})  # fmt: skip


def open_softmax(program: Program) -> Program:
    """A softmax over in-edges as exponentials of the score less its row's maximum, times one over their sum.

    The maximum and the sum stay two numbers: the logarithm of the sum added to a maximum of 10,000 would keep three
    of its digits in float32. They lie side by side, so a walk over the reversed graph reads one row for both.
    """

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op is not Op.EDGE_SOFTMAX or v.tensor.dtype not in REALS:
            return None
        f, (graph, score), log = Formula(b), v.inputs, v.get("log")
        top = b.add(Op.REDUCE, graph, score, kind="max")
        total = b.add(Op.REDUCE, graph, f.exp(f.sub(score, b.add(Op.BROADCAST_DST, graph, top))), kind="sum")
        top, rest = spread(b, graph, top, f.log(total) if log else f.reciprocal(total))
        below = f.sub(score, top)
        return f.sub(below, rest) if log else f.mul(f.exp(below), rest)

    return rewrite(program, rule)


def spread(b: Builder, graph: Value, *rows: Value) -> list[Value]:
    """Rows of destinations of equal dimensions at every in-edge, read as one row."""
    dims = rows[0].tensor.dims
    pair = b.add(Op.CAT, *(b.add(Op.RESHAPE, x, dims=(1, *dims)) for x in rows), axis=0)
    edge = b.add(Op.BROADCAST_DST, graph, pair)
    parts = (b.add(Op.SLICE, edge, axis=0, start=k, stop=k + 1, step=1) for k in range(len(rows)))
    return [b.add(Op.RESHAPE, part, dims=dims) for part in parts]


def open_softmax_gradient(program: Program) -> Program:
    """The gradient of a softmax as the softmax times what its gradient exceeds its row's mean by, weighted likewise."""

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op is not Op.EDGE_SOFTMAX_GRAD or v.tensor.dtype not in REALS:
            return None
        f, (graph, weights, slopes) = Formula(b), v.inputs
        mean = b.add(Op.REDUCE, graph, f.mul(weights, slopes), kind="sum")
        return f.mul(weights, f.sub(slopes, b.add(Op.BROADCAST_DST, graph, mean)))

    return rewrite(program, rule)


def open_sums(program: Program) -> Program:
    """Sums and extrema of rows of sources as reductions of what every edge brings: its weight times a row.

    A row's own part in its sum is added behind.
    """

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op not in (Op.SPMM, Op.SPMM_MAX) or v.tensor.dtype not in REALS:
            return None
        graph, x, *weight = v.inputs
        brought = b.add(Op.BROADCAST_SRC, graph, x)
        if weight:
            brought = b.add(Op.ROW_SCALE, brought, *weight)
        made = b.add(Op.REDUCE, graph, brought, kind=v.get("kind", "sum"))
        if not v.get("self_coef"):
            return made
        if not graph.struct.square:  # a block, whose destinations are the first sources, or its reverse
            x = b.add(Op.PAD_ROWS, graph.inputs[0], x) if end_of(graph)[1] else b.add(Op.OWN_ROWS, graph, x)
        return b.add(Op.ADD, made, b.add(Op.SCALE, x, factor=v["self_coef"]))

    return rewrite(program, rule)


def lay_out_weights(program: Program) -> Program:
    """Weights of products of edge rows as walks read them: the numbers of a result side by side."""
    edges = {v.struct.edge for v in program.values if isinstance(v.type, StructType)}

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op is not Op.MATMUL or not v.get("tb") or v.tensor.rows not in edges or v.tensor.dims[-1] < _WIDE:
            return None
        x, weight = v.inputs
        if weight.tensor.rows is not None:
            return None
        return b.add(Op.MATMUL, x, b.add(Op.PERMUTE, weight, order=(1, 0)))

    return rewrite(program, rule)


def open_extrema(program: Program) -> Program:
    """Shares of edges in the extremum of their destination, where ties share it: 1 over how many attain it."""

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op is Op.EWISE and v["fn"] == "mul":
            return _scaled(b, *v.inputs) or _scaled(b, *reversed(v.inputs))
        if v.op is not Op.REDUCE_MASK or v["ties"] != "split" or v.tensor.dtype not in REALS:
            return None
        f, (graph, score) = Formula(b), v.inputs
        top = b.add(Op.BROADCAST_DST, graph, b.add(Op.REDUCE, graph, score, kind=v["kind"], ties="split"))
        attains = f.eq(score, top)
        count = b.add(Op.REDUCE, graph, f.where(attains, 1.0, f.number(0.0, score)), kind="sum")
        return f.where(attains, b.add(Op.BROADCAST_DST, graph, f.reciprocal(count)), 0.0)

    return rewrite(program, rule)


def _scaled(b: Builder, row: Value, share: Value) -> Value | None:
    """A row of the destination times a share, as one row of the destination where the edge has a share."""
    if row.op is not Op.BROADCAST_DST or share.op is not Op.EWISE or share["fn"] != "where":
        return None
    attains, part, nothing = share.inputs
    opened = part.op is Op.BROADCAST_DST and part.inputs[1].op is Op.EWISE and part.inputs[1]["fn"] == "reciprocal"
    if not opened or part.inputs[0] is not row.inputs[0] or row.tensor.dims != share.tensor.dims:
        return None
    f = Formula(b)
    whole = b.add(Op.BROADCAST_DST, row.inputs[0], f.mul(row.inputs[1], part.inputs[1]))
    return f.where(attains, whole, nothing)


def compared(value: Value, users: Mapping[Value, Sequence[Value]]) -> bool:
    """Whether ``value`` is compared with its own extremum over the edges of a row."""
    return any(
        user.op is Op.EWISE and user["fn"] == "eq" and any(_is_extremum_of(other, value) for other in user.inputs)
        for user in users[value]
    )


def _is_extremum_of(top: Value, value: Value) -> bool:
    return top.op is Op.BROADCAST_DST and top.inputs[1].op is Op.REDUCE and top.inputs[1].inputs[1] is value


def has_same_bits(value: Value, written: Container[Value]) -> bool:
    """Whether every walk that computes ``value`` gives the same bits: no product in it meets a sum.

    A compiler may round both at once or one after the other, as the code around them has it.
    """
    found = reached([value], lambda v: v.inputs if v in written else ())
    kinds = {item["fn"] if item.op is Op.EWISE else item.op for item in found if item in written} - (_LOOKS | _CHOICES)
    return kinds <= _SUMS or kinds <= _PRODUCTS
