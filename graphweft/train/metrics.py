"""How good predictions are: accuracy for one label a node, micro-averaged F1 for several.

Comes in: logits and labels. Goes out: fractions in [0, 1], or None where there is nothing to measure on. Called by
the trainer.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from graphweft._pieces import in_pieces, total
from graphweft.data.dataset import Part


class Evaluation(NamedTuple):
    """What one pass over the nodes says: a score by split and the loss on validation nodes."""

    scores: dict[Part, float | None]
    val_loss: float | None


def loss_of(logits: Tensor, labels: Tensor) -> float | None:
    """The mean loss that training minimises; None when n is 0.

    Shape: logits (n, C) floating, labels (n,) int64 (cross-entropy) or (n, C) of 0, 1 and, where unknown, not-a-number.
    """
    if labels.shape[0] == 0:
        return None
    if labels.dim() == 1:
        return float(functional.cross_entropy(logits, labels))
    return float(binary_cross_entropy(logits, labels))


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the entries whose label is known, shape ()."""
    known = ~labels.isnan()
    if not bool(known.all()):
        logits, labels = logits[known], labels[known]
    return total(binary_losses(logits, labels)) / labels.numel()


def binary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every entry, the shape of both."""
    return _losses(logits, labels, reduction="none")


_losses = in_pieces(functional.binary_cross_entropy_with_logits)


def accuracy(logits: Tensor, labels: Tensor) -> float | None:
    """Share of rows whose largest logit is at the label.

    Shape: logits (n, C) floating, labels (n,) int64. None when n is 0.

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1, 1]))
        0.5
    """
    if labels.numel() == 0:
        return None
    return int((logits.argmax(dim=1) == labels).sum()) / labels.shape[0]


def micro_f1(logits: Tensor, labels: Tensor) -> float | None:
    """F1 of all (node, class) pairs together; a logit above 0 predicts the class.

    Shape: logits (n, C) floating, labels (n, C) of 0, 1 and, where unknown, not-a-number. None when n is 0; 1.0 when
    no class is there and none predicted.

    Example:
        >>> import torch
        >>> micro_f1(torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        0.8
    """
    if labels.shape[0] == 0:
        return None
    predicted, actual = logits > 0, labels > 0.5
    known = ~labels.isnan()
    hits = int((predicted & actual).sum())
    total = int((predicted & known).sum()) + int(actual.sum())
    return 1.0 if total == 0 else 2 * hits / total


def score(logits: Tensor, labels: Tensor) -> float | None:
    """:func:`accuracy` for labels of shape (n,), :func:`micro_f1` for (n, C)."""
    return accuracy(logits, labels) if labels.dim() == 1 else micro_f1(logits, labels)
