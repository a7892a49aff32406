"""Launchers of batch norms and their gradients.

Comes in: a :class:`KernelCall`. Goes out: a function of the slots that calls the native kernel. Registered in
``cpu/target.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphweft.runtime import norms
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch


def _given(slots: Slots, places: Sequence[int | None]) -> list[Any]:
    return [None if place is None else slots[place] for place in places]


def batch_norm(call: KernelCall) -> Launch:
    """A norm that makes its statistics, or is given them."""
    x, vectors, given = call.operand("x"), (call.reading("weight"), call.reading("bias")), call.reading("stats")
    out, stats, eps, relu = call.writes[0].at, call.writing("stats"), call.get("eps"), bool(call.get("relu"))

    def run(slots: Slots) -> None:
        slots[out], slots[stats] = norms.batch_norm(slots[x], *_given(slots, vectors), eps, relu)

    def by_given(slots: Slots) -> None:
        slots[out] = norms.normalise(slots[x], *slots[given].unbind(), *_given(slots, vectors), eps, relu)

    return run if given is None else by_given


def normalise(call: KernelCall) -> Launch:
    """A norm by statistics of other rows."""
    operands = [call.reading(role) for role in ("x", "mean", "variance", "weight", "bias")]
    out, eps, relu = call.writes[0].at, call.get("eps"), bool(call.get("relu"))

    def run(slots: Slots) -> None:
        slots[out] = norms.normalise(*_given(slots, operands), eps, relu)

    return run


def batch_norm_grad(call: KernelCall) -> Launch | None:
    """All gradients of one norm together; None where some come from elsewhere."""
    operands = [call.reading(role) for role in ("x", "stats", "dy", "weight")]
    out, products, sums, eps = call.writes[0].at, call.writing("products"), call.writing("sums"), call.get("eps")
    if products is None or sums is None:
        return None

    def run(slots: Slots) -> None:
        slots[out], slots[products], slots[sums] = norms.batch_norm_grad(*_given(slots, operands), eps)

    return run
