"""From a profile to the plan that is used: a first one in closed form, then better ones by what is seen to wait.

Comes in: a profile, a number of batches, and something that runs a plan: a simulation, or an epoch itself. Goes out: a
:class:`Choice`, whose plan is the best that was run. Called by those who prepare batches in two places. Source:
MorphGL, section IV-B3; ends by a small mismatch, by going round in a circle, or after trials without gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graphweft.schedule.dual_buffer import Timeline, simulate
from graphweft.schedule.split import USUAL_BUFFER, Plan, Profile, best_ratio, buffers, epoch_seconds

MOST_ROUNDS, MOST_STALE = 200, 20


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
        sizes = f"buffers of {self.plan.cpu} batches by the CPU and {self.plan.device} by the device"
        return f"{sizes}: {self.seconds:.3g} s{gain}, after {len(self.tried)} plans ({self.reason})"


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
    execute = run or (lambda plan: simulate(profile, plan, batches))
    plan = buffers(best_ratio(profile), device)
    tried: list[tuple[Plan, float]] = []
    best, stale, reason = (plan, float("inf")), 0, f"{MOST_ROUNDS} rounds"
    for _ in range(MOST_ROUNDS):
        line = execute(plan)
        tried.append((plan, line.seconds))
        best, stale = ((plan, line.seconds), 0) if line.seconds < best[1] else (best, stale + 1)
        mismatch = line.cpu_waits - line.device_waits
        following = _moved(plan, mismatch)
        if plan.mode != "both":
            reason = f"only the {plan.mode} prepares"
        elif abs(mismatch) < profile.device_batch:
            reason = "both sides wait less than one batch of the device takes"
        elif stale >= MOST_STALE:
            reason = f"{MOST_STALE} plans without gain"
        elif following in (known for known, _ in tried):
            reason = "the next plan was tried before"
        else:
            plan = following
            continue
        break
    for plan in (Plan(device, 0), Plan(0, device)):  # one side alone, where overlapping has nothing to give
        line = execute(plan)
        tried.append((plan, line.seconds))
        if line.seconds < best[1]:
            best, reason = (plan, line.seconds), f"only the {plan.mode} prepares"
    return Choice(best[0], best[1], tuple(tried), reason)


def _moved(plan: Plan, mismatch: float) -> Plan:
    """One batch moved to the side that waited."""
    return replace(plan, cpu=max(1, plan.cpu + (1 if mismatch > 0 else -1)))


def explain(profile: Profile, batches: int) -> str:
    """Why batches are prepared where they are, in one line."""
    ratio = best_ratio(profile)
    ends = epoch_seconds(profile, 0.0, batches), epoch_seconds(profile, float("inf"), batches)
    here = epoch_seconds(profile, ratio, batches)
    share = 100 / (1 + ratio)
    warned = f"; times vary: {', '.join(profile.unsteady())}" if profile.unsteady() else ""
    return (
        f"{share:.0f} % by the CPU: {here:.3g} s an epoch; CPU alone {ends[0]:.3g}, device alone {ends[1]:.3g}{warned}"
    )


__all__ = ["MOST_ROUNDS", "MOST_STALE", "Choice", "choose", "explain"]
