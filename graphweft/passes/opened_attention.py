"""Attention, what its gradient reads, and its gradients, written out as what walks over edges compute.

Comes in: a program with fused attention. Goes out: the same in exponentials of scores, products of rows and sums over
edges. A row's softmax is two passes over the row: its maximum, then the sums of exponentials and of what they weigh,
which are divided at the end. No weight is stored: gradients compute it again from the maximum and the sum that the
forward pass keeps. Called by ``runtime/described.py``. Source: Dao et al., FlashAttention, NeurIPS 2022, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphweft.ir.elementwise_grad import Formula
from graphweft.ir.grad_dims import sum_rows
from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value
from graphweft.passes.opened import REALS, spread


def open_attention(program: Program) -> Program:
    """Attention as two passes over every row; each gradient as one walk, or as none where sums of the rows give it."""

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op not in (Op.ATTENTION, Op.ATTENTION_STATS, Op.ATTENTION_GRAD) or v.tensor.dtype not in REALS:
            return None
        if v.op is not Op.ATTENTION_GRAD:
            edges = _Edges(b, v, v.inputs[1:])
            return _result(edges) if v.op is Op.ATTENTION else _stats(edges)
        return _gradient(_Edges(b, v, v.inputs[2:-3]))

    return rewrite(program, rule)


class _Edges:
    """What one attention computes for an edge. ``attention`` is the value with its attributes."""

    def __init__(self, b: Builder, attention: Value, operands: Sequence[Value]) -> None:
        self.b, self.f, self.attention, self.graph = b, Formula(b), attention, attention.inputs[0]
        self.x, self.first, self.second, *self.seed = operands
        self.kind, self.alpha = attention["score"], attention["alpha"]
        self.heads = (self.first if self.kind == "add" else self.x).tensor.dims[0]

    def src(self, rows: Value) -> Value:
        """Rows of sources at every edge."""
        return self.b.add(Op.BROADCAST_SRC, self.graph, rows)

    def dst(self, rows: Value) -> Value:
        """Rows of destinations at every edge."""
        return self.b.add(Op.BROADCAST_DST, self.graph, rows)

    def sum(self, values: Value) -> Value:
        """Over the edges into every destination."""
        return self.b.add(Op.REDUCE, self.graph, values, kind="sum")

    def dot(self, x: Value, y: Value) -> Value:
        """Head by head."""
        return self.b.add(Op.SUM_DIMS, self.f.mul(x, y), axes=(1,))

    def column(self, numbers: Value) -> Value:
        """A number a head, to multiply its channels by."""
        return self.b.add(Op.RESHAPE, numbers, dims=(self.heads, 1))

    def bent(self) -> Value:
        """What the leaky unit is applied to."""
        first, second = (self.first, self.second) if self.kind == "add" else (self.x, self.first)
        return self.f.add(self.src(first), self.dst(second))

    def score(self) -> Value:
        """A number a head."""
        if self.kind == "dot":
            product = self.dot(self.src(self.first), self.dst(self.second))
            return self.b.add(Op.SCALE, product, factor=self.attention["scale"])
        leaky = self.f.leaky_relu(self.bent(), alpha=self.alpha)
        return leaky if self.kind == "add" else self.dot(leaky, self.second)

    def through_bend(self, slope: Value) -> Value:
        """The gradient of what the leaky unit is applied to, by that of its result."""
        return self.f.where(self.f.gt(self.bent(), 0.0), slope, self.f.mul(slope, self.alpha))

    def dropped(self, numbers: Value) -> Value:
        """After dropout, whose factors, a number an edge and head, are drawn once and stored."""
        if not self.seed:
            return numbers
        one = self.b.add(Op.CONST, value=1.0, dtype=numbers.tensor.dtype)
        ones = self.b.add(Op.EXPAND, one, dims=(self.heads,))
        ones = self.b.add(Op.BROADCAST_SHARED, self.graph, ones, to="edge")
        drawn = {name: self.attention[name] for name in ("p", "stream")}
        return self.f.mul(numbers, self.b.add(Op.DROPOUT, ones, *self.seed, **drawn))


def _softmax(edges: _Edges) -> tuple[Value, Value, Value]:
    """Exponentials of the scores less their row's maximum, that maximum, and one over the row's sum, 0 for no edges."""
    f, score = edges.f, edges.score()
    top = edges.b.add(Op.REDUCE, edges.graph, score, kind="max")
    power = f.exp(f.sub(score, edges.dst(top)))
    total = edges.sum(power)
    return power, top, f.where(f.eq(total, 0.0), 0.0, f.reciprocal(total))


def _weighed(edges: _Edges, power: Value, inverse: Value) -> Value:
    """Sums of the sources' rows, by ``power`` after dropout."""
    total = edges.sum(edges.f.mul(edges.column(edges.dropped(power)), edges.src(edges.x)))
    return edges.f.mul(total, edges.column(inverse))


