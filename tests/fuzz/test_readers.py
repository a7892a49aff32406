"""A few hundred cases of the mutation run in the suite; the long run is ``python -m tests.fuzz.readers``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from fuzz.readers import check_dataset, run_case, write_files
from layouts import LAYOUTS

from graphweft.data.readers.registry import read_dataset

CASES = 400


@pytest.mark.parametrize("name", LAYOUTS)
def test_undamaged_files_are_read(name: str, tmp_path: Path) -> None:
    write_files(dict(LAYOUTS[name].files), tmp_path)
    assert check_dataset(read_dataset(tmp_path / LAYOUTS[name].target)) is None


def test_damaged_files_give_a_dataset_or_one_clear_line() -> None:
    counts: Counter[str] = Counter()
    for number in range(CASES):
        result, detail, _ = run_case(1, number, list(LAYOUTS))
        assert result in ("dataset", "error"), f"case {number} of seed 1: {detail}"
        counts[result] += 1
    assert min(counts["dataset"], counts["error"]) > CASES // 20, f"one-sided cases: {dict(counts)}"
    assert not Path("/tmp/graphweft-was-here").exists()
