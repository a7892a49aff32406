"""Classic clean-up: equal expressions are computed once, trivial ones not at all, unused ones never.

Comes in: any program. Goes out: an equal one with no more values. Dead values disappear by construction (a program
holds what its outputs reach). Called between all other passes.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value

_MOST_PARTS = 64  # that are joined
# second operands that change nothing
_NEUTRAL = {"mul": 1, "div": 1, "add": 0, "sub": 0}


def _simplify(b: Builder, v: Value) -> Value | None:
    first = v.inputs[0] if v.inputs else None
    if first is None:
        return None
    if v.op is Op.REVERSE and first.op is Op.REVERSE:
        return first.inputs[0]
    if v.op is Op.SCALE and v["factor"] == 1.0:
        return first
    if v.op is Op.SCALE and first.op is Op.SCALE:
        return b.add(Op.SCALE, first.inputs[0], factor=v["factor"] * first["factor"])
    if v.op is Op.ADD_CONST and v["constant"] == 0.0:
        return first
    if v.op is Op.DROPOUT and v["p"] == 0.0:
        return first
    if v.op in (Op.WITHOUT_LOOPS, Op.ONE_LOOP) and first.op is v.op:
        return first
    if v.op is Op.IN_DEGREE and first.op is Op.ONE_LOOP:
        plain = b.add(Op.WITHOUT_LOOPS, first.inputs[0])
        return b.add(Op.ADD_CONST, b.add(Op.IN_DEGREE, plain, **dict(v.attrs)), constant=1.0)
    if v.op is Op.RELU and first.op is Op.RELU:
        return first
    if v.op is Op.ADD and v.tensor.rows is None:
        return _joined_parts(b, v)
    if v.op is Op.ADD and len(v.tensor.dims) > 1:
        return _with_flat_rows(b, v)
    return _simplify_dims(b, v, first)


def _joined_parts(b: Builder, v: Value) -> Value | None:
    """A sum of parts with zeros around them, which together fill one dimension: the parts side by side.

    The gradient of a parameter that is read slice by slice is such a sum.
    """
    parts, stack = list[Value](), [v]
    while stack:
        item = stack.pop()
        if item.op is Op.ADD:
            stack.extend(item.inputs)
        elif item.op is Op.UNSLICE and item["step"] == 1 and len(parts) < _MOST_PARTS:
            parts.append(item)
        else:
            return None
    parts.sort(key=lambda part: part["start"])
    axis, size = parts[0]["axis"], parts[0]["size"]
    ends = [(part["start"], part["stop"]) for part in parts]
    fills = all(stop == start for (_, stop), (start, _) in pairwise([(0, 0), *ends, (size, size)]))
    if not fills or any(part["axis"] != axis for part in parts):
        return None
    return b.add(Op.CAT, *(part.inputs[0] for part in parts), axis=axis)


def _with_flat_rows(b: Builder, v: Value) -> Value | None:
    """Rows by head, to which rows padded by zeros are added: flat, as kernels read them, then without the zeros."""
    for padded, other in (v.inputs, v.inputs[::-1]):
        if padded.op is Op.PAD_ROWS and other is not padded:
            flat = (prod(v.tensor.dims),)
            graph, rows = padded.inputs
            rows = b.add(Op.PAD_ROWS, graph, b.add(Op.RESHAPE, rows, dims=flat))
            made = b.add(Op.ADD, b.add(Op.RESHAPE, other, dims=flat), rows)
            return b.add(Op.RESHAPE, made, dims=v.tensor.dims)
    return None


def _simplify_dims(b: Builder, v: Value, first: Value) -> Value | None:
    """Reshapes of reshapes, permutations of permutations, and what changes nothing."""
    if v.op in (Op.RESHAPE, Op.EXPAND, Op.CAST) and v.type == first.type:
        return first
    if v.op is Op.SUM_DIMS and not v["axes"]:
        return first
    if v.op is Op.RESHAPE and first.op is Op.RESHAPE:
        return b.add(Op.RESHAPE, first.inputs[0], dims=v["dims"])
    if v.op is Op.PERMUTE and v["order"] == tuple(range(len(v["order"]))):
        return first
    if v.op is Op.PERMUTE and first.op is Op.PERMUTE:
        return b.add(Op.PERMUTE, first.inputs[0], order=tuple(first["order"][i] for i in v["order"]))
    if v.op is Op.DETACH and first.op is Op.DETACH:
        return first
    if v.op is Op.EWISE and v["fn"] in _NEUTRAL and v.inputs[1].op is Op.CONST and v.type == first.type:
        return first if v.inputs[1]["value"] == _NEUTRAL[v["fn"]] else None
    return None


def cleanup(program: Program) -> Program:
    """Identities, and equal expressions as one, until nothing changes.

    Reverse of reverse, scale by 1, scale of scale, dropout with p = 0, loops removed twice and the like are simplified;
    values with the same operation, operands and attributes become one.
    """
    while True:
        smaller = rewrite(program, _Simplified())
        if len(smaller.values) == len(program.values):
            return smaller
        program = smaller


class _Simplified:
    """The rule of one walk; it knows the expressions so far."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], Value] = {}

    def __call__(self, builder: Builder, value: Value) -> Value:
        simple = _simplify(builder, value) or value
        return self._seen.setdefault((simple.op, simple.inputs, simple.attrs), simple)
