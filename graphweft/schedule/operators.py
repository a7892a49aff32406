"""What prepares, sends and trains batches, by name, and how long it takes.

Comes in: functions registered as ``{phase}_{place}_{operator}``, such as ``batch_cpu_neighbor``. Goes out: the
function, and a :class:`Profile` of four of them. Another accelerator joins by registration. Source: MorphGL, section
IV-A.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from graphweft._errors import ConfigError
from graphweft.schedule.split import STEPS, Profile

PHASES = ("batch", "send", "model")
Operator = Callable[[int], Any]  # takes the number of a batch


class Operators:
    """A table of operators.

    Example:
        >>> table = Operators()
        >>> @table.register("batch_cpu_nothing")
        ... def nothing(batch):
        ...     return batch
        >>> table["batch_cpu_nothing"](3), table.of("batch", "cpu")
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


def measure(
    cpu_batch: Operator,
    device_batch: Operator,
    send: Operator,
    model: Operator,
    batches: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Mean seconds of the four steps over some batches, and their coefficients of variation.

    Each is called once beforehand, with batch 0. An operator returns when its work is over.
    """
    means, variation = {}, {}
    for name, operator in zip(STEPS, (cpu_batch, device_batch, send, model), strict=True):
        operator(0)
        taken = []
        for batch in range(batches):
            begin = clock()
            operator(batch)
            taken.append(clock() - begin)
        means[name] = statistics.fmean(taken)
        variation[name] = statistics.pstdev(taken) / means[name] if means[name] else 0.0
    return Profile(**means, variation=variation)


__all__ = ["PHASES", "Operator", "Operators", "measure"]
