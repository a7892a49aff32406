"""C++ text of loop nests, over the project's headers.

Comes in: a :class:`RowNest`. Goes out: one translation unit with the entry point ``gw_rows``. Functions are those of
``lanes.h`` on native vectors. Called by ``runtime/row_kernels.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphweft.codegen.loops import Operand, RowNest, Statement

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
_ALPHA = ("leaky_relu", "elu")

_UNIT = """#include "graphweft/adjacency.h"
#include "graphweft/lanes.h"

{nest}
extern "C" GW_API void gw_rows(int64_t begin, int64_t end, const float* const* in, float* out) {{
  gw::for_each_lanes<float>(begin, end, [&](int64_t at, auto part) GW_INLINE_LAMBDA {{
{body}
    part.store(out + at, t{last});
  }});
}}
"""


def render(nest: RowNest) -> str:
    """The translation unit of ``nest``."""
    body = [f"    {line}" for line in lines(nest, "part.load(in[{}] + at)")]
    comment = "".join(f"// {line}\n" for line in str(nest).splitlines())
    return _UNIT.format(nest=comment, body="\n".join(body), last=len(nest.statements) - 1)


def lines(nest: RowNest, load: str, number: str = "gw::vf::splat({})") -> list[str]:
    """The statements of ``nest``; ``load`` is the text of an operand by its place, ``number`` that of a constant."""
    found = [f"const auto in{k} = {load.format(k)};" for k in range(nest.inputs)]
    for k, statement in enumerate(nest.statements):
        operands = [_operand(operand, number) for operand in statement.operands]
        found.append(f"const auto t{k} = {expression(statement, operands)};")
    return found


def expression(statement: Statement, operands: Sequence[str], real: str = "float") -> str:
    """One function of vectors of ``real``, applied to the texts of its operands."""
    sign = _INFIX.get(statement.fn) or _COMPARE.get(statement.fn) or _LOGIC.get(statement.fn)
    if sign is not None:
        return f"{operands[0]} {sign} {operands[1]}"
    if statement.fn == "logical_not":
        return f"~({operands[0]})"
    if statement.fn == "copy":
        return operands[0]
    if statement.fn == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    extra = [number_text(statement.alpha, real)] if statement.fn in _ALPHA else []
    return f"gw::lanes_{statement.fn}({', '.join([*operands, *extra])})"


def _operand(operand: Operand, number: str) -> str:
    if operand.kind == "number":
        return number.format(number_text(operand.number))
    return f"{'in' if operand.kind == 'input' else 't'}{operand.index}"


def number_text(number: float, real: str = "float") -> str:
    """A literal of type ``real`` with the same value."""
    if math.isnan(number):
        return '__builtin_nanf("")'
    if math.isinf(number):
        return "__builtin_inff()" if number > 0 else "-__builtin_inff()"
    return number.hex() + ("f" if real == "float" else "")
