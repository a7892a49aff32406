"""Starting ranks in tests: scripts and commands, with one thread each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from graphweft.dist.board import Board
from graphweft.dist.launch import FOLDER, STARTER

CASES = Path(__file__).parent / "rank_cases.py"
SMALL = ["--data", "cora", "--scale", "0.15", "--mode", "mini", "--model", "sage", "--hidden", "8", "--fanouts", "3,3"]
SMALL += ["--batch-size", "10", "--quiet"]


def rank_environment(folder: Path, rank: int, size: int) -> dict[str, str]:
    """What the starter gives a rank."""
    given = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, FOLDER: folder, STARTER: os.getpid()}
    quick = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **quick, **{name: str(value) for name, value in given.items()}}


def run_ranks(folder: Path, commands: Sequence[Sequence[str]], timeout: float = 400) -> list[tuple[int, str]]:
    """One process a command, all ranks of one group; exit status and standard error of each."""
    size = len(commands)
    folder.mkdir(exist_ok=True)
    Board.create(folder / "board", size)
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            env=rank_environment(folder, rank, size),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        errors = [process.communicate(timeout=timeout)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    return [(process.returncode, error) for process, error in zip(running, errors, strict=True)]


def run_case(folder: Path, size: int, case: str, *options: str) -> None:
    """All ranks do a case of ``rank_cases.py``, and succeed."""
    folder.mkdir(exist_ok=True)
    Board.create(folder / "board", size)
    paths = os.pathsep.join([str(CASES.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(CASES), str(size), case, str(folder), *options]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr


def start_command(*options: str) -> subprocess.Popen[str]:
    """``graphweft train`` on a small graph."""
    return subprocess.Popen(
        [sys.executable, "-m", "graphweft", "train", *SMALL, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    """Until it holds. Raises: AssertionError."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
