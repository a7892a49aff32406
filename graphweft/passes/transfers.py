"""Rows that are made before a step move to where the step runs while both go on.

Comes in: a program, and its values that are made before the step. Goes out: the same with ``move_start`` right after
such rows are made and ``move_wait`` where the step first reads them. Called by ``pipeline.py`` for batches whose second
stage runs at another place.
"""

from __future__ import annotations

from dataclasses import replace

from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import IndexType, TensorType
from graphweft.passes.groups import Group
from graphweft.passes.hoist import frontier

MOVER = "tier"  # the input that stands for what moves rows


def send_ahead(program: Program, before: set[Value], place: str) -> tuple[Program, set[Value]]:
    """``program`` with the rows among ``before`` moved to ``place``, and what is made before the step there.

    Rows that the step is given, such as the gradient of its loss, come to be at ``place``, too.
    """
    builder, sent = Builder(), set(frontier(program, before))
    mover = builder.add(Op.INPUT, name=MOVER, type=IndexType(None, None))
    early: dict[Value, Value] = {}  # as values made before read it
    late: dict[Value, Value] = {}  # as the step does
    made = set[Value]()
    for value in program.values:
        type_ = value.type
        rows = isinstance(type_, TensorType) and type_.rows is not None and not type_.sparse
        if value in before:
            early[value] = late[value] = builder.like(value, tuple(early[o] for o in value.inputs))
            made.add(early[value])
            if rows and value in sent:
                begun = builder.add(Op.MOVE_START, early[value], mover, to=place)
                made.add(begun)
                late[value] = builder.add(Op.MOVE_WAIT, begun)
        elif value.op in LEAVES:
            early[value] = late[value] = value
            if rows and isinstance(type_, TensorType) and value["name"].startswith("d:"):
                late[value] = builder.add(value.op, **{**dict(value.attrs), "type": replace(type_, place=place)})
        else:
            late[value] = builder.like(value, tuple(late[o] for o in value.inputs))
    inputs = tuple(late[value] for value in program.inputs)
    return Program((*inputs, mover), tuple((name, late[value]) for name, value in program.outputs)), made


def wait_late(groups: list[Group]) -> list[Group]:
    """``groups`` with every wait right before its first reader."""
    waits = {group.result: group for group in groups if group.result.op is Op.MOVE_WAIT}
    ordered: list[Group] = []
    for group in groups:
        if group.result not in waits:
            ordered += [waits.pop(operand) for operand in dict.fromkeys(group.operands()) if operand in waits]
            if group.result.op is not Op.MOVE_WAIT:
                ordered.append(group)
    return [*ordered, *waits.values()]
