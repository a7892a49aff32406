"""Losses whose value and gradient come out of one pass.

Comes in: logits and labels. Goes out: a scalar in torch's graph. Called by the trainer; usable in any training loop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.runtime import dense


def cross_entropy(logits: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
    """Mean softmax cross entropy over ``rows``; as ``torch.nn.functional.cross_entropy(logits[rows], labels[rows])``.

    Shape: logits (n, c), labels (n,) int64, rows (r,) int64 or None for all; result ().

    Raises: IndexRangeError for a label outside [0, c); ShapeError for no rows.

    Example:
        >>> logits = torch.zeros(2, 4, requires_grad=True)
        >>> loss = cross_entropy(logits, torch.tensor([0, 3]))
        >>> loss.backward()
        >>> logits.grad[0].tolist()
        [-0.375, 0.125, 0.125, 0.125]
    """
    result: Tensor = _CrossEntropy.apply(logits, labels, rows)  # type: ignore[no-untyped-call]
    return result


class _CrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, where the exponentials are at hand."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, rows: Tensor | None) -> Tensor:
        """The loss; keeps the gradient by the logits."""
        loss, _, gradient = dense.cross_entropy(logits, labels, rows, want_grad=ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, None, None]:
        """The kept gradient, scaled when the loss was."""
        (gradient,) = ctx.saved_tensors
        return (gradient if float(scale) == 1.0 else gradient * scale), None, None
