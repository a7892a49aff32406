"""How much memory a plan takes, from sizes alone.

Comes in: a plan and the numbers behind its symbols. Goes out: bytes of inputs, of hoisted values, and the peak of
what lives between calls, found by walking the calls as they will run. Used by ``gw.explain`` and by the check of the
memory budget.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from graphweft._memory import Pool
from graphweft.graph.stretches import ordered_bytes
from graphweft.ir.ops import LEAVES, STRUCTURE, Op
from graphweft.ir.program import Value
from graphweft.ir.residency import StructType, TensorType
from graphweft.passes.work import Sizes, stored_entries, tensor_bytes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.plan import Form, Plan, form_of

_NARROW, _WIDE = 4, 8  # bytes of an id


@dataclass(frozen=True)
class Footprint:
    """Bytes by what they are for.

    Attributes:
        hoisted: Values computed once and kept.
        activations: Kept from the forward to the backward calls.
        peak: Most bytes of intermediate values, outputs and gradients alive at once, hoisted ones not counted; with
            what a kernel takes beside its results.
        structure: Graphs that are made from the one given and kept.
        making: What passes while hoisted values and graphs are made.
    """

    hoisted: int
    activations: int
    peak: int
    structure: int = 0
    making: int = 0


def value_bytes(value: Value, sizes: Sizes) -> float:
    """Memory of a value's result: as :func:`tensor_bytes`, of sparse rows their share of the stored entries.

    Nothing of sparse rows with dropout: what reads them draws it again.
    """
    if not isinstance(value.type, TensorType) or not value.type.sparse or not sizes.nonzeros:
        return tensor_bytes(value, sizes)
    if value.op is Op.DROPOUT:
        return 0
    rows = sizes.rows.get(str(value.type.rows), 1)
    return (value.type.dtype.itemsize + _NARROW) * stored_entries(value, sizes) + _WIDE * (rows + 1)


def footprint(plan: Plan, sizes: Sizes, symmetric: bool = False) -> Footprint:
    """Walks the forward and backward calls of ``plan``; ``symmetric``: the graph given is its own reverse."""
    values = plan.compiled.program.values
    size = [value_bytes(value, sizes) for value in values]
    inputs = {i for i, v in enumerate(values) if v.op in LEAVES and not str(v["name"]).startswith("d:")}
    hoisted = {item.slot for item in plan.hoisted}
    for item in plan.hoisted:
        size[item.slot] /= 2 if item.is_half else 1
    free = inputs | hoisted
    for slot in plan.halves:
        size[slot] /= 2
    live = {slot for _, slot in plan.outputs if slot in free}
    peak, live = _walk(plan, plan.forward, live, size, free, sizes)
    saved = set(plan.saved) - free - set(plan.saved_shapes)
    outputs = {slot for _, slot in plan.outputs} - free
    seeds = {slot for _, slot in plan.seeds}
    if plan.backward:
        after, _ = _walk(plan, plan.backward, saved | outputs | seeds, size, free, sizes)
        peak = max(peak, after)
    program, before = plan.compiled.program, plan.compiled.hoisted
    forms = {item.value: form_of(item.value, program, before) for item in plan.hoisted}
    made = {value: _structure_bytes(value, form, sizes, symmetric) for value, form in forms.items()}
    making = max([_passing(plan, sizes), *(_turning(value, sizes, made) for value in made if made[value])])
    kept = sum(size[s] for s in hoisted), sum(size[s] for s in saved)
    return Footprint(int(kept[0]), int(kept[1]), int(peak), sum(made.values()), making)


def kept_bytes(plans: Sequence[Plan], sizes: Sizes, symmetric: bool = False) -> tuple[int, int]:
    """Bytes of the hoisted values of ``plans`` and of the graphs that are made for them, each kept once for all."""
    found: dict[str, tuple[float, float]] = {}
    for plan in plans:
        for item in plan.hoisted:
            form = form_of(item.value, plan.compiled.program, plan.compiled.hoisted)
            made = _structure_bytes(item.value, form, sizes, symmetric)
            held, before = found.get(item.key, (0.0, 0.0))
            found[item.key] = max(held, value_bytes(item.value, sizes) / (2 if item.is_half else 1)), max(before, made)
    return int(sum(held for held, _ in found.values())), int(sum(made for _, made in found.values()))


def ordered_entries(plans: Sequence[Plan], sizes: Sizes, symmetric: bool = False) -> int:
    """Bytes of the entries by stretches of the adjacencies that float32 sums and extrema of ``plans`` read."""
    found: dict[tuple[int, int, int, bool], int] = {}
    for plan in plans:
        program = plan.compiled.program
        prepared = [plan.preparation(item) for item in plan.hoisted]
        for part, calls in [(program, (*plan.forward, *plan.backward)), *prepared]:
            for call in calls:
                if not _reads_plain_rows(call):
                    continue
                graph = part.values[call.operand("graph")]
                assert isinstance(graph.type, StructType)
                turned = graph.op is Op.REVERSE and not (symmetric and call.kernel == "spmm")
                dims = (graph.type.dst, graph.type.src, graph.type.edge)
                rows, columns, edges = (sizes.rows.get(dim, 0) for dim in dims)
                found[rows, columns, edges, turned] = ordered_bytes(rows, columns, edges)
    return sum(found.values())


def _reads_plain_rows(call: KernelCall) -> bool:
    """Whether a call reduces float32 rows over edges, without weights."""
    is_plain = call.kernel == "spmm_max" or (call.kernel == "spmm" and call.reading("weight") is None)
    return is_plain and call.dtype == torch.float32


def _passing(plan: Plan, sizes: Sizes) -> int:
    """The most that the calls that make a hoisted value take beside it: they free nothing before its end."""
    most = 0.0
    for item in plan.hoisted:
        part, calls = plan.preparation(item)
        between = {slot.at for call in calls for slot in call.writes}
        size = sum(value_bytes(part.values[at], sizes) for at in between if part.values[at] is not item.value)
        most = max(most, size + max((plan.target.scratch(call, sizes) for call in calls), default=0))
    return int(most)


def _walk(
    plan: Plan, calls: Sequence[KernelCall], live: set[int], size: list[float], free: set[int], sizes: Sizes
) -> tuple[float, set[int]]:
    """Peak bytes while ``calls`` run, and what lives afterwards."""
    live = set(live)
    peak = sum(size[s] for s in live - free)
    for call in calls:
        if call.over:  # the result takes the memory of the first operand of its size, which is read for the last time
            live -= covered(call, size)
        live |= {slot.at for slot in call.writes}
        peak = max(peak, sum(size[s] for s in live - free) + plan.target.scratch(call, sizes))
        live -= set(call.frees)
    return peak, live


def covered(call: KernelCall, size: list[float]) -> set[int]:
    """The operand whose memory the result of ``call`` takes."""
    made = size[call.writes[0].at]
    return set(next(([slot.at] for slot in call.reads if slot.at in call.frees and size[slot.at] == made), []))


def _turning(value: Value, sizes: Sizes, kept: Collection[Value]) -> int:
    """What passes while a graph is made: those between it and the given one, and what sorting takes, in whole pages.

    Those that are ``kept`` are there. Pages that others share with the graph itself are given back where they are free.
    """
    if value.op is Op.TAKE_DST and value.get("loops"):  # the edges without loops, and numbers of all
        assert isinstance(value.type, StructType)
        return whole_pages(2 * _NARROW * sizes.rows.get(value.type.edge, 0))
    between, at = 0, value
    while at.inputs and at.inputs[0].op in STRUCTURE and at.inputs[0] not in kept:
        at = at.inputs[0]
        between += _structure_bytes(at, Form.ROWS, sizes, False)
    if value.op is not Op.REVERSE or not isinstance(value.type, StructType):
        return whole_pages(between)
    made = _structure_bytes(value, Form.EDGES, sizes, False)
    # a place of 16 bits for every edge, with lists of buckets; large ones do not fit the gaps of others
    passing = whole_pages(between + made + 2 * sizes.rows.get(value.type.edge, 0)) - made
    return passing if made <= Pool.page else passing + Pool.page


def whole_pages(nbytes: int) -> int:
    """Bytes that the pool maps for so many."""
    return -(-nbytes // Pool.page) * Pool.page


def _structure_bytes(value: Value, form: Form, sizes: Sizes, symmetric: bool) -> int:
    """Memory of a graph that ``value`` makes: offsets, and per edge its far end and, where it is numbered anew, its id.

    A reverse is made in the form that is read; rows of a symmetric graph are its own. Degrees and the like count
    nothing here.
    """
    if value.op not in STRUCTURE or not isinstance(value.type, StructType) or value.op is Op.WITHOUT_LOOPS:
        return 0
    reverse = value.op is Op.REVERSE
    if reverse and (form is Form.NONE or (form is Form.ROWS and symmetric and value.type.square)):
        return 0
    edges, rows = sizes.rows.get(value.type.edge, 0), sizes.rows.get(value.type.dst, 0)
    width = _NARROW if edges < 1 << 31 else _WIDE
    arrays = 2 if value.op is Op.ONE_LOOP or (reverse and form is not Form.ROWS) else 1
    return arrays * width * edges + _WIDE * (rows + 1)
