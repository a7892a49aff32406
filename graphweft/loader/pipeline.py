"""Work done ahead by threads, handed over in order.

Comes in: a function of a position, and how many positions there are. Goes out: its results by ascending position.
Called by the loader. At most ``ahead`` results are kept; a failure surfaces where its result would have; threads end
when the pipeline is closed, and never keep it alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from graphweft._trace import span
from graphweft._workers import become_worker, join_workers, start_worker

T = TypeVar("T")


class Pipeline(Generic[T]):
    """``prepare(first) .. prepare(last - 1)`` by ``workers`` threads; iterate over it once, then close it.

    ``goes_on`` is asked before every result; once it answers no, what was begun is handed over and nothing else begun.

    Example:
        >>> pipeline = Pipeline(lambda i: i * i, 2, 5, workers=2, ahead=3)
        >>> list(pipeline)
        [4, 9, 16]
        >>> pipeline.close()
    """

    def __init__(
        self,
        prepare: Callable[[int], T],
        first: int,
        last: int,
        workers: int,
        ahead: int,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._goes_on = goes_on
        self._handover = _Handover(prepare, first, last, max(ahead, 1))
        self._threads = [
            start_worker(f"graphweft-loader-{i}", self._handover.stop, _work, self._handover)
            for i in range(min(workers, last - first))
        ]

    def __iter__(self) -> Iterator[T]:
        while not self._handover.finished:
            if not self._goes_on():
                self._handover.give_out_no_more()
                if self._handover.finished:
                    return
            with span("wait for batch", "wait"):
                result = self._handover.take()
            yield result
            del result

    def close(self) -> None:
        """Ends the threads once each has finished its position."""
        self._handover.stop()
        join_workers(self._threads)


class _Handover(Generic[T]):
    """What threads and consumer share."""

    def __init__(self, prepare: Callable[[int], T], first: int, last: int, ahead: int) -> None:
        self.prepare = prepare
        self._next, self._taken, self._last, self._ahead = first, first, last, ahead
        self._ready: dict[int, tuple[T | None, BaseException | None]] = {}
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def finished(self) -> bool:
        """All results were taken."""
        return self._taken >= self._last

    def give_out_no_more(self) -> None:
        """What was given out so far is the last."""
        with self._changed:
            self._last = self._next
            self._changed.notify_all()

    def claim(self) -> int | None:
        """The next position to prepare, once there is room for it; None when there is nothing left to do."""
        with self._changed:
            while not self._stopped and self._next < self._last and self._next >= self._taken + self._ahead:
                self._changed.wait()
            if self._stopped or self._next >= self._last:
                return None
            self._next += 1
            return self._next - 1

    def put(self, position: int, result: T | None, failure: BaseException | None) -> None:
        """Hands over a result, or why there is none."""
        with self._changed:
            self._ready[position] = (result, failure)
            self._changed.notify_all()

    def take(self) -> T:
        """The next result in order, once it is there."""
        with self._changed:
            while self._taken not in self._ready:
                self._changed.wait()
            result, failure = self._ready.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]

    def stop(self) -> None:
        """No further position is given out; what is ready is let go."""
        with self._changed:
            self._stopped = True
            self._ready.clear()
            self._changed.notify_all()


def _work(handover: _Handover[T]) -> None:
    """Prepares until there is nothing left, with parallel loops on this one thread."""
    become_worker()
    while (position := handover.claim()) is not None:
        try:
            with span("prepare batch", "prepare", position=position):
                result = handover.prepare(position)
        except BaseException as failure:
            handover.put(position, None, failure)
        else:
            handover.put(position, result, None)
            del result
