"""Checks that a program obeys the rules of the IR; run after every pass.

Comes in: a program. Goes out: nothing, or an IRError. Types are inferred anew, so a pass cannot smuggle in a wrong one.
"""

from __future__ import annotations

from graphweft._errors import IRError
from graphweft.ir.ops import LEAVES, SPECS
from graphweft.ir.program import Program, Value, inferred


def verify(program: Program, known: set[Value] | None = None) -> None:
    """Operands come before users, every leaf is an input, inputs have distinct names, every type follows from its rule.

    Values in ``known``, which never change, were verified before; new ones are added.

    Raises: IRError that names the first value that breaks a rule.
    """
    names = [value["name"] for value in program.inputs]
    if len(set(names)) != len(names):
        raise IRError(f"verify: expected inputs with distinct names, got {names}")
    outputs = [name for name, _ in program.outputs]
    if len(set(outputs)) != len(outputs):
        raise IRError(f"verify: expected outputs with distinct names, got {outputs}")
    seen: set[Value] = set()
    declared = set(program.inputs)
    verified = set[Value]() if known is None else known
    for value in program.values:
        if value.op in LEAVES and value not in declared:
            raise IRError(f"verify: expected every leaf among the inputs, got {value['name']!r}")
        if not SPECS[value.op].accepts(len(value.inputs)):
            raise IRError(f"verify: {value.op.name.lower()} has {len(value.inputs)} operands")
        for operand in value.inputs:
            if operand not in seen:
                raise IRError(f"verify: an operand of {value.op.name.lower()} comes after it")
        if value not in verified:
            found = inferred(value.op, [operand.type for operand in value.inputs], dict(value.attrs))
            if found != value.type:
                raise IRError(f"verify: {value.op.name.lower()} has type {value.type}, its rule gives {found}")
            verified.add(value)
        seen.add(value)
