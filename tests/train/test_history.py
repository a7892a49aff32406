"""Records, the best epoch, and the file of lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from graphweft._errors import CheckpointError
from graphweft.train.history import COLUMNS, EpochRecord, History


def _history(*values: float | None) -> History:
    return History([EpochRecord(i + 1, loss=1.0 / (i + 1), val_acc=v) for i, v in enumerate(values)])


def test_best_is_the_first_of_the_highest() -> None:
    best = _history(0.1, 0.4, None, 0.4, 0.3).best
    assert best is not None and best.epoch == 2


def test_best_at_zero_accuracy_is_the_first_epoch() -> None:
    best = _history(0.0, 0.0).best
    assert best is not None and best.epoch == 1
    assert _history(None, None).best is None


def test_epochs_come_in_order() -> None:
    history = _history(0.1)
    with pytest.raises(ValueError, match="expected epoch 2, got 4"):
        history.append(EpochRecord(4, loss=0.0))


def test_a_column_has_one_value_an_epoch() -> None:
    history = _history(0.1, None)
    assert history["val_acc"] == [0.1, None]
    assert [record.epoch for record in history] == [1, 2]
    with pytest.raises(KeyError, match="expected one of epoch, loss"):
        history.column("val")


def test_state_goes_round_bit_for_bit() -> None:
    history = _history(0.1 + 0.2, None, 1 / 3)
    state = history.to_state()
    assert set(state) == set(COLUMNS) and all(t.dtype == torch.float64 for t in state.values())
    again = History.from_state(state)
    assert list(again) == list(history)
    assert again.best == history.best


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("loss"),
        lambda s: s.update(loss=torch.zeros(1)),
        lambda s: s.update(epoch=torch.tensor([1.0, 3.0])),
        lambda s: s.update(loss=3),
    ],
)
def test_columns_that_do_not_fit_are_refused(change) -> None:
    state = _history(0.1, 0.2).to_state()
    change(state)
    with pytest.raises(CheckpointError, match="history: expected"):
        History.from_state(state)


def test_lines_are_json_also_for_what_is_not_finite(tmp_path: Path) -> None:
    history = History([EpochRecord(1, loss=math.inf, train_acc=math.nan, val_acc=0.5)])
    history.write(tmp_path / "metrics.jsonl")
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["loss"] is None and json.loads(lines[0])["val_acc"] == 0.5
