"""Epilogue fusion: which values one kernel computes before its single store.

Comes in: a program, the values not to compute here (hoisted), and the phase of each value (forward or backward). Goes
out: a list of :class:`Group` in execution order. A group is an anchor (product, aggregation, or plain rows) followed
by row-wise stages in the kernels' fixed order, plus column sums tapped on the way. Values inside a group are never
stored.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping

import torch

from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Program, Value, reached
from graphweft.ir.residency import TensorType
from graphweft.passes.groups import Group

FORWARD, BACKWARD = 0, 1  # phases of a step
# stage name -> position in the kernels' epilogue (csrc/include/graphweft/epilogue.h)
STAGES = ("row_scale", "bias", "addend", "relu", "mask", "col_sum", "post_scale")
_ANCHORS = frozenset({Op.MATMUL, Op.SPMM})
_NORMS = frozenset({Op.BATCH_NORM, Op.NORMALISE})  # whose kernels may end with a relu


def group_values(
    program: Program,
    hoisted: set[Value],
    phase: Mapping[Value, int],
    fuse: bool = True,
    folds: Callable[[Value], bool] = lambda aggregation: True,
) -> list[Group]:
    """Covers every value that has to be computed, all but ``hoisted``, with groups in an order that respects operands.

    ``folds``: whether an aggregation is to apply its sources' factor itself, once per edge, rather than read rows that
    were scaled once.
    """
    computed = [v for v in program.values if v.op not in LEAVES and v not in hoisted]
    users = program.users()
    outputs = {value for _, value in program.outputs}
    position = {value: index for index, value in enumerate(program.values)}
    taken: set[Value] = set(hoisted)
    groups: list[Group] = []
    contractions: list[Group] = []
    for value in computed:
        if value in taken or (value.op is Op.COL_SUM and _tappable(value, phase, users)):
            continue
        group = _start(value) if _single(value) else None
        if fuse and group is not None:
            if value.op is Op.MATMUL and value.get("ta"):
                contractions.append(group)
            else:
                _extend(group, users, outputs, phase, taken)
        group = group or Group(anchor=value, source=None, result=value)
        if fuse and value.op in _NORMS and _single(value):
            _end_with_relu(group, users, outputs, phase)
        taken.update((group.result, *group.taps))
        groups.append(group)
    for group in contractions:
        _tap_right(group, users, phase, taken)
    for value in computed:  # column sums nobody could tap
        if value not in taken and value.op is Op.COL_SUM:
            groups.append(Group(anchor=value, source=None, result=value))
    if fuse:
        _fold_source_scale(groups, users, outputs, phase, folds)
        _fold_own_rows(groups, users, outputs, phase)
    _join_attention(groups)
    if fuse:
        _join_norms(groups, phase)
        _add_to_products(groups, users, outputs, phase)
    return ordered(groups, position)


def _single(value: Value) -> bool:
    """Epilogues are float32."""
    return isinstance(value.type, TensorType) and value.type.dtype == torch.float32


def _end_with_relu(
    group: Group, users: Mapping[Value, list[Value]], outputs: set[Value], phase: Mapping[Value, int]
) -> None:
    """A relu that alone reads a norm is part of its call."""
    readers = users[group.result]
    alone = len(readers) == 1 and group.result not in outputs
    if alone and readers[0].op is Op.RELU and phase[readers[0]] == phase[group.result]:
        group.stages["relu"], group.result = None, readers[0]


_OWN_OPERANDS = {Op.BATCH_NORM: (1,), Op.BATCH_NORM_GRAD: (3, 4)}  # which the kernels make on the way


def _join_norms(groups: list[Group], phase: Mapping[Value, int]) -> None:
    """A norm makes its statistics, and the gradient of its rows those of weight and bias."""
    makes = {group.result: group for group in groups if group.anchor is group.result and not group.taps}
    for group in [g for g in groups if g.anchor is not None and g.anchor.op in _OWN_OPERANDS and _single(g.anchor)]:
        assert group.anchor is not None  # chosen so
        own = [group.anchor.inputs[i] for i in _OWN_OPERANDS[group.anchor.op]]
        if all(v in makes and makes[v] in groups and phase[v] == phase[group.result] for v in own):
            group.taps += own
            for value in own:
                groups.remove(makes[value])


def _join_attention(groups: list[Group]) -> None:
    """What one call gives comes out of one group: a result and its statistics, all gradients of one attention."""
    first: dict[tuple[object, ...], Group] = {}
    for op in (Op.ATTENTION, Op.ATTENTION_STATS, Op.ATTENTION_GRAD):
        for group in [g for g in groups if g.anchor is not None and g.anchor.op is op]:
            assert group.anchor is not None  # chosen so
            if group.anchor.tensor.dtype != torch.float32:
                continue
            kept = first.setdefault((op is Op.ATTENTION_GRAD, group.anchor.inputs), group)
            if kept is not group:
                kept.taps.append(group.result)
                groups.remove(group)


def is_head_product(value: Value) -> bool:
    """``s[n, h] * a[h, c]``: a vector per head times a number per row and head."""
    if value.op is not Op.EINSUM or len(value.inputs) != 2 or value.tensor.dtype != torch.float32:
        return False
    left, right, result = re.split(",|->", value["spec"])
    return any(
        (len(x), len(y)) == (2, 2) and x[0] == "n" and y[0] == x[1] and result == "n" + y
        for x, y in ((left, right), (right, left))
    )


def _add_to_products(
    groups: list[Group], users: Mapping[Value, list[Value]], outputs: set[Value], phase: Mapping[Value, int]
) -> None:
    """``x + s[n, h] * a[h, c]`` in one pass where nobody else reads the product."""
    makes = {group.result: group for group in groups}
    for group in list(groups):
        value = group.anchor
        if value is None or value.op is not Op.ADD or group.stages or value.inputs[0] is value.inputs[1]:
            continue
        for product, other in (value.inputs, value.inputs[::-1]):
            maker = makes.get(product)
            alone = len(users[product]) == 1 and product not in outputs and phase[product] == phase[value]
            if maker is not None and maker.anchor is product and is_head_product(product) and alone:
                maker.stages["addend"], maker.result = other, value
                groups.remove(group)
                makes[value] = maker
                break


def _tappable(value: Value, phase: Mapping[Value, int], users: Mapping[Value, list[Value]]) -> bool:
    """A plain column sum that no row follows from: whichever kernel makes or reads its operand may give it."""

    def is_plain(v: Value) -> bool:
        return isinstance(v.type, TensorType) and v.type.rows is None and phase[v] == phase[value]

    return not value.get("mean") and all(map(is_plain, reached([value], lambda v: users[v] if is_plain(v) else ())))


def _stage_of(value: Value, current: Value) -> tuple[str, Value | None] | None:
    """The epilogue stage that ``value`` is when applied to ``current``."""
    if value.op is Op.RELU:
        return "relu", None
    if value.op is Op.BIAS and value.inputs[0] is current:
        return "bias", value.inputs[1]
    if value.op is Op.ROW_SCALE and value.inputs[0] is current:
        return "row_scale", value.inputs[1]
    if value.op is Op.RELU_MASK and value.inputs[0] is current and value.inputs[1] is not current:
        return "mask", value.inputs[1]
    if value.op is Op.ADD and value.inputs[0] is not value.inputs[1]:
        return "addend", value.inputs[1] if value.inputs[0] is current else value.inputs[0]
    return None


def _start(value: Value) -> Group | None:
    """A group that begins at ``value``: its own kernel, or the first stage over plain rows."""
    if value.op in _ANCHORS:
        return Group(anchor=value, source=None, result=value)
    if not value.inputs:
        return None
    first = value.inputs[0]
    stage = _stage_of(value, first)
    if stage is None or value.tensor.rows is None or len(value.tensor.dims) != 1:
        return None
    group = Group(anchor=None, source=first, result=value)
    group.stages[stage[0]] = stage[1]
    return group


def _extend(
    group: Group,
    users: Mapping[Value, list[Value]],
    outputs: set[Value],
    phase: Mapping[Value, int],
    taken: set[Value],
) -> None:
    """Absorbs the only reader of the result again and again while the stage order allows it."""
    _tap_source(group, users, phase, taken)
    while True:
        current = group.result
        readers = users[current]
        taps = [r for r in readers if r.op is Op.COL_SUM and _tappable(r, phase, users)]
        rest = [r for r in readers if r not in taps]
        can_tap = (
            len(taps) == 1
            and "col_sum" not in group.stages
            and not _later(group, "col_sum")
            and phase[taps[0]] == phase[current]
            and taps[0] not in taken
        )
        if can_tap:
            group.stages["col_sum"] = None
            group.taps.append(taps[0])
        elif taps:
            return
        if current in outputs or len(rest) != 1 or phase[rest[0]] != phase[current] or rest[0] in taken:
            return
        stage = _stage_of(rest[0], current)
        if stage is None:
            return
        name = stage[0]
        if name == "row_scale" and (name in group.stages or _later(group, name)):
            name = "post_scale"
        # a bias may come before an addend that is there already
        if name in group.stages or (_later(group, name) and (name != "bias" or _later(group, "addend"))):
            return
        group.stages[name] = stage[1]
        group.result = rest[0]
        taken.add(rest[0])


def _tap_source(
    group: Group, users: Mapping[Value, list[Value]], phase: Mapping[Value, int], taken: set[Value]
) -> None:
    """``col_sum(x)`` beside ``row_scale(x, s)``: one pass over x gives both."""
    if group.anchor is not None or group.source is None or list(group.stages) != ["row_scale"]:
        return
    for reader in users[group.source]:
        if reader.op is Op.COL_SUM and _tappable(reader, phase, users) and reader not in taken:
            if phase[reader] == phase[group.result]:
                group.stages = {"col_sum": None, "post_scale": group.stages["row_scale"]}
                group.taps.append(reader)
            return


def _tap_right(group: Group, users: Mapping[Value, list[Value]], phase: Mapping[Value, int], taken: set[Value]) -> None:
    """``col_sum(g)`` beside ``x^T g``: the contraction reads every row of g anyway."""
    assert group.anchor is not None  # a contraction is an anchor
    left, right = group.anchor.inputs
    for reader in users[right]:
        if reader.op is Op.COL_SUM and _tappable(reader, phase, users) and reader not in taken:
            if phase[reader] == phase[group.result] and not left.tensor.sparse:
                group.taps.append(reader)
                taken.add(reader)
            return


def _later(group: Group, name: str) -> bool:
    """Whether the group already has a stage that comes after ``name``."""
    return any(STAGES.index(stage) > STAGES.index(name) for stage in group.stages)


def _fold_source_scale(
    groups: list[Group],
    users: Mapping[Value, list[Value]],
    outputs: set[Value],
    phase: Mapping[Value, int],
    folds: Callable[[Value], bool],
) -> None:
    """``spmm(row_scale(x, s))`` whose scaled rows nobody else reads: the factor is applied while gathering."""
    makes = {group.result: group for group in groups}
    for group in list(groups):
        if group.anchor is None or group.anchor.op is not Op.SPMM or not folds(group.anchor):
            continue
        operand = group.anchor.inputs[1]
        maker = makes.get(operand)
        if maker is None or maker.anchor is not None or list(maker.stages) != ["row_scale"]:
            continue
        if len(users[operand]) == 1 and operand not in outputs and phase[operand] == phase[group.result]:
            group.scaled, group.src_scale = maker.source, maker.stages["row_scale"]
            groups.remove(maker)


def _fold_own_rows(
    groups: list[Group], users: Mapping[Value, list[Value]], outputs: set[Value], phase: Mapping[Value, int]
) -> None:
    """``spmm(x) + s * x`` with a shared number s: the kernel that sums adds the row itself."""
    makes = {group.result: group for group in groups}
    for group in list(groups):
        anchor, own = group.anchor, group.stages.get("addend")
        if anchor is None or anchor.op is not Op.SPMM or own is None or own.op is not Op.MUL_SCALAR:
            continue
        maker = makes.get(own)
        plain = group.src_scale is None and not anchor.get("self_coef") and "row_scale" not in group.stages
        same = own.inputs[0] is anchor.inputs[1] and anchor.inputs[0].struct.square
        if maker is None or maker.anchor is not own or maker.stages or maker.taps or not (plain and same):
            continue
        if len(users[own]) == 1 and own not in outputs and phase[own] == phase[group.result]:
            del group.stages["addend"]
            group.self_factor = own.inputs[1]
            groups.remove(maker)


def ordered(groups: list[Group], position: Mapping[Value, int]) -> list[Group]:
    """Groups after all that make their operands; of those that are ready, the one that stores the earliest value."""
    makes = {value: index for index, group in enumerate(groups) for value in (group.result, *group.taps)}
    waits = [{makes[o] for o in group.operands() if o in makes} - {k} for k, group in enumerate(groups)]
    frees: list[list[int]] = [[] for _ in groups]
    for index, needed in enumerate(waits):
        for other in needed:
            frees[other].append(index)
    ready = [(position[group.result], k) for k, group in enumerate(groups) if not waits[k]]
    heapq.heapify(ready)
    found = []
    while ready:
        _, index = heapq.heappop(ready)
        found.append(groups[index])
        for reader in frees[index]:
            waits[reader].discard(index)
            if not waits[reader]:
                heapq.heappush(ready, (position[groups[reader].result], reader))
    return found
