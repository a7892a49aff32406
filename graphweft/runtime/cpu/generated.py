"""Launchers of generated kernels: regions over rows, and walks over the edges of a graph.

Comes in: calls that a plan has. Goes out: a function of the slots for each that could be compiled. The walks of a plan
are compiled together. Registered in ``cpu/target.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphweft.passes.groups import EdgeWalk
from graphweft.runtime.described import walking
from graphweft.runtime.edge_kernels import edge_kernels
from graphweft.runtime.kernel_call import KernelCall, Launch, Slots
from graphweft.runtime.row_kernels import row_kernel


def row_nest(call: KernelCall) -> Launch | None:
    """One generated kernel over rows; None where nothing can be compiled."""
    found = row_kernel(call.body)
    if found is None:
        return None
    kernel, read = found
    at = {slot.value: slot.at for slot in call.reads}
    places, out = [at[value] for value in read], call.writes[0].at

    def run(slots: Slots) -> None:
        slots[out] = kernel([slots[i] for i in places])

    return run


def edge_nests(calls: Sequence[KernelCall]) -> dict[KernelCall, Launch]:
    """The launchers of all walks among ``calls`` that could be compiled and passed their trial."""
    walks = {call.value: call for call in calls if call.kernel == "edge_nest"}
    kernels = edge_kernels([_group(call) for call in walks.values()])
    return {walks[value]: walking(walks[value], kernel, read) for value, (kernel, read) in kernels.items()}


def _group(call: KernelCall) -> EdgeWalk:
    taps = [slot.value for slot in call.writes[1:]]
    return EdgeWalk(call.value, None, call.value, taps=taps, chain=call.body, walk=call.reads[0].value)
