"""The folder of a run: checkpoints, metrics and the plot; who may write there, and what becomes of an earlier run.

Comes in: states, records and histories from the trainer. Goes out: ``last.pt`` (everything needed to go on),
``best.pt`` (the model at the best validation epoch), ``metrics.jsonl`` (a line an epoch), ``curves.png``. ``last.pt``
is the truth; the others follow from it. A run that is started anew in a folder that holds one moves the old files to
``earlier-1``, ``earlier-2`` and so on: nothing is lost and nothing blocks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, TextIO

import filelock

from graphweft._errors import CheckpointError, ConfigError
from graphweft.train.atomic import TEMPORARY
from graphweft.train.checkpoint import load_checkpoint, save_checkpoint
from graphweft.train.history import History
from graphweft.train.options import LAST
from graphweft.train.plot import write_plot
from graphweft.train.record import EpochRecord

BEST, METRICS, PLOT, SUMMARY = "best.pt", "metrics.jsonl", "curves.png", "summary.json"
EARLIER = "earlier-"  # then a number
CSV, TENSORBOARD = "metrics.csv", "tensorboard"
_OURS = (LAST, BEST, METRICS, PLOT, SUMMARY, CSV, TENSORBOARD)  # in the order they are moved aside: the truth first
_LEAST_SECONDS = 0.5
_SHARE = 0.05  # of the time at most goes into checkpoints


def check_folder(path: Path) -> None:
    """A folder can be made or written at ``path``; makes none.

    Raises: ConfigError naming what stands in the way.
    """
    place = path.absolute()
    while not _exists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"out: expected a folder, got {str(place)!r}, which is not one")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"out: expected a folder that can be written, got {str(place)!r}")


def read_last(path: Path) -> dict[str, Any] | None:
    """The state in the folder's ``last.pt``; None when there is none yet.

    Raises: CheckpointError when the file is damaged or cannot be read.
    """
    try:
        return load_checkpoint(path / LAST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        raise CheckpointError(f"{path / LAST}: expected a file that can be read, got {failure.strerror}") from None


class RunFolder:
    """Writes one run into ``path``, which it makes and locks; use as a context manager.

    Raises: ConfigError when the folder cannot be made or another process trains into it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moved_to: Path | None = None
        self._metrics: TextIO | None = None
        self._saved_at, self._save_seconds = 0.0, 0.0
        self._saved = (-1, 0)
        self._best_epoch = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(path / ".lock")
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ConfigError(f"out: expected a folder that no other run writes to, got {str(path)!r}") from None
        except OSError as failure:
            text = failure.strerror or failure
            raise ConfigError(f"out: expected a folder that can be written, got {str(path)!r} ({text})") from None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._lock.release()

    def start(self, history: History, begun: bool = False) -> None:
        """Opens ``metrics.jsonl`` with exactly the lines of ``history``; an empty one begins a run of its own.

        ``begun``: the run in the folder goes on although no epoch of it is done.
        """
        if len(history) == 0 and not begun:
            self._move_aside()
        self._saved, self._best_epoch = self._place_in(LAST), self._place_in(BEST)[0]
        for left_over in self.path.glob(f".*{TEMPORARY}"):
            left_over.unlink()
        history.write(self.path / METRICS)
        self._metrics = (self.path / METRICS).open("a", encoding="utf-8")

    def log(self, record: EpochRecord) -> None:
        """Appends one line, handed to the system at once."""
        if self._metrics is not None:
            self._metrics.write(f"{record.to_json()}\n")
            self._metrics.flush()

    def is_due(self) -> bool:
        """Whether enough time has passed for another checkpoint to cost next to nothing."""
        return time.monotonic() - self._saved_at >= max(_LEAST_SECONDS, self._save_seconds / _SHARE)

    def save(self, state: dict[str, Any]) -> None:
        """Writes ``last.pt``, then ``best.pt``, each when its epoch (or batch) is another than in the file."""
        start = time.monotonic()
        place = (state["epoch"], state.get("batches", 0))
        if place != self._saved:
            save_checkpoint(self.path / LAST, state)
            self._saved = place
        if state["best_epoch"] != self._best_epoch:
            names = ("config", "best_epoch", "best_val_acc", "best_val_rmse")
            best: dict[str, Any] = {name: state[name] for name in names if name in state}
            best |= {"epoch": state["best_epoch"], "model": state["best_model"]}
            save_checkpoint(self.path / BEST, best)
            self._best_epoch = state["best_epoch"]
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - start

    def plot(self, history: History, title: str, metric: str) -> None:
        """Writes ``curves.png``."""
        write_plot(self.path / PLOT, history, title, metric)

    def _place_in(self, name: str) -> tuple[int, int]:
        """Epochs, and batches of the next, in a checkpoint; (-1, 0) when there is none that is whole."""
        try:
            state = load_checkpoint(self.path / name)
            return int(state["epoch"]), int(state.get("batches", 0))
        except (OSError, CheckpointError, KeyError, TypeError, ValueError):
            return -1, 0

    def _move_aside(self) -> None:
        """Moves the files of an earlier run, if it got as far as a checkpoint, into the next free ``earlier-N``."""
        if not (self.path / LAST).exists():
            return
        old = [self.path / name for name in _OURS if (self.path / name).exists()]
        number = 1
        while (self.path / f"{EARLIER}{number}").exists():
            number += 1
        self.moved_to = self.path / f"{EARLIER}{number}"
        self.moved_to.mkdir()
        for file in old:
            file.replace(self.moved_to / file.name)


def _exists(path: Path) -> bool:
    """Like ``Path.exists``; a component that is no folder counts as missing."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False
