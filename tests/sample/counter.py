"""The counter-based draw definition in plain Python: Philox 4x32-10 and what the samplers make of its bits.

The one thing that the slow samplers of ``slow.py`` share with the native ones, written again from the papers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
WIDE, LAYER, ITEM, WALK = 1 << 63, 1 << 62, 1 << 61, 1 << 60


def mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def key_of(seed: int, epoch: int, stage: int) -> int:
    return mix64((seed + mix64((epoch + mix64(stage)) & MASK64)) & MASK64)


@functools.lru_cache(1024)
def block(seed: int, stream: int, index: int) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = index & MASK32, index >> 32, stream & MASK32, stream >> 32
    k0, k1 = seed & MASK32, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def bits(seed: int, stream: int, index: int) -> int:
    low, high, _, _ = block(seed, stream, index)
    return (high << 32) | low


def unit(value: int) -> float:
    return (value >> 11) * 2.0**-53


def below(value: int, n: int) -> int:
    return (value * n) >> 64


def shuffle_start(n: int, k: int, draw: Callable[[int, int], int]) -> list[int]:
    """The first k steps of a Fisher-Yates shuffle."""
    order = list(range(n))
    for i in range(k):
        j = i + draw(i, n - i)
        order[i], order[j] = order[j], order[i]
    return order[:k]


def floyd(n: int, k: int, draw: Callable[[int, int], int], ordered: bool) -> list[int]:
    """Bentley and Floyd's algorithms F (a set) and P (in random order, read backwards)."""
    out: list[int] = []
    for i in range(k):
        last = n - k + i
        drawn = draw(i, last + 1)
        if drawn not in out:
            out.insert(0 if ordered else len(out), drawn)
        elif ordered:
            out.insert(out.index(drawn) + 1, last)
        else:
            out.append(last)
    return out[::-1] if ordered else out


def by_weight_again(weights: Sequence[float], k: int, draw: Callable[[int], int]) -> list[int]:
    """k draws with replacement, by inversion."""
    running, total = [], 0.0
    for weight in weights:
        total += weight
        running.append(total)
    found = []
    for i in range(k):
        at = unit(draw(i)) * total
        place = next((p for p, value in enumerate(running) if value > at), len(running) - 1)
        found.append(min(place, running.index(total)))
    return found


def exponential_keys(weights: Sequence[float], draw: Callable[[int], int]) -> list[tuple[float, int]]:
    """Ascending keys of what has a positive weight, with its place."""
    keys = [(-math.log(unit(draw(i)) + 2.0**-54) / w, i) for i, w in enumerate(weights) if w > 0]
    return sorted(keys)
