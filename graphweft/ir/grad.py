"""The backward pass as IR: one rule per operation, then one sweep.

Comes in: a program and the inputs to differentiate. Goes out: a program with the same outputs plus ``grad:<input>``
for each, fed by new inputs ``d:<output>``. Gradients nobody asked for are never built, so the backward aggregation of
a first layer whose features need no gradient does not exist. Ties: ``max`` sends the gradient to the first edge that
attains it; ReLU's gradient at 0 is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweft._errors import IRError
from graphweft.ir.elementwise_grad import Formula
from graphweft.ir.grad_dims import RULES as _ROWS_AND_DIMS
from graphweft.ir.grad_dims import Vjp, sum_rows, sum_to
from graphweft.ir.grad_typed import RULES as _TYPED
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import Residency, TensorType


def differentiate(
    program: Program, wanted: Sequence[str], outputs: Sequence[str] | None = None, seeds_as: str = "d:"
) -> Program:
    """``program`` with gradients of its outputs with respect to the inputs ``wanted``.

    Args:
        program: The forward program.
        wanted: Input names; those that no output depends on get no gradient output.
        outputs: Outputs that receive a gradient; all tensor outputs by default.
        seeds_as: What the names of the new inputs begin with.

    Raises: IRError when a value on the way has no gradient rule.
    """
    builder = Builder()
    depends = _depends_on(program, {program.input(name) for name in wanted})
    gradients: dict[Value, Value] = {}
    seeds: list[Value] = []
    for name, value in program.outputs:
        if (outputs is None or name in outputs) and value in depends and _is_followed(value):
            seed = builder.add(Op.INPUT, name=f"{seeds_as}{name}", type=value.type)
            seeds.append(seed)
            gradients[value] = builder.add(Op.ADD, gradients[value], seed) if value in gradients else seed
    for value in reversed(program.values):
        if value not in gradients or value.op in LEAVES:
            continue
        rule = _RULES.get(value.op)
        if rule is None:
            raise IRError(f"differentiate: {value.op.name.lower()} has no gradient rule")
        active = [operand in depends and operand.tensor.dtype.is_floating_point for operand in value.inputs]
        for operand, needed, gradient in zip(value.inputs, active, rule(builder, value, gradients[value]), strict=True):
            if needed and gradient is not None:
                known = gradients.get(operand)
                gradients[operand] = gradient if known is None else builder.add(Op.ADD, known, gradient)
    found = [(f"grad:{name}", gradients[program.input(name)]) for name in wanted if program.input(name) in gradients]
    return Program((*program.inputs, *seeds), (*program.outputs, *found))


@dataclass(frozen=True)
class Derivative:
    """Gradients of a program as a program of their own, which can be differentiated in turn.

    Attributes:
        program: Gives the gradients, and computes what it needs of the forward values.
        seeds: The input that takes the gradient of each output.
        gradients: The output that holds the gradient of each input.
    """

    program: Program
    seeds: dict[str, str]
    gradients: dict[str, str]


def derivative(program: Program, wanted: Sequence[str], outputs: Sequence[str]) -> Derivative:
    """The gradients by the inputs ``wanted``, given those of ``outputs``, as a forward program.

    Raises: IRError when a value on the way has no gradient rule.
    """
    taken, prefix = {value["name"] for value in program.inputs}, "along:"
    while any(prefix + name in taken for name in outputs):
        prefix = f"along:{prefix}"
    joint = differentiate(program, wanted, outputs, prefix)
    found = {name.removeprefix("grad:"): value for name, value in joint.outputs if name.startswith("grad:")}
    given = tuple((f"of:{name}", value) for name, value in found.items())
    read = set(Program((), given).values)
    inputs = tuple(value for value in joint.inputs if value in read)
    seeds = {name: prefix + name for name in outputs}
    return Derivative(Program(inputs, given), seeds, {name: f"of:{name}" for name in found})


def _is_followed(value: Value) -> bool:
    """Whether an output receives a gradient."""
    return value.tensor.dtype.is_floating_point and value.op is not Op.DETACH


def _depends_on(program: Program, roots: set[Value]) -> set[Value]:
    """Tensor values that are, or are computed from, ``roots``."""
    found = set(roots)
    for value in program.values:
        if isinstance(value.type, TensorType) and any(operand in found for operand in value.inputs):
            found.add(value)
    return found


def _origin(waited: Value) -> Value:
    """The rows before they were moved."""
    return waited.inputs[0].inputs[0]


def _reduce(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, _ = v.inputs
    if v["kind"] == "sum":
        return None, b.add(Op.BROADCAST_DST, graph, g)
    if v["kind"] == "mean":
        inverse = b.add(Op.POW, b.add(Op.IN_DEGREE, graph, dtype=g.tensor.dtype), exponent=-1.0)
        return None, b.add(Op.BROADCAST_DST, graph, b.add(Op.ROW_SCALE, g, inverse))
    share = b.add(Op.REDUCE_MASK, graph, v.inputs[1], kind=v["kind"], ties=v.get("ties", "first"))
    return None, Formula(b).mul(b.add(Op.BROADCAST_DST, graph, g), share)


def _spmm(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, *weight = v.inputs
    dx = b.add(Op.SPMM, b.add(Op.REVERSE, graph), g, *weight, self_coef=v.get("self_coef", 0.0))
    return (None, dx, b.add(Op.SDDMM, graph, g, x)) if weight else (None, dx)


def _spmm_max(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x = v.inputs
    return None, b.add(Op.SPMM_MAX_GRAD, graph, b.add(Op.SPMM_ARG, graph, x, kind=v["kind"]), g)


def _sddmm(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, x, y = v.inputs
    dx = b.add(Op.SPMM, graph, y, g, self_coef=0.0)
    return None, dx, b.add(Op.SPMM, b.add(Op.REVERSE, graph), x, g, self_coef=0.0)


def _attention(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    graph, *operands = v.inputs
    attrs = dict(v.attrs)
    stats = b.add(Op.ATTENTION_STATS, *v.inputs, **attrs)
    given = (graph, b.add(Op.REVERSE, graph), *operands, v, stats, g)
    found = [b.add(Op.ATTENTION_GRAD, *given, **attrs, wrt=wrt) for wrt in range(3)]
    return [None, *found, *([None] if attrs.get("p") else [])]


def _batch_norm(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    x, stats, *vectors = v.inputs  # the statistics are those of x, whose gradient goes through them
    products, sums = b.add(Op.BATCH_NORM_DOT, x, stats, g, eps=v["eps"]), sum_rows(b, g)
    dx = b.add(Op.BATCH_NORM_GRAD, x, stats, g, products, sums, *vectors[:1], eps=v["eps"])
    return [dx, None, *((products, sums) if vectors else ())]


def _normalise(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    x, mean, variance, *vectors = v.inputs
    inverse = b.add(Op.POW, variance, exponent=-0.5, eps=v["eps"])
    scale = b.add(Op.MUL, inverse, vectors[0]) if vectors else inverse
    dx = b.add(Op.COL_SCALE, g, scale)
    centred = b.add(Op.BIAS, x, b.add(Op.SCALE, mean, factor=-1.0))
    products, total = sum_rows(b, b.add(Op.MUL, g, centred)), sum_rows(b, g)
    by_mean = b.add(Op.SCALE, b.add(Op.MUL, total, scale), factor=-1.0)
    steep = b.add(Op.MUL, scale, b.add(Op.POW, variance, exponent=-1.0, eps=v["eps"]))
    by_variance = b.add(Op.SCALE, b.add(Op.MUL, products, steep), factor=-0.5)
    return [dx, by_mean, by_variance, *([b.add(Op.MUL, products, inverse), total] if vectors else [])]


def _matmul(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    x, w = v.inputs
    if v.get("ta"):  # y = x^T w: dx = w g^T, dw = x g
        return b.add(Op.MATMUL, w, g, tb=True), b.add(Op.MATMUL, x, g)
    if x.tensor.rows is None:
        raise IRError("differentiate: matmul expects node or edge rows on the left")
    dx = None if x.tensor.sparse else b.add(Op.MATMUL, g, w, tb=not v.get("tb", False))
    if v.get("tb") and x.tensor.residency is Residency.EDGE:
        return dx, b.add(Op.MATMUL, g, x, ta=True)
    dw = b.add(Op.MATMUL, x, g, ta=True)  # g on the right: its column sums and other contractions come with it
    return dx, b.add(Op.PERMUTE, dw, order=(1, 0)) if v.get("tb") else dw


def _pow(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    (x,) = v.inputs
    slope = b.add(Op.POW, x, exponent=v["exponent"] - 1.0, eps=v.get("eps", 0.0))
    return (b.add(Op.SCALE, b.add(Op.MUL, g, slope), factor=v["exponent"]),)


def _over_dims(b: Builder, x: Value) -> Value:
    """One number per row: all trailing dimensions added up."""
    rank = len(x.tensor.dims)
    if rank == 1:
        return b.add(Op.ROW_SUM, x)
    return b.add(Op.SUM_DIMS, x, axes=tuple(range(rank))) if rank else x


def _row_scale(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    x, s = v.inputs
    product = b.add(Op.MUL, g, x)
    return b.add(Op.ROW_SCALE, g, s), _over_dims(b, product)


def _row_add(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return g, _over_dims(b, g)


def _col_sum(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return (b.add(Op.FILL_ROWS, g, v.inputs[0], mean=v.get("mean", False)),)


def _fill_rows(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    return b.add(Op.COL_SUM, g, mean=True) if v.get("mean") else sum_rows(b, g), None


_RULES: dict[Op, Vjp] = {
    Op.BROADCAST_SRC: lambda b, v, g: (None, b.add(Op.REDUCE, b.add(Op.REVERSE, v.inputs[0]), g, kind="sum")),
    Op.BROADCAST_DST: lambda b, v, g: (None, b.add(Op.REDUCE, v.inputs[0], g, kind="sum")),
    Op.REDUCE: _reduce,
    Op.SPMM: _spmm,
    Op.SPMM_MAX: _spmm_max,
    Op.SDDMM: _sddmm,
    Op.ATTENTION: _attention,
    Op.BATCH_NORM: _batch_norm,
    Op.NORMALISE: _normalise,
    Op.TAKE_ROWS: lambda b, v, g: (b.add(Op.SCATTER_ROWS, g, v.inputs[1], v.inputs[0]), None),
    Op.OWN_ROWS: lambda b, v, g: (None, b.add(Op.PAD_ROWS, v.inputs[0], g)),
    Op.PAD_ROWS: lambda b, v, g: (None, b.add(Op.OWN_ROWS, v.inputs[0], g)),
    Op.SCATTER_ROWS: lambda b, v, g: (b.add(Op.TAKE_ROWS, g, v.inputs[1]), None, None),
    Op.MATMUL: _matmul,
    Op.BIAS: lambda b, v, g: (g, sum_to(b, g, v.inputs[1])),
    Op.COL_SCALE: lambda b, v, g: (
        b.add(Op.COL_SCALE, g, v.inputs[1]),
        sum_to(b, b.add(Op.MUL, g, v.inputs[0]), v.inputs[1]),
    ),
    Op.ROW_SCALE: _row_scale,
    Op.ROW_ADD: _row_add,
    Op.ADD: lambda b, v, g: (g, g),
    Op.MUL: lambda b, v, g: (b.add(Op.MUL, g, v.inputs[1]), b.add(Op.MUL, g, v.inputs[0])),
    Op.SCALE: lambda b, v, g: (b.add(Op.SCALE, g, factor=v["factor"]),),
    Op.MUL_SCALAR: lambda b, v, g: (b.add(Op.MUL_SCALAR, g, v.inputs[1]), b.add(Op.DOT, g, v.inputs[0])),
    Op.ADD_CONST: lambda b, v, g: (g,),
    Op.POW: _pow,
    Op.RELU: lambda b, v, g: (b.add(Op.RELU_MASK, g, v),),
    Op.RELU_MASK: lambda b, v, g: (b.add(Op.RELU_MASK, g, v.inputs[1]), None),
    # the gradient goes the way back; between the two ops there is no third
    Op.MOVE_WAIT: lambda b, v, g: (b.add(Op.MOVE_START, g, v.inputs[0].inputs[1], to=_origin(v).tensor.place),),
    Op.MOVE_START: lambda b, v, g: (b.add(Op.MOVE_WAIT, g), None),
    Op.DROPOUT: lambda b, v, g: (b.add(Op.DROPOUT, g, v.inputs[1], **dict(v.attrs)), None),
    Op.COL_SUM: _col_sum,
    Op.ROW_SUM: lambda b, v, g: (b.add(Op.FILL_COLS, g, width=v.inputs[0].tensor.dims[0]),),
    Op.FILL_ROWS: _fill_rows,
    Op.FILL_COLS: lambda b, v, g: (b.add(Op.ROW_SUM, g),),
    Op.DOT: lambda b, v, g: (b.add(Op.MUL_SCALAR, v.inputs[1], g), b.add(Op.MUL_SCALAR, v.inputs[0], g)),
    # constant but for jumps
    Op.REDUCE_MASK: lambda b, v, g: (None, None),
    Op.MAX_ROWS_MASK: lambda b, v, g: (None,),
    Op.MAX_DIMS_MASK: lambda b, v, g: (None,),
    **_ROWS_AND_DIMS,
    **_TYPED,
}


def rules() -> frozenset[Op]:
    """The operations that have a gradient rule."""
    return frozenset(_RULES)
