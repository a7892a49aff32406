"""How each target writes a step down.

Comes in: a step of a batch, with bounds. Goes out: the step as its device replays it, or None where it runs as it
comes. Called by the mini-batch trainer.
"""

from __future__ import annotations

from torch import Tensor

from graphweft.runtime.captured import Captured, Step
from graphweft.runtime.cpu.captured import TapedStep
from graphweft.runtime.cpu.target import CPU
from graphweft.runtime.cuda.graphs import GraphStep, recorder_on
from graphweft.runtime.cuda.target import CUDA
from graphweft.runtime.padded import Bounds
from graphweft.runtime.staged import PreparedBatch
from graphweft.runtime.targets import target_of

CPU.captures(TapedStep.capture)
CUDA.captures(GraphStep.capture)
CUDA.recorder = recorder_on


def capture(step: Step, bounds: Bounds, batch: PreparedBatch, labels: Tensor) -> Captured | None:
    """``step`` over buffers of the bounds' size, written down by the target of its device."""
    how = target_of(step.device).capture
    found: Captured | None = None if how is None else how(step, bounds, batch, labels)
    return found


__all__ = ["CUDA", "capture"]
