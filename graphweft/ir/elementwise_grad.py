"""Gradients of the functions of EWISE, in terms of EWISE.

Comes in: a value ``fn(x, ...)`` and the gradient of its result. Goes out: the gradient of every operand, before
dimensions that were broadcast are added up again. Conventions are torch's: ReLU 0 at 0, ties of maximum split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, pi, sqrt
from typing import Any

from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value

Partial = Callable[["Formula", Value, Value], Sequence[Value | None]]


class Formula:
    """Writes elementwise expressions; numbers become constants of the right dtype."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def __getattr__(self, fn: str) -> Callable[..., Value]:
        if fn not in FUNCTIONS:
            raise AttributeError(fn)
        return lambda *operands, **attrs: self.apply(fn, *operands, **attrs)

    def apply(self, fn: str, *operands: Value | float, **attrs: Any) -> Value:
        """``fn(operands)``."""
        like = next(o for o in reversed(operands) if isinstance(o, Value))
        values = [o if isinstance(o, Value) else self.number(o, like) for o in operands]
        return self.b.add(Op.EWISE, *values, fn=fn, **attrs)

    def number(self, number: float, like: Value) -> Value:
        """A constant of the dtype of ``like``."""
        return self.b.add(Op.CONST, value=number, dtype=like.tensor.dtype)


def partials(b: Builder, v: Value, g: Value) -> Sequence[Value | None]:
    """Gradient per operand, in the dimensions of the result."""
    return _PARTIALS[v["fn"]](Formula(b), v, g)


def _only(rule: Callable[[Formula, Value, Value, Value], Value]) -> Partial:
    """A rule for one operand: (f, x, y, g) -> gradient of x, with y the result."""
    return lambda f, v, g: (rule(f, v.inputs[0], v, g),)


def _elu(f: Formula, v: Value, g: Value) -> Sequence[Value | None]:
    """By the result, which has the operand's sign, so that the operand need not be kept."""
    sign = v if v["alpha"] >= 0.0 else v.inputs[0]
    return (f.where(f.gt(sign, 0.0), g, f.mul(g, f.add(v, v["alpha"]))),)


def _pow(f: Formula, v: Value, g: Value) -> Sequence[Value | None]:
    x, p = v.inputs
    slope = f.mul(p, f.pow(x, f.sub(p, 1.0)))
    dx = f.mul(g, f.where(f.eq(p, 0.0), 0.0, slope))
    if p.op is Op.CONST:
        return dx, None
    zero = f.logical_and(f.eq(x, 0.0), f.ge(p, 0.0))
    return dx, f.mul(g, f.where(zero, 0.0, f.mul(v, f.log(x))))


def _atan2(f: Formula, v: Value, g: Value) -> Sequence[Value | None]:
    y, x = v.inputs
    share = f.reciprocal(f.add(f.square(y), f.square(x)))
    share = f.mul(g, f.where(f.eq(share, inf), 0.0, share))
    return f.mul(share, x), f.neg(f.mul(share, y))


def _extremum(f: Formula, v: Value, g: Value) -> Sequence[Value | None]:
    x, y = v.inputs
    wins, loses = (f.gt(x, y), f.lt(x, y)) if v["fn"] == "maximum" else (f.lt(x, y), f.gt(x, y))
    half = f.mul(g, 0.5)
    dx = f.where(wins, g, f.where(loses, 0.0, half))
    dy = f.where(loses, g, f.where(wins, 0.0, half))
    return dx, dy


_PARTIALS: dict[str, Partial] = {
    "neg": _only(lambda f, x, y, g: f.neg(g)),
    "exp": _only(lambda f, x, y, g: f.mul(g, y)),
    "expm1": _only(lambda f, x, y, g: f.mul(g, f.add(y, 1.0))),
    "log": _only(lambda f, x, y, g: f.div(g, x)),
    "log1p": _only(lambda f, x, y, g: f.div(g, f.add(x, 1.0))),
    "sqrt": _only(lambda f, x, y, g: f.div(g, f.mul(y, 2.0))),
    "sqrt0": _only(lambda f, x, y, g: f.mul(g, f.where(f.eq(y, 0.0), 0.0, f.div(0.5, y)))),
    "rsqrt": _only(lambda f, x, y, g: f.mul(f.mul(g, -0.5), f.mul(y, f.square(y)))),
    "reciprocal": _only(lambda f, x, y, g: f.neg(f.mul(g, f.square(y)))),
    "square": _only(lambda f, x, y, g: f.mul(g, f.mul(x, 2.0))),
    "abs": _only(lambda f, x, y, g: f.mul(g, f.sign(x))),
    "sin": _only(lambda f, x, y, g: f.mul(g, f.cos(x))),
    "cos": _only(lambda f, x, y, g: f.neg(f.mul(g, f.sin(x)))),
    "erf": _only(lambda f, x, y, g: f.mul(g, f.mul(f.exp(f.neg(f.square(x))), 2.0 / sqrt(pi)))),
    "relu": _only(lambda f, x, y, g: f.where(f.gt(y, 0.0), g, 0.0)),
    "sigmoid": _only(lambda f, x, y, g: f.mul(g, f.mul(y, f.sub(1.0, y)))),
    "tanh": _only(lambda f, x, y, g: f.mul(g, f.sub(1.0, f.square(y)))),
    "leaky_relu": lambda f, v, g: (f.where(f.gt(v.inputs[0], 0.0), g, f.mul(g, v["alpha"])),),
    "elu": _elu,
    "add": lambda f, v, g: (g, g),
    "sub": lambda f, v, g: (g, f.neg(g)),
    "mul": lambda f, v, g: (f.mul(g, v.inputs[1]), f.mul(g, v.inputs[0])),
    "div": lambda f, v, g: (f.div(g, v.inputs[1]), f.neg(f.mul(g, f.div(v, v.inputs[1])))),
    "pow": _pow,
    "atan2": _atan2,
    "maximum": _extremum,
    "minimum": _extremum,
    "where": lambda f, v, g: (None, f.where(v.inputs[0], g, 0.0), f.where(v.inputs[0], 0.0, g)),
    **dict.fromkeys(("sign", "floor", "ceil", "round", "logical_not"), lambda f, v, g: (None,)),
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"), lambda f, v, g: (None, None)
    ),
}


def functions_with_rules() -> frozenset[str]:
    """The functions that have a gradient rule; a test compares with the table of functions."""
    return frozenset(_PARTIALS)
