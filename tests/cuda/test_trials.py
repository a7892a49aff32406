"""Every kernel for CUDA devices, forward and backward, against the oracle in float64: in Triton's interpreter, and as
compiled for compute capability 9.0 on an emulator of PTX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")


@pytest.mark.slow
@pytest.mark.timeout(1600)  # four minutes of a processor of 2.5 GHz, which other work may share
@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_every_trial_holds(root: Path, mode: str) -> None:
    """One process for all of them: Triton decides at import whether it interprets."""
    # No empty entry: it stands for the current directory, whose package may not be the installed one.
    places = [str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-W", "ignore", str(root / "tests" / "cuda" / "trials.py"), mode]
    made = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=1500)
    lines = [line.split("\t") for line in made.stdout.splitlines()]
    wrong = [line for line in lines if line[1] != "ok"]
    assert not wrong and made.returncode == 0, f"{wrong}\n{made.stderr[-3000:]}"
    assert len(lines) > 25 and lines[-1][0] == "no_kernel_is_left_out"
