"""Keys of random draws, handed from the trainer to programs that draw.

Comes in: the key of a step. Goes out: a key for each call of a compiled program. Called by the trainer and by models.
Programs draw by counters from a key; a key that a trainer hands on reaches the first call of its step as it is. Torch's
generator tells further calls apart, so that a call that a checkpoint repeats draws the same again; outside of trainers
it gives the keys, as it gives torch's own modules their numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = 2**64 - 1
_TURN = threading.RLock()  # torch's generator is one for all threads


class _Handed(threading.local):
    """The key in force on a thread, and the number of torch's generator at the first call."""

    key: tuple[int, int] | None = None


_HANDED = _Handed()


def mixed(*words: int) -> int:
    """A key of 63 bits from several numbers (SplitMix64).

    Example:
        >>> mixed(0, 1) == mixed(0, 1), mixed(0, 1) == mixed(1, 0)
        (True, False)
    """
    key = 0
    for word in words:
        key = (key + word + 0x9E3779B97F4A7C15) & _MASK
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        key ^= key >> 31
    return key >> 1


@contextmanager
def keyed(key: int) -> Iterator[None]:
    """Random draws in the block follow from ``key``; the caller's generator does not notice.

    Example:
        >>> with keyed(5):
        ...     call_key(), call_key() == call_key()
        (5, False)
    """
    former = _HANDED.key
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        _HANDED.key = (key, _number())
        torch.default_generator.manual_seed(key)
        try:
            yield
        finally:
            _HANDED.key = former


@contextmanager
def in_turn(key: int) -> Iterator[None]:
    """As :func:`keyed`, while no other thread is in such a block: two that train at once draw what each would alone.

    Example:
        >>> with in_turn(5), in_turn(6):
        ...     call_key()
        6
    """
    with _TURN, keyed(key):
        yield


def call_key() -> int:
    """The key of a call's draws."""
    number, handed = _number(), _HANDED.key
    if handed is None:
        return number
    key, first = handed
    return key if number == first else mixed(key, number)


def _number() -> int:
    """The next number of torch's generator."""
    return int(torch.randint(2**62, ()))


__all__ = ["call_key", "in_turn", "keyed", "mixed"]
