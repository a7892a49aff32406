"""Hoisting: what depends only on structure and constant inputs is computed once, not every step.

Comes in: a program and the names of inputs that keep their value between calls. Goes out: the set of values to
compute once (normalisation vectors, degrees, reversed graphs, and A X when the first layer starts by aggregating a
constant X).
"""

from __future__ import annotations

from collections.abc import Collection

from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Program, Value
from graphweft.ir.residency import TensorType


def constant_values(program: Program, constant_inputs: Collection[str]) -> set[Value]:
    """All values whose every input is a graph or named in ``constant_inputs`` (leaves excluded)."""
    constant: set[Value] = set()
    for value in program.values:
        if value.op in LEAVES:
            if value.op is Op.GRAPH or value["name"] in constant_inputs:
                constant.add(value)
        elif all(operand in constant for operand in value.inputs):
            constant.add(value)
    return {value for value in constant if value.op not in LEAVES}


def without_matrices(program: Program, constant_inputs: Collection[str]) -> list[str]:
    """Those of the names that are no matrix, as ids: from them follows structure, which a step would make again."""
    matrices = {v["name"] for v in program.inputs if isinstance(v.type, TensorType) and v.type.dims}
    return [name for name in constant_inputs if name not in matrices]


def frontier(program: Program, constant: set[Value]) -> list[Value]:
    """Constant values that a non-constant value or an output reads: what has to be kept."""
    outputs = {value for _, value in program.outputs}
    users = program.users()
    return [
        value
        for value in program.values
        if value in constant and (value in outputs or any(user not in constant for user in users[value]))
    ]


def kept_tensors(program: Program, constant: set[Value]) -> list[Value]:
    """The frontier values that are matrices: those that cost memory."""
    return [v for v in frontier(program, constant) if isinstance(v.type, TensorType) and v.type.dims]
