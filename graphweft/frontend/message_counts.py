"""The number of messages in a mailbox as a number: ``nodes.mailbox["m"].shape[1]`` in arithmetic.

Comes in: code on symbolic sizes while it is recorded, and the expressions that come of it. Goes out: in-degrees in
place of them. A mailbox has one message or more: reduce never sees nodes without in-edges. Called by ``trace.py`` and
``algebra.py``.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from graphweft import _torch_recording as recording
from graphweft._torch_recording import SYMBOLIC
from graphweft.frontend.layout import UnraisableError

_T = TypeVar("_T")
_LN2 = math.log(2.0)
_FUNCTIONS = {
    "Add": "add",
    "Mul": "mul",
    **dict.fromkeys(("Pow", "FloatPow", "PowByNatural"), "pow"),
    **dict.fromkeys(("FloatTrueDiv", "IntTrueDiv"), "div"),
    "Max": "maximum",
    "Min": "minimum",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_log2": "log2",
}


def written(expression: Any, leaf: Callable[[Any], _T | None], apply: Callable[..., _T]) -> _T:
    """``expression`` by ``apply(function, *operands)`` of what ``leaf`` knows: numbers, and sizes by their symbols.

    Raises: UnraisableError for a function that is not known.
    """

    def visit(part: Any) -> _T:
        name = type(part).__name__
        known = leaf(part)
        if known is not None:
            return known
        if name == "ToFloat":
            return visit(part.args[0])
        if name not in _FUNCTIONS:
            raise UnraisableError("a number computed from the number of nodes, edges or messages in a way not known")
        first, *others = map(visit, part.args)
        if _FUNCTIONS[name] == "log2":
            return apply("mul", apply("log", first), visit(recording.sympy.Float(1 / _LN2)))
        if not others:
            return apply(_FUNCTIONS[name], first)
        for other in others:
            first = apply(_FUNCTIONS[name], first, other)
        return first

    return visit(recording.sympy.sympify(expression))


def decided(condition: Any, messages: Any) -> bool | None:
    """What ``condition`` comes to for every mailbox, None if that depends on its size."""
    more = recording.sympy.Symbol("more", integer=True, nonnegative=True)
    exact = condition.replace(lambda part: type(part).__name__ == "ToFloat", lambda part: part.args[0])
    known = exact.xreplace({messages: 1 + more})
    return bool(known) if known in (recording.sympy.true, recording.sympy.false) else None


def _is_symbolic(number: Any) -> bool:
    return isinstance(number, torch.SymInt | torch.SymFloat)


def _log(number: Any, base: Any = math.e) -> Any:
    return SYMBOLIC["log2"](number) * (_LN2 / math.log(base))


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "sqrt": SYMBOLIC["sqrt"],
    "log": _log,
    "log2": SYMBOLIC["log2"],
    "log10": lambda number: _log(number, 10.0),
    "log1p": lambda number: _log(number + 1),
    "exp": lambda number: math.e**number,
    "sin": SYMBOLIC["sin"],
    "cos": SYMBOLIC["cos"],
    "tanh": SYMBOLIC["tanh"],
}
_LOCK = threading.RLock()


@contextlib.contextmanager
def symbolic_math() -> Iterator[None]:
    """Inside, ``math.log`` and its like, and NumPy's, take symbolic sizes; other numbers go where they always go."""

    def taking(own: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: symbolic(*args) if args and _is_symbolic(args[0]) else own(*args)

    kinds = (torch.SymInt, torch.SymFloat)  # NumPy calls a method of what it does not know
    with _LOCK:
        before = {name: getattr(math, name) for name in _SYMBOLIC}
        for name, symbolic in _SYMBOLIC.items():
            setattr(math, name, taking(before[name], symbolic))
            for kind in kinds:
                setattr(kind, name, symbolic)
        try:
            yield
        finally:
            for name, own in before.items():
                setattr(math, name, own)
                for kind in kinds:
                    delattr(kind, name)
