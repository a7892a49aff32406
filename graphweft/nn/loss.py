"""Losses whose value and gradient come out of one pass.

Comes in: logits and labels. Goes out: a scalar in torch's graph. Called by the trainer; usable in any training loop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft._pieces import in_pieces, mean
from graphweft.runtime import dense

_softplus = in_pieces(torch.nn.functional.softplus)


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
    result: Tensor = _CrossEntropy.apply(logits, labels, rows)[0]  # type: ignore[no-untyped-call]
    return result


def contrast(true: Tensor, false: Tensor) -> Tensor:
    """Cross-entropy of logits that should be high and of logits that should be low, the sum of both means, shape ().

    Its bits do not depend on the number of threads.

    Example:
        >>> round(float(contrast(torch.zeros(3), torch.zeros(2))), 4)  # twice the logarithm of 2
        1.3863
    """
    return mean(_softplus(-true)) + mean(_softplus(false))


class _CrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, where the exponentials are at hand.

    The second result stands for the logits without keeping their memory: the way from the gradient back to them.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss; keeps the gradient by the logits."""
        loss, _, gradient = dense.cross_entropy(logits, labels, rows, want_grad=ctx.needs_input_grad[0])
        origin = logits.new_empty(()).expand(logits.shape)
        ctx.set_materialize_grads(False)
        if gradient is not None:
            ctx.save_for_backward(gradient, origin, labels, rows)
        return loss, origin

    @staticmethod
    def backward(ctx: Any, scale: Tensor | None, through: Tensor | None) -> tuple[Tensor | None, None, None]:
        """The kept gradient, scaled when the loss was, and what came back through the second result."""
        if scale is None:
            return through, None, None
        gradient, origin, labels, rows = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody may want to differentiate the gradient
            gradient = _Gradient.apply(origin, gradient, labels, rows) * scale  # type: ignore[no-untyped-call]
        elif float(scale) != 1.0:
            gradient = gradient * scale
        return gradient if through is None else gradient + through, None, None


class _Gradient(torch.autograd.Function):
    """The gradient of the mean cross entropy as a function of the logits.

    Its own derivative needs the probabilities alone, and those follow from it: (p - label) / count in a listed row.
    """

    @staticmethod
    def forward(ctx: Any, origin: Tensor, gradient: Tensor, labels: Tensor, rows: Tensor | None) -> Tensor:
        """``gradient``; ``origin`` stands for the logits."""
        made = gradient.view_as(gradient)
        ctx.save_for_backward(made, labels, rows)
        return made

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[Tensor, None, None, None]:
        """``p * (direction - <p, direction>) / count`` in listed rows, in torch's graph."""
        made, labels, rows = ctx.saved_tensors
        if rows is None:
            return _second(made, labels, direction, 1.0 / labels.numel()), None, None, None
        listed, times = rows.unique(return_counts=True)
        share = times.to(made.dtype)[:, None] / rows.numel()
        product = _second(made[listed], labels[listed], direction[listed], share)
        return torch.zeros_like(made).index_copy(0, listed, product), None, None, None


def _second(made: Tensor, labels: Tensor, direction: Tensor, share: Tensor | float) -> Tensor:
    """``share * p * (direction - <p, direction>)``, with ``made = share * (p - label)``."""
    p = made / share + torch.nn.functional.one_hot(labels, made.shape[1])
    return p * (direction - (p * direction).sum(1, keepdim=True)) * share
