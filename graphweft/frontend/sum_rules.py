"""Rules of reductions and products.

Comes in: operands of one operation. Goes out: its result, raised. Entered into the table of ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from graphweft.frontend.algebra import Algebra
from graphweft.frontend.layout import D, N, Raised, UnraisableError
from graphweft.frontend.rules import RULES, AtenRule, Out, rule
from graphweft.ir.ops import Op

aten = torch.ops.aten


# reductions


def _dims(x: Raised, dims: Any) -> list[int]:
    rank = len(x.axes)
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(rank))
    return [_axis(x, d) for d in ([dims] if isinstance(dims, int) else dims)] if rank else []


def _axis(x: Raised, dim: int) -> int:
    """A dimension counted from the front; torch's recording does not look whether it exists."""
    rank = len(x.axes)
    if not -rank <= dim < rank:
        raise UnraisableError(f"dimension {dim} of a tensor with {rank}")
    return dim % rank


@rule(aten.sum.dim_IntList, aten.sum.default)
def _sum(a: Algebra, out: Out, x: Raised, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Raised:
    return a.fold(a.cast(x, out.dtype), _dims(x, dims), "sum", keepdim)


@rule(aten.mean.dim, aten.mean.default)
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
    def apply(a: Algebra, out: Out, x: Raised, dims: Any = None, keepdim: bool = False) -> Raised:
        if x.value.tensor.dtype != torch.bool:
            x = a.ewise("ne", x, a.number(0, x.value.tensor.dtype))
        folded = a.fold(a.cast(x, torch.int8), _dims(x, dims), kind, keepdim)
        return a.cast(folded, out.dtype)

    return apply


for _name, _kind in (("any", "max"), ("all", "min")):
    for _overload in ("dim", "dims", "default"):
        RULES[getattr(getattr(aten, _name), _overload)] = _quantifier(_kind)


@rule(aten.var.correction)
def _var(
    a: Algebra, out: Out, x: Raised, dims: Any = None, correction: float | None = 1, keepdim: bool = False
) -> Raised:
    where = _dims(x, dims)
    return a.variance(_from_first(a, x, where), where, 1 if correction is None else correction, keepdim)[0]


def _from_first(a: Algebra, x: Raised, dims: Sequence[int]) -> Raised:
    """``x`` less the first of the elements that a spread is of, where these are in one row: the spread of equal numbers
    is 0 then, as torch's is, and not the rounding error of their mean, whose root a deviation would show.
    """
    if any(token in (N, D) for dim in dims for token in x.axes[dim]) or x.value.tensor.dtype not in (
        torch.float32,
        torch.float64,
    ):
        return x
    first = x
    for dim in dims:
        first = a.cut(first, dim, 0, 1)
    return a.ewise("sub", x, a.map(first, Op.DETACH))


@rule(aten.std.correction)
def _std(
    a: Algebra, out: Out, x: Raised, dims: Any = None, correction: float | None = 1, keepdim: bool = False
) -> Raised:
    return a.ewise("sqrt0", _var(a, out, x, dims, correction, keepdim))


@rule(aten.var_mean.correction)
def _var_mean(
    a: Algebra, out: Any, x: Raised, dims: Any = None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Raised, Raised]:
    return a.variance(x, _dims(x, dims), 1 if correction is None else correction, keepdim)


@rule(aten.linalg_vector_norm.default)
def _norm(
    a: Algebra, out: Out, x: Raised, order: float = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Raised:
    where = _dims(x, dims)
    if order == 2:
        return a.ewise("sqrt0", a.fold(a.ewise("square", x), where, "sum", keepdim))
    size = a.ewise("abs", x)
    if order == 0:
        there = a.ewise("ne", x, a.number(0, x.value.tensor.dtype))
        return a.fold(a.cast(there, out.dtype), where, "sum", keepdim)
    if order in (1, inf, -inf):
        return a.fold(size, where, {1: "sum", inf: "max", -inf: "min"}[order], keepdim)
    powers = a.fold(a.ewise("pow", size, a.number(order, out.dtype)), where, "sum", keepdim)
    return a.ewise("pow", powers, a.number(1.0 / order, out.dtype))


@rule(aten._softmax.default)
def _softmax(a: Algebra, out: Out, x: Raised, dim: int, half_to_float: bool = False) -> Raised:
    return a.softmax(a.cast(x, out.dtype), _axis(x, dim), log=False)


@rule(aten._log_softmax.default)
def _log_softmax(a: Algebra, out: Out, x: Raised, dim: int, half_to_float: bool = False) -> Raised:
    return a.softmax(a.cast(x, out.dtype), _axis(x, dim), log=True)


@rule(aten.logsumexp.default)
def _logsumexp(a: Algebra, out: Out, x: Raised, dims: Any, keepdim: bool = False) -> Raised:
    return a.logsumexp(x, _dims(x, dims), keepdim)


# products


@rule(aten.mm.default)
def _mm(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "mk,kp->mp")


@rule(aten.bmm.default)
def _bmm(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "bmk,bkp->bmp")


@rule(aten.mv.default)
def _mv(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "mk,k->m")


@rule(aten.dot.default)
def _dot(a: Algebra, out: Out, x: Raised, y: Raised) -> Raised:
    return a.contract(x, y, "k,k->")


def _plus(product: str) -> AtenRule:
    def apply(a: Algebra, out: Out, c: Raised, x: Raised, y: Raised, beta: float = 1, alpha: float = 1) -> Raised:
        made = a.contract(x, y, product)
        if alpha != 1:
            made = a.ewise("mul", made, a.number(alpha, out.dtype))
        return a.ewise("add", made, c if beta == 1 else a.ewise("mul", c, a.number(beta, out.dtype)))

    return apply


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
