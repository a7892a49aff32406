"""How much memory a plan takes, from sizes alone.

Comes in: a plan and the numbers behind its symbols. Goes out: bytes of inputs, of hoisted values, and the peak of
what lives between calls, found by walking the calls as they will run. Used by ``gw.explain`` and by the check of the
memory budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweft.ir.ops import LEAVES
from graphweft.passes.work import Sizes, tensor_bytes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.plan import Plan


@dataclass(frozen=True)
class Footprint:
    """Bytes by what they are for.

    Attributes:
        hoisted: Values computed once and kept.
        activations: Kept from the forward to the backward calls.
        peak: Most bytes of intermediate values, outputs and gradients alive at once, hoisted ones not counted.
    """

    hoisted: int
    activations: int
    peak: int


def footprint(plan: Plan, sizes: Sizes) -> Footprint:
    """Walks the forward and backward calls of ``plan``."""
    values = plan.compiled.program.values
    size = [tensor_bytes(value, sizes) for value in values]
    inputs = {i for i, v in enumerate(values) if v.op in LEAVES and not str(v["name"]).startswith("d:")}
    hoisted = {item.slot for item in plan.hoisted}
    free = inputs | hoisted
    live = {slot for _, slot in plan.outputs if slot in free}
    peak, live = _walk(plan, plan.forward, live, size, free)
    saved = set(plan.saved) - free - set(plan.saved_shapes)
    outputs = {slot for _, slot in plan.outputs} - free
    seeds = {slot for _, slot in plan.seeds}
    if plan.backward:
        after, _ = _walk(plan, plan.backward, saved | outputs | seeds, size, free)
        peak = max(peak, after)
    return Footprint(int(sum(size[s] for s in hoisted)), int(sum(size[s] for s in saved)), int(peak))


def _walk(
    plan: Plan, calls: Sequence[KernelCall], live: set[int], size: list[float], free: set[int]
) -> tuple[float, set[int]]:
    """Peak bytes while ``calls`` run, and what lives afterwards."""
    live = set(live)
    peak = sum(size[s] for s in live - free)
    for call in calls:
        live |= {slot.at for slot in call.writes}
        peak = max(peak, sum(size[s] for s in live - free))
        live -= set(call.frees)
    return peak, live
