"""The order of work of one epoch with two buffers, and its simulation.

Comes in: a :class:`Profile`, a :class:`Plan` and a number of batches. Goes out: a :class:`Timeline`: what every place
does when, and which side waited for the other. Rounds fill both buffers; where the device's is full first, it trains
and refills one batch after the other until the CPU's is full, too (blocking); then batches of the CPU are sent while
those of the device are trained (flushing). What is left at the end is drained, so that every batch is trained exactly
once. A simulation by events: no clock is read. Source: MorphGL, algorithm 1, with the drain that it leaves out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from graphweft._errors import ConfigError
from graphweft.schedule.split import Plan, Profile

Duration = Callable[[str, int], float]  # (step, batch) -> seconds


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
        spans: Every step of every batch, in the order in which they were begun.
        cpu_waits: Seconds in which the CPU's buffer was full while a round was not over.
        device_waits: Seconds in which the device worked off its own batches until the CPU's buffer was full.
    """

    spans: list[Span] = field(default_factory=list)
    cpu_waits: float = 0.0
    device_waits: float = 0.0

    @property
    def seconds(self) -> float:
        """The end of the last step."""
        return max((span.end for span in self.spans), default=0.0)

    def trained(self) -> list[int]:
        """Batches in the order in which they were trained."""
        return [span.batch for span in self.spans if span.step == "model"]

    def busy(self, place: str) -> float:
        """Share of the epoch in which a place works: "cpu", "link" or "device"."""
        parts = sorted((span.begin, span.end) for span in self.spans if place in places_of(span))
        return sum(end - begin for begin, end in parts) / self.seconds if self.spans else 0.0

    def report(self) -> str:
        """One line: seconds, how busy every place was, who waited."""
        shares = ", ".join(f"{place} {100 * self.busy(place):.0f} %" for place in ("cpu", "link", "device"))
        waits = f"cpu waited {self.cpu_waits:.3g} s, device {self.device_waits:.3g} s"
        return f"{len(self.trained())} batches in {self.seconds:.3g} s: {shares}; {waits}"


def places_of(span: Span) -> tuple[str, ...]:
    """The places that a step keeps busy: preparing on the device reads over the link."""
    return ("device", "link") if span.step == "device_batch" else (span.place,)


def simulate(profile: Profile, plan: Plan, batches: int, duration: Duration | None = None) -> Timeline:
    """One epoch.

    Args:
        profile: Seconds of the steps.
        plan: Sizes of the buffers.
        batches: Of the epoch.
        duration: Seconds of a step of a batch, for runs whose times vary; None: those of the profile.

    Raises: ConfigError for a plan without buffers.

    Example:
        >>> line = simulate(Profile(4.0, 2.0, 1.0, 1.0), Plan(2, 2), 8)
        >>> sorted(line.trained()) == list(range(8)), line.seconds
        (True, 18.0)
    """
    if plan.cpu < 0 or plan.device < 0 or plan.cpu + plan.device == 0:
        raise ConfigError(f"plan: expected buffers of at least one batch, got {plan}")
    epoch = _Epoch(plan, batches, duration or (lambda step, batch: float(getattr(profile, step))))
    epoch.run()
    return epoch.line


class _Epoch:
    """The state of a simulated epoch; ``now`` is the time of the thread that drives the device."""

    def __init__(self, plan: Plan, batches: int, duration: Duration) -> None:
        self.plan, self.batches, self.duration = plan, batches, duration
        self.line = Timeline()
        self.now = self.cpu_free = self.link_free = 0.0
        self.next = 0
        self.from_cpu: deque[tuple[int, float]] = deque()  # batch, when it is prepared
        self.slots: deque[float] = deque([0.0] * plan.cpu)  # when a place of the CPU's buffer became free
        self.here: deque[tuple[int, str, float]] = deque()  # batch, route, when it is on the device

    @property
    def left(self) -> bool:
        """Whether batches have not been begun."""
        return self.next < self.batches

    def run(self) -> None:
        """Rounds until every batch is trained."""
        while self.left or self.from_cpu or self.here:
            self.fill()
            self.block()
            self.flush()

    def fill(self) -> None:
        """The device fills its buffer, the CPU its own beside."""
        self.prepare_until(self.now)
        while self.left and len(self.here) < self.plan.device:
            self.prepare_here()
        full = self.full_at()
        if full is not None and full < self.now:
            self.line.cpu_waits += self.now - full

    def block(self) -> None:
        """Until the CPU's buffer is full, too: one batch of the device's is trained and replaced."""
        begin = self.now
        while self.here and self.left and not self.is_full():
            self.train(*self.here.popleft())
            if self.left:
                self.prepare_here()
        self.line.device_waits += self.now - begin
        if not self.here and self.from_cpu and not self.is_full():  # the device prepares none: it waits
            ready = self.from_cpu[0][1] if self.plan.device == 0 else self.from_cpu[-1][1]
            self.now = max(self.now, ready)
            self.prepare_until(self.now)

    def flush(self) -> None:
        """Batches of the CPU are sent while those before them are trained, until the device has none left."""
        waiting = self.ready_count() if self.left else len(self.from_cpu)
        while self.here or waiting:
            first = self.here.popleft() if self.here else None
            if waiting:
                waiting -= 1
                self.send(*self.from_cpu.popleft())
            if first is not None:
                self.train(*first)
            self.prepare_until(self.now)

    # -- steps

    def step(self, batch: int, step: str, place: str, route: str, begin: float) -> float:
        """Notes one step; its end."""
        end = begin + self.duration(step, batch)
        self.line.spans.append(Span(batch, step, place, route, begin, end))
        return end

    def prepare_here(self) -> None:
        """The device prepares the next batch."""
        batch, self.next = self.next, self.next + 1
        begin = max(self.now, self.link_free)
        self.now = self.link_free = self.step(batch, "device_batch", "device", "device", begin)
        self.here.append((batch, "device", self.now))
        self.prepare_until(self.now)

    def prepare_until(self, time: float) -> None:
        """The CPU begins what it can begin until ``time``: it works on its own, as long as its buffer has room."""
        while self.left and self.slots:
            begin = max(self.cpu_free, self.slots[0])
            if begin > time:
                return
            self.slots.popleft()
            batch, self.next = self.next, self.next + 1
            self.cpu_free = self.step(batch, "cpu_batch", "cpu", "cpu", begin)
            self.from_cpu.append((batch, self.cpu_free))

    def send(self, batch: int, ready: float) -> None:
        """A batch of the CPU goes to the device; its place is free once it has gone."""
        begin = max(self.now, self.link_free, ready)
        self.link_free = self.step(batch, "send", "link", "cpu", begin)
        self.slots.append(self.link_free)
        self.here.append((batch, "cpu", self.link_free))

    def train(self, batch: int, route: str, there: float) -> None:
        """The device trains a batch that is there."""
        self.now = self.step(batch, "model", "device", route, max(self.now, there))
        self.prepare_until(self.now)

    # -- the CPU's buffer

    def ready_count(self) -> int:
        """Batches that the CPU has prepared by now."""
        return sum(ready <= self.now for _, ready in self.from_cpu)

    def is_full(self) -> bool:
        """Whether the CPU's buffer holds as many as it can."""
        return self.ready_count() >= self.plan.cpu

    def full_at(self) -> float | None:
        """Since when it is full; None while it is not."""
        return self.from_cpu[-1][1] if not self.slots and self.from_cpu else None


__all__ = ["Duration", "Span", "Timeline", "places_of", "simulate"]
