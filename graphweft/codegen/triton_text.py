"""Triton text of loop nests: functions of elements, and the kernel of a region over rows.

Comes in: a :class:`RowNest`, or one function and the texts of its operands. Goes out: the source of one kernel, which
may call the functions of ``runtime/cuda/functions.py``. Called by ``edge_triton.py`` and ``runtime/cuda``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphweft._errors import IRError
from graphweft.codegen.loops import Operand, RowNest, Statement

LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})
BOOL = frozenset({"eq", "ne", "lt", "le", "gt", "ge", *LOGICAL})
REALS = {"float": "tl.float32", "double": "tl.float64"}

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">"}
_INFIX |= {"ge": ">=", "logical_and": "&", "logical_or": "|", "logical_xor": "^"}
_CALLS = {
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "expm1": "gw_expm1({0})",
    "log": "tl.log({0})",
    "log1p": "gw_log1p({0})",
    "sqrt": "tl.sqrt({0})",
    "sqrt0": "tl.sqrt({0})",
    "rsqrt": "1.0 / tl.sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "square": "{0} * {0}",
    "abs": "tl.abs({0})",
    "sign": "gw_sign({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "gw_round({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "relu": "tl.where({0} < 0, 0.0, {0})",
    "sigmoid": "gw_sigmoid({0})",
    "tanh": "gw_tanh({0})",
    "leaky_relu": "tl.where({0} > 0, {0}, {0} * {alpha})",
    "elu": "tl.where({0} > 0, {0}, {alpha} * gw_expm1({0}))",
    "pow": "gw_pow({0}, {1})",
    "maximum": "gw_max({0}, {1})",
    "minimum": "gw_min({0}, {1})",
    "logical_not": "{0} == 0",
    "where": "tl.where({0}, {1}, {2})",
    "copy": "{0}",
}


def expression(fn: str, operands: Sequence[str], alpha: float = 0.0) -> str:
    """One function, applied to the names of its operands. Raises: IRError for one that has no Triton text."""
    if fn in _INFIX:
        return f"{operands[0]} {_INFIX[fn]} {operands[1]}"
    if fn not in _CALLS:
        raise IRError(f"triton: expected a function with a text of its own, got {fn!r}")
    return _CALLS[fn].format(*operands, alpha=repr(alpha))


def number(value: float, rank: int, real: str) -> str:
    """A tensor of one element per dimension with this value."""
    shown = f'float("{value}")' if math.isinf(value) or math.isnan(value) else repr(float(value))
    return f"tl.full([{', '.join(['1'] * rank)}], {shown}, {real})"


def render_rows(nest: RowNest) -> str:
    """The kernel ``rows(in0, ..., out, count, F, BLOCK)`` over the elements of matrices of one shape, rows F wide.

    Raises: IRError for a function that has no Triton text.
    """
    given = [f"in{k}" for k in range(nest.inputs)]
    body = [
        "at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "here = at < count",
        *(
            f"x{k} = tl.load(in{k} + at{' % F' if k in nest.vectors else ''}, mask=here, other=0.0)"
            for k in range(nest.inputs)
        ),
    ]
    logic: set[int] = set()
    for k, statement in enumerate(nest.statements):
        body.append(f"t{k} = {_statement(statement, logic)}")
        if statement.fn in BOOL:
            logic.add(k)
    last = len(nest.statements) - 1
    body.append(f"tl.store(out + at, t{last}, mask=here)")
    comment = "".join(f"# {line}\n" for line in str(nest).splitlines())
    fixed = "F: tl.constexpr, BLOCK: tl.constexpr"
    head = f"@triton.jit\ndef rows({', '.join([*given, 'out', 'count'])}, {fixed}):\n"
    return comment + head + "".join(f"    {line}\n" for line in body)


def _statement(statement: Statement, logic: set[int]) -> str:
    names = [_operand(operand) for operand in statement.operands]
    wants = statement.fn in LOGICAL
    for place, operand in enumerate(statement.operands):
        is_logic = operand.kind == "result" and operand.index in logic
        if is_logic and not (wants or (statement.fn == "where" and place == 0)):
            names[place] = f"{names[place]}.to(tl.float32)"
        elif not is_logic and (wants or (statement.fn == "where" and place == 0)):
            names[place] = f"({names[place]} != 0)"
    return expression(statement.fn, names, statement.alpha)


def _operand(operand: Operand) -> str:
    if operand.kind == "number":
        return number(operand.number, 1, "tl.float32")
    return f"{'x' if operand.kind == 'input' else 't'}{operand.index}"


__all__ = ["BOOL", "LOGICAL", "REALS", "expression", "number", "render_rows"]
