"""From groups of IR values to calls of kernels, as data.

Comes in: a :class:`Group`, which says what it reads and gives by role, and the slots of the program's values. Goes out:
a :class:`KernelCall`. Nothing here knows a machine: which function runs a call is its target's to say. Called by
``plan.py`` and ``staged.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from graphweft.cost import Work
from graphweft.ir.program import Value
from graphweft.passes.groups import Group
from graphweft.runtime.kernel_call import KernelCall, Slot, body_of

NO_WORK = Work("rows", 0.0, 0.0)
# what is read in bfloat16 where a plan rounds it
_ROUNDED = {
    **dict.fromkeys(("spmm", "spmm_self"), "rows"),
    **dict.fromkeys(("matmul", "contract", "matmul_terms", "contract_terms"), "operands"),
}


def lower(
    group: Group,
    slot: Mapping[Value, int],
    also: Value | None = None,
    *,
    works: tuple[Work, ...] = (NO_WORK,),
    frees: tuple[int, ...] = (),
    over: bool = False,
    rounds: Set[str] = frozenset(),
) -> KernelCall:
    """The call that computes ``group``, and ``also``, the arg of a maximum, from slots into slots.

    ``over``: an aggregation, or a softmax over edges, writes over what it reads. ``rounds``: what is read in bfloat16,
    "rows" that are summed over edges and "operands" of dense products, where they are float32.
    """
    kernel, operands, results, attrs = group.parts()
    if rounds and group.result.tensor.dtype == torch.float32:
        kind = _ROUNDED.get(kernel, "")
        attrs = (*attrs, (kind, "bf16")) if kind in rounds else attrs
    if also is not None:
        results = [*results, ("arg", also)]
    reads = tuple(Slot(role, slot[value], value) for role, value in operands)
    writes = tuple(Slot(role, slot[value], value) for role, value in results)
    body = group.inside or body_of([value for _, value in operands], [value for _, value in results])
    return KernelCall(kernel, reads, writes, attrs, body, group.label(), works, frees, over)


__all__ = ["lower"]
