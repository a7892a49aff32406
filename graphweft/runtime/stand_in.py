"""Runs on a part of some data that tell what a run on all of them takes.

Comes in: how many times larger all of it is. Goes out: the bytes of a matrix from which kernels are generated, by which
a part gets the kernels that the whole has. Used by what finds out memory by running, and asked by
``runtime/compile.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from graphweft.passes.pipeline import WORTH_A_KERNEL

_TIMES: ContextVar[float] = ContextVar("times", default=1.0)


@contextmanager
def stands_for(times: float) -> Iterator[None]:
    """What runs in the block is a part of something so many times larger.

    Example:
        >>> with stands_for(4.0):
        ...     print(times_larger(), worth_a_kernel(1 << 20), worth_a_kernel(None) == WORTH_A_KERNEL // 4)
        4.0 262144 True
        >>> times_larger(), worth_a_kernel(None)
        (1.0, None)
    """
    token = _TIMES.set(times)
    try:
        yield
    finally:
        _TIMES.reset(token)


def times_larger() -> float:
    """How many times larger what runs now stands for; 1: it is all there is."""
    return _TIMES.get()


def worth_a_kernel(usual: int | None) -> int | None:
    """Bytes of a matrix from which kernels are generated for it; ``usual``, None for the passes' own bound, of all."""
    times = times_larger()
    return usual if times == 1.0 else int((WORTH_A_KERNEL if usual is None else usual) / times)


__all__ = ["stands_for", "times_larger", "worth_a_kernel"]
