"""What a trainer asks of the way in which an epoch is trained: of full batches and of every kind of mini-batches.

Comes in: nothing. Goes out: the base of :class:`FullBatch` and :class:`MiniBatch`, with the answers of one that takes a
single step an epoch and leaves nothing half done. The trainer knows no other names of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from graphweft.data.dataset import Part
from graphweft.passes.work import Sizes
from graphweft.runtime.staged import StagedPlan
from graphweft.train.format_trial import FormatTrial
from graphweft.train.metrics import Evaluation
from graphweft.train.settle import Features
from graphweft.train.target import Target


class Steps(ABC):
    """An epoch of training, and an evaluation.

    Attributes:
        target: How labels are trained on.
        rows: The rows of each split that count.
        x: Features in the layout that was chosen.
        after_batch: Called with batches done, batches of the epoch and the mean loss so far, where there are several.
        is_single: An epoch is one step.
    """

    target: Target
    rows: dict[Part, Tensor]
    x: Features
    after_batch: Callable[[int, int, float], None] = staticmethod(lambda done, total, loss: None)
    is_single = True

    @property
    def batches_done(self) -> int:
        """Batches of the epoch under way that were trained on."""
        return 0

    @property
    def formats(self) -> FormatTrial | None:
        """The choice of formats by measurement, where there was one."""
        return None

    @property
    def metric(self) -> str:
        """What the scores are."""
        return self.target.metric

    def features(self) -> Features:
        """Those of :attr:`x`, by node as in the data."""
        return self.x

    def pause(self) -> None:
        """Gives up memory that steps alone need; the next step takes it again."""
        return

    @abstractmethod
    def prepare(self) -> None:
        """Compiles, and computes what stays the same."""

    @abstractmethod
    def step(self) -> Tensor:
        """One epoch, or the rest of one; its loss, shape ()."""

    @abstractmethod
    def logits(self) -> Tensor:
        """The outputs for all rows, in evaluation mode."""

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Score of every split and the validation loss."""

    @abstractmethod
    def refresh(self) -> bool:
        """Takes up data that were changed in place; whether labels or splits are others."""

    def guarded(self) -> dict[str, Any]:
        """What the quality guard measured in the epoch that is done, by column."""
        return {}

    def measured(self) -> dict[str, float]:
        """Further numbers of the epoch that is done, by column."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """What a user should hear of after the first epoch."""
        return ()

    def replay_report(self) -> dict[str, Any]:
        """Bounds of batches and launches of a replayed step; empty where none is replayed."""
        return {}

    def scheduled(self) -> str:
        """Where batches are prepared and trained, and why; empty where the CPU does everything."""
        return ""

    def staged_plan(self) -> tuple[StagedPlan, Sizes] | None:
        """The compiled batch and its sizes; None where sampler and model are not one program."""
        return None

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {}

    def go_on_as(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Takes over what a run with the configuration ``saved`` chose by itself; what decides the batches now."""
        return self.identity()

    def within_epoch(self) -> dict[str, Any]:
        """Where the epoch under way stands, for checkpoints."""
        return {}

    def continue_epoch(self, state: dict[str, Any]) -> None:  # noqa: B027 nothing to do where nothing is half done
        """Goes on where a checkpoint stood."""
