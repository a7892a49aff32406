"""The profile of a machine, as a value and as a file: what plans are priced by.

Comes in: a file, or what was measured here. Goes out: a :class:`Machine`. Written by ``graphweft doctor --calibrate``,
read by the planner; a file of one machine answers on another what a run would take there.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graphweft import _config, _machine
from graphweft._decisions import keep
from graphweft._errors import ConfigError
from graphweft._native import LEVEL
from graphweft.cost import CostModel, Works
from graphweft.runtime import calibrate
from graphweft.runtime.prediction import THREADS

_FORMAT = "graphweft machine 1"
_USUAL_DISK = 5e8
_WEIGHT, _FITS = 0.15, 4  # of the costs that there are, where one run corrects them; times it does, each from the last


@dataclass(frozen=True)
class Machine:
    """The profile of a machine, by which plans predict time.

    Attributes:
        processor: Name of the processor.
        level: Instruction set level of the kernels.
        threads: Number of threads that the costs hold for.
        memory: Bytes of memory.
        disk_bytes_per_second: Speed of sequential reading.
        costs: Cost coefficients of kernels and of the work around them.
        error: Mean relative error of the costs on the measurements; None for the built-in costs.
    """

    processor: str
    level: str
    threads: int
    memory: int
    disk_bytes_per_second: float = _USUAL_DISK
    costs: CostModel = field(default_factory=CostModel)
    error: float | None = None

    @classmethod
    def here(cls) -> Machine:
        """The last calibration of this machine for so many threads, or the built-in costs."""
        path = profile_file()
        if path.is_file():
            try:
                return cls.read(path)
            except ConfigError:  # a damaged file of the cache counts as none
                pass
        return cls.known()

    @classmethod
    def known(cls, **measured: Any) -> Machine:
        """This machine with the figures of ``measured``, and defaults for the others."""
        threads = torch.get_num_threads() if measured else THREADS
        return cls(calibrate.processor().partition(": ")[2] or "unknown", LEVEL, threads, _machine.memory(), **measured)

    @classmethod
    def read(cls, path: str | Path) -> Machine:
        """Reads a profile from a file. Raises: ConfigError for another file, or a damaged one."""
        wanted = "a file of graphweft doctor --calibrate --out"
        try:
            given = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as failure:
            raise ConfigError(f"machine: expected {wanted}, got {path}: {failure.strerror}") from None
        except ValueError:
            raise ConfigError(f"machine: expected {wanted}, got {path}, which is no JSON") from None
        if not isinstance(given, dict) or given.pop("format", None) != _FORMAT:
            raise ConfigError(f"machine: expected {wanted}, got {path} without format {_FORMAT!r}")
        try:
            costs = CostModel.from_json(json.dumps(given.pop("costs")))
            made = cls(costs=costs, **given)
            numbers = (made.threads, made.memory, made.disk_bytes_per_second, *sum(costs.coefficients.values(), ()))
            if not (all(math.isfinite(n) and n >= 0 for n in numbers) and min(numbers[:3]) > 0):
                raise ValueError("a number that is negative or not finite")
            if not (isinstance(made.threads, int) and isinstance(made.processor, str)):
                raise ValueError("a number of threads or a name of another kind")
        except (TypeError, ValueError, KeyError, AttributeError) as failure:
            text = " ".join(str(failure).split())[:120]
            raise ConfigError(f"machine: expected {wanted}, got {path} with {text}") from None
        return made

    def write(self, path: str | Path) -> None:
        """Writes a file for :meth:`read`. Raises: OSError."""
        Path(path).write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        return json.dumps(self.facts(), indent=2) + "\n"

    def remember(self) -> None:
        """Stores this as the profile of this machine, if the cache folder can be written."""
        keep(profile_file().name, self._text())

    def corrected(self, works: Works, seconds: float) -> Machine:
        """A profile whose costs give about ``seconds`` for ``works``. Costs with the largest share change most."""
        costs = self.costs
        for _ in range(_FITS if seconds > 0 else 0):
            costs = costs.fit_sums([(works, seconds)], _WEIGHT)
        return replace(self, costs=costs)

    def facts(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"format": _FORMAT, **asdict(self), "costs": json.loads(self.costs.to_json())}

    def scale(self, threads: int) -> float:
        """Factor of the seconds for another number of threads."""
        return self.threads / threads

    def __str__(self) -> str:
        known = "built-in costs; graphweft doctor --calibrate measures" if self.error is None else "calibrated"
        return f"{self.processor}, {self.threads} threads, {known}"


def profile_file() -> Path:
    """Where this machine's profile is kept."""
    return _config.current().cache_path / f"profile-{calibrate.machine_key()}.json"


__all__ = ["Machine", "profile_file"]
