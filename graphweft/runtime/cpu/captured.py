"""A step on the CPU as a tape of native calls, whose sizes are those of the batch at hand.

Comes in: a step and bounds. Goes out: :class:`TapedStep`; None where torch computes on the way. Registered in
``captures.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphweft._trace import active
from graphweft.passes.work import Sizes
from graphweft.runtime.captured import Step
from graphweft.runtime.footprint import footprint
from graphweft.runtime.padded import NODES, BatchBuffers, Bounds
from graphweft.runtime.profile import PROFILE
from graphweft.runtime.sized_tape import Case, SizedTape
from graphweft.runtime.staged import PreparedBatch

_KEYS = 0x5DEECE66D1234567, 0x2545F4914F6CDD1D  # of the two recordings: unlike any size


class TapedStep:
    """See :class:`Captured`. Buffers hold the most; the calls work on the rows and edges of the batch."""

    exact, updates = True, False

    def __init__(self, step: Step, room: BatchBuffers, tape: SizedTape) -> None:
        self._shapes, self._room, self._tape = step.shapes, room, tape
        self.launches = tape.launches

    @classmethod
    def capture(cls, step: Step, bounds: Bounds, batch: PreparedBatch, labels: Tensor) -> TapedStep | None:
        """The step, recorded at the bounds and at others; None where it cannot be replayed at sizes between."""
        others = _all_different(bounds)
        rooms = [step.room(each, batch, labels) for each in (bounds, others)]
        losses = [step.loss(room.labels) for room in rooms]

        def body(at: int) -> Any:
            kept, gradient, pullback = step.forward(rooms[at], losses[at], _KEYS[at])
            return kept, pullback(gradient)

        names = step.shapes.named(bounds), step.shapes.named(others)
        peak = footprint(step.plan.plan, Sizes({NODES: step.plan.nodes, **names[1]}, {})).peak
        alive = [rooms, losses, step]
        sizes = [{**named, "key": key} for named, key in zip(names, _KEYS, strict=True)]
        cases = [Case(partial(body, at), sizes[at]) for at in (0, 1)]
        tape = SizedTape.record(cases, alive, max(peak, 1 << 20))
        return None if tape is None else cls(step, rooms[0], tape)

    def __call__(self, batch: PreparedBatch, labels: Tensor, key: int) -> tuple[Any, dict[str, Tensor | None]] | None:
        """Loss and gradients; None while calls are timed or somebody holds memory of the tape."""
        if PROFILE.active or active() is not None or not self._tape.is_ready():
            return None
        self._room.fill(batch.seeds, batch.values, labels)
        sizes = self._shapes.named(self._shapes.of(batch.batch_size, batch.values))
        kept, gradients = self._tape.replay({**sizes, "key": key})
        return torch.tensor(kept.mean, dtype=torch.float32), gradients


def _all_different(bounds: Bounds) -> Bounds:
    """Larger bounds, each by another number, but for the seeds."""
    rows = [count + more for more, count in enumerate(bounds.rows)]
    edges = [count + len(rows) + more for more, count in enumerate(bounds.edges)]
    return Bounds(tuple(rows), tuple(edges))


__all__ = ["TapedStep"]
