"""Ranks that are killed at random moments and started again. A script; ``test_ranks.py`` runs one kill of each mode.

    python tests/fuzz/ranks.py --mode full --kills 50 --seed 0 [--forked]

A run of ``--ranks P`` with restarts has one of its ranks killed, again and again, until so many kills hit; a new run
begins where one ends. With ``--forked`` ranks are forked from a process that has read the package, and started again
by this script with ``--resume``, so that a kill takes a second; else by the command itself. Every run has to end with
status 0 and the parameters, bit for bit, of a run that nobody killed. A killed start is one that has not come to its
first epoch, or one that has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import torch
from fuzz.rank_specs import forked

_RESTARTS = 1000
_TIMEOUT = 240.0  # seconds of one run
_GRACE = 2.0  # seconds in which ranks that are left may end by themselves
_FLAGS = {
    "full": ["--mode", "full", "--model", "gcn"],
    "mini": ["--mode", "mini", "--model", "sage", "--fanouts", "3,3", "--batch-size", "10", "--rank-reduce", "ordered"],
}


def command(mode: str, ranks: int, epochs: int, out: Path) -> list[str]:
    """A small run that saves after every epoch."""
    data = ["--data", "cora", "--scale", "0.15", "--hidden", "8", "--dropout", "0.2", "--epochs", str(epochs)]
    flags = [*_FLAGS[mode], "--ranks", str(ranks), "--max-restarts", str(_RESTARTS), "--quiet", "--json"]
    return [sys.executable, "-m", "graphweft", "train", *data, *flags, "--out", str(out)]


def _forked_words(mode: str, ranks: int, epochs: int, out: Path) -> list[str]:
    """The same for one of the ranks."""
    words = command(mode, ranks, epochs, out)[3:]
    for flag in ("--ranks", "--max-restarts"):
        at = words.index(flag)
        del words[at : at + 2]
    return [*words, "--threads", str(ranks)]


def start(words: list[str]) -> subprocess.Popen[str]:
    """Ranks of one thread each."""
    quick = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        words, env={**os.environ, **quick}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def parameters(out: Path) -> dict[str, torch.Tensor]:
    """Of the last epoch."""
    found: dict[str, torch.Tensor] = torch.load(out / "last.pt", weights_only=True)["model"]
    return found


def killed_run(words: list[str], draw: random.Random, wanted: int, longest: float) -> tuple[int, str]:
    """Runs the command, killing a rank now and then; kills that hit, and what was wrong, empty where nothing was."""
    process, kills, begun = start(words), 0, time.monotonic()
    strike = begun + draw.uniform(0.0, longest)
    while process.poll() is None:
        time.sleep(0.01)
        if time.monotonic() - begun > _TIMEOUT:
            process.kill()
            process.communicate()
            return kills, f"no end after {_TIMEOUT:.0f} s and {kills} kills"
        if kills < wanted and time.monotonic() > strike:
            strike = time.monotonic() + draw.uniform(0.0, longest)
            with contextlib.suppress(psutil.Error):
                living = [c for c in psutil.Process(process.pid).children() if c.status() != psutil.STATUS_ZOMBIE]
                if living:
                    draw.choice(living).send_signal(signal.SIGKILL)
                    kills += 1
    errors = process.communicate()[1]
    return kills, "" if process.returncode == 0 else f"status {process.returncode}: {errors.strip()[-300:]}"


def killed_group(
    words: list[str], ranks: int, folder: Path, draw: random.Random, wanted: int, longest: float
) -> tuple[int, str]:
    """As :func:`killed_run` for forked ranks, one kill a start."""
    kills, begins = 0, 0
    while True:
        strike, struck = time.monotonic() + draw.uniform(0.0, longest), []

        if kills >= wanted:
            strike = math.inf

        def watch(living: list[int], strike: float = strike, struck: list[int] = struck) -> None:
            late = time.monotonic() - strike
            if living and not struck and late > 0:
                struck.append(draw.choice(living))
                os.kill(struck[0], signal.SIGKILL)
            elif late > _GRACE:  # as whoever starts ranks ends them
                for process in living:
                    os.kill(process, signal.SIGKILL)

        ended = forked([[*words, "--resume"]] * ranks, folder / f"start-{begins}", watch=watch)
        statuses, begins = [status for status, _, _ in ended], begins + 1
        kills += len(struck)
        if statuses == [0] * ranks:
            return kills, ""
        if not struck or None in statuses:
            return kills, f"statuses {statuses} after {kills} kills: {[text.strip()[-200:] for _, text, _ in ended]}"


def kill_many(
    mode: str,
    ranks: int,
    kills: int,
    seed: int,
    epochs: int = 12,
    seconds: float = 1e9,
    share: float = 1.2,
    forks: bool = False,
) -> dict[str, object]:
    """Runs with ``kills`` kills in all, or as many as fit into ``seconds``, at most ``share`` of a whole run apart.

    Raises: SystemExit at the first fault.
    """
    folder, draw, done, runs = Path(tempfile.mkdtemp()), random.Random(seed), 0, 0
    limit = time.monotonic() + seconds
    try:
        begun = time.monotonic()
        if forks:
            fault = killed_group(_forked_words(mode, ranks, epochs, folder / "whole"), ranks, folder, draw, 0, 0.0)[1]
        else:
            whole = start(command(mode, ranks, epochs, folder / "whole"))
            errors = whole.communicate(timeout=_TIMEOUT)[1]
            fault = errors.strip()[-300:] if whole.returncode else ""
        if fault:
            raise SystemExit(f"the run that nobody kills failed: {fault}")
        longest = share * (time.monotonic() - begun)
        wanted = parameters(folder / "whole")
        while done < kills and time.monotonic() < limit:
            out = folder / f"run-{runs}"
            most, at = min(4, kills - done), folder / f"group-{runs}"
            if forks:
                at.mkdir()
                hit, fault = killed_group(_forked_words(mode, ranks, epochs, out), ranks, at, draw, most, longest)
            else:
                hit, fault = killed_run(command(mode, ranks, epochs, out), draw, most, longest)
            done, runs = done + hit, runs + 1
            if not fault:
                found = parameters(out)
                fault = next(
                    (f"{name} differs" for name, tensor in wanted.items() if not found[name].equal(tensor)), ""
                )
            if fault:
                raise SystemExit(f"mode {mode}, {ranks} ranks, seed {seed}, run {runs} with {hit} kills: {fault}")
            print(f"mode {mode}: {done} kills in {runs} runs, all equal", file=sys.stderr, flush=True)
            shutil.rmtree(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"mode": mode, "ranks": ranks, "kills": done, "runs": runs, "equal": runs}


def main() -> None:
    """Prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=_FLAGS, default="full")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--share", type=float, default=1.2)
    parser.add_argument("--forked", dest="forks", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(kill_many(**vars(given))))


if __name__ == "__main__":
    main()
