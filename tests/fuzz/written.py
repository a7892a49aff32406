"""Expressions over edges, written as IR by evaluating their text: what recording would give, without its time.

Comes in: the text of an expression in torch's functions and methods, as ``walks.py`` draws them. Goes out: IR values.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from graphweft.ir.elementwise_grad import Formula
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value


class Written:
    """A value of edges, or a shared one, under the names of torch's methods."""

    def __init__(self, b: Builder, value: Value) -> None:
        self.b, self.value = b, value

    @property
    def dims(self) -> tuple[int, ...]:
        return self.value.tensor.dims

    def ewise(self, fn: str, *others: Any, **attrs: float) -> Written:
        operands = [x.value if isinstance(x, Written) else x for x in (self, *others)]
        return Written(self.b, Formula(self.b).apply(fn, *operands, **attrs))

    def op(self, op: Op, **attrs: Any) -> Written:
        return Written(self.b, self.b.add(op, self.value, **attrs))

    def unsqueeze(self, axis: int) -> Written:
        return self.op(Op.RESHAPE, dims=(*self.dims[: axis - 1], 1, *self.dims[axis - 1 :]))

    def expand(self, rows: int, *dims: int) -> Written:
        return self if self.dims == dims else self.op(Op.EXPAND, dims=dims)

    def sum(self, axis: int, keepdim: bool = False) -> Written:
        at = axis - 1 if axis > 0 else axis + len(self.dims)
        total = self.op(Op.SUM_DIMS, axes=(at,))
        return total.op(Op.RESHAPE, dims=(*self.dims[:at], 1, *self.dims[at + 1 :])) if keepdim else total

    def mean(self, axis: int, keepdim: bool) -> Written:
        return self.sum(axis, keepdim) * (1.0 / self.dims[axis - 1])

    def norm(self, dim: int, keepdim: bool) -> Written:
        return self.ewise("square").sum(dim, keepdim).ewise("sqrt0")

    def transpose(self, first: int, second: int) -> Written:
        order = list(range(len(self.dims)))
        order[-1], order[-2] = order[-2], order[-1]
        return self.op(Op.PERMUTE, order=tuple(order))

    def flatten(self, axis: int) -> Written:
        return self.op(Op.RESHAPE, dims=(*self.dims[:-2], self.dims[-2] * self.dims[-1]))

    def clamp(self, low: float, high: float) -> Written:
        return self.ewise("maximum", low).ewise("minimum", high)

    def __getitem__(self, at: tuple[slice, ...]) -> Written:
        axis = len(at) - 2
        return self.op(Op.SLICE, axis=axis, start=0, stop=at[-1].stop, step=1)

    def __rmul__(self, number: float) -> Written:
        return self.ewise("mul", number)

    def __invert__(self) -> Written:
        return self.ewise("logical_not")

    def __neg__(self) -> Written:
        return self.ewise("neg")

    def __eq__(self, other: Any) -> Written:  # type: ignore[override]
        return self.ewise("eq", other)

    def __ne__(self, other: Any) -> Written:  # type: ignore[override]
        return self.ewise("ne", other)

    __hash__ = None  # type: ignore[assignment]


_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "gt": "gt", "lt": "lt", "ge": "ge",
    "le": "le", "and": "logical_and", "or": "logical_or", "xor": "logical_xor",
}  # fmt: skip
for _sign, _fn in _OPERATORS.items():
    setattr(Written, f"__{_sign}__", lambda x, y, fn=_fn: x.ewise(fn, y))
_UNARY = (
    "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "abs", "sign", "floor", "ceil", "round",
    "sin", "cos", "erf", "relu", "sigmoid", "tanh",
)  # fmt: skip
for _fn in _UNARY:
    setattr(Written, _fn, lambda x, fn=_fn: x.ewise(fn))


def _cat(parts: Sequence[Written], axis: int) -> Written:
    b = parts[0].b
    return Written(b, b.add(Op.CAT, *(x.value for x in parts), axis=axis - 1))


def _where(condition: Written, x: Any, y: Any) -> Written:
    return condition.ewise("where", x, y)


def scope_of(b: Builder, graph: Value, leaves: dict[str, tuple[str, Value]]) -> dict[str, Any]:
    """The names that an expression reads; ``leaves``: the end and the input, by name."""
    moves = {"src": Op.BROADCAST_SRC, "dst": Op.BROADCAST_DST}

    def at(end: str) -> dict[str, Written]:
        mine = {n: x for n, (e, x) in leaves.items() if e == end}
        return {n: Written(b, b.add(moves[end], graph, x) if end in moves else x) for n, x in mine.items()}

    functions: dict[str, Any] = {fn: lambda x, fn=fn: x.ewise(fn) for fn in _UNARY}
    functions |= {fn: lambda x, y, fn=fn: x.ewise(fn, y) for fn in ("maximum", "minimum")}
    slopes = SimpleNamespace(
        leaky_relu=lambda x, alpha: x.ewise("leaky_relu", alpha=alpha), elu=lambda x: x.ewise("elu", alpha=1.0)
    )
    edges = SimpleNamespace(src=at("src"), dst=at("dst"), data=at("edge"))
    torch = SimpleNamespace(**functions, cat=_cat, where=_where)
    return {"torch": torch, "F": slopes, "P": at("shared"), "edges": edges}
