"""A few random budgets and kills; ``stores.py`` runs as many as are asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("stores.py")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("budgets", r"0 steps over"),
        ("kills --steps prepare train mini", r"\d+ kills hit"),
        ("kills --steps auto neighbours first typed", r"\d+ kills hit"),
    ],
)
def test_a_few(what: str, said: str) -> None:
    command = [sys.executable, str(SCRIPT), *what.split(), "--count", "1", "--seed", "1", "--largest", "5000"]
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


def test_a_small_budget_has_room_for_the_heaps_of_the_threads_that_prepare(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        import numpy as np
        import graphweft as gw
        from stores import forked, within

        folder, memory = Path(sys.argv[1]), 8_764_110
        rng, nodes = np.random.default_rng(0), 34_000
        np.save(folder / "edges.npy", rng.integers(0, nodes, (2, 380_000)))
        np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (nodes, 128)).flush()
        np.save(folder / "y.npy", rng.integers(0, 4, nodes))
        files = gw.macro.GraphFiles(*(folder / f"{name}.npy" for name in ("edges", "x", "y")))
        for number in range(4):
            work = folder / str(number)
            work.mkdir()
            options = {"parts": 16, "memory": memory, "dtype": "float16"}
            step = lambda: gw.macro.prepare_store(files, work / "store", **options) and None
            status, told = forked(within(work, step))
            print(status, told)
            assert status == 0 and told["peak"] <= memory
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=here)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
