"""Rules of elementwise operations, dtypes, copies and constants.

Comes in: operands of one operation. Goes out: its result, raised. Entered into the table of ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from graphweft.frontend.algebra import Algebra, Operand
from graphweft.frontend.layout import Raised, UnraisableError
from graphweft.frontend.rules import RULES, AtenRule, Out, register_rule, rule
from graphweft.ir.ops import Op

aten = torch.ops.aten


def _elementwise(fn: str, *operators: Any, **attrs: Any) -> None:
    def apply(a: Algebra, out: Out, *operands: Operand, **_: Any) -> Raised:
        return a.ewise(fn, *(a.cast(x, out.dtype) for x in operands), **attrs)

    for operator in operators:
        RULES[operator] = apply


for _name in [
    "neg",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "abs",
    "sign",
    "floor",
    "ceil",
    "sin",
    "cos",
    "erf",
    "relu",
    "sigmoid",
    "tanh",
]:
    _elementwise(_name, getattr(aten, _name).default)
_elementwise("round", aten.round.default)
for _name in [
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "abs",
    "sign",
    "erf",
    "tanh",
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
]:
    _elementwise(_name, getattr(torch.ops.prims, _name).default)
_elementwise("mul", aten.mul.Tensor, aten.mul.Scalar)
_elementwise("div", aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
_elementwise("maximum", aten.maximum.default)
_elementwise("minimum", aten.minimum.default)
_elementwise("atan2", aten.atan2.default)


def _promoted(operands: Sequence[Operand]) -> torch.dtype:
    """The dtype in which torch compares operands."""
    tensors = [torch.empty((1,) * len(x.axes), dtype=x.value.tensor.dtype) for x in operands if isinstance(x, Raised)]
    others: list[Any] = [_plain(x) for x in operands if not isinstance(x, Raised)]
    found: torch.dtype = torch.result_type(*(tensors + others)) if len(operands) == 2 else tensors[0].dtype
    return found


def _plain(number: Any) -> Any:
    """A number of the same class in place of a symbolic one."""
    return 0 if isinstance(number, torch.SymInt) else 0.0 if isinstance(number, torch.SymFloat) else number


def _comparison(fn: str) -> AtenRule:
    def apply(a: Algebra, out: Out, *operands: Operand) -> Raised:
        dtype = _promoted(operands)
        return a.ewise(fn, *(a.cast(x, dtype) for x in operands))

    return apply


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _operator in (
        getattr(aten, _name).Tensor,
        getattr(aten, _name).Scalar,
        getattr(torch.ops.prims, _name).default,
    ):
        RULES[_operator] = _comparison(_name)


def _logic(fn: str) -> AtenRule:
    def apply(a: Algebra, out: Out, *operands: Operand) -> Raised:
        if out.dtype != torch.bool:
            raise UnraisableError("logic on integers")
        return a.ewise(fn, *(a.cast(x, torch.bool) for x in operands))

    return apply


for _name in ("and", "or", "xor", "not"):
    RULES[getattr(aten, f"logical_{_name}").default] = _logic(f"logical_{_name}")
    _bitwise = getattr(aten, f"bitwise_{_name}")
    RULES[_bitwise.default if _name == "not" else _bitwise.Tensor] = _logic(f"logical_{_name}")


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(a: Algebra, out: Out, x: Operand, y: Operand, alpha: float = 1) -> Raised:
    y = a.cast(y, out.dtype)
    return a.ewise("add", a.cast(x, out.dtype), y if alpha == 1 else a.ewise("mul", y, a.number(alpha, out.dtype)))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(a: Algebra, out: Out, x: Operand, y: Operand, alpha: float = 1) -> Raised:
    y = a.cast(y, out.dtype)
    return a.ewise("sub", a.cast(x, out.dtype), y if alpha == 1 else a.ewise("mul", y, a.number(alpha, out.dtype)))


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(a: Algebra, out: Out, x: Operand, y: Operand, alpha: float = 1) -> Raised:
    return _sub(a, out, y, x, alpha)


_NAMED_POWERS = {2: "square", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}


@rule(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor)
def _pow(a: Algebra, out: Out, x: Operand, y: Operand) -> Raised:
    if isinstance(y, torch.SymInt | torch.SymFloat):
        if a.stage.symbols.of_numbers(y):
            raise UnraisableError("a power that changes between calls")
        return a.ewise("pow", a.cast(x, out.dtype), a.cast(y, out.dtype))
    x = a.cast(x, out.dtype)
    if not isinstance(y, Raised) and y in _NAMED_POWERS and (out.dtype.is_floating_point or y == 2):
        return a.ewise(_NAMED_POWERS[y], x)
    return a.ewise("pow", x, a.cast(y, out.dtype))


@rule(aten.leaky_relu.default)
def _leaky_relu(a: Algebra, out: Out, x: Raised, slope: float = 0.01) -> Raised:
    return a.ewise("leaky_relu", x, alpha=float(slope))


@rule(aten.elu.default)
def _elu(a: Algebra, out: Out, x: Raised, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Raised:
    if input_scale != 1:
        raise UnraisableError("an elu whose input is scaled")
    made = a.ewise("elu", x, alpha=float(alpha))
    return made if scale == 1 else a.ewise("mul", made, a.number(scale, out.dtype))


def _passes_at_its_bounds() -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros(1, requires_grad=True)
        return bool(torch.autograd.grad(x.clamp(min=0.0), x)[0])


CLAMP_PASSES = _passes_at_its_bounds()  # the gradient of a number at a bound of torch.clamp; since torch 2.15 not


@rule(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
def _clamp(a: Algebra, out: Out, x: Raised, low: Any = None, high: Any = None) -> Raised:
    return _bounded(a, out, x, low, high, CLAMP_PASSES)


@rule(aten.hardtanh.default)
def _hardtanh(a: Algebra, out: Out, x: Raised, low: float = -1.0, high: float = 1.0) -> Raised:
    return _bounded(a, out, x, low, high, passes=False)


def _bounded(a: Algebra, out: Out, x: Raised, low: Any, high: Any, passes: bool) -> Raised:
    """``x`` between two bounds; ``passes``: a number at a bound gives its gradient on."""
    x = a.cast(x, out.dtype)
    for bound, fn in ((low, "lt" if passes else "le"), (high, "gt" if passes else "ge")):
        if bound is not None and not (isinstance(bound, float) and bound in (inf, -inf)):
            limit = a.cast(bound, out.dtype)
            x = a.ewise("where", a.ewise(fn, x, limit), limit, x)
    return x


RULES[aten.clamp_max.default] = lambda a, out, x, high: _clamp(a, out, x, None, high)


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(a: Algebra, out: Out, condition: Raised, x: Operand, y: Operand) -> Raised:
    return a.ewise("where", a.cast(condition, torch.bool), a.cast(x, out.dtype), a.cast(y, out.dtype))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(a: Algebra, out: Out, x: Raised, mask: Raised, value: Operand) -> Raised:
    return a.ewise("where", mask, a.cast(value, out.dtype), x)


@rule(aten.index_put.default)
def _index_put(
    a: Algebra, out: Out, x: Raised, indices: Sequence[Any], value: Raised, accumulate: bool = False
) -> Raised:
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, Raised) or mask.value.tensor.dtype != torch.bool or value.axes or accumulate:
        raise UnraisableError("an assignment by index")
    mask = Raised(mask.value, mask.axes + ((),) * (len(x.axes) - len(mask.axes)))
    return a.ewise("where", mask, a.cast(value, out.dtype), x)


# dtypes, copies, constants


@rule(aten._to_copy.default)
def _to_copy(a: Algebra, out: Out, x: Raised, **_: Any) -> Raised:
    return a.cast(x, out.dtype)


@rule(
    aten.clone.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
)
def _same(a: Algebra, out: Out, x: Raised, **_: Any) -> Raised:
    return x


_LIBRARY = torch.library.Library("graphweft_trace", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("stop_gradient(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("stop_gradient", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


def stop_gradient(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """``x.detach()`` as an operation that recording keeps; torch drops its own, an alias."""
    stopped: torch.Tensor = torch.ops.graphweft_trace.stop_gradient(x)
    return stopped


@rule(aten.detach.default, torch.ops.graphweft_trace.stop_gradient.default)
def _detach(a: Algebra, out: Out, x: Raised) -> Raised:
    return a.map(x, Op.DETACH)


@rule(aten.copy.default, aten.copy_.default)
def _copy(a: Algebra, out: Out, x: Raised, source: Raised, non_blocking: bool = False) -> Raised:
    return a.expand(a.cast(source, out.dtype), out.shape)


def _filled(a: Algebra, out: Out, value: bool | int | float) -> Raised:
    return a.expand(a.number(value, out.dtype), out.shape)


@rule(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def _empty(a: Algebra, out: Out, *_: Any, **__: Any) -> Raised:
    return _filled(a, out, False if out.dtype == torch.bool else 0)


RULES[aten.full.default] = lambda a, out, size, value, **_: _filled(a, out, value)
RULES[aten.full_like.default] = lambda a, out, x, value, **_: _filled(a, out, value)
RULES[aten.fill.Scalar] = lambda a, out, x, value: _filled(a, out, value)
RULES[aten.new_full.default] = lambda a, out, x, size, value, **_: _filled(a, out, value)
RULES[aten.scalar_tensor.default] = lambda a, out, value, **_: a.number(value, out.dtype)
for _name, _value in (("zeros", 0), ("ones", 1)):
    for _operator in (getattr(aten, _name), getattr(aten, f"{_name}_like"), getattr(aten, f"new_{_name}")):
        RULES[_operator.default] = lambda a, out, *_, _v=_value, **__: _filled(a, out, _v)


@rule(aten.native_dropout.default)
def _dropout(a: Algebra, out: Any, x: Raised, p: float, train: bool | None) -> tuple[Any, Any]:
    if not train or p == 0.0:
        return x, None
    if a.stage.seed is None or not x.has_rows or p >= 1.0:
        raise UnraisableError("a dropout of shared values")
    a.stage.streams += 1
    return _drawn(a, x, p), None


def _drawn(a: Algebra, x: Raised, p: float) -> Raised:
    assert a.stage.seed is not None
    return Raised(a.b.add(Op.DROPOUT, x.value, a.stage.seed, p=float(p), stream=a.stage.streams), x.axes)


# Torch's own decompositions of these take exp of what the other branch of a selection is for: where that overflows, its
# gradient is infinite times zero.
def _at_most(x: torch.Tensor, bound: float) -> torch.Tensor:
    """``x`` up to ``bound``, where its gradient is still 1."""
    return torch.where(x > bound, bound, x)


def _softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(_at_most(scaled, threshold))) / beta)


def _celu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return torch.where(x > 0, x, alpha * torch.expm1(_at_most(x, 0.0) / alpha))


register_rule(aten.softplus.default, _softplus)
register_rule(aten.mish.default, lambda x: x * torch.tanh(_softplus(x)))
register_rule(aten.celu.default, _celu)
# nor do torch's have its gradients at the ends of their slopes
register_rule(aten.hardswish.default, lambda x: x * torch.nn.functional.hardtanh(x + 3.0, 0.0, 6.0) / 6.0)
register_rule(aten.hardsigmoid.default, lambda x: torch.nn.functional.hardtanh(x + 3.0, 0.0, 6.0) / 6.0)


def _cross_entropy_of_logits(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    positive: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    share = 1 if positive is None else 1 + (positive - 1) * target
    loss = (1 - target) * x + share * _softplus(-x)
    loss = loss if weight is None else loss * weight
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _padded(x: torch.Tensor, pad: Sequence[int], value: float = 0.0) -> torch.Tensor:
    for at in range(len(pad) // 2):
        dim, size = x.dim() - 1 - at, list(x.shape)
        low, high = pad[2 * at], pad[2 * at + 1]
        if low < 0 or high < 0:
            x = x.narrow(dim, max(-low, 0), size[dim] + min(low, 0) + min(high, 0))
        ends = [x.new_full((*size[:dim], count, *size[dim + 1 :]), value) for count in (max(low, 0), max(high, 0))]
        parts = [part for part, count in ((ends[0], low), (x, 1), (ends[1], high)) if count > 0]
        x = torch.cat(parts, dim) if len(parts) > 1 else x
    return x


register_rule(aten.constant_pad_nd.default, _padded)
register_rule(aten.binary_cross_entropy_with_logits.default, _cross_entropy_of_logits)
register_rule(aten.atanh.default, lambda x: 0.5 * (torch.log1p(x) - torch.log1p(-x)))
