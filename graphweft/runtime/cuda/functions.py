"""Functions of elements in Triton, for what it has none for: the same in every build and in the interpreter.

Comes in: blocks. Goes out: blocks. Called by the kernels of ``kernels.py`` and by generated text.
"""
# Triton has types of its own, and Python's are not checked here.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from graphweft.runtime.cuda.jit import device

tl: Any = None  # triton.language, once a kernel is asked for


@device
def gw_max(a, b):
    """The larger one; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@device
def gw_min(a, b):
    """The smaller one; NaN wins."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@device
def gw_expm1(x):
    """``exp(x) - 1`` without loss near 0."""
    e = tl.exp(x)
    near = x * (1.0 + x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120 + x * (1.0 / 720 + x / 5040))))))
    return tl.where(tl.abs(x) < 0.1, near, e - 1.0)


@device
def gw_log1p(x):
    """``log(1 + x)`` without loss near 0."""
    u = 1.0 + x
    d = u - 1.0
    safe = tl.where(d == 0.0, 1.0, d)
    return tl.where(d == 0.0, x, tl.where(u == float("inf"), u, tl.log(u) * (x / safe)))


@device
def gw_tanh(x):
    """The hyperbolic tangent."""
    t = gw_expm1(-2.0 * tl.abs(x))
    y = -t / (t + 2.0)
    return tl.where(x < 0, -y, tl.where(x != x, x, y))


@device
def gw_sigmoid(x):
    """``1 / (1 + exp(-x))`` without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0 / (1.0 + e), tl.where(x != x, x, e / (1.0 + e)))


@device
def gw_sign(x):
    """-1, 0 or 1; NaN stays."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))


@device
def gw_round(x):
    """The nearest whole number, of two the even one."""
    low = tl.floor(x)
    part = x - low
    is_even = low - 2.0 * tl.floor(low * 0.5) == 0.0
    up = (part > 0.5) | ((part == 0.5) & (is_even == 0))
    return tl.where(x == low, x, tl.where(up, low + 1.0, low))


@device
def gw_pow(x, y):
    """``x ** y``; of a negative x only for whole y."""
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole = tl.floor(y) == y
    odd = whole & (y - 2.0 * tl.floor(y * 0.5) != 0.0)
    signed = tl.where((x < 0) & odd, -size, tl.where((x < 0) & (whole == 0), float("nan"), size))
    return tl.where((y == 0) | (x == 1), 1.0, tl.where((x != x) | (y != y), x + y, signed))
