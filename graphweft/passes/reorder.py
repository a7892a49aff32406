"""Broadcasts move behind row-wise code: ``f(g(x))`` becomes ``g(f(x))``, and a product of joined rows is split for it.

Comes in: a forward program with values broadcast from nodes or types to edges. Goes out: an equal one in which row-wise
operations whose rows all come from one broadcast run on the fewer rows: a transform of nodes costs nodes, not edges.
So does a transform of differences and sums of two ends, which is the difference of their transforms.
``split_joined`` turns ``cat(a, b) W`` into ``a W_a + b W_b``, so that attention over pairs splits into its two ends.
Never applied where the rows are more than the edges, nor where operations mix residencies. Source: Graphiler, MLSys
2022, section 4.3.1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import accumulate, pairwise

import torch

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value, reached
from graphweft.ir.residency import TensorType
from graphweft.ir.trailing import ROWS, split_spec

_BROADCASTS = frozenset({Op.BROADCAST_SRC, Op.BROADCAST_DST, Op.BROADCAST_NTYPE, Op.BROADCAST_ETYPE})
_ROWWISE = frozenset(
    {
        Op.EWISE,
        Op.EINSUM,
        Op.RESHAPE,
        Op.PERMUTE,
        Op.SLICE,
        Op.CAT,
        Op.SUM_DIMS,
        Op.MAX_DIMS,
        Op.CAST,
        Op.DETACH,
        Op.RELU,
        Op.SCALE,
        Op.MATMUL,
        Op.BIAS,
    }
)
# functions that are infinite, or have an infinite slope, somewhere -> the operand in which they are
_POLE = {"div": 1} | dict.fromkeys(("log", "log1p", "sqrt", "rsqrt", "reciprocal", "pow"), 0)


def reorder_broadcasts(program: Program, rows: Mapping[str, int]) -> Program:
    """Every row-wise operation on one broadcast done before it; ``rows`` are the sizes behind the symbols."""

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op not in _ROWWISE or not isinstance(v.type, TensorType) or v.type.rows is None:
            return None
        rowed = [x for x in v.inputs if isinstance(x.type, TensorType) and x.tensor.rows is not None]
        first = rowed[0] if rowed else None
        if len(rowed) == 1 and (made := _of_sum(b, v, rowed[0], rows)) is not None:
            return made
        if first is None or first.op not in _BROADCASTS or not all(_alike(x, first) for x in rowed):
            return None
        before = first.inputs[1].tensor.rows
        if before is None or rows.get(before, 0) > rows.get(v.type.rows, 0):
            return None
        inner = [x.inputs[1] if x in rowed else x for x in v.inputs]
        guarded = _guarded(b, v, first, inner)
        return None if guarded is None else b.add(first.op, first.inputs[0], b.add(v.op, *guarded, **dict(v.attrs)))

    return rewrite(program, rule)


def _of_sum(b: Builder, v: Value, x: Value, rows: Mapping[str, int]) -> Value | None:
    """A product by a shared weight of sums and differences of broadcasts as those of the broadcasts' products."""
    weighted = v.op is Op.EINSUM and len(v.inputs) == 2 and x.op is Op.EWISE
    if not weighted or not _sums_broadcasts(x, rows):
        return None

    @functools.cache  # a value may be read many times on the way
    def product(y: Value) -> Value:
        if y.op is Op.EWISE:
            return b.add(Op.EWISE, *map(product, y.inputs), fn=y["fn"])
        inner = [y.inputs[1] if operand is x else operand for operand in v.inputs]
        return b.add(y.op, y.inputs[0], b.add(Op.EINSUM, *inner, spec=v["spec"]))

    return product(x)


def _sums_broadcasts(x: Value, rows: Mapping[str, int]) -> bool:
    """Whether edge rows are sums and differences of broadcasts from fewer rows, all of the same dimensions."""

    def is_sum(y: Value) -> bool:
        plain = y.op is Op.EWISE and y["fn"] in ("add", "sub", "neg")
        return plain and all(z.tensor.dims == y.tensor.dims for z in y.inputs)

    terms = (y for y in reached([x], lambda y: y.inputs if is_sum(y) else ()) if not is_sum(y))
    return all(y.op in _BROADCASTS and _is_fewer(y, rows) for y in terms)


def _is_fewer(spread: Value, rows: Mapping[str, int]) -> bool:
    """Whether a broadcast has rows, and no more than there are edges."""
    before = spread.inputs[1].tensor.rows
    return before is not None and rows.get(before, 0) <= rows.get(str(spread.tensor.rows), 0)


