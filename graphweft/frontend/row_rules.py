"""Rules for whole modules, beside those of user functions: softmax by hand, batch norm, slices that take all.

Comes in: operands of one operation. Goes out: its result, raised. Looked up by ``regions.py`` before the table of
``rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphweft.frontend import elementwise_rules, shape_rules, sum_forms, sum_rules  # noqa: F401  they fill the table of rules
from graphweft.frontend.layout import N, Raised, UnraisableError
from graphweft.frontend.row_algebra import RowAlgebra
from graphweft.frontend.rules import RULES, Out, entering
from graphweft.ir.ops import Op
from graphweft.ir.program import Value

aten = torch.ops.aten
RowRule = Callable[..., Any]
ROW_RULES: dict[Any, RowRule] = {}
_rule = entering(ROW_RULES)
_NOTHING = 1e-15  # is lost beside a sum of 1 or more


@_rule(aten.div.Tensor)
def _div(a: RowAlgebra, out: Out, x: Raised, y: Any) -> Raised:
    """A quotient; a softmax over the in-edges where it is one spelled out."""
    if isinstance(y, Raised):
        scores = _softmax_scores(x.value, y.value, a.filled)
        if scores is not None and scores.tensor.dims == x.value.tensor.dims:
            return Raised(a.b.add(Op.EDGE_SOFTMAX, y.value.inputs[0], scores), x.axes)
    made: Raised = RULES[aten.div.Tensor](a, out, x, y)
    return made


def _softmax_scores(above: Value, below: Value, filled: Mapping[Value, Value]) -> Value | None:
    """s, where ``above`` is exp(s - its maximum at the destination), ``below`` the sum of these at the destination."""
    if above.op is not Op.EWISE or above["fn"] != "exp" or below.op is not Op.BROADCAST_DST:
        return None
    graph, total = below.inputs
    if total.op is Op.EWISE and total["fn"] == "add":
        total, extra = total.inputs
        if extra.op is not Op.CONST or not 0 <= extra["value"] <= _NOTHING:
            return None
    if total.op is not Op.REDUCE or total["kind"] != "sum" or total.inputs != (graph, above):
        return None
    shifted = above.inputs[0]
    if shifted.op is not Op.EWISE or shifted["fn"] != "sub" or shifted.inputs[1].op is not Op.BROADCAST_DST:
        return None
    scores, top = shifted.inputs[0], shifted.inputs[1].inputs[1]
    if shifted.inputs[1].inputs[0] is not graph:
        return None
    while top.op is Op.DETACH:
        top = top.inputs[0]
    top = filled.get(top, top)
    if top.op is not Op.REDUCE or top["kind"] != "max" or top.inputs[0] is not graph:
        return None
    highest = top.inputs[1]
    stopped = highest.op is Op.DETACH or shifted.inputs[1].inputs[1].op is Op.DETACH
    while highest.op is Op.DETACH:
        highest = highest.inputs[0]
    return scores if stopped and highest is scores else None


@_rule(aten.slice.Tensor)
def _slice(a: RowAlgebra, out: Out, x: Raised, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if step == 1 and tuple(size.number for size in out.shape) == a.axes.sizes(x):
        return x
    if step == 1 and not start and out.shape[dim].number == a.counts.get(a.stage.graph.struct.dst):
        own = a.own_rows(x, dim)
        if own is not None:
            return own
    return RULES[aten.slice.Tensor](a, out, x, dim, start, end, step)


@_rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    a: RowAlgebra,
    out: Any,
    x: Raised,
    weight: Raised | None,
    bias: Raised | None,
    mean: Raised,
    variance: Raised,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    made, flat, spread = _by_batch(a, x, weight, bias, eps)
    dims = [axis for axis in range(len(x.axes)) if axis != 1]
    dtype = x.value.tensor.dtype
    count = a.count(x, dims, dtype)
    unbiased = a.ewise("mul", spread, a.ewise("div", count, a.ewise("sub", count, a.number(1.0, dtype))))
    return made, None, None, _moved(a, mean, flat, momentum), _moved(a, variance, unbiased, momentum)


@_rule(aten._native_batch_norm_legit.no_stats)
def _batch_norm_alone(
    a: RowAlgebra, out: Any, x: Raised, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _by_batch(a, x, weight, bias, eps)[0], None, None


@_rule(aten.native_batch_norm.default)
def _batch_norm_given(
    a: RowAlgebra,
    out: Any,
    x: Raised,
    weight: Raised | None,
    bias: Raised | None,
    mean: Raised,
    variance: Raised,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """In evaluation: by statistics that are kept."""
    if training:
        raise UnraisableError("a batch norm that moves its statistics")
    if _is_of_nodes(a, x, weight, bias):
        vectors = [v.value for v in (mean, variance, weight, bias) if v is not None]
        return Raised(a.b.add(Op.NORMALISE, x.value, *vectors, eps=eps), x.axes), None, None
    center, spread = (Raised(v.value, (*v.axes, *((),) * (len(x.axes) - 2))) for v in (mean, variance))
    return _normalised(a, x, center, spread, weight, bias, eps), None, None


def _by_batch(a: RowAlgebra, x: Raised, weight: Any, bias: Any, eps: float) -> tuple[Raised, Raised, Raised]:
    """Rows normalised by their own statistics, and these: means and variances of the columns."""
    if _is_of_nodes(a, x, weight, bias):
        stats = a.b.add(Op.BATCH_STATS, x.value)
        vectors = [] if weight is None else [weight.value, bias.value]
        made = Raised(a.b.add(Op.BATCH_NORM, x.value, stats, *vectors, eps=eps), x.axes)
        kept = a.b.add(Op.DETACH, stats)
        rows = [a.b.add(Op.SLICE, kept, axis=0, start=at, stop=at + 1, step=1) for at in range(2)]
        mean, variance = (a.axes.of(a.axes.reshape(row, x.value.tensor.dims)) for row in rows)
        return made, mean, variance
    dims = [axis for axis in range(len(x.axes)) if axis != 1]
    of_batch, center = a.variance(x, dims, 0, True)
    made = _normalised(a, x, center, of_batch, weight, bias, eps)
    return made, a.drop(center, dims), a.drop(of_batch, dims)


def _is_of_nodes(a: RowAlgebra, x: Raised, weight: Any, bias: Any) -> bool:
    """Whether a norm is over node rows of one dimension, for which there is a kernel."""
    if not x.has_rows or len(x.axes) != 2 or x.axes[0] != (N,) or len(x.value.tensor.dims) != 1:
        return False
    alike = all(v is None or (not v.has_rows and v.value.tensor.dims == x.value.tensor.dims) for v in (weight, bias))
    return alike and (weight is None) == (bias is None) and not a.is_edge(x.value)


def _normalised(a: RowAlgebra, x: Raised, mean: Raised, variance: Raised, weight: Any, bias: Any, eps: float) -> Raised:
    dtype = x.value.tensor.dtype
    scale = a.ewise("rsqrt", a.ewise("add", variance, a.number(eps, dtype)))
    made = a.ewise("mul", a.ewise("sub", x, mean), scale)
    for fn, factor in (("mul", weight), ("add", bias)):
        if factor is not None:
            wide = Raised(factor.value, (*factor.axes, *((),) * (len(x.axes) - 2)))
            made = a.ewise(fn, made, wide)
    return made


def _moved(a: RowAlgebra, old: Raised, new: Raised, momentum: float) -> Raised:
    dtype = old.value.tensor.dtype
    kept = a.ewise("mul", old, a.number(1.0 - momentum, dtype))
    return a.map(a.ewise("add", kept, a.ewise("mul", new, a.number(momentum, dtype))), Op.DETACH)


@_rule(torch.ops.graphweft_trace.with_gradient_of.default)
def _with_gradient_of(a: RowAlgebra, out: Out, x: Raised, zero: Raised) -> Raised:
    return a.ewise("add", x, zero)


def rule_of(target: Any) -> RowRule | None:
    """The rule of an operation."""
    return ROW_RULES.get(target) or RULES.get(target)


__all__ = ["ROW_RULES", "rule_of"]
