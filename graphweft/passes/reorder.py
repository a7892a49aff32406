"""Broadcasts move behind row-wise code: ``f(g(x))`` becomes ``g(f(x))``, and a product of joined rows is split for it.

Comes in: a forward program with values broadcast from nodes or types to edges. Goes out: an equal one in which row-wise
operations whose rows all come from one broadcast run on the fewer rows: a transform of nodes costs nodes, not edges.
``split_joined`` turns ``cat(a, b) W`` into ``a W_a + b W_b``, so that attention over pairs splits into its two ends.
Never applied where the rows are more than the edges, nor where operations mix residencies. Source: Graphiler, MLSys
2022, section 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value
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


def reorder_broadcasts(program: Program, rows: Mapping[str, int]) -> Program:
    """Every row-wise operation on one broadcast done before it; ``rows`` are the sizes behind the symbols."""

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op not in _ROWWISE or not isinstance(v.type, TensorType) or v.type.rows is None:
            return None
        rowed = [x for x in v.inputs if isinstance(x.type, TensorType) and x.tensor.rows is not None]
        first = rowed[0] if rowed else None
        if first is None or first.op not in _BROADCASTS or not all(_alike(x, first) for x in rowed):
            return None
        before = first.inputs[1].tensor.rows
        if before is None or rows.get(before, 0) > rows.get(v.type.rows, 0):
            return None
        moved = b.add(v.op, *(x.inputs[1] if x in rowed else x for x in v.inputs), **dict(v.attrs))
        return b.add(first.op, first.inputs[0], moved)

    return rewrite(program, rule)


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
