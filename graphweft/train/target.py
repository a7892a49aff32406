"""How labels of one form are trained on, scored and predicted: the loss, its gradient, the metric.

Comes in: a dataset. Goes out: its :class:`Target`: class ids train with cross-entropy, several labels a node with
binary cross-entropy, numbers with the mean squared error. Called by the trainer and its ways to take a step. A label
form without a target is refused here.
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graphweft._errors import DataError, DataWarning, ShapeError
from graphweft._pieces import in_pieces, total
from graphweft.runtime.dense import LossCells, cross_entropy_cells
from graphweft.runtime.entry_loss import EntryCells, Kind, entry_loss, entry_loss_cells, known_entries
from graphweft.runtime.target import Target as Where
from graphweft.runtime.targets import target_of as where_of
from graphweft.train.link_metrics import roc_auc
from graphweft.train.metrics import f1, mean_of_entries

_SCORED, _SORTED = 8, 48  # bytes of a row that is scored, and of one that is sorted or computed with in float64


class OwnCells:
    """Where a loss in Python leaves its value, shape ()."""

    loss: Tensor

    @property
    def mean(self) -> float:
        """The value."""
        return float(self.loss)


def warn_of_one_class(ds: Any, rows: Tensor) -> None:
    """Warns where the labels to train on are all of one class, from which nothing is learned.

    Warns: DataWarning.
    """
    if ds.y.dtype != torch.int64 or ds.y.dim() != 1 or rows.numel() < 2:
        return
    labels = ds.y[rows]
    if bool((labels == labels[0]).all()):
        text = f"all {rows.numel():,} labels of the training split are class {int(labels[0])}; nothing is to be learned"
        warnings.warn(f"{ds.name}: {text}", DataWarning, stacklevel=4)


def check_logits(logits: Any, expected: tuple[int, int] | None = None) -> Tensor:
    """What a model returned, as a tensor of shape ``expected`` where that is given.

    Raises: ShapeError.

    Example:
        >>> check_logits((torch.ones(3, 2), None))
        Traceback (most recent call last):
        graphweft._errors.ShapeError: model: expected logits as one tensor, got tuple
    """
    if not isinstance(logits, Tensor):
        raise ShapeError(f"model: expected logits as one tensor, got {type(logits).__name__}")
    if expected is not None and tuple(logits.shape) != expected:
        raise ShapeError(f"model: expected logits of shape {expected}, got {tuple(logits.shape)}")
    return logits


Cells = LossCells | EntryCells | OwnCells
Recorded = Callable[[Tensor, bool], tuple[Cells, Tensor]]


class Scored(NamedTuple):
    """How good outputs are on some rows; everything is None or empty where there is no row.

    Attributes:
        score: The metric.
        loss: The mean loss.
        details: Further numbers by the name of their column: "auc", "mae", "r2".
    """

    score: float | None = None
    loss: float | None = None
    details: dict[str, float | None] = {}  # noqa: RUF012


class Target(abc.ABC):
    """One form of labels.

    Attributes:
        metric: Name of the score.
        column: What the score's columns are called: ``val_acc``, ``val_rmse``.
    """

    metric: ClassVar[str]
    column: ClassVar[str] = "acc"

    @abc.abstractmethod
    def check(self, who: str, y: Tensor) -> None:
        """Raises: DataError for labels that are not of this form."""

    @abc.abstractmethod
    def loss(self, outputs: Tensor, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean loss over ``rows`` (None: all), shape (), and its gradient by the outputs (n, c)."""

    @abc.abstractmethod
    def recorded(self, y: Tensor, rows: Tensor | None, share: float = 1.0) -> tuple[Recorded, list[Any]]:
        """The loss as one call on outputs (n, c), which may be written over, and the memory it reads.

        ``share``: by which the gradient is multiplied.
        """

    def written_down(self, y: Tensor, where: Where) -> Callable[[Tensor], Recorded] | None:
        """What makes, of the labels of some rows, a loss that stays right when others are written over them.

        ``y``: all labels. ``where``: Who runs the step: by native calls where launches are over when they return, else
        by operations that wait for no number. None where there is no such loss.
        """
        return None

    @abc.abstractmethod
    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss, shape (), with a graph of operations behind it."""

    @abc.abstractmethod
    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every row, (n,), with a graph of operations behind it."""

    def weight(self, labels: Tensor) -> int:
        """How much these labels weigh in a mean loss over more of them: its terms."""
        return labels.shape[0]

    @abc.abstractmethod
    def score(self, outputs: Tensor, y: Tensor, rows: Tensor) -> Scored:
        """How good ``outputs`` are on the listed rows."""

    @abc.abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """What the outputs say, as labels are written."""

    def take(self, y: Tensor, train: Tensor) -> None:  # noqa: B027
        """Takes up what follows from the training labels ``y[train]``; called again where they change."""

    def scored_row(self, columns: int) -> int:
        """Bytes of a row that is scored, beside its outputs, of which there are so many."""
        return _SCORED

    scores_there: ClassVar[bool] = False  # whether :meth:`score` takes outputs on a device

    def aligned(self, outputs: Tensor) -> Tensor:
        """Outputs (n, c) in the form in which labels are written, for functions of both."""
        return outputs

    def constant_guess(self, y: Tensor, train: Tensor, scored: Tensor) -> float | None:
        """Score on ``scored`` of the most frequent training label given to every node; None where that says nothing."""
        return None


