"""Elementwise fusion: chains of functions of elements in the same places become one pass over memory.

Comes in: the groups of a program. Goes out: the same with such chains joined; values inside are never stored. Only
where a matrix is large, or the target has the kernel: a generated one has to be compiled once per machine. Called by
``pipeline.py``. Source: Joestar, section 5.4 (in-stage fusion).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from graphweft.ir.ops import Op
from graphweft.ir.program import Program, Value
from graphweft.passes.groups import Chain, Group

# What codegen/cpp.py can write.
FUNCTIONS = frozenset({
    "neg", "exp", "reciprocal", "square", "abs", "relu", "sigmoid", "tanh", "leaky_relu", "elu",
    "add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "where",
})  # fmt: skip


def fuse_elementwise(
    program: Program,
    groups: list[Group],
    phase: Mapping[Value, int],
    worth: Callable[[Value], bool],
    is_built: Callable[[Sequence[Value]], bool],
    biases: bool = False,
) -> list[Group]:
    """``groups`` with every chain whose result is ``worth`` a kernel, or has one, joined to one group.

    ``biases``: a vector that is added to every row may be the first link, which has a kernel of its own otherwise.
    """
    users, outputs = program.users(), {value for _, value in program.outputs}
    position = {value: index for index, value in enumerate(program.values)}
    makes = {g.result: g for g in groups if g.is_one_operation and _fits(g.result)}
    chains: dict[Value, Group] = {}
    joins = {*makes, *(g.result for g in groups if biases and _is_bias(g))}
    gone: set[Value] = set()
    for group in reversed(groups):
        result = group.result
        if result in gone or result not in makes or result.tensor.dtype != torch.float32:
            continue
        inside = {result}
        while True:
            found = {
                operand
                for value in inside
                for operand in value.inputs
                if operand in joins and operand not in inside and operand not in outputs and operand not in gone
                if phase[operand] == phase[result] and all(user in inside for user in users[operand])
            }
            if not found:
                break
            inside |= found
        if any(o.tensor.dtype == torch.bool for v in inside for o in v.inputs if o not in inside):
            continue
        chain = tuple(sorted(inside, key=position.__getitem__))
        if not (worth(result) or is_built(chain)):
            continue
        chains[result] = Chain(result, None, result, chain=chain)
        gone |= inside - {result}
    return [chains.get(group.result, group) for group in groups if group.result not in gone]


def _is_bias(group: Group) -> bool:
    """Whether a group adds a vector to rows and does nothing else."""
    alone = group.anchor is None and list(group.stages) == ["bias"] and not group.taps and group.gather is None
    return alone and group.result.op is Op.BIAS and group.result.tensor.dtype == torch.float32


def _fits(value: Value) -> bool:
    """Whether ``value`` is a function of float32 elements in its own places, of conditions on them, and of numbers."""
    if value.op is not Op.EWISE or value["fn"] not in FUNCTIONS or value.tensor.rows is None:
        return False
    matrices = [operand for operand in value.inputs if operand.op is not Op.CONST]
    return bool(matrices) and all(
        operand.tensor.rows is not None
        and operand.tensor.dims == value.tensor.dims
        and operand.tensor.dtype in (torch.float32, torch.bool)
        for operand in matrices
    )
