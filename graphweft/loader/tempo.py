"""Which way of preparing batches is the fastest here, found by trying.

Comes in: ways, and the seconds a batch took under each, model included. Goes out: the way to take next. A pure policy:
called by the loader, whose batches are the same whatever it answers.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """How batches are prepared.

    Attributes:
        workers: Threads that prepare batches beside the model; 0: the caller prepares each when it asks for it, with
            all of its threads.
        ahead: Batches that may be ready before they are asked for.
    """

    workers: int
    ahead: int


class Tempo:
    """Tries every way for some batches, then stays with the one whose median is the least.

    Example:
        >>> tempo = Tempo([Way(0, 0), Way(1, 2)], tries=1)
        >>> tempo.record(Way(0, 0), 2.0)
        >>> tempo.record(Way(1, 2), 1.0)
        >>> tempo.way, tempo.settled
        (Way(workers=1, ahead=2), True)
    """

    def __init__(self, ways: list[Way], tries: int = 8) -> None:
        self._seconds: dict[Way, list[float]] = {way: [] for way in ways}
        self._tries = tries

    @property
    def settled(self) -> bool:
        """Every way was tried, or there is only one."""
        return len(self._seconds) == 1 or all(len(taken) >= self._tries for taken in self._seconds.values())

    @property
    def way(self) -> Way:
        """The first one that wants more tries, or the fastest."""
        for way, taken in self._seconds.items():
            if not self.settled and len(taken) < self._tries:
                return way
        return min(self._seconds, key=lambda way: statistics.median(self._seconds[way] or [0.0]))

    def record(self, way: Way, seconds: float) -> None:
        """A batch took ``seconds`` from one request to the next."""
        if not self.settled:
            self._seconds[way].append(seconds)
