"""Losses of rows by class as sums that programs have.

Comes in: operands of the loss. Goes out: the same loss, written with choices and sums over classes; None where labels
are none that torch takes. Looked up by ``recorder.py`` in the table of ``sum_forms.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft._torch_recording import FakeTensor
from graphweft.frontend.sum_forms import FORMS

aten = torch.ops.aten
_NONE, _MEAN = 0, 1


def _by_class(
    scores: Tensor, labels: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor] | None:
    """The negative log-likelihood of (N, C) scores, and the sum of weights."""
    if scores.dim() != 2 or labels.dim() != 1 or isinstance(labels, FakeTensor):
        return None
    counted = labels != ignored
    classes = torch.where(counted, labels, 0)
    if bool(((classes < 0) | (classes >= scores.shape[1])).any()):
        return None  # torch tells what is wrong
    own = classes[:, None] == torch.arange(scores.shape[1])
    factor = counted.to(scores.dtype)
    if weight is not None:
        factor = torch.where(own, weight, 0.0).sum(1) * factor
    losses = -(torch.where(own, scores, 0.0).sum(1) * factor)
    total = factor.sum()
    if reduction == _NONE:
        return losses, total.new_zeros(())
    loss = losses.sum()
    return (loss / total if reduction == _MEAN else loss), total


FORMS[aten.nll_loss_forward.default] = _by_class

__all__: list[str] = []
