"""Checkpoints are whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphweft._errors import CheckpointError
from graphweft.train.checkpoint import checksum, load_checkpoint, save_checkpoint

STATE = {
    "epoch": 3,
    "config": {"hidden": 8, "note": None},
    "model": {"w": torch.arange(600.0).reshape(20, 30), "b": torch.zeros(0), "steps": torch.tensor(3)},
    "history": {"loss": torch.tensor([1.0, 0.5]), "epoch_seconds": torch.tensor([0.1, 0.2])},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "last.pt", STATE)
    return tmp_path / "last.pt"


def test_what_was_saved_comes_back(path: Path) -> None:
    state = load_checkpoint(path)
    assert state["epoch"] == 3 and state["config"] == STATE["config"]
    torch.testing.assert_close(state["model"], STATE["model"], rtol=0, atol=0)
    assert torch.load(path, weights_only=True)["format"] == 1
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


def test_every_cut_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="damaged file") as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_a_flipped_byte_never_changes_what_is_loaded(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(0, len(whole), 41):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        path.write_bytes(broken)
        try:
            state = load_checkpoint(path)
        except CheckpointError as failure:
            assert "\n" not in str(failure)
        else:  # the byte was padding or a time stamp
            assert checksum(state) == checksum({"format": 1, **STATE})


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="expected a checkpoint of graphweft, got another file"):
        load_checkpoint(tmp_path / "a.pt")
    torch.save({"format": 99}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="expected a checkpoint of format 1, got format 99"):
        load_checkpoint(tmp_path / "b.pt")


class _Payload:
    """Would create a file if it were unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    torch.save({"format": 1, "payload": _Payload(tmp_path / "executed")}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "a.pt")
    assert not (tmp_path / "executed").exists()


def test_a_failed_write_keeps_the_old_file(path: Path) -> None:
    with pytest.raises(Exception, match="lambda"):
        save_checkpoint(path, {"epoch": 4, "bad": lambda: None})
    assert load_checkpoint(path)["epoch"] == 3
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]


def test_the_checksum_sees_values_names_shapes_and_types_but_no_times() -> None:
    base = {"a": torch.zeros(4), "epoch_seconds": torch.zeros(4)}
    assert checksum(base) == checksum({"a": torch.zeros(4), "epoch_seconds": torch.ones(4)})
    for other in (
        {"a": torch.ones(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
    ):
        assert checksum(other) != checksum(base)
