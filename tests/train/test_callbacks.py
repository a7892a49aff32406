"""The user's code between epochs and batches, and where numbers go."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from plain_loop import (
    Recorder,
    seeded,
)
from standin import make_model, make_task

from graphweft._errors import ConfigError
from graphweft.data.synthetic import synthetic
from graphweft.nn.sage import SAGE
from graphweft.train.callbacks import Callbacks
from graphweft.train.trainer import Trainer


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_callbacks_are_called_in_order(mode: str) -> None:
    ds = synthetic("cora", scale=0.1, seed=2)
    seen = Recorder(last=3)
    drawn = {} if mode == "full" else {"fanouts": (3, 3), "batch_size": 10}
    history = Trainer(seeded(SAGE, ds), ds, mode=mode, callbacks=seen, **drawn).fit(5)
    batches = 1 if mode == "full" else -(-ds.train_idx.numel() // 10)
    expected: list[tuple[Any, ...]] = [("fit_start", 0)]
    for epoch in (1, 2, 3):
        expected += [("epoch_start", epoch), *(("batch_end", 1 + i) for i in range(batches)), ("epoch_end", epoch)]
    assert seen.calls == [*expected, ("fit_end", 3)] and len(history) == 3 and (mode == "full" or batches > 1)


def test_a_callback_stops_training_and_the_next_fit_goes_on() -> None:
    class Stops:
        def on_epoch_end(self, trainer: Trainer, record: Any) -> None:
            trainer.should_stop = record.epoch == 2

    task = make_task()
    trainer = Trainer(make_model(task), task, callbacks=[Stops()])
    assert len(trainer.fit(5)) == 2 and len(trainer.fit(5)) == 7


class Kept:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def finalize(self, status: str) -> None:  # as loggers of Lightning have it
        self.ended = status, len(self.rows)


def test_loggers_get_the_numbers_of_every_epoch(tmp_path: Path) -> None:
    task, kept = make_task(), Kept()
    options: dict[str, Any] = {"metrics": "f1_macro", "eval_every": 2, "scheduler": "cosine", "out": tmp_path}
    trainer = Trainer(make_model(task), task, loggers=["csv", kept], **options)
    history = trainer.fit(4)
    assert [step for step, _ in kept.rows] == [1, 2, 3, 4] and kept.ended == ("success", 4)
    assert [row for _, row in kept.rows] == [record.values() for record in history]
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for record, row in zip(history, rows, strict=True):
        assert {name: float(value) for name, value in row.items() if value} == record.values()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["val_f1_macro"] == history[1].metrics["val_f1_macro"] and "val_f1_macro" not in lines[0]
    assert history["val_f1_macro"][0] is None and history["lr"][0] == 0.01


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    task = make_task()
    history = Trainer(make_model(task), task, loggers="tensorboard", out=tmp_path).fit(3)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(history["loss"])


def test_a_method_that_takes_other_arguments_is_told_before_training() -> None:
    class Short:
        def on_epoch_start(self, trainer: object) -> None:
            """Lacks the epoch."""

    with pytest.raises(ConfigError, match=r"expected Short.on_epoch_start\(trainer, epoch\), got Short.on_epoch_start"):
        Callbacks([Short()])

    class Loose:
        def on_batch_end(self, *given: object, **named: object) -> None:
            """Takes anything."""

    Callbacks([Loose()]).batch_end(None, 1, 0.5)
