"""Seeded mistakes in kernels: all are found. And kernels over the zoo and random graphs, compiled, on the emulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

GRAPHS = 60  # random ones; `python tests/cuda/graphs.py 500` runs more


def output(root: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a program of this folder prints."""
    places = [str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-W", "ignore", str(root / "tests" / "cuda" / script), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=400, check=False)


@pytest.mark.slow
def test_every_mutant_is_found(root: Path) -> None:
    made = output(root, "mutants.py")
    lines = [line.split("\t", 1) for line in made.stdout.splitlines()]
    assert made.returncode == 0 and len(lines) > 20, made.stderr[-3000:]
    assert [name for name, verdict in lines if verdict == "NOT FOUND"] == []


@pytest.mark.slow
def test_compiled_kernels_hold_on_the_zoo_and_on_random_graphs(root: Path) -> None:
    made = output(root, "graphs.py", str(GRAPHS))
    assert made.returncode == 0 and " 0 wrong" in made.stdout, made.stdout[-3000:] + made.stderr[-3000:]
