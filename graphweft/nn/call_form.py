"""The form of a call: how its arguments lie in a flat list.

Comes in: positional and keyword arguments. Goes out: the list, and a form that is cheap to compare and puts them back.
Called by ``compiled_call.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from graphweft._torch_private import pytree

# arguments that are one leaf and stay as they are
ORDINARY = frozenset((Tensor, nn.Parameter, bool, int, float, str, type(None), torch.dtype))
Form: TypeAlias = Any  # (number of positional arguments, names of the others), or a specification of torch's


def flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Form]:
    """All arguments as a flat list, and their form.

    Example:
        >>> flat, form = flattened((1, 2), {"scale": 0.5})
        >>> flat, form
        ([1, 2, 0.5], (2, ('scale',)))
        >>> restored(flat, form)
        ((1, 2), {'scale': 0.5})
    """
    flat = [*args, *kwargs.values()]
    if ORDINARY.issuperset(map(type, flat)):
        return flat, (len(args), tuple(kwargs))
    return pytree.tree_flatten((args, kwargs))


def restored(flat: Sequence[Any], form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a flat list."""
    if isinstance(form, tuple):
        count, names = form
        return tuple(flat[:count]), dict(zip(names, flat[count:], strict=True))
    args, kwargs = pytree.tree_unflatten(flat, form)
    return args, kwargs


__all__ = ["ORDINARY", "flattened", "restored"]
