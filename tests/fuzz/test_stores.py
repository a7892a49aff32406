"""A few random budgets and kills; ``stores.py`` runs as many as are asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("stores.py")


@pytest.mark.parametrize(("what", "count", "said"), [("budgets", 1, r"0 steps over"), ("kills", 1, r"\d+ kills hit")])
def test_a_few(what: str, count: int, said: str) -> None:
    command = [sys.executable, str(SCRIPT), what, "--count", str(count), "--seed", "1", "--largest", "5000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert re.search(said, done.stdout)


@pytest.mark.parametrize("more", [[], ["--typed"]])
def test_a_few_faults(more: list[str]) -> None:
    script = SCRIPT.with_name("store_faults.py")
    command = [sys.executable, str(script), "--count", "9", "--seed", "1", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert re.search(r"9 damages, 0 silent\n9 full disks, 0 wrong\n4 failing reads, 0 wrong", done.stdout)
