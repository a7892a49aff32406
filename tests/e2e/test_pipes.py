"""Streams that end early or are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = [sys.executable, "-m", "graphweft", "train", "--data", "cora", "--scale", "0.05", "--epochs", "2", "--json"]


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    end, write = os.pipe()
    os.close(end)
    command = [*TRAIN, "--quiet", "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_failure(tmp_path: Path, closed: str) -> None:
    command = f'exec "$@" {closed}'
    done = subprocess.run(["bash", "-c", command, "bash", *TRAIN, "--out", str(tmp_path)], check=False)
    assert done.returncode == 0
    assert (tmp_path / "summary.json").exists()


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*TRAIN, "--quiet", "--out", str(tmp_path)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "graphweft train: No space left on device\n")
