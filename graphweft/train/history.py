"""What happened epoch by epoch, in memory and as ``metrics.jsonl``.

Comes in: one record an epoch. Goes out: columns for plots and summaries, lines of JSON, and tensors for a checkpoint.
Called by the trainer. The checkpoint's copy is the truth: on a resume the file is written anew from it, which drops
lines of epochs that are done again and whatever a dying process left half written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from graphweft import _html
from graphweft._errors import CheckpointError, DataWarning
from graphweft.train.atomic import write_atomic
from graphweft.train.options import STOP_ON
from graphweft.train.plot import picture_of, write_picture
from graphweft.train.record import ALWAYS, COLUMNS, MEASURED, EpochRecord, Value
from graphweft.train.scores import shown


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
        metric: What the score is called.
        name: Of the run, the title of its plot.
        predicted: ``epoch_seconds`` and ``peak_bytes`` as they were predicted, where they were.
        measured: The same as they came.

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
        self.metric, self.name = "accuracy", ""
        self.predicted: dict[str, float] = {}
        self.measured: dict[str, float] = {}
        self._score, self._loss = -math.inf, math.inf  # the best so far; a higher score is a better one
        self._improved, self._told_undefined = since, False
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
            if not self._told_undefined and record.score("val") is not None:
                self._told_undefined = True
                where = "best: expected a metric that the validation part defines"
                warnings.warn(f"{where}, got {self.best_by}, which has no value there (one class?)", DataWarning, 5)
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

    def plot(self, path: str | Path | None = None) -> Any:
        """Draws loss and score over epochs, with the best epoch and its test score.

        Args:
            path: Where to write the picture: .png, .svg or .pdf; None: nowhere.

        Returns: The ``matplotlib.figure.Figure``, which a notebook shows.

        Raises: ConfigError for another kind of file, OSError when it cannot be written.
        """
        figure = picture_of(self, self.name, self.metric)
        if path is not None:
            write_picture(Path(path), figure)
        return figure

    def __repr__(self) -> str:
        """Epochs, the last loss, and the best epoch with its scores."""
        if self.last is None:
            return "History(no epochs)"
        best = self.best
        return f"History({len(self)} epochs, loss {self.last.loss:.4g}{'' if best is None else self._told(best)})"

    def _told(self, best: EpochRecord) -> str:
        scores = ((part, best.score(part)) for part in ("val", "test"))
        shown_scores = "".join(f" {part} {shown(value, self.metric)}" for part, value in scores if value is not None)
        return f", best epoch {best.epoch}:{shown_scores}"

    def _repr_html_(self) -> str:
        """A row for the first, the best and the last epoch, for notebooks."""
        named = {} if self.last is None else {"first": self[0], "best": self.best, "last": self.last}
        rows = {name: record.values() for name, record in named.items() if record is not None}
        heads = list(dict.fromkeys(column for values in rows.values() for column in values))
        lines = ((name, *(_number(values.get(column)) for column in heads)) for name, values in rows.items())
        caption = f"{self.name or 'History'}, {len(self)} epochs"
        return _html.columns(caption, ["", *heads], lines)

    def write(self, path: Path) -> None:
        """Writes all lines anew, atomically."""
        lines = "".join(f"{record.to_json()}\n" for record in self._records)
        write_atomic(path, lambda file: file.write(lines.encode()))


def _higher_is_better(record: EpochRecord) -> float | None:
    """The validation score, turned around where lower ones are better."""
    if record.val_acc is not None:
        return record.val_acc
    return None if record.val_rmse is None else -record.val_rmse


def _number(value: Value) -> str:
    """For people to read."""
    return "" if value is None else f"{value:.4g}"


def _record(row: dict[str, float]) -> EpochRecord:
    """A record from a row of numbers, not-a-number being None."""
    optional = {
        name: None if math.isnan(value) else value
        for name, value in row.items()
        if name != "epoch" and name not in ALWAYS
    }
    always = {name: row[name] for name in ALWAYS}
    known = {name: value for name, value in optional.items() if name in COLUMNS}
    metrics = {name: value for name, value in optional.items() if name not in COLUMNS}
    return EpochRecord(int(row["epoch"]), **{**always, **known}, metrics=metrics)  # type: ignore[arg-type]
