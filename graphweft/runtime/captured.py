"""The second stage of a batch, written down once over buffers of one shape and replayed with new contents.

Comes in: the plan of a batch, bounds on sizes, a loss. Goes out: a :class:`Captured` step: loss and gradients of a
batch at the price of two launches on a device, one forward and one backward, and of the native calls alone on the CPU.
How a target writes a step down is registered with it in ``captures.py``; one that cannot gives None, and batches run as
they come. Source: Joestar, section 5.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from graphweft.ir.ops import Op
from graphweft.runtime.function import Pullback
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.padded import BatchBuffers, Bounds, Shapes
from graphweft.runtime.plan import Plan
from graphweft.runtime.staged import PreparedBatch, StagedPlan

# from the labels of a batch: (outputs, whether they may be written over) -> where the loss comes to be, its gradient
Loss = Callable[[Tensor, bool], tuple[Any, Tensor]]
MakeLoss = Callable[[Tensor], Loss]


@dataclass(frozen=True)
class Step:
    """What is written down.

    Attributes:
        plan: Of the batch.
        shapes: Of its hoisted values.
        tensors: Parameters and buffers of numbers by name; where they lie must not change.
        loss: Makes the loss of the labels in a tensor.
        draws: Whether the step draws random numbers.
        device: Where it runs.
        update: What follows once the parameters have their gradients, where that is to be written down as well.
    """

    plan: StagedPlan
    shapes: Shapes
    tensors: dict[str, Tensor]
    loss: MakeLoss
    draws: bool
    device: torch.device
    update: Callable[[], None] | None = None

    def room(self, bounds: Bounds, batch: PreparedBatch, labels: Tensor) -> BatchBuffers:
        """Buffers with a batch in them."""
        room = BatchBuffers(self.shapes, bounds, batch.values, labels, self.device)
        room.fill(batch.seeds, batch.values, labels)
        return room

    def forward(self, room: BatchBuffers, loss: Loss, key: int | Tensor) -> tuple[Any, Tensor, Pullback]:
        """The loss, its gradient by the outputs, and what goes backward from it; ``key`` may lie on the device."""
        plan = self.plan
        outputs, pullback = plan.over_values(room.values, room.seeds, self.tensors, key)
        kept, gradient = loss(outputs["out"], plan.plan.forgets("out"))
        return kept, gradient, pullback

    def backward(self, pullback: Pullback, gradient: Tensor) -> dict[str, Tensor | None]:
        """Gradients by name, and the update."""
        gradients = pullback(gradient)
        if self.update is not None:
            for name, found in gradients.items():
                if found is not None:
                    self.tensors[name].grad = found
            self.update()
        return gradients


def draws_by_torch(plan: Plan) -> bool:
    """Whether random numbers are drawn without a kernel, by a key that is read in host memory."""
    return any(_reads_key(call) and plan.interprets(call) for call in (*plan.forward, *plan.backward))


def _reads_key(call: KernelCall) -> bool:
    return any(slot.value.op is Op.INPUT and slot.value["name"] == "seed" for slot in call.reads)


class Captured(Protocol):
    """A step that was written down.

    Attributes:
        launches: What it launches for a batch, beside copies into its buffers.
        exact: Whether it gives the bits of the step.
        updates: Whether it steps the optimiser as well.
    """

    launches: int
    exact: bool
    updates: bool

    def __call__(self, batch: PreparedBatch, labels: Tensor, key: int) -> tuple[Any, dict[str, Tensor | None]] | None:
        """The loss and the gradients by name, in memory that the next call writes; None where it cannot run now."""


__all__ = ["Captured", "Loss", "MakeLoss", "Step", "draws_by_torch"]
