"""Where a program is compiled anew because a Python number changed: what changes becomes an input.

Comes in: a call whose key is new, and what the same functions were compiled to before. Goes out: a raised call with the
changed numbers as inputs, or None where they have to stay constants: a number that decides a size, a branch or an
exponent. Then every value is compiled, and the eighth time a warning names the value. Called by ``user_call.py``.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphweft._errors import GraphWeftError, RecompileWarning
from graphweft.frontend.call import Call
from graphweft.frontend.captured import Captured
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.numbers import NUMBER, name_number, usable
from graphweft.frontend.source import user_depth
from graphweft.frontend.stored import StoredCall
from graphweft.frontend.udf import RaisedCall, raise_call, symbolic_inputs
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value, topological

_MANY = 8  # compiles of one call
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")

_NUMPY = re.compile(r"np\.float64\(([^)]*)\)")


@dataclass
class CallSite:
    """Calls that differ in numbers alone.

    Attributes:
        opened: Positions of the numbers that are inputs.
        numbers: All numbers at the last compile with constants.
        raised: What that compile came to; None where it failed.
        failure: Why it failed.
        alias: The key under which the last values found the program with inputs.
    """

    opened: frozenset[int] = frozenset()
    numbers: Sequence[Any] | None = None
    raised: RaisedCall | StoredCall | None = None
    failure: UnraisableError | None = None
    alias: Any = None
    _fixed: set[int] = field(default_factory=set)
    _varied: set[int] = field(default_factory=set)
    _differed: set[int] = field(default_factory=set)
    _compiles: int = 0

    def open(self, call: Call, captured: Captured) -> RaisedCall | None:
        """The call with all numbers that have changed as inputs, where they can be."""
        changed = self._changed(captured)
        new = frozenset(changed - self._fixed - self.opened)
        if not new or self.raised is None or self.numbers is None or changed & self._fixed:
            return None
        opened = self.opened | new
        if not usable(captured.numbers, opened) or not usable(self.numbers, opened):
            return None
        try:
            raised = raise_call(call, captured, opened)
            same = self._is_same(raised, call, captured)
        except (UnraisableError, GraphWeftError, ArithmeticError, ValueError, TypeError, RuntimeError):
            self._fixed |= {at for at in new if len(new) == 1 or not _opens(call, captured, self.opened | {at})}
            return None
        if not same:  # constants like 0 and 1 may have been left out of the program before: it may fit the next value
            if new <= self._differed:
                self._fixed |= new
            self._differed |= new
            return None
        self.opened = opened
        return raised

    def compiled(self, call: Call, captured: Captured, raised: RaisedCall | StoredCall | None) -> None:
        """The call was compiled with all numbers as constants."""
        changed = self._changed(captured)
        self._varied |= changed
        self.numbers, self.raised = list(captured.numbers), raised
        self._compiles += bool(changed) or not self._compiles
        if changed and self._compiles == _MANY:
            roots = (call.message, call.reduce, call.update, call.params)
            names = dict.fromkeys(name_number(roots, at) for at in sorted(self._varied - self.opened))
            warnings.warn(
                f"the functions of this call were compiled {_MANY} times, as {' and '.join(names)} changes: a number "
                "that is a size, an exponent, a probability or part of a condition is compiled for every value; keep "
                "it fixed or give it as a tensor",
                RecompileWarning,
                user_depth(),
            )

    def failed(self, captured: Captured, failure: UnraisableError) -> bool:
        """The call cannot be compiled; whether that was so before with other numbers, which then say nothing."""
        before, self.failure = self.failure, failure
        changed = self._changed(captured)
        again = before is not None and (before.what, before.line) == (failure.what, failure.line) and bool(changed)
        if again and self.raised is None:
            self.opened |= changed
        self.numbers = list(captured.numbers)
        return again

    def takes(self, raised: RaisedCall | StoredCall, captured: Captured) -> bool:
        """Whether a program can be given these numbers as inputs."""
        if not usable(captured.numbers, self.opened):
            return False
        try:
            for number in raised.numbers if isinstance(raised, RaisedCall) else ():
                number.tensor(captured.numbers)
        except (ArithmeticError, ValueError, TypeError, RuntimeError):
            return False
        return True

    def _changed(self, captured: Captured) -> set[int]:
        if self.numbers is None:
            return set()
        pairs = zip(self.numbers, captured.numbers, strict=True)
        return {at for at, (one, two) in enumerate(pairs) if repr(one) != repr(two)}

    def _is_same(self, raised: RaisedCall, call: Call, captured: Captured) -> bool:
        """Whether the program with inputs is, at the numbers of before, the program that was recorded with these.

        A number that reaches the program on a way that the symbols do not would differ.
        """
        assert self.raised is not None  # there was a program
        assert self.numbers is not None  # with numbers
        before, now = (
            _program(self.raised, call, captured, self.numbers),
            _program(raised, call, captured, self.numbers),
        )
        if _FLOAT.sub("", before) != _FLOAT.sub("", now):
            return False
        pairs = zip(_FLOAT.findall(before), _FLOAT.findall(now), strict=True)
        return all(_is_close(float(one), float(two)) for one, two in pairs)


def _is_close(one: float, two: float) -> bool:
    """Whether two constants are one: computed in another order, or rounded to single precision."""
    return math.isclose(one, two, rel_tol=1e-12, abs_tol=1e-300) or bool(np.float32(one) == np.float32(two))


def _opens(call: Call, captured: Captured, opened: frozenset[int]) -> bool:
    try:
        raise_call(call, captured, opened)
    except (UnraisableError, GraphWeftError):
        return False
    return True


def _program(raised: RaisedCall | StoredCall, call: Call, captured: Captured, numbers: Sequence[Any]) -> str:
    """The program of a call on graphs where all nodes receive messages, with ``numbers`` as constants."""
    builder, square = Builder(), call.graph.is_square
    inputs: dict[str, Value] = symbolic_inputs(builder, raised.given(call, captured), square)
    for at, number in enumerate(raised.numbers if isinstance(raised, RaisedCall) else ()):
        inputs[f"{NUMBER}{at}"] = builder.add(Op.CONST, value=number.value(numbers), dtype=number.dtype)
    outputs = raised.write(builder, inputs, False, square)
    constants = [(tuple(t.shape), t.flatten().tolist()) for t in raised.constants]
    names: dict[Value, str] = {}
    lines: list[str] = []
    for value in topological(outputs.values()):  # a number that is read twice is one input, but two constants
        attrs = [repr(item) for item in value.attrs]
        text = f"{value.op.name}({', '.join([*(names[operand] for operand in value.inputs), *attrs])}): {value.type}"
        names[value] = text if value.op is Op.CONST else f"%{len(lines)}"
        lines += [] if value.op is Op.CONST else [text]
    lines += [f"{name}={names[value]}" for name, value in outputs.items()]
    return _NUMPY.sub(r"\1", "\n".join([*lines, repr(constants)]))


__all__ = ["CallSite"]
