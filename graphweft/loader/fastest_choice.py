"""Which way of preparing batches is the fastest here, found by trying.

Comes in: ways, and the seconds a batch took under each, model included. Goes out: the way to take next. A pure policy:
called by the loader, whose batches are the same whatever it answers, and for the formats of a batch's program.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")

_HOPELESS = 1.25  # times the best median, after so many tries:
ENOUGH = 3
_LEVEL = 1.04  # medians of some batches that are closer than this do not tell two ways apart


@dataclass(frozen=True)
class CoreSplit:
    """How batches are prepared, and how the cores are split between that and the model.

    Attributes:
        workers: Threads that prepare batches beside the model; 0: the caller prepares each when it asks for it, with
            all of its threads.
        ahead: Batches that may be ready before they are asked for.
        model: Threads of the model's parallel loops; 0: all, as ever.
    """

    workers: int
    ahead: int
    model: int = 0


class FastestChoice(Generic[W]):
    """Tries every way for a few batches, then the better ones for more, and stays with the one of the least median.

    A way that is far slower than the best is given up after the first few, also where it was tried first.

    Args:
        ways: What is tried, in this order.
        tries: Batches under each.
        prefers: Says which ways are taken where they are level with the fastest; None: the fastest is taken.

    Example:
        >>> choice = FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2)], tries=1)
        >>> choice.record(CoreSplit(0, 0), 2.0)
        >>> choice.record(CoreSplit(1, 2), 1.0)
        >>> choice.way, choice.settled
        (CoreSplit(workers=1, ahead=2, model=0), True)
    """

    def __init__(self, ways: Sequence[W], tries: int = 8, prefers: Callable[[W], bool] | None = None) -> None:
        self._seconds: dict[W, list[float]] = {way: [] for way in ways}
        self._tries, self._prefers = tries, prefers

    @property
    def ways(self) -> list[W]:
        """All ways that are tried."""
        return list(self._seconds)

    def add(self, ways: Sequence[W]) -> None:
        """More ways to try."""
        for way in ways:
            self._seconds.setdefault(way, [])

    def leave_out(self, unwanted: Callable[[W], bool]) -> None:
        """Ways that were not tried yet and will not be, as something else tells that they are no faster."""
        for way in [way for way, taken in self._seconds.items() if not taken and unwanted(way)]:
            del self._seconds[way]

    @property
    def settled(self) -> bool:
        """Every way was tried, or there is only one."""
        return len(self._seconds) == 1 or not any(map(self._wants_more, self._seconds))

    @property
    def way(self) -> W:
        """One that wants more tries; then the fastest, or the fastest preferred one that is level with it."""
        if not self.settled:
            wanting = [way for way in self._seconds if self._wants_more(way)]
            untried = [way for way in wanting if len(self._seconds[way]) < ENOUGH]
            return untried[0] if untried else max(wanting, key=lambda way: len(self._seconds[way]))
        medians = {way: statistics.median(taken or [0.0]) for way, taken in self._seconds.items()}
        fastest = min(medians.values())
        level = [way for way in medians if self._prefers and self._prefers(way) and medians[way] <= _LEVEL * fastest]
        return min(level or medians, key=medians.__getitem__)

    def seconds(self) -> dict[W, float]:
        """Median seconds of the ways that were tried."""
        return {way: statistics.median(taken) for way, taken in self._seconds.items() if taken}

    def record(self, way: W, seconds: float) -> None:
        """A batch took ``seconds`` from one request to the next."""
        if not self.settled:
            self._seconds[way].append(seconds)

    def _wants_more(self, way: W) -> bool:
        taken = self._seconds[way]
        if len(taken) >= self._tries:
            return False
        others = [statistics.median(other) for name, other in self._seconds.items() if name != way and other]
        return len(taken) < ENOUGH or not others or statistics.median(taken) <= _HOPELESS * min(others)
