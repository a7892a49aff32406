"""Gradient rules of the operations on types, tables and trailing dimensions.

Comes in: a value and the gradient of its result. Goes out: the gradient of every operand, in terms of operations. Part
of the table in ``grad.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from graphweft.ir.elementwise_grad import Formula, partials
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.ir.trailing import ROWS, split_spec

Vjp = Callable[[Builder, Value, Value], Sequence[Value | None]]
_LETTERS = "abcdefghijklmopqrstuvwxyz"  # without the letter of the rows


def sum_rows(b: Builder, g: Value) -> Value:
    """All rows added up: shared."""
    if len(g.tensor.dims) == 1:
        return b.add(Op.COL_SUM, g)
    letters = _LETTERS[: len(g.tensor.dims)]
    return b.add(Op.EINSUM, g, spec=f"{ROWS}{letters}->{letters}")


def sum_to(b: Builder, g: Value, like: Value) -> Value:
    """``g`` added up over everything that ``like`` was broadcast along."""
    dims, wide = like.tensor.dims, g.tensor.dims
    missing = len(wide) - len(dims)
    axes = tuple(i for i, size in enumerate(wide) if i < missing or (dims[i - missing] == 1 and size != 1))
    if axes:
        g = b.add(Op.SUM_DIMS, g, axes=axes)
    if g.tensor.dims != dims:
        g = b.add(Op.RESHAPE, g, dims=dims)
    return sum_rows(b, g) if like.tensor.rows is None and g.tensor.rows is not None else g


def _ewise(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    raw = partials(b, v, g)
    return [None if p is None else _fit(b, p, v, x) for p, x in zip(raw, v.inputs, strict=True)]


def _fit(b: Builder, partial: Value, v: Value, operand: Value) -> Value:
    """A partial gradient, which may lack dimensions of the result, as wide as the operand."""
    if partial.tensor.dims != v.tensor.dims:
        partial = b.add(Op.EXPAND, partial, dims=v.tensor.dims)
    return sum_to(b, partial, operand)


def _einsum(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    inputs, result = split_spec(v["spec"])
    gradients: list[Value | None] = []
    for i, operand in enumerate(v.inputs):
        others = [x for j, x in enumerate(v.inputs) if j != i]
        letters = [x for j, x in enumerate(inputs) if j != i]
        known = "".join([result, *letters])
        target = inputs[i] if inputs[i][:1] != ROWS or ROWS in known else inputs[i][1:]
        dx = b.add(Op.EINSUM, g, *others, spec=",".join([result, *letters]) + "->" + target)
        gradients.append(dx if target == inputs[i] else b.add(Op.FILL_ROWS, dx, operand))
    return gradients


def _permute(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    order = v["order"]
    return (b.add(Op.PERMUTE, g, order=tuple(order.index(i) for i in range(len(order)))),)


def _kept(v: Value) -> tuple[int, ...]:
    """The operand's dimensions with 1 for every reduced one."""
    return tuple(1 if axis in v["axes"] else size for axis, size in enumerate(v.inputs[0].tensor.dims))


def _spread(b: Builder, v: Value, g: Value) -> Value:
    """The gradient of a reduction over dimensions, repeated along them."""
    return b.add(Op.EXPAND, b.add(Op.RESHAPE, g, dims=_kept(v)), dims=v.inputs[0].tensor.dims)


def _max_dims(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    mask = b.add(Op.MAX_DIMS_MASK, v.inputs[0], **dict(v.attrs))
    return (Formula(b).mul(_spread(b, v, g), mask),)


def _max_rows(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return (Formula(b).mul(b.add(Op.MAX_ROWS_MASK, v.inputs[0], **dict(v.attrs)), g),)


def _slice(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return (b.add(Op.UNSLICE, g, **dict(v.attrs), size=v.inputs[0].tensor.dims[v["axis"]]),)


def _unslice(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return (b.add(Op.SLICE, g, **{key: item for key, item in v.attrs if key != "size"}),)


def _cat(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    axis = v["axis"]
    ends = list(accumulate((x.tensor.dims[axis] for x in v.inputs), initial=0))
    return [b.add(Op.SLICE, g, axis=axis, start=s, stop=e, step=1) for s, e in pairwise(ends)]


def _edge_softmax(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    f, graph = Formula(b), v.inputs[0]

    def total(edge: Value) -> Value:
        return b.add(Op.BROADCAST_DST, graph, b.add(Op.REDUCE, graph, edge, kind="sum"))

    if v.get("log"):
        return None, f.sub(g, f.mul(f.exp(v), total(g)))
    if v.get("whole"):
        return None, b.add(Op.EDGE_SOFTMAX_GRAD, graph, v, g)
    weighted = f.mul(v, g)
    return None, f.sub(weighted, f.mul(v, total(weighted)))


def _edge_softmax_grad(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    """Of ``s * (d - t)`` with t the sum over the row of ``s * d``."""
    f, (graph, s, d) = Formula(b), v.inputs

    def total(edge: Value) -> Value:
        return b.add(Op.BROADCAST_DST, graph, b.add(Op.REDUCE, graph, edge, kind="sum"))

    moved = total(f.mul(s, g))
    ds = f.sub(f.mul(g, f.sub(d, total(f.mul(s, d)))), f.mul(d, moved))
    return None, ds, f.mul(s, f.sub(g, moved))


def _edge_margin(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return None, b.add(Op.EDGE_MARGIN_GRAD, *v.inputs, g, **dict(v.attrs))


def _like(op: Op, **attrs: Any) -> Vjp:
    """The gradient of the second operand, the rows, is one operation on the same graph."""
    return lambda b, v, g: (None, b.add(op, v.inputs[0], g, **attrs))


RULES: dict[Op, Vjp] = {
    Op.EDGE_SOFTMAX: _edge_softmax,
    Op.EDGE_SOFTMAX_GRAD: _edge_softmax_grad,
    Op.EDGE_MARGIN: _edge_margin,
    Op.BROADCAST_NTYPE: _like(Op.REDUCE_NTYPE),
    Op.BROADCAST_ETYPE: _like(Op.REDUCE_ETYPE),
    Op.REDUCE_NTYPE: _like(Op.BROADCAST_NTYPE),
    Op.REDUCE_ETYPE: _like(Op.BROADCAST_ETYPE),
    Op.BROADCAST_SHARED: lambda b, v, g: (None, sum_rows(b, g)),
    Op.LOOKUP: lambda b, v, g: (b.add(Op.LOOKUP_SUM, g, v.inputs[1], size=v.inputs[0].tensor.dims[0]), None),
    Op.LOOKUP_SUM: lambda b, v, g: (b.add(Op.LOOKUP, g, v.inputs[1]), None),
    Op.MAX_ROWS: _max_rows,
    Op.CAST: lambda b, v, g: (b.add(Op.CAST, g, dtype=v.inputs[0].tensor.dtype),),
    Op.DETACH: lambda b, v, g: (None,),
    Op.EWISE: _ewise,
    Op.EINSUM: _einsum,
    Op.RESHAPE: lambda b, v, g: (b.add(Op.RESHAPE, g, dims=v.inputs[0].tensor.dims),),
    Op.PERMUTE: _permute,
    Op.EXPAND: lambda b, v, g: (sum_to(b, g, v.inputs[0]),),
    Op.SLICE: _slice,
    Op.UNSLICE: _unslice,
    Op.CAT: _cat,
    Op.SUM_DIMS: lambda b, v, g: (_spread(b, v, g),),
    Op.MAX_DIMS: _max_dims,
}
