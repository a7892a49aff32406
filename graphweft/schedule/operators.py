"""What prepares, sends and trains batches, by name.

Comes in: functions registered as ``{phase}_{place}_{operator}``, such as ``batch_cpu_neighbor``. Goes out: the
functions, and the four that a place needs. Another accelerator joins by registration. Source: MorphGL, section IV-A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphweft._errors import ConfigError

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


__all__ = ["PHASES", "Operator", "Operators"]
