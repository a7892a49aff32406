"""kill -9 and --resume: the same tensors as a run that nobody disturbed.

``GRAPHWEFT_TEST_KILLS`` sets how often the command is killed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_files import assert_same_run, lines

from graphweft.cli import main

KILLS = int(os.environ.get("GRAPHWEFT_TEST_KILLS", "3"))
OPTIONS = [
    "--data", "cora", "--scale", "0.3", "--hidden", "48", "--epochs", "200", "--dropout", "0.5",
    "--weight-decay", "5e-4", "--normalize", "row", "--norm", "batch", "--quiet", "--json",
]  # fmt: skip


def _start(out: Path, *more: str, threads: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "graphweft", "train", *OPTIONS, "--threads", str(threads)]
    command += ["--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


def _run(out: Path, *more: str, threads: int = 1) -> None:
    """The same command in this process, where nothing is killed."""
    assert main(["train", *OPTIONS, "--threads", str(threads), "--out", str(out), *more]) == 0


def _epochs_logged(out: Path) -> int:
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


@pytest.mark.slow
def test_a_run_that_is_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    _run(tmp_path / "whole")
    rng = random.Random(0)
    out = tmp_path / "killed"
    kills = done = 0
    while kills < KILLS:
        before = _epochs_logged(out)
        process = _start(out, "--resume")
        deadline = time.monotonic() + 120
        wait = rng.choice([0.0, 0.0, 1.0]) * rng.uniform(0, 8)  # now and then before it trains at all
        while wait == 0.0 and _epochs_logged(out) in (0, before) and process.poll() is None:
            assert time.monotonic() < deadline, "no epoch in two minutes"
            time.sleep(0.005)
        time.sleep(wait or rng.uniform(0, 0.6))
        process.kill()
        _, err = process.communicate()
        if process.returncode == 0:  # it was done before the kill came
            done += 1
            assert_same_run(tmp_path / "whole", out)
            out = tmp_path / f"killed-{done}"
            continue
        assert process.returncode == -9, err
        kills += 1
    _finish(_start(out, "--resume"))
    assert_same_run(tmp_path / "whole", out)


@pytest.mark.slow
def test_one_and_two_threads_give_the_same_bits(tmp_path: Path) -> None:
    for threads in (1, 2):
        _run(tmp_path / str(threads), "--epochs", "25", threads=threads)
    assert_same_run(tmp_path / "1", tmp_path / "2")


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = _start(tmp_path / "run", "--epochs", "1000000")
    while _epochs_logged(tmp_path / "run") < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "", err
    done = len(lines(tmp_path / "run"))
    assert err.startswith(f"graphweft: stopped after epoch {done}, saved; continue with: graphweft train --data cora")
    assert err.endswith("--resume\n") and err.count("\n") == 1
    _finish(_start(tmp_path / "run", "--epochs", str(done + 1), "--resume"))
    _run(tmp_path / "whole", "--epochs", str(done + 1))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_kill_at_every_file_operation(tmp_path: Path, root: Path) -> None:
    script = Path(__file__).with_name("kill_points.py")
    given = os.environ.get("PYTHONPATH")  # never all of sys.path: the checkout itself may be on it, without its core
    paths = os.pathsep.join([str(script.parent), str(root / "tests"), *([given] if given else [])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
