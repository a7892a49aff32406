"""What prepares, sends and trains batches, by name, and how long it takes.

Comes in: functions registered as ``{phase}_{place}_{operator}``, such as ``batch_cpu_neighbor``. Goes out: the
function, and a :class:`Profile` of the four that a place needs. Another accelerator joins by registration. Source:
MorphGL, section IV-A.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from graphweft._errors import ConfigError, UnsteadyWarning
from graphweft.schedule.split import STEPS, Profile

PHASES = ("batch", "send", "model")
# Takes the number of a batch and what the step before it made, None for the first; returns what the next one takes.
Operator = Callable[[int, Any], Any]


class Operators:
    """A table of operators.

    Example:
        >>> table = Operators()
        >>> @table.register("batch_cpu_nothing")
        ... def nothing(batch, given):
        ...     return batch
        >>> table["batch_cpu_nothing"](3, None), table.of("batch", "cpu")
        (3, ['batch_cpu_nothing'])
    """

    def __init__(self) -> None:
        self._table: dict[str, Operator] = {}

    def register(self, name: str) -> Callable[[Operator], Operator]:
        """Adds an operator. Raises: ConfigError for a name of another form."""
        phase, place, operator = [*name.split("_", 2), "", ""][:3]
        if phase not in PHASES or not place or not operator:
            raise ConfigError(f"operator: expected phase_place_name with phase {', '.join(PHASES)}, got {name!r}")

        def add(function: Operator) -> Operator:
            self._table[name] = function
            return function

        return add

    def __getitem__(self, name: str) -> Operator:
        """Raises: ConfigError for an unknown one."""
        if name not in self._table:
            raise ConfigError(f"operator: expected one of {', '.join(sorted(self._table)) or 'none'}, got {name!r}")
        return self._table[name]

    def of(self, phase: str, place: str) -> list[str]:
        """Names of the operators of a phase at a place."""
        return sorted(name for name in self._table if name.startswith(f"{phase}_{place}_"))

    def steps_of(self, place: str) -> dict[str, str]:
        """The operators of the four steps that a place beside the CPU needs, by step.

        Raises: ConfigError where a phase has none at the place, or several.
        """
        wanted = {"cpu_batch": ("batch", "cpu"), "device_batch": ("batch", place)}
        wanted |= {"send": ("send", place), "model": ("model", place)}
        found = {}
        for step, (phase, at) in wanted.items():
            names = self.of(phase, at)
            if len(names) != 1:
                got = ", ".join(names) or "none"
                raise ConfigError(f"operator: expected one operator {phase}_{at}_*, got {got}")
            found[step] = names[0]
        return found


class Profiler:
    """Mean seconds of the four steps of a place over some batches, and their coefficients of variation.

    Every batch is prepared on both sides, sent and trained, one step at a time; a first round is not counted. An
    operator returns when its work is over. Steps whose times vary by more than a fifth are warned about.

    Args:
        operators: The table.
        place: The place beside the CPU.
        batches: How many are measured.
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
    ) -> None:
        if batches < 1:
            raise ConfigError(f"batches: expected at least 1 to measure, got {batches}")
        self._steps = {step: operators[name] for step, name in operators.steps_of(place).items()}
        self._batches, self._clock = batches, clock
        self.seconds = 0.0

    def measure(self) -> Profile:
        """The profile. ``seconds`` is what measuring took."""
        begun = self._clock()
        taken: dict[str, list[float]] = {step: [] for step in STEPS}
        self._round(0, {step: [] for step in STEPS})
        for batch in range(self._batches):
            self._round(batch, taken)
        means = {step: statistics.fmean(seconds) for step, seconds in taken.items()}
        variation = {step: statistics.pstdev(taken[step]) / mean if mean else 0.0 for step, mean in means.items()}
        profile = Profile(**means, variation=variation)
        self.seconds = self._clock() - begun
        if profile.unsteady():
            told = ", ".join(f"{step} {variation[step]:.2f}" for step in profile.unsteady())
            warnings.warn(
                f"Profiler: times of steps vary, their means say little (coefficient of variation: {told})",
                UnsteadyWarning,
                stacklevel=2,
            )
        return profile

    def _round(self, batch: int, taken: dict[str, list[float]]) -> None:
        """Both routes of one batch."""
        for route in (("cpu_batch", "send", "model"), ("device_batch", "model")):
            made = None
            for step in route:
                begin = self._clock()
                made = self._steps[step](batch, made)
                taken[step].append(self._clock() - begin)


__all__ = ["PHASES", "Operator", "Operators", "Profiler"]
