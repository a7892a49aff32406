"""What a plan promised and what came: seconds of an epoch and the peak of the memory, compared as a run goes on.

Comes in: a plan or the memory that was predicted, and every epoch's seconds. Goes out: both figures, and one line for
each that was off. Called by the trainer. A run goes on as it was planned; the profile of a machine that was calibrated
is corrected by seconds that were off, so that the next plan is told by this run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from graphweft import _machine
from graphweft._budget import in_force, own_bytes
from graphweft._memory import POOL
from graphweft.cost import Works
from graphweft.data.dataset import Dataset
from graphweft.runtime.machine import Machine
from graphweft.storage.memory_size import shown_bytes
from graphweft.train.durations import duration
from graphweft.train.history import History
from graphweft.train.needs import Needs, RunBudget, data_bytes
from graphweft.train.plan import Plan
from graphweft.train.strategies import PAGES

SECONDS_BOUND, PEAK_BOUND = 0.25, 0.15
_ENOUGH = 3  # epochs after the first, which compiles and fills caches


@dataclass
class Promise:
    """Predictions of a run, and what was measured of them.

    Attributes:
        plan: The plan that the run follows; None where nobody asked for one.
        budget: The memory that the run may take; None: any.
        floor: Own bytes of the process that are not the run's.
        peak_bytes: The most that the run was seen to take, at the ends of epochs.
        deviations: What was off, a line each.
        works: Tells what an epoch does, and the seconds on one thread that are known beside it; None where seconds are
            not predicted.
    """

    plan: Plan | None = None
    budget: RunBudget | None = None
    floor: int = 0
    peak_bytes: int = 0
    deviations: list[str] = field(default_factory=list)
    works: Callable[[], tuple[Works, float] | None] | None = None
    _seconds: list[float] = field(default_factory=list)
    _told: dict[str, bool] = field(default_factory=dict)

    @property
    def needs(self) -> Needs | None:
        """The memory that was predicted; None where nothing was."""
        if self.budget is not None:
            return self.budget.needs
        return None if self.plan is None else self.plan.strategy.needs

    @property
    def predicted(self) -> dict[str, float]:
        """``epoch_seconds`` and ``peak_bytes``, where they are known."""
        seconds = None if self.plan is None else self.plan.epoch_seconds
        known = {"epoch_seconds": seconds, "peak_bytes": None if self.needs is None else self.needs.total}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def measured(self) -> dict[str, float]:
        """The same as it came: the median of the epochs after the first, and the most bytes."""
        if not self.predicted or len(self._seconds) < 2:
            return {}
        return {"epoch_seconds": statistics.median(self._seconds[1:]), "peak_bytes": self.peak_bytes}

    def begin(self, ds: Dataset) -> None:
        """The run takes memory from now on; what the pool has free is taken first."""
        stats = POOL.stats()
        around = in_force()
        self.floor = own_bytes() - data_bytes(ds) - (stats.mapped - stats.lent) if around is None else around.floor

    def end_epoch(self, seconds: float, history: History, say: Callable[[str], object] | None) -> None:
        """An epoch took so long; what is off now and was not told before is told."""
        for line in self._look(seconds):
            if say is not None:
                say(f"note: {line}")
        history.predicted, history.measured = self.predicted, self.measured

    def correct_profile(self) -> None:
        """After training: the costs of this machine come nearer to what an epoch took, where they were off.

        Only of a machine that was calibrated, as others have no profile, and that does not run more than this. The
        later half of the epochs counts: at first ways of preparing batches are tried.
        """
        later, predicted = self._seconds[len(self._seconds) // 2 :], self.predicted.get("epoch_seconds")
        if self.works is None or not predicted or len(self._seconds) <= _ENOUGH:
            return
        seconds = statistics.median(later)
        machine = Machine.here()
        if abs(seconds / predicted - 1) <= SECONDS_BOUND or machine.error is None or _machine.is_busy():
            return
        found = self.works()
        if found is None:
            return
        works, known = found
        paging = 0.0 if self.plan is None else self.plan.strategy.seconds.get(PAGES, 0.0)
        machine.corrected(works, seconds - known / torch.get_num_threads() - paging).remember()

    def _look(self, seconds: float) -> list[str]:
        """Lines about what is off and was not told before."""
        self._seconds.append(seconds)
        if not self.predicted:
            return []
        self.peak_bytes = max(self.peak_bytes, own_bytes() - self.floor)
        found = [line for name, line in self._off() if not self._told.get(name)]
        self._told |= {name: True for name, _ in self._off()}
        self.deviations += found
        return found

    def _off(self) -> list[tuple[str, str]]:
        """What is beyond its bound now, with its name."""
        found = []
        predicted, measured = (of.get("epoch_seconds", 0.0) for of in (self.predicted, self.measured))
        known = predicted and measured and len(self._seconds) > _ENOUGH
        if known and self.plan is not None and abs(measured / predicted - 1) > SECONDS_BOUND:
            line = (
                f"an epoch takes {duration(measured)}, predicted were {duration(predicted)}, most of them "
                f"{self.plan.strategy.slowest}; graphweft doctor --calibrate measures this machine"
            )
            found.append(("seconds", line))
        needs = self.needs
        # modules may be there already
        least = 0 if needs is None else (1 - PEAK_BOUND) * (needs.running - needs.program)
        if needs is not None and needs.step and not least <= self.peak_bytes <= (1 + PEAK_BOUND) * needs.running:
            taken, wanted = shown_bytes(self.peak_bytes), shown_bytes(needs.running)
            found.append(("memory", f"the run takes {taken}, predicted were {wanted} ({self._account(needs)})"))
        return found

    def _account(self, needs: Needs) -> str:
        """Which part of the memory was off by more: what the pool maps, or all else."""
        mapped, pooled = POOL.stats().mapped, needs.kept + needs.batches + needs.step + needs.evaluation
        rest, own = max(self.peak_bytes - mapped, 0), needs.running - pooled
        if abs(mapped - pooled) >= abs(rest - own):
            return f"tensors of steps and evaluations: {shown_bytes(mapped)}, not {shown_bytes(pooled)}"
        return f"data, parameters and programs: {shown_bytes(rest)}, not {shown_bytes(own)}"

    def facts(self) -> dict[str, Any]:
        """Predicted beside measured, ready for JSON; empty where nothing was predicted."""
        predicted, measured, size = self.predicted, self.measured, 2**20
        if not predicted:
            return {}
        peaks = {"predicted_mb": predicted.get("peak_bytes"), "measured_mb": measured.get("peak_bytes")}
        return {
            "predicted_epoch_seconds": predicted.get("epoch_seconds"),
            "measured_epoch_seconds": measured.get("epoch_seconds"),
            **{name: None if count is None else round(count / size, 1) for name, count in peaks.items()},
            "deviations": list(self.deviations),
        }


__all__ = ["PEAK_BOUND", "SECONDS_BOUND", "Promise"]
