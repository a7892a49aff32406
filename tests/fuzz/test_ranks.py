"""A few killed ranks of each mode, and a few random runs; ``ranks.py`` and ``rank_specs.py`` try many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.ranks import kill_many


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "mini"])
def test_killed_ranks_end_with_the_parameters_of_a_run_that_nobody_kills(mode: str) -> None:
    done = kill_many(mode, ranks=2, kills=2, seed=5, epochs=8)
    assert done["kills"] == 2 and done["equal"] == done["runs"]


@pytest.mark.slow
def test_random_runs_over_ranks_are_those_of_one_process() -> None:
    script = Path(__file__).with_name("rank_specs.py")
    done = subprocess.run(
        [sys.executable, str(script), "--count", "6", "--seed", "3000"], capture_output=True, text=True, check=True
    )
    assert '"faults": []' in done.stdout and '"same"' in done.stdout, done.stdout
