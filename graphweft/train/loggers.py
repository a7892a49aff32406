"""Where the numbers of an epoch go beside the history: a CSV file, TensorBoard, or a user's object.

Comes in: names or objects with ``log_metrics(metrics, step)``. Goes out: their calls, once an epoch. Called by the
trainer.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from graphweft._errors import ConfigError, MissingPackageError
from graphweft.train.atomic import write_atomic
from graphweft.train.loop_options import LOGGERS
from graphweft.train.option_table import split_names
from graphweft.train.options import check_choice
from graphweft.train.run_folder import CSV, TENSORBOARD


class Logger(Protocol):
    """What takes the numbers of an epoch."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> Any:
        """Takes the numbers of epoch ``step``."""


class Loggers:
    """Hands the numbers of an epoch on.

    Args:
        given: "csv", "tensorboard", or objects with ``log_metrics``, one or several.
        out: Folder of the run, where the files lie.

    Raises: ConfigError, MissingPackageError.
    """

    def __init__(self, given: Any, out: Path | None) -> None:
        if isinstance(given, str):
            given = split_names(given)
        self._given: list[Any] = list(given) if isinstance(given, Sequence) else [given]
        self._out, self._open = out, []  # type: tuple[Path | None, list[Any]]
        for one in self._given:
            if isinstance(one, str):
                check_choice("loggers", one, LOGGERS)
                if out is None:
                    raise ConfigError(f"loggers={one} cannot be combined with out=None; out='runs/a' names a folder")
            elif isinstance(one, type) or not callable(getattr(one, "log_metrics", None)):
                raise ConfigError(
                    f"loggers: expected one of {', '.join(LOGGERS)}, or an object with log_metrics(metrics, step), "
                    f"got {'the class ' + one.__name__ if isinstance(one, type) else type(one).__name__}"
                )
        if "tensorboard" in self._given:
            _writer_class()

    def start(self, epoch: int) -> None:
        """Before a fit that begins after so many epochs; what was written of later ones is dropped."""
        self._open = [one if not isinstance(one, str) else self._made(one, epoch) for one in self._given]

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        """Hands on the numbers of one epoch."""
        for one in self._open:
            one.log_metrics(dict(metrics), epoch)

    def stop(self) -> None:
        """After a fit: what is open is written out."""
        for given, one in zip(self._given, self._open, strict=True):
            if given == "tensorboard":
                one.close()
                continue
            for name, arguments in (("save", ()), ("finalize", ("success",))):  # as loggers of Lightning have them
                if callable(ending := getattr(one, name, None)):
                    ending(*arguments)
        self._open = []

    def _made(self, name: str, epoch: int) -> Logger:
        assert self._out is not None  # checked
        return _Csv(self._out / CSV, epoch) if name == "csv" else _TensorBoard(self._out / TENSORBOARD, epoch)


class _Csv:
    """One line an epoch; a column that comes later is empty in earlier lines."""

    def __init__(self, path: Path, epoch: int) -> None:
        self._path, self._rows = path, _read(path, epoch)
        self._columns: list[str] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Adds the line of epoch ``step``."""
        row = {"epoch": str(step), **{name: repr(value) for name, value in metrics.items() if name != "epoch"}}
        self._rows.append(row)
        columns = list(dict.fromkeys((*self._columns, *(name for one in self._rows for name in one))))
        if columns == self._columns:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(_text([row], columns))
            return
        self._columns = columns
        text = _text([dict(zip(columns, columns, strict=True)), *self._rows], columns)
        write_atomic(self._path, lambda file: file.write(text.encode()))


def _read(path: Path, epoch: int) -> list[dict[str, str]]:
    """The lines of epochs up to ``epoch``."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    return [row for row in rows if row.get("epoch", "").isdigit() and int(row["epoch"]) <= epoch]


def _text(rows: list[dict[str, str]], columns: list[str]) -> str:
    made = io.StringIO()
    csv.DictWriter(made, columns, restval="", lineterminator="\n").writerows(rows)
    return made.getvalue()


class _TensorBoard:
    """Events in the folder of the run."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._writer = _writer_class()(str(folder), purge_step=epoch + 1)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """A scalar for each number."""
        for name, value in metrics.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Writes all out."""
        self._writer.close()


def _writer_class() -> Any:
    """Torch's writer of events. Raises: MissingPackageError."""
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        raise MissingPackageError(
            "loggers: expected the package tensorboard for 'tensorboard', which is not installed "
            "(pip install graphweft[logging])"
        ) from None
