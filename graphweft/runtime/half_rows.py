"""Which rows of a plan lie in memory as bfloat16.

Comes in: the calls that read them, as data. Goes out: whether every reader takes such rows, each number widened as it
is read. Called by ``plan.py``; ``Target.halves`` lists the readers of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from graphweft.ir.program import Value
from graphweft.ir.residency import TensorType
from graphweft.runtime.kernel_call import KernelCall, Slot

Readers = dict[Value, list[tuple[str, str, KernelCall]]]  # kernel, role without its number, and the call
Takes = Callable[[str, str, KernelCall], bool]  # whether that reader takes rows in bfloat16

HALF = ("result", "bf16")  # attribute of a call whose result is stored in bfloat16


def readers_of(calls: Iterable[KernelCall]) -> Readers:
    """Who reads each value."""
    found: Readers = {}
    for call in calls:
        for slot in call.reads:
            found.setdefault(slot.value, []).append((call.kernel, slot.role.rstrip("0123456789"), call))
    return found


def may_be_half(value: Value, readers: Readers, takes: Takes) -> bool:
    """Whether all readers of ``value`` take bfloat16 rows, and those of the rows that are picked from it."""
    if not _is_float_matrix(value):
        return False
    for kernel, role, call in readers.get(value, ()):
        if kernel in ("take_rows", "own_rows") and role == "x":
            if not may_be_half(call.value, readers, takes):
                return False
        elif not takes(kernel, role, call):
            return False
    return True


def makes_half(calls: Sequence[KernelCall], value: Value) -> bool:
    """Whether ``value``, which the last of ``calls`` makes, is a sum over edges alone: the kernel that can round it."""
    last = calls[-1]
    return last.kernel == "spmm" and last.value is value and len(last.writes) == 1 and _is_float_matrix(value)


def half_attribute(slot: Slot) -> tuple[str, str]:
    """The attribute of a call that stores this result in bfloat16."""
    return HALF if slot.role == "out" else (slot.role, HALF[1])


def stores_half(slot: Slot, readers: Readers, takes: Takes) -> bool:
    """Whether a result of products or sums, or sums that products keep, may be stored in bfloat16."""
    is_stored = slot.role == "out" or slot.role.startswith("kept")
    return is_stored and slot.value in readers and may_be_half(slot.value, readers, takes)


def _is_float_matrix(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and not kind.sparse and len(kind.dims) == 1 and kind.dtype == torch.float32


__all__ = ["HALF", "half_attribute", "makes_half", "may_be_half", "readers_of", "stores_half"]
