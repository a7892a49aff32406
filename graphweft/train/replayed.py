"""Which mini-batches are replayed from a step that was written down, and which run as they come.

Comes in: prepared batches, one after the other. Goes out: loss and gradients of those that fit the bounds; None for the
others. The first epoch shows how many rows and edges batches have; from the second on a batch within these bounds is
replayed, and one beyond them, or with fewer seeds, as the last of an epoch, runs as it comes and is counted. Called by
:class:`MiniBatch`. Source: Joestar, section 5.4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
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

SLACK = 0.05  # by how much bounds are larger than what the first epoch needed
_CLOSE = 1e-3  # of a device's gradients, whose products may add up in another order over more rows
Found = tuple[Tensor, Mapping[str, Tensor | None]]


@dataclass(frozen=True)
class StepParts:
    """What steps of an epoch are made of.

    Attributes:
        loss: Makes the loss from the labels of a batch; None where no target records it.
        draws: Whether the model draws random numbers.
        device: Where the model is.
        model: Its name, for messages.
    """

    loss: MakeLoss | None
    draws: bool
    device: torch.device
    model: str


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
        given = self._given
        made_for = (_config.current(), batch.plan.address, *((t.data_ptr(), t.requires_grad) for t in tensors.values()))
        is_new = self._step is None or made_for != self._made_for
        if is_new:
            self._step = None  # gives its memory back before there is another
            self._step, self._made_for = self._captured(batch, labels, tensors), made_for
            if self._step is None:
                self.refused = f"a step of {given.model} cannot be written down on {given.device}"
                return None
            self.launches = self._step.launches
        assert self._step is not None  # it was just made
        found = self._step(batch, labels, key)
        if found is None:
            return None
        if is_new and not _agree(found, eager(), self._step.exact):
            self._step, self.refused = None, f"a replayed step of {given.model} was not the step"
            return None
        return found

    def _captured(self, batch: PreparedBatch, labels: Tensor, tensors: dict[str, Tensor]) -> Captured | None:
        given = self._given
        assert given.loss is not None and self._shapes is not None and self.bounds is not None  # else refused
        step = Step(batch.plan, self._shapes, tensors, given.loss, given.draws, given.device)
        try:
            return capture(step, self.bounds, batch, labels)
        except RuntimeError as failure:  # of the device; batches run as they come
            said = " ".join(str(failure).split("\n", 1)[0].split())
            warnings.warn(f"cuda_graphs: a step was not recorded ({said}); batches run as they come", FallbackWarning, stacklevel=2)
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
        return {"launches": self.launches, **bounds, **({"refused": self.refused} if self.refused else {})}

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


def _refused(given: StepParts) -> str:
    """Why a step cannot be written down whatever the batch; "" where it may be."""
    if given.loss is None:
        return "its loss is computed in Python"
    if _config.current().precision != "float32" and "rows" in target_of(given.device).rounds_in_batches:
        return f"precision={_config.current().precision} rounds rows by the sizes of a batch"
    if _config.current().tune:
        return "formats of batches are being measured"
    return ""


def _agree(found: tuple[Any, Mapping[str, Tensor | None]], eager: Found, exact: bool) -> bool:
    """Whether a replayed step gave the loss and the gradients of the step."""
    pairs = [(torch.as_tensor(found[0]), eager[0])]
    for name, wanted in eager[1].items():
        mine = found[1].get(name)
        if (mine is None) != (wanted is None):
            return False
        if mine is not None and wanted is not None:
            pairs.append((mine, wanted))
    if exact:
        return all(torch.equal(mine.to(other.dtype), other) for mine, other in pairs)
    return all(torch.allclose(mine.to(other.dtype), other, _CLOSE, _CLOSE) for mine, other in pairs)


__all__ = ["SLACK", "Replays", "StepParts"]
