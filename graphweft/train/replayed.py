"""Which mini-batches are replayed from a step that was written down, and which run as they come.

Comes in: prepared batches, one after the other. Goes out: loss and gradients of those that fit the bounds; None for the
others. The first epoch shows how many rows and edges batches have; from the second on a batch within these bounds is
replayed, and one beyond them, or with fewer seeds, as the last of an epoch, runs as it comes and is counted. Called by
:class:`MiniBatch`. Source: Joestar, section 5.4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft import _config
from graphweft._errors import CheckpointError, ConfigError, FallbackWarning
from graphweft.runtime.captured import Captured, MakeLoss, Step
from graphweft.runtime.captures import capture
from graphweft.runtime.padded import Bounds, Shapes
from graphweft.runtime.staged import PreparedBatch, StagedPlan
from graphweft.runtime.targets import target_of
from graphweft.train.batch_gradients import add_gradients
from graphweft.train.first_replay import Found, first_replay
from graphweft.train.update import Update

SLACK = 0.05  # by how much bounds are larger than what the first epoch needed


@dataclass(frozen=True)
class StepParts:
    """What steps of an epoch are made of.

    Attributes:
        loss: Makes the loss from the labels of a batch; None where no target records it.
        draws: Whether the model draws random numbers.
        device: Where the model is.
        model: Its name, for messages.
        update: Of the parameters; a device records it as well, where it can.
    """

    loss: MakeLoss | None
    draws: bool
    device: torch.device
    model: str
    update: Update | None = None

    @property
    def records_update(self) -> bool:
        """Whether a recorded step makes the update, too."""
        return self.update is not None and not target_of(self.device).blocking and self.update.is_recordable()


class Replays:
    """Bounds, the step that was written down, and counts.

    Args:
        asked: "on" or "auto", which on the CPU replays nothing.

    Attributes:
        bounds: After the first epoch.
        replayed: Batches of the epoch under way that were replayed.
        fallbacks: Those that were not, once there were bounds.
        refused: Why none is replayed; "" where they are.
        launches: Of a replayed step; 0 before there is one.
    """

    def __init__(self, asked: str) -> None:
        self.asked, self.refused = asked, ""
        self.bounds: Bounds | None = None
        self._has_updated = False
        self.replayed = self.fallbacks = self.launches = 0
        self._seen: Bounds | None = None
        self._plan: StagedPlan | None = None
        self._shapes: Shapes | None = None
        self._step: Captured | None = None
        self._made_for: tuple[Any, ...] = ()
        self._given = StepParts(None, False, torch.device("cpu"), "")

    def prepare(self, plan: StagedPlan | None, given: StepParts) -> None:
        """Takes up another plan. Raises: ConfigError where replays were asked for and its batches have none."""
        self._given = given
        if plan is self._plan and (plan is not None or self.refused):
            return
        if plan is not None and self._plan is not None:
            self.bounds = self._seen = None
        self._plan, self._step, self._shapes = plan, None, None
        if plan is None:
            self.refused = f"{given.model} is not compiled together with its sampler"
        else:
            self._shapes = Shapes(plan.plan)
            self.refused = self._shapes.refused or _refused(given)
        if self.refused and self.asked == "on":
            raise ConfigError(f"cuda_graphs='on' cannot be combined with {given.model}: {self.refused}")
        target = target_of(given.device)
        if not self.refused and target.capture is None:
            self.refused = f"the target {target.name} records no step"
        if self.asked == "auto" and target.blocking:
            self.refused = "the CPU replays batches where cuda_graphs='on' asks for it"

    def refuses(self, plan: StagedPlan | None) -> bool:
        """Whether it is settled that no batch of this plan is replayed."""
        return bool(self.refused) and plan is self._plan

    def begin_epoch(self) -> None:
        """Counts begin anew."""
        self.replayed = self.fallbacks = 0

    def end_epoch(self) -> None:
        """The bounds are known after the first one."""
        if self.bounds is None and self._seen is not None:
            self.bounds = self._seen.widened(SLACK)

    def __call__(
        self, batch: PreparedBatch, labels: Tensor, key: int, tensors: dict[str, Tensor], eager: Callable[[], Found]
    ) -> Found | None:
        """Loss, shape (), and gradients by name, in memory that the next batch writes; None where it runs as it comes.

        ``tensors``: parameters and buffers of numbers by name. ``eager``: the step without a replay, with which the
        first one is compared.
        """
        self._has_updated = False
        if self.refused or self._shapes is None or batch.plan is not self._plan:
            self.fallbacks += self.bounds is not None
            return None
        sizes = self._shapes.of(batch.batch_size, batch.values)
        if self.bounds is None:
            self._seen = sizes if self._seen is None else self._seen.joined(sizes)
            return None
        found = self._replay(sizes, batch, labels, key, tensors, eager)
        self.replayed, self.fallbacks = self.replayed + (found is not None), self.fallbacks + (found is None)
        return found

    def takes_update(self) -> bool:
        """Whether the update of the last batch was part of its replay; asked once a batch."""
        had, self._has_updated = self._has_updated, False
        return had

    def _replay(
        self,
        sizes: Bounds,
        batch: PreparedBatch,
        labels: Tensor,
        key: int,
        tensors: dict[str, Tensor],
        eager: Callable[[], Found],
    ) -> Found | None:
        assert self.bounds is not None  # else the first epoch goes on
        if sizes.rows[0] != self.bounds.rows[0] or not self.bounds.holds(sizes):
            return None
        given, updates = self._given, self._given.records_update
        places: tuple[Any, ...] = ()
        if given.update is not None and updates:
            given.update.write_rates()
            places = given.update.places()
        lie = (*((t.data_ptr(), t.requires_grad) for t in tensors.values()), *places)
        made_for = (_config.current(), batch.plan.address, *lie)
        found: Found | None
        if self._step is not None and made_for == self._made_for:
            found = self._step(batch, labels, key)
        else:
            self._step = None  # gives its memory back before there is another
            self._step, self._made_for = self._captured(batch, labels, tensors, updates), made_for
            if self._step is None:
                self.refused = self.refused or f"a step of {given.model} cannot be written down on {given.device}"
                return None
            self.launches = self._step.launches
            found = self._first(self._step, batch, labels, key, tensors, eager)
        self._has_updated = found is not None and self._step is not None and self._step.updates
        return found

    def _first(
        self,
        step: Captured,
        batch: PreparedBatch,
        labels: Tensor,
        key: int,
        tensors: dict[str, Tensor],
        eager: Callable[[], Found],
    ) -> Found | None:
        """The first replay, if it is what the step is."""
        update = self._given.update

        def whole() -> Found:
            found = eager()
            if step.updates and update is not None:
                add_gradients(tensors, found[1])
                update.step()
            return found

        could = True

        def replay() -> Found | None:
            nonlocal could
            found = step(batch, labels, key)
            could = found is not None
            return found

        held = [*tensors.values(), *update.held()] if step.updates and update is not None else []
        _clear(tensors)  # of what was recorded
        found = first_replay(whole, replay, held, step.exact)
        _clear(tensors)
        if found is None and could:
            self._step, self.refused = None, f"a replayed step of {self._given.model} was not the step"
        return found

    def _captured(
        self, batch: PreparedBatch, labels: Tensor, tensors: dict[str, Tensor], updates: bool
    ) -> Captured | None:
        given = self._given
        assert given.loss is not None and self._shapes is not None and self.bounds is not None  # else refused
        update = given.update.step if given.update is not None and updates else None
        step = Step(batch.plan, self._shapes, tensors, given.loss, given.draws, given.device, update)
        try:
            return capture(step, self.bounds, batch, labels)
        except torch.OutOfMemoryError:
            self.refused = f"{given.device} has no memory for a recorded step, which keeps its own"
        except RuntimeError as failure:  # of the device; batches run as they come
            said = " ".join(str(failure).split("\n", 1)[0].split())
            self.refused = f"a step of {given.model} was not recorded: {said}"
            warnings.warn(f"cuda_graphs: {self.refused}; batches run as they come", FallbackWarning, stacklevel=2)
        return None

    @property
    def counts(self) -> bool:
        """Whether batches are looked at: some may be replayed, or somebody asked for it."""
        return self.asked == "on" or not self.refused

    def measured(self) -> dict[str, float]:
        """Counts of the epoch, by column; none where nothing can be replayed."""
        if not self.counts:
            return {}
        return {"replayed": float(self.replayed), "fallbacks": float(self.fallbacks)}

    def report(self) -> dict[str, Any]:
        """What a summary says: bounds, launches of a step, and why nothing is replayed."""
        bounds = {} if self.bounds is None else {"rows": list(self.bounds.rows), "edges": list(self.bounds.edges)}
        updates = {"updates": self._step.updates} if self._step is not None else {}
        return {"launches": self.launches, **updates, **bounds, **({"refused": self.refused} if self.refused else {})}

    def state_dict(self) -> dict[str, Any]:
        """Bounds and counts, so that a run that is taken up replays the same batches."""
        known = self.bounds or self._seen
        parts = {} if known is None else {"rows": list(known.rows), "edges": list(known.edges)}
        counts = {"replayed": self.replayed, "fallbacks": self.fallbacks}
        return {"are_bounds": self.bounds is not None, **parts, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`. Raises: CheckpointError for another state."""
        try:
            known = Bounds(tuple(state["rows"]), tuple(state["edges"])) if "rows" in state else None
            self.bounds, self._seen = (known, None) if state["are_bounds"] else (None, known)
            self.replayed, self.fallbacks = int(state["replayed"]), int(state["fallbacks"])
        except (KeyError, TypeError, ValueError) as failure:
            raise CheckpointError(f"replays: expected bounds and counts, got {sorted(state)}") from failure


def _clear(tensors: dict[str, Tensor]) -> None:
    """Gradients are none."""
    for tensor in tensors.values():
        tensor.grad = None


def _refused(given: StepParts) -> str:
    """Why a step cannot be written down whatever the batch; "" where it may be."""
    if given.loss is None:
        return "its loss is computed in Python"
    if _config.current().precision != "float32" and "rows" in target_of(given.device).rounds_in_batches:
        return f"precision={_config.current().precision} rounds rows by the sizes of a batch"
    if _config.current().tune:
        return "formats of batches are being measured"
    return ""


__all__ = ["SLACK", "Replays", "StepParts"]
