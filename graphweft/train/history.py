"""What happened epoch by epoch, in memory and as ``metrics.jsonl``.

Comes in: one record an epoch. Goes out: columns for plots and summaries, lines of JSON, and tensors for a checkpoint.
Called by the trainer. The checkpoint's copy is the truth: on a resume the file is written anew from it, which drops
lines of epochs that are done again and whatever a dying process left half written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from graphweft._errors import CheckpointError
from graphweft.train.atomic import write_atomic
from graphweft.train.options import STOP_ON

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
_ALWAYS = ("loss", "epoch_seconds", "eval_seconds")


class History:
    """The records of a run in order; ``history["loss"]`` is a column, ``history[-1]`` a record.

    ``best_by`` says which epoch is the best: "accuracy" the first with the best validation score (the highest accuracy,
    for values the lowest RMSE), "loss" the first with the lowest validation loss, "both" the last that was, when it
    came, at least as good as all before in both, as in the program of the GAT paper. The name of a metric says the
    first with its best validation value, the highest if ``higher``.

    Attributes:
        since: Epochs up to this one are not compared: labels, splits or the parameters that train were others then.
        constant_guess: Accuracy of the most frequent training class given to every node, on the last split that has
            labels (test, else validation, else training); None where labels are no classes.

    Example:
        >>> history = History()
        >>> history.append(EpochRecord(1, loss=2.0, val_acc=0.5))
        >>> history.append(EpochRecord(2, loss=1.0, val_acc=0.5))
        >>> history["loss"], history.best.epoch, len(history)
        ([2.0, 1.0], 1, 2)
    """

    def __init__(
        self,
        records: list[EpochRecord] | None = None,
        best_by: str = "accuracy",
        since: int = 0,
        higher: bool = True,
    ) -> None:
        self._records: list[EpochRecord] = []
        self._best: EpochRecord | None = None
        self.best_by, self.since, self.higher = best_by, since, higher
        self.constant_guess: float | None = None
        self._score, self._loss = -math.inf, math.inf  # the best so far; a higher score is a better one
        self._improved = since
        for record in records or []:
            self.append(record)

    def append(self, record: EpochRecord) -> None:
        """Adds the next epoch.

        Raises: ValueError when it is not the one after the last.
        """
        if record.epoch != len(self._records) + 1:
            raise ValueError(f"history: expected epoch {len(self._records) + 1}, got {record.epoch}")
        self._records.append(record)
        if record.epoch > self.since:
            self._judge(record)

    def begin_anew(self) -> None:
        """From here on the best epoch is looked for among later ones."""
        self.since = self._improved = len(self._records)
        self._best, self._score, self._loss = None, -math.inf, math.inf

    def _judge(self, record: EpochRecord) -> None:
        """Notes whether ``record`` is the best so far and whether it is an improvement."""
        score = self.judged(record)
        if score is None:
            return
        loss = math.inf if record.val_loss is None else record.val_loss
        both = self.best_by == "both"  # equals count, as in that program
        higher = score > self._score or (both and score == self._score)
        lower = loss < self._loss or (both and loss == self._loss)
        wanted = {"loss": lower, "both": higher and lower}.get(self.best_by, higher)
        if wanted or self._best is None:
            self._best = record
        if wanted or (both and (higher or lower)):
            self._improved = record.epoch
        self._score, self._loss = max(self._score, score), min(self._loss, loss)

    def judged(self, record: EpochRecord) -> float | None:
        """The validation value that epochs are compared by, turned around where lower ones are better."""
        if self.best_by in STOP_ON:
            return _higher_is_better(record)
        value = self.watched(record)
        return None if value is None or math.isnan(value) else value if self.higher else -value

    def watched(self, record: EpochRecord) -> Value:
        """The validation value that :attr:`best_by` names, as it is: for "both" the loss."""
        if self.best_by in STOP_ON:
            return record.score("val") if self.best_by == "accuracy" else record.val_loss
        return record.value(f"val_{self.best_by}")

    @property
    def best(self) -> EpochRecord | None:
        """The best epoch by ``best_by`` after :attr:`since`; None without validation nodes."""
        return self._best

    @property
    def improved(self) -> int:
        """The last epoch better by ``best_by``, where for "both" either counts; :attr:`since` before the first."""
        return self._improved

    @property
    def last(self) -> EpochRecord | None:
        """The newest record."""
        return self._records[-1] if self._records else None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[EpochRecord]:
        return iter(self._records)

    @overload
    def __getitem__(self, key: int) -> EpochRecord: ...
    @overload
    def __getitem__(self, key: str) -> list[Value]: ...
    def __getitem__(self, key: int | str) -> EpochRecord | list[Value]:
        if isinstance(key, str):
            return self.column(key)
        return self._records[key]

    def column(self, name: str) -> list[Value]:
        """One value an epoch. Raises: KeyError for a name that is no column of an :class:`EpochRecord`."""
        known = (*COLUMNS, *self._more())
        if name not in known:
            raise KeyError(f"history: expected one of {', '.join(known)}, got {name!r}")
        return [record.value(name) for record in self._records]

    def _more(self) -> tuple[str, ...]:
        """Columns of :attr:`EpochRecord.metrics`."""
        return tuple(dict.fromkeys(name for record in self._records for name in record.metrics))

    def to_state(self) -> dict[str, Tensor]:
        """Columns as float64 tensors; not-a-number stands for None."""
        return {
            name: torch.tensor(
                [math.nan if value is None else value for value in self.column(name)], dtype=torch.float64
            )
            for name in self._held()
        }

    def _held(self) -> tuple[str, ...]:
        """Columns, those that only some runs measure where they have values."""
        held = tuple(n for n in COLUMNS if n not in MEASURED or any(v is not None for v in self.column(n)))
        return (*held, *self._more())

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], best_by: str = "accuracy", since: int = 0, higher: bool = True
    ) -> History:
        """The inverse of :meth:`to_state`. Raises: CheckpointError for columns that do not fit together."""
        try:
            names = [name for name in COLUMNS if name in state or name not in MEASURED]
            names += [name for name in state if name not in COLUMNS]
            rows = list(zip(*(state[name].tolist() for name in names), strict=True))
            return cls([_record(dict(zip(names, row, strict=True))) for row in rows], best_by, since, higher)
        except (KeyError, AttributeError, TypeError, ValueError) as failure:
            raise CheckpointError(f"history: expected columns {', '.join(COLUMNS)}, got {failure}") from None

    def write(self, path: Path) -> None:
        """Writes all lines anew, atomically."""
        lines = "".join(f"{record.to_json()}\n" for record in self._records)
        write_atomic(path, lambda file: file.write(lines.encode()))


def _higher_is_better(record: EpochRecord) -> float | None:
    """The validation score, turned around where lower ones are better."""
    if record.val_acc is not None:
        return record.val_acc
    return None if record.val_rmse is None else -record.val_rmse


def _finite(value: Value) -> Value:
    """None for what JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record(row: dict[str, float]) -> EpochRecord:
    """A record from a row of numbers, not-a-number being None."""
    optional = {
        name: None if math.isnan(value) else value
        for name, value in row.items()
        if name != "epoch" and name not in _ALWAYS
    }
    always = {name: row[name] for name in _ALWAYS}
    known = {name: value for name, value in optional.items() if name in COLUMNS}
    metrics = {name: value for name, value in optional.items() if name not in COLUMNS}
    return EpochRecord(int(row["epoch"]), **{**always, **known}, metrics=metrics)  # type: ignore[arg-type]
