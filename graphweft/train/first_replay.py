"""The first replay of a step beside the step itself, on the same parameters and with the same draws.

Comes in: both, and the tensors that they change. Goes out: what the replay found; None where it was not the step. What
is tried on the way leaves no trace.
Called where steps are replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_CLOSE = 1e-3  # of a device's gradients, whose products may add up in another order over more rows
# of what an update changes of a tensor, and of what it changes at all: Adam's first ones magnify what is rounded
_ALIKE, _OF_ALL = 0.1, 0.01
Found = tuple[Any, Mapping[str, Tensor | None]]  # a loss and gradients by name


@contextmanager
def kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """They hold the same numbers after the block as before, however that ends."""
    before = _copies(tensors)
    try:
        yield
    finally:
        _put(tensors, before)


def first_replay(
    eager: Callable[[], Found], replay: Callable[[], Found | None], held: Sequence[Tensor], exact: bool
) -> Found | None:
    """What ``replay`` found where that is what ``eager`` found, with what it left in ``held``.

    None, and ``held`` as before, where it is not, or ``replay`` cannot run. ``exact``: the bits have to be the same.
    """
    before = _copies(held)
    with kept(held):
        wanted = eager()
        after = _copies(held)
    try:
        found = replay()
        if found is not None and _agree(found, wanted, exact) and _moved_alike(before, after, held, exact):
            return found
    except RuntimeError:
        _put(held, before)
        raise
    _put(held, before)
    return None


def _agree(found: Found, wanted: Found, exact: bool) -> bool:
    """Whether a replayed step gave the loss and the gradients of the step."""
    pairs = [(torch.as_tensor(found[0]), wanted[0])]
    for name, other in wanted[1].items():
        mine = found[1].get(name)
        if (mine is None) != (other is None):
            return False
        if mine is not None and other is not None:
            pairs.append((mine, other))
    if exact:
        return all(torch.equal(mine.to(other.dtype), other) for mine, other in pairs)
    return all(torch.allclose(mine.to(other.dtype), other, _CLOSE, _CLOSE) for mine, other in pairs)


def _moved_alike(before: Sequence[Tensor], after: Sequence[Tensor], held: Sequence[Tensor], exact: bool) -> bool:
    """Whether ``held`` is as far from ``before`` as ``after`` is."""
    if exact:
        return all(map(torch.equal, held, after))
    ways = [_far(new, old) for new, old in zip(after, before, strict=True)]
    whole = math.sqrt(sum(way * way for way in ways))
    return all(
        _far(mine, other) <= _ALIKE * way + _OF_ALL * whole + 1e-6 * _far(other, torch.zeros_like(other))
        for mine, other, way in zip(held, after, ways, strict=True)
    )


def _far(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.double()).norm())


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _put(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


__all__ = ["Found", "first_replay", "kept"]
