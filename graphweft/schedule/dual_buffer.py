"""The order of work of one epoch with two buffers: three workers, in virtual time or on threads.

Comes in: a :class:`Plan` and a number of batches. Goes out: generators of the CPU, the link and the device, which ask
to run a step or to wait. They are driven by :func:`simulate` in virtual time, and by threads in ``run.py``. In every
round the device fills its buffer while the CPU fills its own (filling); batches beyond the buffer take the place of
trained ones (blocking); then batches of the CPU are sent while those before them are trained (flushing). The last
round shares out what is left and is drained, so that every batch is trained exactly once, by ascending number. Source:
MorphGL, algorithm 1, with the drain that it leaves out, and with shares that follow from the plan, not from clocks.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from graphweft._errors import GraphWeftError
from graphweft.schedule.split import Plan, Profile

Duration = Callable[[str, int], float]  # (step, batch) -> seconds
PLACE_OF = {"cpu_batch": "cpu", "device_batch": "device", "send": "link", "model": "device"}


@dataclass(frozen=True)
class Span:
    """One step of one batch: ``step`` on ``place`` from ``begin`` to ``end``, by "cpu" or "device" prepared."""

    batch: int
    step: str
    place: str
    route: str
    begin: float
    end: float


@dataclass
class Timeline:
    """What happened in an epoch.

    Attributes:
        spans: Every step of every batch, in the order in which they ended.
        cpu_waits: Seconds in which the CPU's buffer was full while it had batches to prepare.
        device_waits: Seconds in which the device had neither a batch to prepare nor one to train.
        phases: (name, round, batch trained next) of every phase, in order.
        results: What training returned, by ascending batch; empty of a simulation.
    """

    spans: list[Span] = field(default_factory=list)
    cpu_waits: float = 0.0
    device_waits: float = 0.0
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The end of the last step."""
        return max((span.end for span in self.spans), default=0.0)

    def trained(self) -> list[int]:
        """Batches in the order in which they were trained."""
        return [span.batch for span in self.spans if span.step == "model"]

    def busy(self, place: str) -> float:
        """Share of the epoch in which a place works: "cpu", "link" or "device"."""
        if not self.seconds:
            return 0.0
        return sum(span.end - span.begin for span in self.spans if place in places_of(span)) / self.seconds

    def mean(self, step: str) -> float:
        """Mean seconds of a step; 0 where there was none."""
        taken = [span.end - span.begin for span in self.spans if span.step == step]
        return sum(taken) / len(taken) if taken else 0.0

    def waited(self, place: str, seconds: float) -> None:
        """A place had to wait."""
        if place == "cpu":
            self.cpu_waits += seconds
        elif place == "device":
            self.device_waits += seconds

    def report(self) -> str:
        """One line: seconds, who prepared, how busy every place was, who waited."""
        shares = ", ".join(f"{place} {100 * self.busy(place):.0f} %" for place in ("cpu", "link", "device"))
        waits = f"cpu waited {self.cpu_waits:.3g} s, device {self.device_waits:.3g} s"
        by = Counter(span.route for span in self.spans if span.step == "model")
        split = f"{by['cpu']} prepared by the cpu, {by['device']} by the device"
        return f"{len(self.trained())} batches ({split}) in {self.seconds:.3g} s: {shares}; {waits}"


def places_of(span: Span) -> tuple[str, ...]:
    """The places that a step keeps busy: preparing on the device reads over the link."""
    return ("device", "link") if span.step == "device_batch" else (span.place,)


@dataclass(frozen=True)
class Step:
    """A worker asks to run a step of a batch."""

    name: str
    batch: int


@dataclass(frozen=True)
class Until:
    """A worker asks to wait until something holds that other workers bring about."""

    holds: Callable[[], bool]


Worker = Generator[Step | Until, None, None]


