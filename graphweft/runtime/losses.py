"""Mean losses and their gradients in plain torch, which wait for no number of a device.

Comes in: outputs and labels on one device, and perhaps the rows that count. Goes out: the loss, shape (), and its
gradient by the outputs, as tensors. The losses of every target that has none of its own; see ``Target.losses``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

# (outputs (n, c), labels, int64 ids of the rows that count or None) -> loss (), gradient (n, c)
Loss = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def class_loss(outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax cross-entropy. A row listed twice counts twice.

    Shape: outputs (n, c), labels (n,) int64 in [0, c).

    Example:
        >>> loss, gradient = class_loss(torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([0]))
        >>> round(loss.item(), 4), gradient.tolist()
        (1.3863, [[-0.75, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]])
    """
    picked, wanted = _picked(outputs, labels, rows)
    logs = torch.log_softmax(picked, 1)
    is_label = torch.arange(picked.shape[1], device=picked.device) == wanted.unsqueeze(1)
    loss = -logs.masked_fill(~is_label, 0.0).sum() / picked.shape[0]
    return loss, _spread((logs.exp() - is_label.to(logs.dtype)) / picked.shape[0], outputs, rows)


def entry_loss(kind: str, outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Over the entries whose label is no NaN: "binary" cross-entropy of logits, or "squared" differences.

    Shape: outputs and labels (n, c).

    Example:
        >>> loss, gradient = entry_loss("squared", torch.zeros(1, 3), torch.tensor([[1.0, -3.0, float("nan")]]))
        >>> loss.item(), gradient.tolist()
        (5.0, [[-1.0, 3.0, 0.0]])
    """
    picked, given = _picked(outputs, labels, rows)
    unknown = given.isnan()
    wanted = given.masked_fill(unknown, 0.0).to(picked.dtype)
    count = (~unknown).sum()
    if kind == "binary":
        single = functional.binary_cross_entropy_with_logits(picked, wanted, reduction="none")
        slope = torch.sigmoid(picked) - wanted
    else:
        far = picked - wanted
        single, slope = far.square(), 2.0 * far
    loss = single.masked_fill(unknown, 0.0).sum() / count
    return loss, _spread(slope.masked_fill(unknown, 0.0) / count, outputs, rows)


def _picked(outputs: Tensor, labels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    outputs = outputs.detach()
    return (outputs, labels) if rows is None else (outputs[rows], labels[rows])


def _spread(slope: Tensor, outputs: Tensor, rows: Tensor | None) -> Tensor:
    """The gradient by all rows; of a row that is listed twice the sum."""
    return slope if rows is None else torch.zeros_like(outputs).index_put((rows,), slope, accumulate=True)


LOSSES: Mapping[str, Loss] = {
    "classes": class_loss,
    "binary": partial(entry_loss, "binary"),
    "squared": partial(entry_loss, "squared"),
}

__all__ = ["LOSSES", "Loss", "class_loss", "entry_loss"]
