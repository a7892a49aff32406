"""The folder of a run: what stands in the way, and what a new run does to an old one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphweft._errors import CheckpointError, ConfigError
from graphweft.train.history import History
from graphweft.train.record import EpochRecord
from graphweft.train.run_folder import RunFolder, check_folder, read_last


def _state(epoch: int, best: int) -> dict[str, object]:
    return {"config": {}, "epoch": epoch, "best_epoch": best, "best_val_acc": 0.5, "best_model": {}, "model": {}}


def test_a_folder_to_be_is_checked_and_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b" / "c")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for bad in ("file", "file/deeper", "pipe", "nowhere/deeper", "x" * 300):
        with pytest.raises(ConfigError, match="out: expected a folder") as caught:
            check_folder(tmp_path / bad)
            RunFolder(tmp_path / bad)
        assert "\n" not in str(caught.value)


def test_a_system_that_refuses_is_reported() -> None:
    with pytest.raises(ConfigError, match="out: expected a folder that can be written, got '/proc/none'"):
        RunFolder(Path("/proc/none"))


def test_lines_go_to_the_file_at_once(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.start(History())
        folder.log(EpochRecord(1, 0.5))
        assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1


def test_the_best_file_is_written_when_the_best_changes(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.start(History())
        folder.save(_state(1, 1))
        first = (tmp_path / "best.pt").stat()
        folder.save(_state(2, 1))
        assert (tmp_path / "best.pt").stat().st_ino == first.st_ino
        folder.save(_state(3, 3))
        assert (tmp_path / "best.pt").stat().st_ino != first.st_ino
        assert read_last(tmp_path)["epoch"] == 3


def test_checkpoints_are_not_due_all_the_time(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.start(History())
        assert folder.is_due()
        folder.save(_state(1, 1))
        assert not folder.is_due()


def test_reading_where_there_is_no_run(tmp_path: Path) -> None:
    assert read_last(tmp_path) is None and read_last(tmp_path / "none") is None
    (tmp_path / "last.pt").mkdir()
    with pytest.raises(CheckpointError, match=r"last\.pt: expected a file that can be read"):
        read_last(tmp_path)