class Epoch:
    """The state that the three workers of an epoch share; only one of them may go on at a time.

    Attributes:
        workers: By place; each yields what it asks for and is continued once that is done.
        line: What is known of the epoch's waits and phases; the driver of the workers adds spans.
    """

    def __init__(self, plan: Plan, batches: int) -> None:
        self.plan, self.batches = plan, batches
        self.line = Timeline()
        self._rounds = plan.rounds(batches)
        self._by_cpu = [item.first + item.device + n for item in self._rounds for n in range(item.cpu)]
        self._room = plan.cpu  # places of the CPU's buffer that are free
        self._prepared = 0  # batches of the CPU that are ready, sent ones counted
        self._may_send = 0  # batches of the CPU that belong to rounds that are flushed
        self._there: deque[int] = deque()  # on the device, not yet trained
        self.workers: dict[str, Worker] = {"cpu": self._cpu(), "link": self._link(), "device": self._device()}

    def _cpu(self) -> Worker:
        """Prepares as long as its buffer has room."""
        for batch in self._by_cpu:
            yield Until(lambda: self._room > 0)
            self._room -= 1
            yield Step("cpu_batch", batch)
            self._prepared += 1

    def _link(self) -> Worker:
        """Sends what is ready while a round is flushed and the device has room; then its place is free again."""
        most = max(self.plan.device, 1)
        for at, batch in enumerate(self._by_cpu):
            yield Until(lambda at=at: at < self._may_send and at < self._prepared and len(self._there) < most)  # type: ignore[misc]
            yield Step("send", batch)
            self._room += 1
            self._there.append(batch)

    def _device(self) -> Worker:
        """Prepares its share of a round, then trains all of it."""
        for number, item in enumerate(self._rounds):
            ahead = min(self.plan.device, item.device)
            self._begin("filling", number, item.first)
            for batch in range(item.first, item.first + ahead):
                yield Step("device_batch", batch)
                self._there.append(batch)
            if item.device > ahead:
                self._begin("blocking", number, item.first)
            for batch in range(item.first + ahead, item.first + item.device):
                yield from self._train()
                yield Step("device_batch", batch)
                self._there.append(batch)
            last = number == len(self._rounds) - 1
            self._begin("drain" if last else "flushing", number, item.first + item.device - ahead)
            self._may_send += item.cpu
            for _ in range(ahead + item.cpu):
                yield from self._train()

    def _train(self) -> Worker:
        """The oldest batch that is on the device."""
        yield Until(lambda: bool(self._there))
        yield Step("model", self._there.popleft())

    def _begin(self, phase: str, number: int, batch: int) -> None:
        self.line.phases.append((phase, number, batch))


def simulate(profile: Profile, plan: Plan, batches: int, duration: Duration | None = None) -> Timeline:
    """One epoch in virtual time: the same workers that train for real, and no clock.

    Args:
        profile: Seconds of the steps.
        plan: Sizes of the buffers.
        batches: Of the epoch.
        duration: Seconds of a step of a batch, for runs whose times vary; None: those of the profile.

    Raises: GraphWeftError if the workers wait for each other.

    Example:
        >>> line = simulate(Profile(4.0, 2.0, 1.0, 1.0), Plan(2, 2), 8)
        >>> line.trained() == list(range(8)), line.seconds
        (True, 18.0)
    """
    epoch, routes = Epoch(plan, batches), plan.routes(batches)
    line, order = epoch.line, itertools.count()
    taken = duration or (lambda step, batch: float(getattr(profile, step)))
    waiting: dict[str, tuple[Until, float]] = {}
    ended: list[tuple[float, int, str, Span | None]] = [(0.0, next(order), place, None) for place in epoch.workers]
    while ended:
        now, _, place, span = heapq.heappop(ended)
        if span is not None:
            line.spans.append(span)
        ready = [place]
        while ready:
            place = ready.pop(0)
            asked = next(epoch.workers[place], None)
            if isinstance(asked, Until):
                waiting[place] = (asked, now)
            elif asked is not None:
                end = now + taken(asked.name, asked.batch)
                made = Span(asked.batch, asked.name, place, routes[asked.batch], now, end)
                heapq.heappush(ended, (end, next(order), place, made))
            for name, (until, since) in list(waiting.items()):
                if until.holds():
                    del waiting[name]
                    line.waited(name, now - since)
                    ready.append(name)
    if waiting:
        raise GraphWeftError(f"schedule: expected workers to end, got {', '.join(sorted(waiting))} waiting for ever")
    return line


__all__ = ["PLACE_OF", "Duration", "Epoch", "Span", "Step", "Timeline", "Until", "Worker", "places_of", "simulate"]
