"""Row demand: compute only the rows that are asked for.

Comes in: a program whose result is ``take_rows(y, rows)``, as a loss over the training nodes gives. Goes out: the
same with ``take_rows`` moved towards the inputs: through row-wise operations, and through an aggregation by
restricting it to the edges into those rows. Exactly the same numbers are computed for the rows asked for; the others
are never made. Works in the backward pass too, as the restricted aggregation's reverse lists only those edges.

It stops at values of which all rows are needed anyway, as what the last layer sums over neighbours and reads of its own
rows: to make the rows asked for once more would take longer than to read them.
"""

from __future__ import annotations

from graphweft.ir.ops import Op
from graphweft.ir.pattern import substitute
from graphweft.ir.program import Builder, Program, Value

_ROWWISE_FIRST = frozenset(
    {Op.BIAS, Op.COL_SCALE, Op.SCALE, Op.MUL_SCALAR, Op.ADD_CONST, Op.POW, Op.RELU, Op.NORMALISE}
    | {Op.ROW_SUM, Op.FILL_COLS}
)
_DIMS_ONLY = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SLICE, Op.SUM_DIMS, Op.CAST})
_ROWWISE_ALL = frozenset({Op.ADD, Op.MUL, Op.ROW_SCALE, Op.ROW_ADD, Op.RELU_MASK})


def push_demand(program: Program) -> Program:
    """Moves every ``take_rows`` through what it can, until nothing moves."""
    while True:
        b, users = Builder(), program.users()
        results = {value for _, value in program.outputs}
        moved: dict[Value, Value] = {}
        for taken in program.values:
            if taken.op is not Op.TAKE_ROWS or taken.inputs[0] in results:
                continue
            if all(_lets_pass(taken, user) for user in users[taken.inputs[0]]):
                further = _push(b, *taken.inputs)
                if further is not None:
                    moved[taken] = further
        if not moved:
            return program
        program = substitute(program, moved)


def _lets_pass(taken: Value, user: Value) -> bool:
    """Whether ``user`` of what rows are taken of does not need all of it, or may have it in another order.

    A product that is summed over edges has two places (``placement.py``), which it keeps where nothing else reads it.
    """
    if user.op is Op.SPMM and taken.inputs[0].op is Op.MATMUL:
        return True
    return user.op is Op.TAKE_ROWS and user.inputs == taken.inputs


def _push(b: Builder, x: Value, rows: Value) -> Value | None:
    if x.op in _ROWWISE_FIRST:
        return b.add(x.op, b.add(Op.TAKE_ROWS, x.inputs[0], rows), *x.inputs[1:], **dict(x.attrs))
    if x.op in _ROWWISE_ALL:
        return b.add(x.op, *(b.add(Op.TAKE_ROWS, operand, rows) for operand in x.inputs), **dict(x.attrs))
    if x.op is Op.MATMUL and not x.get("ta") and x.inputs[1].tensor.rows is None:
        return b.add(Op.MATMUL, b.add(Op.TAKE_ROWS, x.inputs[0], rows), x.inputs[1], **dict(x.attrs))
    if x.op in _DIMS_ONLY:
        return b.add(x.op, b.add(Op.TAKE_ROWS, x.inputs[0], rows), **dict(x.attrs))
    if x.op is Op.EWISE:
        return b.add(x.op, *(_taken(b, operand, rows) for operand in x.inputs), **dict(x.attrs))
    if x.op in (Op.SPMM, Op.SPMM_MAX) and len(x.inputs) == 2:
        return _restrict(b, x, rows)
    if x.op is Op.ATTENTION and x["p"] == 0:  # weights are dropped by an edge's place, which it loses
        return _restrict_attention(b, x, rows)
    return None


def _taken(b: Builder, operand: Value, rows: Value) -> Value:
    return operand if operand.tensor.rows is None else b.add(Op.TAKE_ROWS, operand, rows)


def _restrict_attention(b: Builder, x: Value, rows: Value) -> Value:
    graph, *operands = x.inputs
    if graph.op is Op.ONE_LOOP:
        block = b.add(Op.TAKE_DST, b.add(Op.WITHOUT_LOOPS, graph.inputs[0]), rows, loops=True)
    else:
        block = b.add(Op.TAKE_DST, graph, rows)
    at = 1 if x["score"] == "add2" else 2  # the operand of the destinations
    operands[at] = b.add(Op.TAKE_ROWS, operands[at], rows)
    return b.add(Op.ATTENTION, block, *operands, **dict(x.attrs))


def _restrict(b: Builder, x: Value, rows: Value) -> Value:
    graph, source = x.inputs
    attrs = dict(x.attrs)
    if attrs.get("self_coef") == 1.0 and graph.op is Op.WITHOUT_LOOPS and graph.struct.square:
        # the self term needs a square graph; in the restricted one it is an edge like any other
        attrs["self_coef"] = 0.0
        return b.add(x.op, b.add(Op.TAKE_DST, graph, rows, loops=True), source, **attrs)
    if attrs.get("self_coef"):
        own = b.add(Op.SCALE, b.add(Op.TAKE_ROWS, source, rows), factor=attrs.pop("self_coef"))
        return b.add(Op.ADD, b.add(x.op, b.add(Op.TAKE_DST, graph, rows), source, self_coef=0.0, **attrs), own)
    return b.add(x.op, b.add(Op.TAKE_DST, graph, rows), source, **attrs)
