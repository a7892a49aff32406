"""Timing of calls while a plan runs: the samples that the cost model is fitted to.

Comes in: calls with the work they do. Goes out: (work, seconds) samples. Active only during the first training step
of a program and in ``gw.explain``; otherwise one attribute test per call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from graphweft.cost import Work


@dataclass
class Profile:
    """Collects samples while active."""

    active: bool = False
    samples: list[tuple[str, Work, float]] = field(default_factory=list)

    def time(self, label: str, work: Work, call: Callable[[], None], once: bool = False) -> None:
        """Runs ``call`` twice (it is a pure function of its slots) and records the quicker run, free of page faults.

        ``once``: it writes over what it reads, and runs once.
        """
        best = float("inf")
        for _ in range(1 if once else 2):
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
        self.samples.append((label, work, best))


PROFILE = Profile()


@contextlib.contextmanager
def profiling() -> Iterator[list[tuple[str, Work, float]]]:
    """Samples of all calls made in the block."""
    before, PROFILE.active, PROFILE.samples = PROFILE.active, True, []
    try:
        yield PROFILE.samples
    finally:
        PROFILE.active = before