def _result(edges: _Edges) -> Value:
    power, _, inverse = _softmax(edges)
    return _weighed(edges, power, inverse)


def _stats(edges: _Edges) -> Value:
    b, f, (power, top, inverse) = edges.b, edges.f, _softmax(edges)
    kept = [top, inverse]
    if edges.kind == "add":
        positive = f.where(f.gt(edges.bent(), 0.0), power, 0.0)
        result = _weighed(edges, positive, inverse)
        heads, channels = result.tensor.dims
        kept += [f.mul(edges.sum(positive), inverse), b.add(Op.RESHAPE, result, dims=(heads * channels,))]
    return b.add(Op.CAT, *kept, axis=0)


def _gradient(edges: _Edges) -> Value:
    """By one operand; those of an edge's two scores that are added differ by the end at which they are summed."""
    b, f, wrt = edges.b, edges.f, edges.attention["wrt"]
    turned, (out, stats, dout) = edges.attention.inputs[1], edges.attention.inputs[-3:]
    heads, channels = dout.tensor.dims
    own = edges.dot(dout, out)  # the sum over a row of weights times their gradients

    def kept(begin: int, end: int) -> Value:
        return b.add(Op.SLICE, stats, axis=0, start=begin * heads, stop=end * heads, step=1)

    if edges.kind == "add" and wrt == 2:  # what the leaky unit scales down adds up to what the rest does
        share, plus = kept(2, 3), b.add(Op.RESHAPE, kept(3, 3 + channels), dims=(heads, channels))
        return b.add(Op.SCALE, f.sub(edges.dot(dout, plus), f.mul(own, share)), factor=1.0 - edges.alpha)
    top, inverse, own = spread(b, edges.graph, kept(0, 1), kept(1, 2), own)
    weight = f.mul(f.exp(f.sub(edges.score(), top)), inverse)
    at_edge = edges.dst(dout)
    slope = f.mul(weight, f.sub(edges.dropped(edges.dot(edges.src(edges.x), at_edge)), own))
    if wrt == 0:
        message = f.mul(edges.column(edges.dropped(weight)), at_edge)
        if edges.kind == "add2":
            message = f.add(message, edges.through_bend(f.mul(edges.column(slope), edges.second)))
        made = b.add(Op.REDUCE, turned, message, kind="sum")
        if made.tensor.dims == edges.x.tensor.dims:
            return made
        return b.add(Op.RESHAPE, b.add(Op.SUM_DIMS, made, axes=(0,)), dims=edges.x.tensor.dims)
    if edges.kind == "add":
        return b.add(Op.REDUCE, turned, edges.through_bend(slope), kind="sum")
    if edges.kind == "dot":
        slope = edges.column(b.add(Op.SCALE, slope, factor=edges.attention["scale"]))
        if wrt == 1:
            return b.add(Op.REDUCE, turned, f.mul(slope, edges.dst(edges.second)), kind="sum")
        return edges.sum(f.mul(slope, edges.src(edges.first)))
    if wrt == 1:
        return edges.sum(edges.through_bend(f.mul(edges.column(slope), edges.second)))
    return sum_rows(b, f.mul(edges.column(slope), f.leaky_relu(edges.bent(), alpha=edges.alpha)))


__all__ = ["open_attention"]
