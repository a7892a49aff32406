"""Launchers of batch norms and their gradients.

Comes in: a :class:`KernelCall`. Goes out: a function of the slots that calls the native kernel. Registered in
``cpu/target.py``.
"""

from __future__ import annotations

from typing import Any

from graphweft.runtime import norms
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch


def _at(slots: Slots, place: int | None) -> Any:
    return None if place is None else slots[place]


def batch_norm(call: KernelCall) -> Launch:
    """A norm that makes its statistics, or is given them."""
    x, weight, bias, given = call.operand("x"), call.reading("weight"), call.reading("bias"), call.reading("stats")
    out, stats, eps, relu = call.writes[0].at, call.writing("stats"), call.get("eps"), bool(call.get("relu"))

    def run(slots: Slots) -> None:
        slots[out], found = norms.batch_norm(slots[x], _at(slots, weight), _at(slots, bias), eps, relu)
        if stats is not None:
            slots[stats] = found

    def by_given(slots: Slots) -> None:
        mean, variance = _at(slots, given).unbind()
        slots[out] = norms.normalise(slots[x], mean, variance, _at(slots, weight), _at(slots, bias), eps, relu)

    return run if given is None else by_given


def normalise(call: KernelCall) -> Launch:
    """A norm by statistics of other rows."""
    x, mean, variance = (call.operand(role) for role in ("x", "mean", "variance"))
    weight, bias, out = call.reading("weight"), call.reading("bias"), call.writes[0].at
    eps, relu = call.get("eps"), bool(call.get("relu"))

    def run(slots: Slots) -> None:
        given = (slots[x], slots[mean], slots[variance], _at(slots, weight), _at(slots, bias))
        slots[out] = norms.normalise(*given, eps, relu)

    return run


def batch_norm_grad(call: KernelCall) -> Launch | None:
    """All gradients of one norm together; None where some come from elsewhere."""
    x, stats, dy, weight = *(call.operand(role) for role in ("x", "stats", "dy")), call.reading("weight")
    out, products, sums, eps = call.writes[0].at, call.writing("products"), call.writing("sums"), call.get("eps")
    if products is None or sums is None:
        return None

    def run(slots: Slots) -> None:
        found = norms.batch_norm_grad(slots[x], slots[stats], slots[dy], _at(slots, weight), eps, call.over)
        slots[out], slots[products], slots[sums] = found

    return run
