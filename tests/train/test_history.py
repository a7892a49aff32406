"""Records, the best epoch, and the file of lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from graphweft._errors import CheckpointError
from graphweft.train.history import History
from graphweft.train.record import COLUMNS, MEASURED, EpochRecord


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
    assert set(state) == set(COLUMNS) - set(MEASURED) and all(t.dtype == torch.float64 for t in state.values())
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


def _authors_rule(pairs: list[tuple[float, float]]) -> tuple[int, list[int]]:
    """The epoch kept by the program of the GAT paper, and at each epoch how many have passed without improvement."""
    least, highest, kept, waited, waits = math.inf, 0.0, 0, 0, []
    for epoch, (accuracy, loss) in enumerate(pairs, 1):
        if accuracy >= highest or loss <= least:
            if accuracy >= highest and loss <= least:
                kept = epoch
            highest, least, waited = max(accuracy, highest), min(loss, least), 0
        else:
            waited += 1
        waits.append(waited)
    return kept, waits


@pytest.mark.parametrize("seed", range(20))
def test_best_of_both_and_patience_are_those_of_the_gat_paper(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 6, (40, 2), generator=generator).double() / 5  # few values, so that equals occur
    pairs = [(float(a), float(b)) for a, b in drawn]
    history = History(best_by="both")
    kept, waits = _authors_rule(pairs)
    for epoch, ((accuracy, loss), waited) in enumerate(zip(pairs, waits, strict=True), 1):
        history.append(EpochRecord(epoch, loss=1.0, val_acc=accuracy, val_loss=loss))
        assert epoch - history.improved == waited
    assert history.best is not None and history.best.epoch == kept
    again = History.from_state(history.to_state(), "both")
    assert again.best == history.best and again.improved == history.improved


def test_best_by_loss_is_the_first_of_the_lowest() -> None:
    values = [0.5, 0.3, None, 0.3, 0.4]
    records = [
        EpochRecord(i + 1, loss=1.0, val_acc=None if v is None else 0.2 * i, val_loss=v) for i, v in enumerate(values)
    ]
    history = History(records, "loss")
    assert history.best is not None and history.best.epoch == history.improved == 2
