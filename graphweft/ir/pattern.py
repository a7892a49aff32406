"""Rewriting: rebuild a program bottom-up through a function that may replace values.

Comes in: a program and a rule. Goes out: a new program with the same inputs and output names. Every pass is a rule or
a few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphweft._errors import IRError
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Builder, Program, Value

# (builder, value over already rewritten operands) -> replacement, or None to keep it
Rule = Callable[[Builder, Value], Value | None]


def rewrite(program: Program, rule: Rule) -> Program:
    """Applies ``rule`` to every value once, operands first. A replacement must have the type of what it replaces.

    Returns: ``program`` itself where nothing changes.
    """
    builder = Builder()
    new: dict[Value, Value] = {}
    for value in program.values:
        if value.op in LEAVES:
            new[value] = value
            continue
        rebuilt = builder.like(value, tuple([new[operand] for operand in value.inputs]))
        replacement = rule(builder, rebuilt)
        if replacement is None or replacement is rebuilt:
            new[value] = rebuilt
        elif _compatible(replacement, rebuilt):
            new[value] = replacement
        else:
            raise IRError(f"rewrite: expected a replacement of type {rebuilt.type}, got {replacement.type}")
    return _with_outputs(program, new)


def substitute(program: Program, mapping: Mapping[Value, Value]) -> Program:
    """Replaces the values in ``mapping`` wherever they are read."""
    builder = Builder()
    new: dict[Value, Value] = dict(mapping)
    for value in program.values:
        if value not in new:
            new[value] = builder.like(value, tuple([new[operand] for operand in value.inputs]))
    return _with_outputs(program, new)


def _with_outputs(program: Program, new: Mapping[Value, Value]) -> Program:
    """``program`` with other values for its outputs; itself where they are the same, since all others follow."""
    if all(new[value] is value for _, value in program.outputs):
        return program
    return Program(program.inputs, tuple((name, new[value]) for name, value in program.outputs))


def end_of(graph: Value) -> tuple[Value, bool]:
    """The graph that ``graph`` is, or is turned around, and whether it is."""
    turned = False
    while graph.op is Op.REVERSE:
        graph, turned = graph.inputs[0], not turned
    return graph, turned


def _compatible(a: Value, b: Value) -> bool:
    """Equal types, but for source or destination where the rows are the same."""
    if a.type == b.type:
        return True
    try:
        x, y = a.tensor, b.tensor
    except IRError:
        return False
    return (x.rows, x.dims, x.dtype, x.sparse) == (y.rows, y.dims, y.dtype, y.sparse)
