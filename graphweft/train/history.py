"""What happened epoch by epoch, in memory and as ``metrics.jsonl``.

Comes in: one record an epoch. Goes out: columns for plots and summaries, lines of JSON, and tensors for a checkpoint.
Called by the trainer. The checkpoint's copy is the truth: on a resume the file is written anew from it, which drops
lines of epochs that are done again and whatever a dying process left half written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from graphweft._errors import CheckpointError
from graphweft.train.atomic import write_atomic

Value = int | float | None


@dataclass(frozen=True)
class EpochRecord:
    """One epoch; accuracies are fractions after its update, None where it was not evaluated or the split is empty.

    Attributes:
        epoch: Counts from 1.
        loss: Training loss of the forward pass, before the update.
        train_acc: On ``train_idx``; micro-F1 where nodes have several labels. Likewise the next two.
        val_acc: On ``val_idx``.
        test_acc: On ``test_idx``.
        val_loss: The loss on ``val_idx``, after the update as the accuracies.
        epoch_seconds: Forward, backward and update, nothing else.
        eval_seconds: Evaluation after the update; 0 where there was none.
        val_ap: Of link prediction: average precision. Likewise for the test split.
        val_mrr: Mean reciprocal rank.
        val_hits: Share of ranks up to 10.
        gradient_error: Of sampled gradients, relative, where the quality guard measures it. Likewise the next three.
        sampling_error: Its part from sampling.
        staleness_error: Its part from earlier hidden rows.
        neighbor_loss: Share of in-edges of computed nodes that were left out.
        history_age: Mean steps since the hidden rows that were read had been written.
    """

    epoch: int
    loss: float
    train_acc: float | None = None
    val_acc: float | None = None
    test_acc: float | None = None
    val_loss: float | None = None
    epoch_seconds: float = 0.0
    eval_seconds: float = 0.0
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

    def to_json(self) -> str:
        """One line, always valid JSON: what is not finite becomes null."""
        values = {field.name: _finite(getattr(self, field.name)) for field in fields(self)}
        values = {name: value for name, value in values.items() if value is not None or name not in MEASURED}
        return json.dumps(values, allow_nan=False)


GUARDED = ("gradient_error", "sampling_error", "staleness_error", "neighbor_loss", "history_age")
COLUMNS = tuple(field.name for field in fields(EpochRecord))
LINK_COLUMNS = ("val_ap", "val_mrr", "val_hits", "test_ap", "test_mrr", "test_hits")  # there where they were measured
MEASURED = (*LINK_COLUMNS, *GUARDED)
_ALWAYS = ("loss", "epoch_seconds", "eval_seconds")


class History:
    """The records of a run in order; ``history["loss"]`` is a column, ``history[-1]`` a record.

    ``best_by`` says which epoch is the best: "accuracy" the first with the highest validation accuracy, "loss" the
    first with the lowest validation loss, "both" the last that was, when it came, at least as good as all before in
    both, as in the program of the GAT paper.

    Example:
        >>> history = History()
        >>> history.append(EpochRecord(1, loss=2.0, val_acc=0.5))
        >>> history.append(EpochRecord(2, loss=1.0, val_acc=0.5))
        >>> history["loss"], history.best.epoch, len(history)
        ([2.0, 1.0], 1, 2)
    """

    def __init__(self, records: list[EpochRecord] | None = None, best_by: str = "accuracy") -> None:
        self._records: list[EpochRecord] = []
        self._best: EpochRecord | None = None
        self.best_by = best_by
        self._accuracy, self._loss = -math.inf, math.inf  # the best so far
        self._improved = 0
        for record in records or []:
            self.append(record)

    def append(self, record: EpochRecord) -> None:
        """Adds the next epoch.

        Raises: ValueError when it is not the one after the last.
        """
        if record.epoch != len(self._records) + 1:
            raise ValueError(f"history: expected epoch {len(self._records) + 1}, got {record.epoch}")
        self._records.append(record)
        self._judge(record)

    def _judge(self, record: EpochRecord) -> None:
        """Notes whether ``record`` is the best so far and whether it is an improvement."""
        if record.val_acc is None:
            return
        loss = math.inf if record.val_loss is None else record.val_loss
        both = self.best_by == "both"  # equals count, as in that program
        higher = record.val_acc > self._accuracy or (both and record.val_acc == self._accuracy)
        lower = loss < self._loss or (both and loss == self._loss)
        wanted = {"accuracy": higher, "loss": lower, "both": higher and lower}[self.best_by]
        if wanted or self._best is None:
            self._best = record
        if wanted or (both and (higher or lower)):
            self._improved = record.epoch
        self._accuracy, self._loss = max(self._accuracy, record.val_acc), min(self._loss, loss)

    @property
    def best(self) -> EpochRecord | None:
        """The best epoch by ``best_by``; None without validation nodes."""
        return self._best

    @property
    def improved(self) -> int:
        """The last epoch that was better by ``best_by``, where for "both" either counts; 0 before the first."""
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
        """One value an epoch. Raises: KeyError for a name that is no field of :class:`EpochRecord`."""
        if name not in COLUMNS:
            raise KeyError(f"history: expected one of {', '.join(COLUMNS)}, got {name!r}")
        return [getattr(record, name) for record in self._records]

    def to_state(self) -> dict[str, Tensor]:
        """Columns as float64 tensors; not-a-number stands for None."""
        return {
            name: torch.tensor(
                [math.nan if value is None else value for value in self.column(name)], dtype=torch.float64
            )
            for name in self._held()
        }

    def _held(self) -> tuple[str, ...]:
        """Columns, those of link prediction only where they have values."""
        return tuple(n for n in COLUMNS if n not in MEASURED or any(v is not None for v in self.column(n)))

    @classmethod
    def from_state(cls, state: dict[str, Tensor], best_by: str = "accuracy") -> History:
        """The inverse of :meth:`to_state`. Raises: CheckpointError for columns that do not fit together."""
        try:
            names = [name for name in COLUMNS if name in state or name not in MEASURED]
            rows = list(zip(*(state[name].tolist() for name in names), strict=True))
            return cls([_record(dict(zip(names, row, strict=True))) for row in rows], best_by)
        except (KeyError, AttributeError, TypeError, ValueError) as failure:
            raise CheckpointError(f"history: expected columns {', '.join(COLUMNS)}, got {failure}") from None

    def write(self, path: Path) -> None:
        """Writes all lines anew, atomically."""
        lines = "".join(f"{record.to_json()}\n" for record in self._records)
        write_atomic(path, lambda file: file.write(lines.encode()))


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
    return EpochRecord(int(row["epoch"]), **{**always, **optional})  # type: ignore[arg-type]