class Classes(Target):
    """One class a node: y (n,) int64; -1 is no label."""

    metric = "accuracy"
    scores_there = True

    def check(self, who: str, y: Tensor) -> None:
        """Ids are checked by the dataset, and once more by the kernel that reads them."""
        if y.dim() != 1 or y.dtype != torch.int64:
            raise DataError(f"{who}: expected y as int64 class ids of shape (n,), got {y.dtype} {tuple(y.shape)}")

    def loss(self, outputs: Tensor, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Softmax cross-entropy."""
        return where_of(outputs.device).losses["classes"](outputs, y, rows)

    def recorded(self, y: Tensor, rows: Tensor | None, share: float = 1.0) -> tuple[Recorded, list[Any]]:
        """Softmax cross-entropy."""
        y, rows = y.contiguous(), None if rows is None else rows.contiguous()

        def call(outputs: Tensor, over: bool) -> tuple[Cells, Tensor]:
            cells, gradient = cross_entropy_cells(outputs, y, rows, True, over=over, share=share)
            assert gradient is not None  # it was asked for
            return cells, gradient

        return call, [y, rows]

    def written_down(self, y: Tensor, where: Where) -> Callable[[Tensor], Recorded] | None:
        """Softmax cross-entropy."""
        if where.blocking:
            return lambda labels: self.recorded(labels, None)[0]
        loss = where.losses["classes"]
        return lambda labels: lambda outputs, over: loss(outputs, labels, None)  # type: ignore[return-value]

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Softmax cross-entropy."""
        return functional.cross_entropy(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Softmax cross-entropy."""
        return functional.cross_entropy(outputs, labels, reduction="none")

    def score(self, outputs: Tensor, y: Tensor, rows: Tensor) -> Scored:
        """Accuracy; for two classes the area under the ROC curve as well."""
        if rows.numel() == 0:
            return Scored()
        loss, correct = where_of(outputs.device).class_score(outputs, y, rows)
        details = {"auc": class_auc(outputs[rows], y[rows])} if outputs.shape[1] == 2 else {}
        return Scored(correct / rows.numel(), loss, details)

    def scored_row(self, columns: int) -> int:
        """More for two classes, whose rows are sorted."""
        return _SORTED if columns == 2 else _SCORED

    def predict(self, outputs: Tensor) -> Tensor:
        """The class of every node, (n,)."""
        return outputs.argmax(dim=1)

    def constant_guess(self, y: Tensor, train: Tensor, scored: Tensor) -> float | None:
        """The share of the most frequent class of the training nodes."""
        if train.numel() == 0 or scored.numel() == 0:
            return None
        return int((y[scored] == y[train].bincount().argmax()).sum()) / scored.numel()


class _Entries(Target):
    """Labels (n, c), or (n,) for one column, float32; NaN where unknown. The loss is a mean over known entries."""

    kind: ClassVar[Kind]

    def weight(self, labels: Tensor) -> int:
        """The known entries."""
        return known_entries(labels)

    def loss(self, outputs: Tensor, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Over the known entries."""
        return where_of(outputs.device).losses[self.kind](outputs, columns_of(y), rows)

    def recorded(self, y: Tensor, rows: Tensor | None, share: float = 1.0) -> tuple[Recorded, list[Any]]:
        """Over the known entries."""
        labels, rows = columns_of(y).contiguous(), None if rows is None else rows.contiguous()
        known = known_entries(labels, rows)

        def call(outputs: Tensor, over: bool) -> tuple[Cells, Tensor]:
            cells, gradient = entry_loss_cells(self.kind, outputs, labels, rows, known, over=over, share=share)
            assert gradient is not None  # it was asked for
            return cells, gradient

        return call, [labels, rows]

    def written_down(self, y: Tensor, where: Where) -> Callable[[Tensor], Recorded] | None:
        """Over the known entries; by native calls, which take their number, over all, where all are known."""
        if not where.blocking:
            loss = where.losses[self.kind]
            return lambda labels: lambda outputs, over: loss(outputs, columns_of(labels), None)  # type: ignore[return-value]
        if y.dtype != torch.float32 or known_entries(y) < y.numel():
            return None
        return lambda labels: self.recorded(labels, None)[0]

    @abc.abstractmethod
    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every entry."""

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Over the known entries."""
        return mean_of_entries(self._losses, outputs, columns_of(labels))

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Means over the known entries of each row."""
        labels = columns_of(labels)
        known = ~labels.isnan()
        single = self._losses(outputs, labels.nan_to_num())
        return (single * known).sum(1) / known.sum(1).clamp(min=1)


class SeveralLabels(_Entries):
    """Several labels a node: 0 or 1 in every column, or a probability."""

    metric = "micro-F1"
    kind = "binary"

    def check(self, who: str, y: Tensor) -> None:
        """Entries are in [0, 1]."""
        if y.dim() != 2 or not y.is_floating_point():
            raise DataError(f"{who}: expected y as float32 of shape (n, labels), got {y.dtype} {tuple(y.shape)}")
        wrong = y[(y < 0) | (y > 1)]
        if wrong.numel():
            raise DataError(
                f"{who}: expected labels from 0 to 1 for the task multilabel, got {float(wrong[0]):g}; "
                "task='regression' predicts numbers"
            )

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Binary cross-entropy of logits."""
        return _binary(outputs, labels, reduction="none")

    def score(self, outputs: Tensor, y: Tensor, rows: Tensor) -> Scored:
        """Micro-averaged F1."""
        if rows.numel() == 0:
            return Scored()
        found = entry_loss(self.kind, outputs, y, rows, want_grad=False)
        return Scored(f1(found.hits, found.predicted, found.actual), float(found.loss))

    def predict(self, outputs: Tensor) -> Tensor:
        """Whether a node has each label, (n, c) bool."""
        return outputs > 0


class Values(_Entries):
    """Numbers to predict: y (n,) or (n, k) float32; NaN where unknown. Lower scores are better.

    Args:
        flat: Labels have no second dimension, so predictions have none.
    """

    metric = "RMSE"
    column = "rmse"
    kind = "squared"

    def __init__(self, flat: bool) -> None:
        self._flat = flat

    def check(self, who: str, y: Tensor) -> None:
        """Values are finite, or NaN where unknown."""
        if y.dim() not in (1, 2) or not y.is_floating_point():
            raise DataError(f"{who}: expected y as float32 of shape (n,) or (n, k), got {y.dtype} {tuple(y.shape)}")
        if bool(y.isinf().any()):
            raise DataError(f"{who}: expected finite values of y, or nan where unknown, got {float(y[y.isinf()][0])}")

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Squared differences."""
        return _squared(outputs, labels, reduction="none")

    def scored_row(self, columns: int) -> int:
        """Of a column, which are scored one after the other, in float64."""
        return _SORTED

    def score(self, outputs: Tensor, y: Tensor, rows: Tensor) -> Scored:
        """Root of the mean squared error, mean absolute error and R2, the mean over the columns where it is defined."""
        known = squares = absolute = 0.0
        explained = []
        labels = columns_of(y)
        for column in range(labels.shape[1]):
            wanted = labels[rows, column]
            there = ~wanted.isnan()
            wanted = wanted[there].double()
            error = outputs[rows, column][there].double() - wanted
            count, square = wanted.numel(), float(total(error * error))
            known, squares, absolute = known + count, squares + square, absolute + float(total(error.abs()))
            around = wanted - total(wanted) / max(count, 1)
            spread = float(total(around * around))
            if spread > 0:
                explained.append(1 - square / spread)
        if not known:
            return Scored()
        r2 = sum(explained) / len(explained) if explained else None
        mean = squares / known
        return Scored(math.sqrt(mean), mean, {"mae": absolute / known, "r2": r2})

    def aligned(self, outputs: Tensor) -> Tensor:
        """Of the labels' shape."""
        return outputs.squeeze(1) if self._flat else outputs

    def predict(self, outputs: Tensor) -> Tensor:
        """The numbers, of the labels' shape."""
        return self.aligned(outputs)


_binary = in_pieces(functional.binary_cross_entropy_with_logits)
_squared = in_pieces(functional.mse_loss)


def columns_of(y: Tensor) -> Tensor:
    """Labels with one row a node and one column a number, sharing their memory."""
    return y if y.dim() == 2 else y.unsqueeze(1)


def class_auc(outputs: Tensor, labels: Tensor) -> float | None:
    """Area under the ROC curve of the second of two classes; None where one class is missing or an output is NaN.

    Shape: outputs (n, 2), labels (n,) int64.

    Example:
        >>> class_auc(torch.tensor([[0.0, 1.0], [0.0, 0.5], [0.0, 0.7]]), torch.tensor([1, 0, 0]))
        1.0
    """
    margin = outputs[:, 1] - outputs[:, 0]
    if bool(margin.isnan().any()):
        return None
    return roc_auc(margin[labels == 1], margin[labels == 0])


def target_of(ds: Any) -> Target:
    """The target of the dataset's labels.

    Raises: DataError for a task without one, or labels that are not of its form.
    """
    usual = "classification" if ds.y.dim() == 1 else "multilabel"
    task = getattr(ds, "task", usual)
    known: dict[str, Target] = {
        "classification": Classes(),
        "multilabel": SeveralLabels(),
        "regression": Values(ds.y.dim() == 1),
    }
    if task not in known:
        raise DataError(f"{ds.name}: expected the task {', '.join(known)} to train on nodes, got {task!r}")
    known[task].check(ds.name, ds.y)
    return known[task]
