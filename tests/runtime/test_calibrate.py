"""Calibration: measured once, remembered, damaged files measured again, never needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphweft._budget import Highest, own_bytes
from graphweft._config import config
from graphweft._memory import POOL
from graphweft.cost import CostModel
from graphweft.runtime import calibrate
from graphweft.runtime.features import DEFAULT_THRESHOLD


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    calibrate._measured.clear()
    calibrate._read.cache_clear()
    return tmp_path


def test_defaults_before_any_measurement(cache: Path) -> None:
    with config(cache_dir=str(cache)):
        assert calibrate.threshold() == DEFAULT_THRESHOLD
        assert calibrate.cost_model() == CostModel()
        assert not calibrate.is_calibrated()


def test_measurement_is_remembered_by_later_processes(cache: Path) -> None:
    with config(cache_dir=str(cache)):
        POOL.trim()
        held, before = POOL.begin_peak(), POOL.stats().mapped
        found = calibrate.calibrate()
        assert POOL.stats().peak_lent - held <= calibrate.MEMORY
        assert POOL.stats().mapped <= before
        assert 0.5 <= found.threshold <= 0.99
        calibrate._measured.clear()  # as a new process would start
        assert calibrate.threshold() == found.threshold
        assert calibrate.cost_model() == found.model
        assert len(list(cache.iterdir())) == 1


@pytest.mark.own_process
def test_it_takes_no_more_than_it_says(cache: Path) -> None:
    """Graphs and all: beside the pool there are ids, as torch makes and sorts them."""
    with config(cache_dir=str(cache)):
        calibrate.calibrate()  # what the process takes for kernels and threads is there already
        POOL.trim()
        before, highest = own_bytes(), Highest()
        calibrate.calibrate()
        assert 0 < highest.nbytes - before <= calibrate.MEMORY


@pytest.mark.parametrize("text", ["", "{", '{"threshold": 7, "error": 0, "model": "{}"}', "[1]", '{"threshold": "x"}'])
def test_a_damaged_file_counts_as_none(cache: Path, text: str) -> None:
    with config(cache_dir=str(cache)):
        calibrate.cache_file().write_text(text)
        assert not calibrate.is_calibrated()
        assert calibrate.threshold() == DEFAULT_THRESHOLD


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    blocked = cache / "file"
    blocked.write_text("")
    with config(cache_dir=str(blocked)):
        found = calibrate.calibrate()
        assert calibrate.threshold() == found.threshold


def test_switched_off(cache: Path) -> None:
    with config(cache_dir=str(cache)):
        calibrate.calibrate()
    with config(cache_dir=str(cache), calibrate=False):
        assert calibrate.threshold() == DEFAULT_THRESHOLD
    assert torch.get_num_threads() >= 1
