"""Operations of ATen that write into their first operand, and those that give the same and write nothing.

Comes in: an operation and its arguments. Goes out: its counterpart and arguments. Called by ``recorder.py``.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_OTHER_NAMES = {aten.zero_.default: aten.zeros_like.default}

# what changes the shape of its operand alone
RESHAPING = {
    aten.squeeze_.default,
    aten.squeeze_.dim,
    aten.squeeze_.dims,
    aten.unsqueeze_.default,
    aten.t_.default,
    aten.transpose_.default,
}


def out_of_place(func: Any, name: str) -> Any:
    """The operation that gives what ``func`` writes; None where there is none."""
    if func in _OTHER_NAMES:
        return _OTHER_NAMES[func]
    packet = getattr(aten, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None
    if packet is None:
        return None
    wanted = [str(argument.type) for argument in func._schema.arguments]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if not found._schema.is_mutable and [str(argument.type) for argument in found._schema.arguments] == wanted:
            return found
    return None


def with_defaults(func: Any, plain: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``plain``, with defaults that only ``func`` has, such as the 0.5 of ``bernoulli_``."""
    needed = {argument.name for argument in plain._schema.arguments if not argument.has_default_value()}
    left_out = [a for a in func._schema.arguments[len(args) :] if a.name not in kwargs and a.name in needed]
    return kwargs | {a.name: a.default_value for a in left_out if a.has_default_value()}