def _guarded(b: Builder, v: Value, broadcast: Value, operands: list[Value]) -> list[Value] | None:
    """Operands of ``v`` before the broadcast, 1 in rows that no edge reads where ``v`` is infinite somewhere.

    Those rows were never computed behind it; a gradient of 0 through an infinite slope there would be no number. None
    where it is not known which rows are read.
    """
    guarded = [i for i, x in enumerate(operands) if _may_be_infinite(v, i, x)]
    if not guarded:
        return operands
    if broadcast.op in (Op.BROADCAST_NTYPE, Op.BROADCAST_ETYPE):
        return None
    graph = broadcast.inputs[0]
    into = graph if broadcast.op is Op.BROADCAST_DST else b.add(Op.REVERSE, graph)
    made = list(operands)
    for i in guarded:
        zero, one = (b.add(Op.CONST, value=number, dtype=dtype) for number, dtype in _numbers(operands[i]))
        read = b.add(Op.EWISE, b.add(Op.IN_DEGREE, into, dtype=torch.float32), zero, fn="gt")
        made[i] = b.add(Op.EWISE, read, operands[i], one, fn="where")
    return made


def _may_be_infinite(v: Value, i: int, operand: Value) -> bool:
    """Whether rows of operand ``i`` that no edge reads could make no number of a gradient of 0.

    A number a row that multiplies others is often one over a degree, which may be 0 there; so those given from
    outside, and those of functions that are infinite somewhere, are guarded. So is a total of rows that divides: it is
    0 where there are none.
    """
    if v.op is not Op.EWISE:
        return False
    if operand.tensor.rows is None:
        return _POLE.get(v["fn"]) == i and _is_total(operand)
    if v["fn"] != "mul":
        return _POLE.get(v["fn"]) == i
    if len(v.inputs) != 2 or any(size != 1 for size in operand.tensor.dims) or v.inputs[0] is v.inputs[1]:
        return False
    while operand.op in (Op.RESHAPE, Op.CAST, Op.DETACH):
        operand = operand.inputs[0]
    return operand.op is Op.INPUT or (operand.op is Op.EWISE and operand["fn"] in _POLE)


def _is_total(shared: Value) -> bool:
    """Whether a value without rows is made of some."""
    made_of = reached([shared], lambda x: x.inputs)
    return any(isinstance(x.type, TensorType) and x.tensor.rows is not None for x in made_of)


def _numbers(operand: Value) -> tuple[tuple[float, torch.dtype], tuple[float, torch.dtype]]:
    """0 to compare degrees with, and 1 of the dtype of ``operand``."""
    dtype = operand.tensor.dtype
    return (0.0, torch.float32), (1.0 if dtype.is_floating_point else 1, dtype)


def _alike(x: Value, first: Value) -> bool:
    """Whether two values are rows broadcast in the same way."""
    return (
        x.op is first.op and x.inputs[0] is first.inputs[0] and x.inputs[1].tensor.rows == first.inputs[1].tensor.rows
    )


def split_joined(program: Program) -> Program:
    """``einsum(cat(a, b, ...), W)`` over the joined dimension as a sum of products."""
    return rewrite(program, _split)


def _split(b: Builder, v: Value) -> Value | None:
    if v.op is not Op.EINSUM or len(v.inputs) != 2:
        return None
    for side in (0, 1):
        joined, weight = v.inputs[side], v.inputs[1 - side]
        if joined.op is Op.CAT and joined.tensor.rows is not None and weight.tensor.rows is None:
            return _sum_of_products(b, v, side)
    return None


def _sum_of_products(b: Builder, v: Value, side: int) -> Value | None:
    joined, weight = v.inputs[side], v.inputs[1 - side]
    inputs, result = split_spec(v["spec"])
    letter = inputs[side].removeprefix(ROWS)[joined["axis"]]
    if letter in result or letter not in inputs[1 - side]:
        return None
    axis = inputs[1 - side].index(letter)
    total: Value | None = None
    ends = accumulate((x.tensor.dims[joined["axis"]] for x in joined.inputs), initial=0)
    for part, (start, stop) in zip(joined.inputs, pairwise(ends), strict=True):
        own = b.add(Op.SLICE, weight, axis=axis, start=start, stop=stop, step=1)
        operands = (part, own) if side == 0 else (own, part)
        product = b.add(Op.EINSUM, *operands, spec=v["spec"])
        total = product if total is None else b.add(Op.EWISE, total, product, fn="add")
    return total
