"""Progress on no terminal: few lines, all on standard error."""

from __future__ import annotations

import pytest

from graphweft.train.progress import EpochProgress, working
from graphweft.train.record import EpochRecord


def test_plain_lines_are_few_and_end_with_the_last_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    with EpochProgress(1, 200) as show:
        for epoch in range(1, 201):
            show.update(EpochRecord(epoch, loss=1 / epoch, train_acc=0.5, val_acc=0.25, epoch_seconds=0.002))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 11
    assert lines[0].startswith("epoch 1/200  loss 1.0000  train 50.0 %  val 25.0 %  2.0 ms/epoch  ")
    assert lines[-1].startswith("epoch 200/200") and lines[-1].endswith("0:00 left")
    assert all("\x1b" not in line for line in lines)


def test_a_resumed_run_shows_where_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with EpochProgress(58, 60) as show:
        for epoch in (58, 59, 60):
            show.update(EpochRecord(epoch, loss=0.5))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("epoch 58/60  loss 0.5000  0.0 ms/epoch") and lines[-1].startswith("epoch 60/60")


def test_accuracies_of_the_last_evaluation_stay_on_show(capsys: pytest.CaptureFixture[str]) -> None:
    with EpochProgress(1, 2) as show:
        first = EpochRecord(1, loss=1.0, val_acc=0.5, eval_seconds=0.1)
        show.update(first, first)
        show.update(EpochRecord(2, loss=0.5), first)
    assert "val 50.0 %" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("shown", [True, False])
def test_work_before_the_first_epoch_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], shown: bool
) -> None:
    with working("reading [cora]", shown) as say:
        say("still reading")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with working("reading [cora]", True) as say:
        say("still reading")
    with EpochProgress(1, 3) as show:
        for epoch in (1, 2, 3):
            show.update(EpochRecord(epoch, loss=0.5, val_acc=0.75))
        show.say("something [odd]")
    out, err = capfd.readouterr()
    assert (out == "" and "still reading" in err) or "[cora]" in err
    assert "epoch 3/3" in err and "val 75.0 %" in err and "something [odd]" in err
