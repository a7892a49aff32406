"""Loop nests of fused regions over rows: what is computed for every element before the one store.

Comes in: IR values that are computed together, operands before users. Goes out: a :class:`RowNest`, plain data that
does not refer to the program, so that equal regions give equal text and one compiled kernel. Called by
``runtime/row_kernels.py``. Source: Joestar, section 5.4 (in-stage fusion).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweft.ir.ops import Op
from graphweft.ir.program import Value


@dataclass(frozen=True)
class Operand:
    """What a statement reads: input or earlier statement number ``index``, or a number that never changes."""

    kind: str  # "input", "result" or "number"
    index: int = 0
    number: float = 0.0

    def __str__(self) -> str:
        if self.kind == "number":
            return repr(self.number)
        return f"{'in' if self.kind == 'input' else 't'}{self.index}"


@dataclass(frozen=True)
class Statement:
    """One elementwise function; ``alpha`` is the attribute of leaky_relu and elu."""

    fn: str
    operands: tuple[Operand, ...]
    alpha: float = 0.0


@dataclass(frozen=True)
class RowNest:
    """``for every row, for every column: run the statements, store the last one``.

    Attributes:
        inputs: How many matrices are read, all of the result's shape.
        statements: In order.
        vectors: Those inputs that are one row for all.
    """

    inputs: int
    statements: tuple[Statement, ...]
    vectors: tuple[int, ...] = ()

    def __str__(self) -> str:
        lines = [f"in{k} is one row" for k in self.vectors] + ["for row, column:"]
        for number, statement in enumerate(self.statements):
            shown = [*map(str, statement.operands)]
            if statement.fn in ("leaky_relu", "elu"):
                shown.append(f"alpha={statement.alpha}")
            lines.append(f"  t{number} = {statement.fn}({', '.join(shown)})")
        return "\n".join([*lines, f"  store t{len(self.statements) - 1}"])


def row_nest(region: Sequence[Value]) -> tuple[RowNest, tuple[Value, ...]]:
    """The nest of a region of elementwise values, and the values it reads in the order of its inputs."""
    place = {value: number for number, value in enumerate(region)}
    read: dict[Value, int] = {}
    statements = []
    for value in region:
        operands = []
        for operand in value.inputs:
            if operand in place:
                operands.append(Operand("result", place[operand]))
            elif operand.op is Op.CONST:
                operands.append(Operand("number", number=float(operand["value"])))
            else:
                operands.append(Operand("input", read.setdefault(operand, len(read))))
        fn = "add" if value.op is Op.BIAS else value["fn"]
        statements.append(Statement(fn, tuple(operands), float(value.get("alpha", 0.0))))
    vectors = tuple(k for k, value in enumerate(read) if value.tensor.rows is None)
    return RowNest(len(read), tuple(statements), vectors), tuple(read)
