"""Torch's backward pass from gradients that are known.

Comes in: what was computed, and the gradients by it. Goes out: gradients by what it was computed from. Called wherever
torch differentiates for the library. ``Tensor.backward(gradient)`` and ``torch.autograd.grad(..., grad_outputs)`` do
the same, but the first such call in a process imports torch's symbolic sizes and sympy to compare two shapes: 50 MB
that no run needs, and that a budget would have to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Start(torch.autograd.Function):
    """A number whose gradients by the outputs are the ones given."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.gradients


def backward_from(outputs: Tensor, gradient: Tensor) -> None:
    """Adds the gradients of a loss whose gradient by ``outputs`` is ``gradient``, of the same shape, to ``.grad``.

    Example:
        >>> weight = torch.ones(2, requires_grad=True)
        >>> backward_from(3 * weight, torch.tensor([1.0, 2.0]))
        >>> weight.grad
        tensor([3., 6.])
    """
    _Start.apply([gradient], outputs).backward()  # type: ignore[no-untyped-call]


def gradients_from(
    outputs: Sequence[Tensor],
    wanted: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> tuple[Tensor | None, ...]:
    """As ``torch.autograd.grad`` with ``allow_unused``: None for what ``outputs`` do not depend on."""
    if create_graph:  # the gradients that are given belong to the graph as well
        return torch.autograd.grad(outputs, wanted, gradients, create_graph=True, allow_unused=True)
    with torch.enable_grad():
        start = _Start.apply(gradients, *outputs)  # type: ignore[no-untyped-call]
    return torch.autograd.grad(start, wanted, retain_graph=retain_graph, allow_unused=True)


__all__ = ["backward_from", "gradients_from"]
