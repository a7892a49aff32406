"""How good predictions are: accuracy for one label a node, micro-averaged F1 for several.

Comes in: logits and labels. Goes out: fractions in [0, 1], or None where there is nothing to measure on. Called by
the trainer's targets and the link prediction task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional

from graphweft._pieces import in_pieces, total
from graphweft.data.dataset import Part


@dataclass(frozen=True)
class Evaluation:
    """What one pass over the nodes says.

    Attributes:
        scores: A score by split.
        val_loss: The loss on validation nodes.
        details: Further numbers by the column of a record that they belong to, such as ``val_auc``.
        metrics: What the user asked for, by column.
    """

    scores: dict[Part, float | None]
    val_loss: float | None
    details: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)

    def beside(self, split: str) -> dict[str, float]:
        """What was measured on a split beside its score, by its name there."""
        every = {**self.details, **self.metrics, "val_loss": self.val_loss}
        head = f"{split}_"
        return {name.removeprefix(head): x for name, x in every.items() if name.startswith(head) and x is not None}


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the entries whose label is known, shape ()."""
    return mean_of_entries(_losses, logits, labels)


def mean_of_entries(losses: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean of ``losses`` over the entries whose label is not NaN, shape ()."""
    known = ~labels.isnan()
    if not bool(known.all()):
        outputs, labels = outputs[known], labels[known]
    return total(losses(outputs, labels)) / labels.numel()


_binary = in_pieces(functional.binary_cross_entropy_with_logits)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every entry."""
    return _binary(logits, labels, reduction="none")


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
    return f1(int((predicted & actual).sum()), int((predicted & known).sum()), int(actual.sum()))


def f1(hits: int, predicted: int, actual: int) -> float:
    """F1 from counts; 1.0 when nothing is there and nothing predicted.

    Example:
        >>> f1(2, 3, 2)
        0.8
    """
    return 1.0 if predicted + actual == 0 else 2 * hits / (predicted + actual)


def score(logits: Tensor, labels: Tensor) -> float | None:
    """:func:`accuracy` for labels of shape (n,), :func:`micro_f1` for (n, C)."""
    return accuracy(logits, labels) if labels.dim() == 1 else micro_f1(logits, labels)
