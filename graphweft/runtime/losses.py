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
    outputs, often = outputs.detach(), _often(outputs, rows)
    logs = torch.log_softmax(outputs, 1)
    is_label = torch.arange(outputs.shape[1], device=outputs.device) == labels.unsqueeze(1)
    single = -logs.masked_fill(is_label.logical_not(), 0.0).sum(1, keepdim=True)
    slope = logs.exp() - is_label.to(logs.dtype)
    if often is not None:
        single, slope = (t.masked_fill(often == 0, 0.0) * often for t in (single, slope))
    count = outputs.shape[0] if rows is None else rows.numel()
    return single.sum() / count, slope / count


def class_score(outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[float, int]:
    """Mean softmax cross-entropy over ``rows``, and how many of them are predicted right; waits once for both.

    Shape: outputs (n, c), labels (n,) int64, rows (r,) int64 with r > 0.

    Example:
        >>> loss, right = class_score(torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([0]))
        >>> round(loss, 4), right
        (1.3863, 1)
    """
    picked, wanted = outputs[rows], labels[rows]
    right = (picked.argmax(dim=1) == wanted).sum()
    mean, hits = torch.stack([functional.cross_entropy(picked, wanted).double(), right.double()]).tolist()
    return mean, int(hits)


def entry_loss(kind: str, outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Over the entries whose label is no NaN: "binary" cross-entropy of logits, or "squared" differences.

    Shape: outputs and labels (n, c).

    Example:
        >>> loss, gradient = entry_loss("squared", torch.zeros(1, 3), torch.tensor([[1.0, -3.0, float("nan")]]))
        >>> loss.item(), gradient.tolist()
        (5.0, [[-1.0, 3.0, 0.0]])
    """
    outputs, often = outputs.detach(), _often(outputs, rows)
    known = (labels == labels).to(outputs.dtype)  # NaN is not
    if often is not None:
        known = known * often
    wanted = labels.nan_to_num(0.0).to(outputs.dtype)
    if kind == "binary":
        single = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        slope = torch.sigmoid(outputs) - wanted
    else:
        far = outputs - wanted
        single, slope = far.square(), 2.0 * far
    single, slope = (t.masked_fill(known == 0, 0.0) * known for t in (single, slope))
    count = known.sum()
    return single.sum() / count, slope / count


def _often(outputs: Tensor, rows: Tensor | None) -> Tensor | None:
    """How often each row counts, (n, 1): whole numbers, whose sums are the same in any order; None: once."""
    if rows is None:
        return None
    return outputs.new_zeros(outputs.shape[0]).index_add(0, rows, outputs.new_ones(rows.numel())).unsqueeze(1)


LOSSES: Mapping[str, Loss] = {
    "classes": class_loss,
    "binary": partial(entry_loss, "binary"),
    "squared": partial(entry_loss, "squared"),
}

__all__ = ["LOSSES", "Loss", "class_loss", "class_score", "entry_loss"]
