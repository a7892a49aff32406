"""Spans of time by stage, recorded while somebody asks for them.

Comes in: blocks of code that say what they are. Goes out: a list of :class:`Span`. Called by every layer that a batch
goes through. With no recorder a span costs a look at one variable.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

_MOST_SPANS = 1_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """One block that ran, in seconds of the recorder's clock.

    Attributes:
        name: What ran.
        stage: What kind of work it is; the verdict sums by it.
        thread: Name of the thread it ran on; every thread has one of its own.
        details: Numbers and texts about it.
    """

    name: str
    stage: str
    begin: float
    end: float
    thread: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class Recorder:
    """Collects spans from any thread; beyond ``most`` of them it only counts.

    Args:
        clock: Seconds; another one than the default leaves out what native code measures by its own.
        most: Spans that are kept.

    Example:
        >>> recorder = Recorder(clock=iter([1.0, 3.0]).__next__)
        >>> with recording(recorder), span("draw", "sample", hop=0):
        ...     pass
        >>> recorder.spans[0].name, recorder.spans[0].seconds
        ('draw', 2.0)
    """

    def __init__(self, clock: Callable[[], float] | None = None, most: int = _MOST_SPANS) -> None:
        self.clock = time.perf_counter if clock is None else clock
        self.is_native = clock is None and "CLOCK_MONOTONIC" in time.get_clock_info("perf_counter").implementation
        self.spans: list[Span] = []
        self.dropped = 0
        self._most = most
        self._owners: dict[str, int] = {}
        self._own = threading.local()
        self._lock = threading.Lock()

    def add(self, name: str, stage: str, begin: float, end: float, details: dict[str, Any]) -> None:
        """Keeps a span of the calling thread."""
        if len(self.spans) >= self._most:
            with self._lock:
                self.dropped += 1
            return
        self.spans.append(Span(name, stage, begin, end, self._thread(), details))

    def _thread(self) -> str:
        """The calling thread's name, with a number where another one that lives has it already."""
        mine: str | None = getattr(self._own, "name", None)
        if mine is not None:
            return mine
        name, here = threading.current_thread().name, threading.get_ident()
        with self._lock:
            alive = {thread.ident for thread in threading.enumerate()} - {here, None}  # None: one that is being started
            named = (name if i == 1 else f"{name}#{i}" for i in itertools.count(1))
            mine = next(n for n in named if self._owners.get(n) not in alive)
            self._owners[mine] = here
        self._own.name = mine
        return mine


class _Nothing:
    """A block that nobody times."""

    __slots__ = ()

    def __enter__(self) -> dict[str, Any] | None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


class _Timed:
    """A block that becomes a span."""

    __slots__ = ("_begin", "_details", "_name", "_recorder", "_stage")

    def __init__(self, recorder: Recorder, name: str, stage: str, details: dict[str, Any]) -> None:
        self._recorder, self._name, self._stage, self._details = recorder, name, stage, details

    def __enter__(self) -> dict[str, Any] | None:
        self._begin = self._recorder.clock()
        return self._details

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._recorder.add(self._name, self._stage, self._begin, self._recorder.clock(), self._details)


_NOTHING = _Nothing()
_active: Recorder | None = None


def active() -> Recorder | None:
    """Who records now."""
    return _active


def span(name: str, stage: str, **details: Any) -> _Timed | _Nothing:
    """A context manager that records its block as ``name``, work of kind ``stage``, on the calling thread.

    It gives the details, which the block may add to; None with no recorder.
    """
    recorder = _active
    return _NOTHING if recorder is None else _Timed(recorder, name, stage, details)


@contextlib.contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """All threads' spans go to ``recorder`` in this block; None changes nothing."""
    global _active  # one recorder for all threads of a process
    if recorder is None:
        yield
        return
    before, _active = _active, recorder
    try:
        yield
    finally:
        _active = before
