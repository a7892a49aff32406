"""The static memory plan: where each buffer of a program lies in its one arena.

Comes in: sizes and lifetimes. Goes out: offsets, and the arena's size. Pure. Called by ``steps.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64  # bytes: a cache line


class Lifetime(NamedTuple):
    """A stretch of memory that is in use from its first write to its last read, both included."""

    nbytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both are in use at some step."""
        return self.first <= other.last and other.first <= self.last


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each lifetime, so that those that meet do not overlap, and the bytes of all.

    The largest is placed first, each as low as those before leave room.

    Example:
        >>> place([Lifetime(64, 0, 1), Lifetime(128, 1, 2), Lifetime(64, 2, 3)])
        ([128, 0, 128], 192)
    """
    offsets = [0] * len(lifetimes)
    done: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i)):
        mine = lifetimes[index]
        taken = sorted((offsets[i], offsets[i] + _room(lifetimes[i])) for i in done if lifetimes[i].meets(mine))
        at = 0
        for begin, end in taken:
            if begin - at >= _room(mine):
                break
            at = max(at, end)
        offsets[index] = at
        done.append(index)
    return offsets, max((offsets[i] + _room(lifetimes[i]) for i in done), default=0)


def _room(lifetime: Lifetime) -> int:
    return -(-lifetime.nbytes // ALIGNMENT) * ALIGNMENT


__all__ = ["ALIGNMENT", "Lifetime", "place"]
