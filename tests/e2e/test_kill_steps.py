"""kill -9 in the middle of mini-batch epochs: the same parameters as a run that nobody disturbed.

``GRAPHWEFT_TEST_STEP_KILLS`` sets how often each way of training is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.kill_steps import WAYS

KILLS = int(os.environ.get("GRAPHWEFT_TEST_STEP_KILLS", "2"))


@pytest.mark.slow
@pytest.mark.parametrize("ways", [tuple(WAYS)[first::3] for first in range(3)], ids="-".join)
def test_runs_that_are_killed_at_random_steps_end_with_the_same_bits(
    ways: tuple[str, ...], tmp_path: Path, root: Path
) -> None:
    """A process for several ways, which reads the package once; every run is a child of it."""
    script = Path(__file__).with_name("kill_steps.py")
    paths = os.pathsep.join([str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path), str(KILLS), *ways]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(KILLS)] * len(ways)
