"""From ATen operations to the algebra of raised tensors: one rule per operation.

Comes in: a traced operation, its operands and the shape and dtype of its result. Goes out: a raised tensor, or a tuple.
What has no rule here is decomposed by torch's own tables before, or cannot be raised. A custom operator is brought in
with one line: :func:`register_rule`. Called by ``raising.py``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from graphweft.frontend.algebra import Algebra, Operand
from graphweft.frontend.layout import N, Raised, Size, UnraisableError
from graphweft.ir.ops import Op

aten = torch.ops.aten


@dataclass(frozen=True)
class Out:
    """What a traced operation gives: its shape and dtype."""

    shape: tuple[Size, ...]
    dtype: torch.dtype


AtenRule = Callable[..., Any]
RULES: dict[Any, AtenRule] = {}
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}


def register_rule(operator: Any, code: Callable[..., Any]) -> None:
    """Lets user functions that call the custom operator ``operator`` be compiled: ``code`` is the same in tensor code.

    Example:
        >>> import torch
        >>> @torch.library.custom_op("graphweft_docs::twice", mutates_args=())
        ... def twice(x: torch.Tensor) -> torch.Tensor:
        ...     return x * 2
        >>> _ = twice.register_fake(lambda x: torch.empty_like(x))
        >>> register_rule(torch.ops.graphweft_docs.twice.default, lambda x: x * 2)
    """
    DECOMPOSITIONS[operator] = code


def _rule(*operators: Any) -> Callable[[AtenRule], AtenRule]:
    def keep(function: AtenRule) -> AtenRule:
        for operator in operators:
            RULES[operator] = function
        return function

    return keep


def _elementwise(fn: str, *operators: Any, **attrs: Any) -> None:
    def rule(a: Algebra, out: Out, *operands: Operand, **_: Any) -> Raised:
        return a.ewise(fn, *(a.cast(x, out.dtype) for x in operands), **attrs)

    for operator in operators:
        RULES[operator] = rule


for _name in "neg exp expm1 log log1p sqrt rsqrt reciprocal abs sign floor ceil sin cos erf relu sigmoid tanh".split():
    _elementwise(_name, getattr(aten, _name).default)
_elementwise("round", aten.round.default)
for _name in "neg exp log sqrt rsqrt abs sign erf tanh add sub mul div maximum minimum".split():
    _elementwise(_name, getattr(torch.ops.prims, _name).default)
_elementwise("mul", aten.mul.Tensor, aten.mul.Scalar)
_elementwise("div", aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
_elementwise("maximum", aten.maximum.default)
_elementwise("minimum", aten.minimum.default)


def _promoted(operands: Sequence[Operand]) -> torch.dtype:
    """The dtype in which torch compares operands."""
    tensors = [torch.empty((1,) * len(x.axes), dtype=x.value.tensor.dtype) for x in operands if isinstance(x, Raised)]
    others: list[Any] = [x for x in operands if not isinstance(x, Raised)]
    found: torch.dtype = torch.result_type(*(tensors + others)) if len(operands) == 2 else tensors[0].dtype
    return found


def _comparison(fn: str) -> AtenRule:
    def rule(a: Algebra, out: Out, *operands: Operand) -> Raised:
        dtype = _promoted(operands)
        return a.ewise(fn, *(a.cast(x, dtype) for x in operands))

    return rule


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _operator in (
        getattr(aten, _name).Tensor,
        getattr(aten, _name).Scalar,
        getattr(torch.ops.prims, _name).default,
    ):
        RULES[_operator] = _comparison(_name)


def _logic(fn: str) -> AtenRule:
    def rule(a: Algebra, out: Out, *operands: Operand) -> Raised:
        if out.dtype != torch.bool:
            raise UnraisableError("logic on integers")
        return a.ewise(fn, *(a.cast(x, torch.bool) for x in operands))

    return rule


for _name in ("and", "or", "xor", "not"):
    RULES[getattr(aten, f"logical_{_name}").default] = _logic(f"logical_{_name}")
    _bitwise = getattr(aten, f"bitwise_{_name}")
    RULES[_bitwise.default if _name == "not" else _bitwise.Tensor] = _logic(f"logical_{_name}")


@_rule(aten.add.Tensor, aten.add.Scalar)
def _add(a: Algebra, out: Out, x: Operand, y: Operand, alpha: float = 1) -> Raised:
    y = a.cast(y, out.dtype)
    return a.ewise("add", a.cast(x, out.dtype), y if alpha == 1 else a.ewise("mul", y, a.number(alpha, out.dtype)))


@_rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(a: Algebra, out: Out, x: Operand, y: Operand, alpha: float = 1) -> Raised:
    y = a.cast(y, out.dtype)
    return a.ewise("sub", a.cast(x, out.dtype), y if alpha == 1 else a.ewise("mul", y, a.number(alpha, out.dtype)))


@_rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(a: Algebra, out: Out, x: Operand, y: Operand, alpha: float = 1) -> Raised:
    return _sub(a, out, y, x, alpha)


_NAMED_POWERS = {2: "square", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}


@_rule(aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor)
def _pow(a: Algebra, out: Out, x: Operand, y: Operand) -> Raised:
    x = a.cast(x, out.dtype)
    if not isinstance(y, Raised) and y in _NAMED_POWERS and (out.dtype.is_floating_point or y == 2):
        return a.ewise(_NAMED_POWERS[y], x)
    return a.ewise("pow", x, a.cast(y, out.dtype))


@_rule(aten.leaky_relu.default)
def _leaky_relu(a: Algebra, out: Out, x: Raised, slope: float = 0.01) -> Raised:
    return a.ewise("leaky_relu", x, alpha=float(slope))


@_rule(aten.elu.default)
def _elu(a: Algebra, out: Out, x: Raised, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Raised:
    if input_scale != 1:
        raise UnraisableError("an elu whose input is scaled")
    made = a.ewise("elu", x, alpha=float(alpha))
    return made if scale == 1 else a.ewise("mul", made, a.number(scale, out.dtype))


@_rule(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.hardtanh.default)
def _clamp(a: Algebra, out: Out, x: Raised, low: Any = None, high: Any = None) -> Raised:
    x = a.cast(x, out.dtype)
    for bound, fn in ((low, "lt"), (high, "gt")):
        if bound is not None and not (isinstance(bound, float) and bound in (inf, -inf)):
            limit = a.cast(bound, out.dtype)
            x = a.ewise("where", a.ewise(fn, x, limit), limit, x)
    return x


RULES[aten.clamp_max.default] = lambda a, out, x, high: _clamp(a, out, x, None, high)


@_rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(a: Algebra, out: Out, condition: Raised, x: Operand, y: Operand) -> Raised:
    return a.ewise("where", a.cast(condition, torch.bool), a.cast(x, out.dtype), a.cast(y, out.dtype))


@_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(a: Algebra, out: Out, x: Raised, mask: Raised, value: Operand) -> Raised:
    return a.ewise("where", mask, a.cast(value, out.dtype), x)


@_rule(aten.index_put.default)
def _index_put(
    a: Algebra, out: Out, x: Raised, indices: Sequence[Any], value: Raised, accumulate: bool = False
) -> Raised:
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, Raised) or mask.value.tensor.dtype != torch.bool or value.axes or accumulate:
        raise UnraisableError("an assignment by index")
    mask = Raised(mask.value, mask.axes + ((),) * (len(x.axes) - len(mask.axes)))
    return a.ewise("where", mask, a.cast(value, out.dtype), x)


# dtypes, copies, constants


@_rule(aten._to_copy.default)
def _to_copy(a: Algebra, out: Out, x: Raised, **_: Any) -> Raised:
    return a.cast(x, out.dtype)


@_rule(
    aten.clone.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
)
def _same(a: Algebra, out: Out, x: Raised, **_: Any) -> Raised:
    return x


_LIBRARY = torch.library.Library("graphweft_trace", "DEF")
_LIBRARY.define("stop_gradient(Tensor x) -> Tensor")
_LIBRARY.impl("stop_gradient", torch.clone, "CompositeExplicitAutograd")


def stop_gradient(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """``x.detach()`` as an operation that recording keeps; torch drops its own, an alias."""
    stopped: torch.Tensor = torch.ops.graphweft_trace.stop_gradient(x)
    return stopped


@_rule(aten.detach.default, torch.ops.graphweft_trace.stop_gradient.default)
def _detach(a: Algebra, out: Out, x: Raised) -> Raised:
    return a.map(x, Op.DETACH)


@_rule(aten.copy.default)
def _copy(a: Algebra, out: Out, x: Raised, source: Raised, non_blocking: bool = False) -> Raised:
    return a.expand(a.cast(source, out.dtype), out.shape)


def _filled(a: Algebra, out: Out, value: bool | int | float) -> Raised:
    return a.expand(a.number(value, out.dtype), out.shape)


RULES[aten.full.default] = lambda a, out, size, value, **_: _filled(a, out, value)
RULES[aten.full_like.default] = lambda a, out, x, value, **_: _filled(a, out, value)
RULES[aten.fill.Scalar] = lambda a, out, x, value: _filled(a, out, value)
RULES[aten.new_full.default] = lambda a, out, x, size, value, **_: _filled(a, out, value)
RULES[aten.scalar_tensor.default] = lambda a, out, value, **_: a.number(value, out.dtype)
for _name, _value in (("zeros", 0), ("ones", 1)):
    for _operator in (getattr(aten, _name), getattr(aten, f"{_name}_like"), getattr(aten, f"new_{_name}")):
        RULES[_operator.default] = lambda a, out, *_, _v=_value, **__: _filled(a, out, _v)


@_rule(aten.native_dropout.default)
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


# views


@_rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
def _view(a: Algebra, out: Out, x: Raised, *_: Any) -> Raised:
    return a.axes.view(x, out.shape)


@_rule(aten.permute.default)
def _permute(a: Algebra, out: Out, x: Raised, order: Sequence[int]) -> Raised:
    return Raised(x.value, tuple(x.axes[axis] for axis in order))


@_rule(aten.transpose.int)
def _transpose(a: Algebra, out: Out, x: Raised, one: int, two: int) -> Raised:
    axes = list(x.axes)
    axes[one], axes[two] = axes[two], axes[one]
    return Raised(x.value, tuple(axes))


@_rule(aten.t.default, aten.numpy_T.default)
def _t(a: Algebra, out: Out, x: Raised) -> Raised:
    return Raised(x.value, x.axes[::-1])


@_rule(aten.unsqueeze.default)
def _unsqueeze(a: Algebra, out: Out, x: Raised, dim: int) -> Raised:
    at = dim % (len(x.axes) + 1)
    return Raised(x.value, (*x.axes[:at], (), *x.axes[at:]))


@_rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(a: Algebra, out: Out, x: Raised, dims: Any = None) -> Raised:
    rank = len(x.axes)
    chosen = range(rank) if dims is None else [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
    return a.drop(x, [axis for axis in chosen if not x.axes[axis]])


@_rule(aten.expand.default)
def _expand(a: Algebra, out: Out, x: Raised, *_: Any, **__: Any) -> Raised:
    return a.expand(x, out.shape)


@_rule(aten.repeat.default)
def _repeat(a: Algebra, out: Out, x: Raised, repeats: Sequence[Any]) -> Raised:
    x = Raised(x.value, ((),) * (len(repeats) - len(x.axes)) + x.axes)
    counts = a.stage.symbols.shape(repeats)
    spread = Raised(x.value, tuple(axis for at in range(len(counts)) for axis in ((), x.axes[at])))
    wide = a.expand(spread, [size for count in counts for size in (count, None)])
    return Raised(wide.value, tuple(wide.axes[2 * at] + wide.axes[2 * at + 1] for at in range(len(counts))))


@_rule(aten.select.int)
def _select(a: Algebra, out: Out, x: Raised, dim: int, index: int) -> Raised:
    at = dim % len(x.axes)
    size = _static(x, at)
    start = int(index) % size
    return a.drop(a.cut(x, at, start, start + 1), [at])


def _static(x: Raised, axis: int) -> int:
    """Size of an axis without rows."""
    size = 1
    for token in x.axes[axis]:
        if isinstance(token, str):
            raise UnraisableError("one of the nodes, edges or messages picked by position")
        size *= x.size(token)
    return size


@_rule(aten.slice.Tensor)
def _slice(a: Algebra, out: Out, x: Raised, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Raised:
    at = dim % len(x.axes)
    size = out.shape[at]
    if any(isinstance(token, str) for token in x.axes[at]):
        whole = (start is None or start == 0) and step == 1 and (size.n or size.d) and isinstance(end, int | None)
        if whole and (end is None or end > 2**62):
            return x
        raise UnraisableError("some of the nodes, edges or messages picked by position")
    return a.cut(x, at, *_bounds(start, end, _static(x, at)), step)


def _bounds(start: Any, end: Any, size: int) -> tuple[int, int]:
    return slice(start, end).indices(size)[:2]


@_rule(aten.unbind.int)
def _unbind(a: Algebra, out: Any, x: Raised, dim: int = 0) -> tuple[Raised, ...]:
    at = dim % len(x.axes)
    return tuple(a.drop(a.cut(x, at, i, i + 1), [at]) for i in range(_static(x, at)))


@_rule(aten.split_with_sizes.default)
def _split(a: Algebra, out: Any, x: Raised, sizes: Sequence[int], dim: int = 0) -> tuple[Raised, ...]:
    at, begin, parts = dim % len(x.axes), 0, []
    for size in sizes:
        parts.append(a.cut(x, at, begin, begin + size))
        begin += size
    return tuple(parts)


@_rule(aten.split.Tensor)
def _split_evenly(a: Algebra, out: Any, x: Raised, size: int, dim: int = 0) -> tuple[Raised, ...]:
    whole = _static(x, dim % len(x.axes))
    return _split(a, out, x, [builtins.min(size, whole - begin) for begin in range(0, whole, size)], dim)


@_rule(aten.cat.default)
def _cat(a: Algebra, out: Out, xs: Sequence[Raised], dim: int = 0) -> Raised:
    return a.cat([a.cast(x, out.dtype) for x in xs], dim % len(out.shape))


@_rule(aten.stack.default)
def _stack(a: Algebra, out: Out, xs: Sequence[Raised], dim: int = 0) -> Raised:
    at = dim % len(out.shape)
    return a.cat([_unsqueeze(a, out, a.cast(x, out.dtype), at) for x in xs], at)


@_rule(aten.slice_scatter.default)
def _slice_scatter(
    a: Algebra, out: Out, x: Raised, source: Raised, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Raised:
    at = dim % len(x.axes)
    if any(isinstance(token, str) for token in x.axes[at]):
        if (start is None or start == 0) and (end is None or not isinstance(end, int) or end > 2**62) and step == 1:
            return a.expand(a.cast(source, out.dtype), out.shape)
        raise UnraisableError("an assignment to some of the nodes, edges or messages")
    size = _static(x, at)
    begin, stop = _bounds(start, end, size)
    if step != 1:
        raise UnraisableError("an assignment with a step")
    kept = [a.cut(x, at, 0, begin)] if begin else []
    shape = [Size(stop - begin) if i == at else size for i, size in enumerate(out.shape)]
    middle = a.expand(a.cast(source, out.dtype), shape)
    rest = [a.cut(x, at, stop, size)] if stop < size else []
    return a.cat([*kept, middle, *rest], at)


@_rule(aten.select_scatter.default)
def _select_scatter(a: Algebra, out: Out, x: Raised, source: Raised, dim: int, index: int) -> Raised:
    at = dim % len(x.axes)
    begin = int(index) % _static(x, at)
    return _slice_scatter(a, out, x, _unsqueeze(a, out, source, at), at, begin, begin + 1)


# tables


@_rule(aten.embedding.default)
def _embedding(a: Algebra, out: Out, table: Raised, index: Raised, *_: Any, **__: Any) -> Raised:
    return _lookup(a, table, index)


@_rule(aten.index.Tensor)
def _index(a: Algebra, out: Out, table: Raised, indices: Sequence[Any]) -> Raised:
    if len(indices) != 1 or not isinstance(indices[0], Raised):
        raise UnraisableError("an index of several tensors")
    return _lookup(a, table, indices[0])


@_rule(aten.index_select.default)
def _index_select(a: Algebra, out: Out, table: Raised, dim: int, index: Raised) -> Raised:
    if dim % len(table.axes):
        raise UnraisableError("an index along features")
    return _lookup(a, table, index)


def _lookup(a: Algebra, table: Raised, index: Raised) -> Raised:
    """Rows of a shared table by number."""
    if table.has_rows or N in table.tokens or not str(index.value.tensor.dtype).startswith("torch.int"):
        raise UnraisableError("an index into rows")
    index = a.axes.ordered(a.cast(index, torch.int64) if index.value.tensor.dtype != torch.int32 else index)
    plain = a.plain(table, 0)
    made = a.b.add(Op.LOOKUP, plain, index.value)
    depth = len(index.value.tensor.dims)
    own = tuple((depth + at,) for at in range(len(plain.tensor.dims) - 1))
    return a.trimmed(Raised(made, index.axes + own))


# reductions


def _dims(x: Raised, dims: Any) -> list[int]:
    rank = len(x.axes)
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(rank))
    return [d % rank for d in ([dims] if isinstance(dims, int) else dims)] if rank else []


@_rule(aten.sum.dim_IntList, aten.sum.default)
def _sum(a: Algebra, out: Out, x: Raised, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Raised:
    return a.fold(a.cast(x, out.dtype), _dims(x, dims), "sum", keepdim)


@_rule(aten.mean.dim, aten.mean.default)
def _mean(a: Algebra, out: Out, x: Raised, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Raised:
    return a.fold(a.cast(x, out.dtype), _dims(x, dims), "mean", keepdim)


def _extremum(kind: str) -> None:
    def spread(a: Algebra, out: Out, x: Raised, dims: Any = None, keepdim: bool = False) -> Raised:
        return a.fold(x, _dims(x, dims), kind, keepdim)

    def picked(a: Algebra, out: Any, x: Raised, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        return a.fold(x, _dims(x, dim), kind, keepdim, ties="first"), None

    RULES[getattr(aten, f"a{kind}").default] = RULES[getattr(aten, kind).default] = spread
    RULES[getattr(aten, kind).dim] = picked


_extremum("max")
_extremum("min")


def _quantifier(kind: str) -> AtenRule:
    def rule(a: Algebra, out: Out, x: Raised, dims: Any = None, keepdim: bool = False) -> Raised:
        if x.value.tensor.dtype != torch.bool:
            x = a.ewise("ne", x, a.number(0, x.value.tensor.dtype))
        folded = a.fold(a.cast(x, torch.int8), _dims(x, dims), kind, keepdim)
        return a.cast(folded, out.dtype)

    return rule


for _name, _kind in (("any", "max"), ("all", "min")):
    for _overload in ("dim", "dims", "default"):
        RULES[getattr(getattr(aten, _name), _overload)] = _quantifier(_kind)


@_rule(aten.var.correction)
def _var(
    a: Algebra, out: Out, x: Raised, dims: Any = None, correction: float | None = 1, keepdim: bool = False
) -> Raised:
    return a.variance(x, _dims(x, dims), 1 if correction is None else correction, keepdim)[0]


@_rule(aten.std.correction)
def _std(
    a: Algebra, out: Out, x: Raised, dims: Any = None, correction: float | None = 1, keepdim: bool = False
) -> Raised:
    return a.ewise("sqrt0", _var(a, out, x, dims, correction, keepdim))


@_rule(aten.var_mean.correction)
def _var_mean(
    a: Algebra, out: Any, x: Raised, dims: Any = None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Raised, Raised]:
    return a.variance(x, _dims(x, dims), 1 if correction is None else correction, keepdim)


@_rule(aten.linalg_vector_norm.default)
def _norm(
    a: Algebra, out: Out, x: Raised, order: float = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Raised:
    where = _dims(x, dims)
    if order == 2:
        return a.ewise("sqrt0", a.fold(a.ewise("square", x), where, "sum", keepdim))
    size = a.ewise("abs", x)
    if order in (1, inf, -inf):
        return a.fold(size, where, {1: "sum", inf: "max", -inf: "min"}[order], keepdim)
    powers = a.fold(a.ewise("pow", size, a.number(order, out.dtype)), where, "sum", keepdim)
    return a.ewise("pow", powers, a.number(1.0 / order, out.dtype))


@_rule(aten._softmax.default)
def _softmax(a: Algebra, out: Out, x: Raised, dim: int, half_to_float: bool = False) -> Raised:
    return a.softmax(a.cast(x, out.dtype), dim % len(x.axes), log=False)


@_rule(aten._log_softmax.default)
def _log_softmax(a: Algebra, out: Out, x: Raised, dim: int, half_to_float: bool = False) -> Raised:
    return a.softmax(a.cast(x, out.dtype), dim % len(x.axes), log=True)


@_rule(aten.logsumexp.default)
def _logsumexp(a: Algebra, out: Out, x: Raised, dims: Any, keepdim: bool = False) -> Raised:
    return a.logsumexp(x, _dims(x, dims), keepdim)


# products


@_rule(aten.mm.default)
def _mm(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "mk,kp->mp")


@_rule(aten.bmm.default)
def _bmm(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "bmk,bkp->bmp")


@_rule(aten.mv.default)
def _mv(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "mk,k->m")


@_rule(aten.dot.default)
def _dot(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "k,k->")


def _plus(product: str) -> AtenRule:
    def rule(a: Algebra, out: Out, c: Raised, x: Raised, y: Raised, beta: float = 1, alpha: float = 1) -> Raised:
        made = a.contract(x, y, product)
        if alpha != 1:
            made = a.ewise("mul", made, a.number(alpha, out.dtype))
        return a.ewise("add", made, c if beta == 1 else a.ewise("mul", c, a.number(beta, out.dtype)))

    return rule


RULES[aten.addmm.default] = _plus("mk,kp->mp")
RULES[aten.baddbmm.default] = _plus("bmk,bkp->bmp")
RULES[aten.addmv.default] = _plus("mk,k->m")


def _corrected(rule: AtenRule) -> tuple[AtenRule, AtenRule]:
    """The overloads of a spread that take a flag in place of a correction."""

    def along(a: Algebra, out: Any, x: Raised, dims: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return rule(a, out, x, dims, int(unbiased), keepdim)

    return along, lambda a, out, x, unbiased=True: rule(a, out, x, None, int(unbiased))


for _name, _spread in (("var", _var), ("std", _std), ("var_mean", _var_mean)):
    RULES[getattr(aten, _name).dim], RULES[getattr(aten, _name).default] = _corrected(_spread)
