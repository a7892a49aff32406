"""One epoch of a run: what was measured in it.

Comes in: numbers from the trainer. Goes out: a record, a line of JSON. Made by the trainer, kept by the history, read
by loggers, progress and plots.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields

Value = int | float | None


@dataclass(frozen=True, repr=False)
class EpochRecord:
    """One epoch; scores are those after its update, None where it was not evaluated or the split is empty.

    Attributes:
        epoch: Counts from 1.
        loss: Training loss of the forward pass, before the update.
        train_acc: Accuracy on ``train_idx``, a fraction; micro-F1 where nodes have several labels, None where labels
            are values. Likewise the next two.
        val_acc: On ``val_idx``.
        test_acc: On ``test_idx``.
        val_loss: The loss on ``val_idx``, after the update as the accuracies.
        epoch_seconds: Forward, backward and update, nothing else.
        eval_seconds: Evaluation after the update; 0 where there was none.
        train_auc: For two classes: area under the ROC curve. Likewise for the other splits.
        train_rmse: Where labels are values: root of the mean squared error, lower is better. Likewise val and test.
        train_mae: Mean absolute error. Likewise val and test.
        train_r2: Share of the variance that is explained, at most 1. Likewise val and test.
        val_ap: Of link prediction: average precision. Likewise for the test split.
        val_mrr: Mean reciprocal rank.
        val_hits: Share of ranks up to 10.
        gradient_error: Of sampled gradients, relative, where the quality guard measures it. Likewise the next three.
        sampling_error: Its part from sampling.
        staleness_error: Its part from earlier hidden rows.
        neighbor_loss: Share of in-edges of computed nodes that were left out.
        history_age: Mean steps since the hidden rows that were read had been written.
        metrics: What ``metrics=`` asked for, by column ("val_f1_macro"), and "lr" where the learning rate changes.
    """

    epoch: int
    loss: float
    train_acc: float | None = None
    val_acc: float | None = None
    test_acc: float | None = None
    val_loss: float | None = None
    epoch_seconds: float = 0.0
    eval_seconds: float = 0.0
    train_auc: float | None = None
    val_auc: float | None = None
    test_auc: float | None = None
    train_rmse: float | None = None
    val_rmse: float | None = None
    test_rmse: float | None = None
    train_mae: float | None = None
    val_mae: float | None = None
    test_mae: float | None = None
    train_r2: float | None = None
    val_r2: float | None = None
    test_r2: float | None = None
    val_ap: float | None = None
    val_mrr: float | None = None
    val_hits: float | None = None
    test_ap: float | None = None
    test_mrr: float | None = None
    test_hits: float | None = None
    gradient_error: float | None = None
    sampling_error: float | None = None
    staleness_error: float | None = None
    neighbor_loss: float | None = None
    history_age: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)

    def score(self, part: str) -> float | None:
        """The score of "train", "val" or "test": the accuracy, or for values the RMSE."""
        found: float | None = getattr(self, f"{part}_acc")
        return getattr(self, f"{part}_rmse") if found is None else found

    def value(self, name: str) -> Value:
        """The number in a column, one of :attr:`metrics` among them; None where there is none."""
        found: Value = getattr(self, name) if name in COLUMNS else self.metrics.get(name)
        return found

    def values(self) -> dict[str, int | float]:
        """The numbers that were measured, by column."""
        every = {name: getattr(self, name) for name in COLUMNS} | self.metrics
        return {name: value for name, value in every.items() if value is not None}

    def __repr__(self) -> str:
        return f"EpochRecord({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    def to_json(self) -> str:
        """One line, always valid JSON: what is not finite becomes null."""
        values = {name: _finite(getattr(self, name)) for name in COLUMNS}
        values = {name: value for name, value in values.items() if value is not None or name not in MEASURED}
        values |= {name: _finite(value) for name, value in self.metrics.items()}
        return json.dumps(values, allow_nan=False)


GUARDED = ("gradient_error", "sampling_error", "staleness_error", "neighbor_loss", "history_age")
COLUMNS = tuple(field.name for field in fields(EpochRecord) if field.name != "metrics")
LINK_COLUMNS = ("val_ap", "val_mrr", "val_hits", "test_ap", "test_mrr", "test_hits")
_SCORES = tuple(f"{part}_{name}" for name in ("auc", "rmse", "mae", "r2") for part in ("train", "val", "test"))
MEASURED = (*_SCORES, *LINK_COLUMNS, *GUARDED)  # there where they were measured
ALWAYS = ("loss", "epoch_seconds", "eval_seconds")


def _finite(value: Value) -> Value:
    """None for what JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
