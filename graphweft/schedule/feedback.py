"""From a profile to the plan that is used: a first one in closed form, then better ones by what is seen to wait.

Comes in: a profile, a number of batches, and something that runs a plan: a simulation, or an epoch itself. Goes out: a
:class:`Choice`, whose plan is the best that was run. Called by those who prepare batches in two places. Source:
MorphGL, section IV-B3; ends by a small mismatch, by going round in a circle, or after trials without gain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from graphweft.schedule.dual_buffer import Timeline, simulate
from graphweft.schedule.split import USUAL_BUFFER, Plan, Profile, best_ratio, buffers, epoch_seconds, least_seconds

MOST_ROUNDS, MOST_STALE = 200, 20


@dataclass(frozen=True)
class Feedback:
    """What an epoch under a plan tells: its seconds, and how long either side waited."""

    seconds: float
    cpu_waits: float
    device_waits: float

    @property
    def mismatch(self) -> float:
        """Above 0 where the CPU waited longer, and may prepare more."""
        return self.cpu_waits - self.device_waits


@dataclass(frozen=True)
class Choice:
    """A plan, and how it came about.

    Attributes:
        plan: The best that was run.
        seconds: What it took.
        tried: Plans and their seconds, in order.
        reason: Why no more were tried.
    """

    plan: Plan
    seconds: float
    tried: tuple[tuple[Plan, float], ...]
    reason: str

    def __str__(self) -> str:
        first = self.tried[0][1]
        gain = f", {100 * (1 - self.seconds / first):.1f} % below the first" if first > self.seconds else ""
        return f"{self.plan.shown()}: {self.seconds:.3g} s{gain}, after {len(self.tried)} plans ({self.reason})"


class Partitioner:
    """Shares out batches: first by the closed form, then one batch at a time to the side that waited.

    Args:
        profile: Seconds of the steps.
        device: Size of the device's buffer, in batches.

    Example:
        >>> partitioner = Partitioner(Profile(4.0, 2.0, 1.0, 1.0), 4)
        >>> first = partitioner(None, None)
        >>> first, partitioner(Feedback(9.0, 0.0, 3.0), first)
        (Plan(cpu=4, device=4, extra=0), Plan(cpu=3, device=4, extra=0))
    """

    def __init__(self, profile: Profile, device: int = USUAL_BUFFER) -> None:
        self.profile, self.device = profile, device

    def __call__(self, feedback: Feedback | None, plan: Plan | None) -> Plan:
        """The plan after ``plan``, by what it showed; the first one without either."""
        if plan is None or feedback is None:
            return self._first()
        if plan.mode != "both" or feedback.mismatch == 0:
            return plan
        if feedback.mismatch > 0:
            return replace(plan, extra=plan.extra - 1) if plan.extra else replace(plan, cpu=plan.cpu + 1)
        return replace(plan, cpu=plan.cpu - 1) if plan.cpu > 1 else replace(plan, extra=plan.extra + 1)

    def _first(self) -> Plan:
        """Buffers of the best ratio; where one batch of the CPU is too much beside a buffer, the device does more."""
        ratio = best_ratio(self.profile)
        plan = buffers(ratio, self.device)
        if plan.mode == "both" and ratio > self.device:
            return replace(plan, extra=round(ratio - self.device))
        return plan


class Scheduler:
    """Runs plans, by simulation or for real, keeps the best of them, and says when to stop.

    Args:
        profile: Seconds of the steps.
        batches: Of an epoch.
        run: Runs an epoch by a plan; None: its simulation, after which neighbours of the best plan are tried as well.

    Example:
        >>> scheduler = Scheduler(Profile(4.0, 2.0, 1.0, 1.0), 100)
        >>> feedback, best, done = scheduler(Plan(10, 10))
        >>> feedback.seconds, best, done
        (202.0, Plan(cpu=10, device=10, extra=0), False)
    """

    def __init__(self, profile: Profile, batches: int, run: Callable[[Plan], Timeline] | None = None) -> None:
        self._profile, self._refines = profile, run is None
        self._run = run or (lambda plan: simulate(profile, plan, batches))
        self._tried: dict[Plan, Feedback] = {}
        self._best: Plan | None = None
        self._stale, self.reason = 0, ""

    @property
    def choice(self) -> Choice:
        """The best plan so far, and those that were run."""
        if self._best is None:
            return Choice(buffers(best_ratio(self._profile)), float("inf"), (), "no plan was run")
        tried = tuple((plan, seen.seconds) for plan, seen in self._tried.items())
        return Choice(self._best, self._tried[self._best].seconds, tried, self.reason)

    def __call__(self, plan: Plan) -> tuple[Feedback, Plan, bool]:
        """Runs a plan: what it showed, the best plan so far, and whether there is nothing left to try."""
        known = plan in self._tried
        seen = self._try(plan)
        self.reason = self._why_stop(plan, seen, known)
        if self.reason:
            self._try_others(plan.device or plan.cpu)
        return seen, self.choice.plan, bool(self.reason)

    def _try(self, plan: Plan) -> Feedback:
        if plan in self._tried:
            return self._tried[plan]
        line = self._run(plan)
        self._tried[plan] = seen = Feedback(line.seconds, line.cpu_waits, line.device_waits)
        least = float("inf") if self._best is None else self._tried[self._best].seconds
        is_best = seen.seconds < least or (plan.mode != "both" and seen.seconds == least)  # of equals the simpler one
        self._best, self._stale = (plan, 0) if is_best else (self._best, self._stale + 1)
        return seen

    def _why_stop(self, plan: Plan, seen: Feedback, known: bool) -> str:
        """Why no further plan is asked for; empty where one is."""
        if plan.mode != "both":
            return f"only the {plan.mode} prepares"
        if abs(seen.mismatch) < self._profile.device_batch:
            return "both sides wait less than one batch of the device takes"
        if known:
            return "the next plan was tried before"
        if self._stale >= MOST_STALE:
            return f"{MOST_STALE} plans without gain"
        return f"{MOST_ROUNDS} rounds" if len(self._tried) >= MOST_ROUNDS - 2 * MOST_STALE else ""

    def _try_others(self, device: int) -> None:
        """One side alone, where overlapping has nothing to give; of a simulation the neighbours of the best, too."""
        before = self._best
        for plan in (Plan(device, 0), Plan(0, device)):
            self._try(plan)
        moved = self._refines
        while moved and self._best is not None and len(self._tried) < MOST_ROUNDS - 9:
            centre = self._best
            for plan in _around(centre):
                self._try(plan)
            moved = self._best != centre
        if self._best is not None and self._best != before:
            alone = self._best.mode != "both"
            self.reason = f"only the {self._best.mode} prepares" if alone else "no neighbour is better"


def _around(plan: Plan) -> list[Plan]:
    """Plans with one batch more or less on either side."""
    if plan.mode != "both":
        return []
    steps = itertools.product((-1, 0, 1), (-1, 0, 1))
    pairs = [(plan.cpu + c, plan.extra + e) for c, e in steps]
    return [Plan(cpu, plan.device, extra) for cpu, extra in pairs if cpu >= 1 and extra >= 0]


def choose(
    profile: Profile,
    batches: int,
    device: int = USUAL_BUFFER,
    run: Callable[[Plan], Timeline] | None = None,
) -> Choice:
    """The plan of an epoch.

    Args:
        profile: Seconds of the steps.
        batches: Of the epoch.
        device: Size of the device's buffer, in batches.
        run: Runs an epoch by a plan; None: its simulation.

    Example:
        >>> choose(Profile(4.0, 2.0, 1.0, 1.0), 100).plan.mode
        'both'
    """
    partitioner, scheduler = Partitioner(profile, device), Scheduler(profile, batches, run)
    feedback, plan, done = None, None, False
    while not done:
        plan = partitioner(feedback, plan)
        feedback, _, done = scheduler(plan)
    return scheduler.choice


def explain(profile: Profile, batches: int, choice: Choice | None = None) -> str:
    """Why batches are prepared where they are, in one line; of a choice with its seconds, else by the closed form."""
    ends = epoch_seconds(profile, 0.0, batches), epoch_seconds(profile, float("inf"), batches)
    warned = f"; times vary: {', '.join(profile.unsteady())}" if profile.unsteady() else ""
    if choice is None:
        ratio = best_ratio(profile)
        share, here = 100 / (1 + ratio), epoch_seconds(profile, ratio, batches)
    else:
        routes = choice.plan.routes(batches)
        share, here = 100 * routes.count("cpu") / max(len(routes), 1), choice.seconds
        warned = f", never below {least_seconds(profile, batches):.3g}{warned}"
    return (
        f"{share:.0f} % by the CPU: {here:.3g} s an epoch; CPU alone {ends[0]:.3g}, device alone {ends[1]:.3g}{warned}"
    )


__all__ = ["MOST_ROUNDS", "MOST_STALE", "Choice", "Feedback", "Partitioner", "Scheduler", "choose", "explain"]
