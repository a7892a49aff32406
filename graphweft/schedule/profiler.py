"""How long the steps of a batch take, and how much that varies.

Comes in: a table of operators and the name of a place. Goes out: a :class:`Profile`. Called by the trainer and by users
with operators of their own. Source: MorphGL, section IV-B1.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

from graphweft._errors import ConfigError, UnsteadyWarning
from graphweft.schedule.operators import Operators
from graphweft.schedule.run import Executor
from graphweft.schedule.split import STEPS, Plan, Profile

_HALF = 4  # batches of either side in a round


class Profiler:
    """Mean seconds of the four steps of a place over some batches, and their coefficients of variation.

    An operator returns when its work is over. Steps whose times vary by more than a fifth are warned about.

    Args:
        operators: The table.
        place: The place beside the CPU.
        batches: How many are measured.
        warm: How many of them are gone through before, as caches fill and memory is taken.
        clock: Seconds.

    Example:
        >>> now, table = [0.0], Operators()
        >>> for name, seconds in (("batch_cpu_a", 4), ("batch_npu_a", 2), ("send_npu_a", 1), ("model_npu_a", 1)):
        ...     _ = table.register(name)(lambda batch, given, s=seconds: now.__setitem__(0, now[0] + s))
        >>> profile = Profiler(table, "npu", clock=lambda: now[0]).measure()
        >>> profile.cpu_batch, profile.variation["model"]
        (4.0, 0.0)
    """

    def __init__(
        self,
        operators: Operators,
        place: str,
        batches: int = 10,
        clock: Callable[[], float] = time.perf_counter,
        warm: int = 3,
    ) -> None:
        if batches < 1:
            raise ConfigError(f"batches: expected at least 1 to measure, got {batches}")
        self._steps = {step: operators[name] for step, name in operators.steps_of(place).items()}
        self._batches, self._clock, self._warm = batches, clock, warm
        self._operators, self._place = operators, place
        self.seconds = 0.0

    def measure(self) -> Profile:
        """One step at a time: every batch is prepared on both sides, sent and trained; the first are not counted.

        ``seconds`` is then what measuring took.
        """
        begun = self._clock()
        taken: dict[str, list[float]] = {step: [] for step in STEPS}
        for batch in range(min(self._warm, self._batches)):
            self._round(batch, {step: [] for step in STEPS})
        for batch in range(self._batches):
            self._round(batch, taken)
        self.seconds = self._clock() - begun
        return _profile(taken)

    def measure_beside(self, batches: int) -> Profile:
        """While the other steps run, as in an epoch of halves over at most so many batches, which must be enough.

        Where places share cores, caches or memory this is closer to an epoch than one step at a time.
        """
        begun = self._clock()
        plan = Plan(_HALF, _HALF)
        count = min(batches, 2 * (self._batches + self._warm))
        line = Executor(self._operators, plan, self._place, self._clock).run(count)
        taken: dict[str, list[float]] = {step: [] for step in STEPS}
        for span in sorted(line.spans, key=lambda span: span.begin):
            taken[span.step].append(span.end - span.begin)
        for step, seconds in taken.items():
            warm = self._warm * (2 if step == "model" else 1)
            taken[step] = seconds[min(warm, len(seconds) // 2) :]
        if not all(taken.values()):
            return self.measure()
        self.seconds = self._clock() - begun
        return _profile(taken)

    def _round(self, batch: int, taken: dict[str, list[float]]) -> None:
        """Both routes of one batch."""
        for route in (("cpu_batch", "send", "model"), ("device_batch", "model")):
            made = None
            for step in route:
                begin = self._clock()
                made = self._steps[step](batch, made)
                taken[step].append(self._clock() - begin)


def _profile(taken: Mapping[str, Sequence[float]]) -> Profile:
    """Means and coefficients of variation; warns of those that vary."""
    means = {step: statistics.fmean(seconds) for step, seconds in taken.items()}
    variation = {step: statistics.pstdev(taken[step]) / mean if mean else 0.0 for step, mean in means.items()}
    profile = Profile(**means, variation=variation)
    if profile.unsteady():
        told = ", ".join(f"{step} {variation[step]:.2f}" for step in profile.unsteady())
        warnings.warn(
            f"Profiler: times of steps vary, their means say little (coefficient of variation: {told})",
            UnsteadyWarning,
            stacklevel=3,
        )
    return profile


__all__ = ["Profiler"]
