"""C++ text of loop nests, over the project's headers.

Comes in: a :class:`RowNest`. Goes out: one translation unit with the entry point ``gw_rows``. Functions are those of
``lanes.h`` on native vectors. Called by ``runtime/row_kernels.py``.
"""

from __future__ import annotations

import math

from graphweft.codegen.loops import Operand, RowNest, Statement

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ALPHA = ("leaky_relu", "elu")

_UNIT = """#include "graphweft/lanes.h"
#include "graphweft/unit.h"

{nest}
extern "C" GW_API int gw_rows(int64_t count, const float* const* in, float* out) {{
  return gw::guarded([&] {{
    gw::for_each_lanes(count, [&](int64_t at, auto part) {{
{body}
      part.store(out + at, t{last});
    }});
  }});
}}
"""


def render(nest: RowNest) -> str:
    """The translation unit of ``nest``."""
    body = [f"      const auto in{k} = part.load(in[{k}] + at);" for k in range(nest.inputs)]
    body += [f"      const auto t{k} = {_expression(s)};" for k, s in enumerate(nest.statements)]
    comment = "".join(f"// {line}\n" for line in str(nest).splitlines())
    return _UNIT.format(nest=comment, body="\n".join(body), last=len(nest.statements) - 1)


def _expression(statement: Statement) -> str:
    operands = [_operand(operand) for operand in statement.operands]
    if statement.fn in _INFIX or statement.fn in _COMPARE:
        sign = _INFIX.get(statement.fn) or _COMPARE[statement.fn]
        return f"{operands[0]} {sign} {operands[1]}"
    if statement.fn == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    if statement.fn in _ALPHA:
        operands.append(_number(statement.alpha))
    return f"gw::lanes_{statement.fn}({', '.join(operands)})"


def _operand(operand: Operand) -> str:
    if operand.kind == "number":
        return f"gw::vf::splat({_number(operand.number)})"
    return f"{'in' if operand.kind == 'input' else 't'}{operand.index}"


def _number(number: float) -> str:
    """A float literal with the same value."""
    if math.isnan(number):
        return '__builtin_nanf("")'
    if math.isinf(number):
        return "__builtin_inff()" if number > 0 else "-__builtin_inff()"
    return f"{number.hex()}f"
