"""Progress on standard error: a bar on a terminal, plain lines anywhere else.

Comes in: a record an epoch. Goes out: loss, accuracies, time an epoch and time left. Called by the trainer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from graphweft.train.durations import clock, duration
from graphweft.train.record import EpochRecord
from graphweft.train.scores import ERRORS, PARTS, shown

_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 15.0


@contextmanager
def working(text: str, shown: bool) -> Iterator[Callable[[str], None]]:
    """Shows ``text`` while the block runs, on a terminal only; yields a function that changes it."""
    console = Console(stderr=True)
    if not shown or sys.stderr is None or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(escape(text)) as status:
        yield lambda now: status.update(escape(now))


class EpochProgress:
    """Shows epochs ``first`` .. ``total``; use as a context manager around the loop.

    On no terminal it writes a line at the first epoch, at every tenth of the way, at the last, and at least every 15 s.
    """

    def __init__(self, first: int, total: int) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._first, self._total = first, total
        self._start = self._shown = time.monotonic()
        self._tenth = -1
        self._bar: Progress | None = None
        if sys.stderr is not None and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("epoch", total=total, completed=first - 1, note="")

    def __enter__(self) -> EpochProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, record: EpochRecord, scored: EpochRecord | None = None) -> None:
        """Shows ``record`` when it is time to; accuracies come from ``scored``, the last epoch that was evaluated."""
        now = time.monotonic()
        if self._bar is not None:
            if now - self._shown < _REDRAW_SECONDS and record.epoch < self._total:
                return
            self._shown = now
            description = f"epoch {record.epoch}/{self._total}"
            note = self._note(record, scored or record, now)
            self._bar.update(self._task, completed=record.epoch, description=description, note=note)
            return
        tenth = 10 * record.epoch // self._total
        edge = record.epoch in (self._first, self._total)
        if edge or tenth > self._tenth or now - self._shown >= _LINE_SECONDS:
            self._tenth, self._shown = tenth, now
            self.say(f"epoch {record.epoch}/{self._total}  {self._note(record, scored or record, now)}")

    def within(self, epoch: int, done: int, total: int, loss: float) -> None:
        """Shows how far an epoch is, ``done`` of ``total`` batches."""
        now = time.monotonic()
        if now - self._shown < (_REDRAW_SECONDS if self._bar is not None else _LINE_SECONDS):
            return
        self._shown = now
        text = f"batch {done}/{total}  loss {loss:.4f}"
        if self._bar is not None:
            where = f"epoch {epoch}/{self._total}"
            self._bar.update(self._task, completed=epoch - 1 + done / total, description=where, note=text)
        else:
            self.say(f"epoch {epoch}/{self._total}  {text}")

    def say(self, text: str) -> None:
        """A line of text, above the bar where there is one."""
        if sys.stderr is not None:
            self._console.print(text, markup=False)

    def _note(self, record: EpochRecord, scored: EpochRecord, now: float) -> str:
        done = record.epoch - self._first + 1
        left = (now - self._start) / done * (self._total - record.epoch)
        parts = [f"loss {record.loss:.4f}"]
        metric = "accuracy" if scored.train_rmse is None else "RMSE"  # fractions are shown alike
        scores = [(name, value) for name in PARTS if (value := scored.score(name)) is not None]
        if scores and metric in ERRORS:
            parts.append(metric)
        parts += [f"{name} {shown(value, metric)}" for name, value in scores]
        named = ((name, value) for name, value in scored.metrics.items() if name.startswith("val_"))
        parts += [f"{name} {value:.4g}" for name, value in named if value is not None]
        if scored.val_mrr is not None and scored.val_hits is not None:
            parts.append(f"mrr {scored.val_mrr:.3f}  hits@10 {100 * scored.val_hits:.1f} %")
        parts.append(f"{duration(record.epoch_seconds)}/epoch")
        parts.append(f"{clock(left)} left")
        return "  ".join(parts)
