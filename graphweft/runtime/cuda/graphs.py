"""A step on a device as two CUDA graphs: one launch forward, with the loss, and one backward, with the update.

Comes in: a step and bounds. Goes out: :class:`GraphStep`; None where launches take numbers of the host that change.
Registered in ``captures.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweft.runtime.captured import Step, draws_by_torch
from graphweft.runtime.cuda.recorder import Recorder, recorder_on
from graphweft.runtime.padded import BatchBuffers, Bounds
from graphweft.runtime.staged import PreparedBatch


class GraphStep:
    """See :class:`Captured`."""

    launches, exact = 2, False  # products of more rows may be added up in another order

    def __init__(self, step: Step, room: BatchBuffers, recorder: Recorder) -> None:
        self._room, self.updates = room, step.update is not None
        loss = step.loss(room.labels)
        self._key = torch.zeros(1, dtype=torch.int64, device=step.device)  # of draws, read by every launch that draws
        key: int | Tensor = self._key if step.draws else 0

        def whole() -> None:
            _, gradient, pullback = step.forward(room, loss, key)
            pullback(gradient)

        recorder.warm(whole)
        self._forward, found = recorder.record(lambda: step.forward(room, loss, key))
        self._loss, gradient, pullback = found
        self._backward, self._gradients = recorder.record(lambda: step.backward(pullback, gradient))
        self._draws, self._alive = step.draws, (found, step)

    @classmethod
    def capture(
        cls,
        step: Step,
        bounds: Bounds,
        batch: PreparedBatch,
        labels: Tensor,
        recorder: Callable[[torch.device], Recorder] | None = None,
    ) -> GraphStep | None:
        """The step, recorded; None where a draw is made by the interpreter, which reads its key in host memory."""
        if recorder is None and step.device.type != "cuda":
            return None
        plan = step.plan.plan
        if step.draws and draws_by_torch(plan):
            return None
        return cls(step, step.room(bounds, batch, labels), (recorder or Recorder)(step.device))

    def __call__(self, batch: PreparedBatch, labels: Tensor, key: int) -> tuple[Any, dict[str, Tensor | None]]:
        """Loss and gradients, in memory that the next batch writes; the update is done where it was recorded."""
        self._room.fill(batch.seeds, batch.values, labels)
        if self._draws:
            self._key.fill_(key)
        self._forward()
        self._backward()
        return self._loss, self._gradients


__all__ = ["GraphStep", "Recorder", "recorder_on"]
