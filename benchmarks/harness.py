"""Measures systems against each other in one run: a child process per system, interleaved turns, medians.

Comes in: systems by name, each a command that starts a worker (``training/worker.py`` speaks its side). Goes out: one
:class:`Result` per system, a table, CSV rows with the machine's stamp. Called by the scripts of ``benchmarks/*/``.

Before anything is timed every system has shown that it computes the same losses (:func:`refcheck`). Turns are short and
rotate, so that a change of the machine's mood hits all systems alike. The first epoch of a turn warms the caches and
does not count. Memory is the worker's own: its peak resident set above what it held before it read its input.
"""

from __future__ import annotations

import json
import math
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from graphweft.measure.bench import REFCHECK_TOLERANCE, BenchError, machine_stamp, refcheck, write_csv

__all__ = ["BenchError", "refcheck", "write_csv"]  # with what is defined here
RESULTS = Path(__file__).parent / "results"
_BUSY = 0.25  # processors that other work may take without a mark


class OverrunError(BenchError):
    """A worker did not answer in the time it was given."""


@dataclass
class Result:
    """What one system did: seconds of every counted epoch, memory in bytes, and its own words on how it ran."""

    system: str
    seconds: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)  # the median of every turn
    prepare_seconds: float = 0.0
    start_bytes: int = 0
    input_bytes: int = 0
    peak_bytes: int = 0
    note: str = ""

    @property
    def median_ms(self) -> float:
        """Median epoch, milliseconds."""
        return 1e3 * statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        if len(self.seconds) < 4:
            return 0.0
        low, middle, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / middle

    def ratio_to(self, other: Result) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile of this system's turns over the other's of the same rounds."""
        ratios = [mine / theirs for mine, theirs in zip(self.turns, other.turns, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return low, middle, high

    @property
    def peak_above_start(self) -> int:
        """Bytes of memory that the process came to hold above its start."""
        return self.peak_bytes - self.start_bytes


class Worker:
    """A long-lived child process that runs epochs of one system when told to; a JSON line per order and per answer."""

    def __init__(self, system: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.system = system
        self._child = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
        )
        self.result, self.busy = Result(system), 0.0

    def prepare(self) -> None:
        """The worker imports its framework, reads its input and builds model and optimiser."""
        answer = self._ask("prepare")
        self.result.prepare_seconds = answer["seconds"]
        self.result.start_bytes = answer["start_bytes"]
        self.result.input_bytes = answer["input_bytes"]

    def run(self, epochs: int, within: float = math.inf) -> tuple[list[float], list[float]]:
        """Losses and seconds of ``epochs`` further epochs, or OverrunError when they take longer than ``within``."""
        answer = self._ask("run", within, epochs=epochs)
        return answer["losses"], answer["seconds"]

    def give_up(self, seconds: list[float], limit: float) -> None:
        """Ends a worker that takes too long; ``seconds`` of the epochs it has done, or ``limit`` as their least."""
        done = f"stopped after {len(seconds)} epochs" if seconds else f"no epoch in {limit:.0f} s, a lower bound"
        self.result.seconds, self.result.note = seconds or [limit], done
        status = Path(f"/proc/{self._child.pid}/status").read_text(encoding="utf-8")
        self.result.peak_bytes = 1024 * int(status.split("VmHWM:")[1].split()[0])
        self._child.kill()
        self.close()

    def finish(self) -> Result:
        """Ends the worker and returns what it did."""
        answer = self._ask("finish")
        self.result.peak_bytes = answer["peak_bytes"]
        self.result.note = answer["note"]
        if self.busy > _BUSY:
            self.result.note = f"{self.result.note} machine not quiet: {self.busy:.1f} processors".strip()
        self.close()
        return self.result

    def close(self) -> None:
        """Ends the worker whatever its state."""
        if self._child.stdin:
            self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout:
            self._child.stdout.close()

    def _ask(self, order: str, within: float = math.inf, **details: Any) -> dict[str, Any]:
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise BenchError(f"{self.system}: worker has no pipes")
        try:
            stdin.write(json.dumps({"order": order, **details}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{self.system}: worker ended before {order!r}") from None
        if within < math.inf and not select.select([stdout], [], [], within)[0]:
            raise OverrunError(f"{self.system}: {order!r} took more than {within:.0f} s")
        line = stdout.readline()
        if not line:
            raise BenchError(f"{self.system}: worker ended in {order!r} with status {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.system}: {answer['error']}")
        return answer


def environment(threads: int, pin: bool = True) -> dict[str, str]:
    """The environment of every worker: the same threads, on the same processors."""
    chosen = sorted(os.sched_getaffinity(0))[:threads]
    if pin and len(chosen) < threads:  # OMP_PROC_BIND has bound this process itself, and workers would share its core
        raise BenchError(f"environment: expected {threads} processors, got {len(chosen)}; unset OMP_PROC_BIND here")
    settings = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch"}
    settings["PYTHONWARNINGS"] = "ignore"  # torch on its own sparse tensors, once per worker
    if pin:
        settings |= {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in chosen)}
    return os.environ | settings


def interleave(workers: Sequence[Worker], rounds: int, turn_seconds: float, guess: Mapping[str, float]) -> None:
    """Gives every worker one turn per round, in an order that rotates; adds counted epochs to the workers' results.

    A turn has as many epochs as fit ``turn_seconds`` by ``guess`` (seconds an epoch), at least one; of two or more the
    first is not counted. The most processors that other work took around the turns is marked in the note of each row.
    """
    before = _busy()
    for turn in range(rounds):
        first = turn % len(workers)
        for worker in (*workers[first:], *workers[:first]):
            counted = min(50, int(turn_seconds / guess[worker.system]))
            _, seconds = worker.run(max(1, counted + 1 if counted >= 1 else 1))
            seconds = seconds[1:] if len(seconds) > 1 else seconds
            worker.result.seconds += seconds
            worker.result.turns.append(statistics.median(seconds))
    busy = max(before, _busy())
    for worker in workers:
        worker.busy = busy


def fastest(workers: Sequence[Worker], guess: Mapping[str, float]) -> Worker:
    """The worker with the shortest epoch so far; the others are closed."""
    best = min(workers, key=lambda worker: guess[worker.system])
    for worker in workers:
        if worker is not best:
            worker.close()
    return best


def paired(
    commands: Mapping[str, Sequence[str]],
    *,
    threads: int,
    rounds: int,
    turn_seconds: float,
    reference_epochs: int = 3,
    tolerance: float = REFCHECK_TOLERANCE,
    limit: float = math.inf,
) -> list[Result]:
    """Every system in one run: first losses compared with those of the first system, then interleaved turns.

    Args:
        commands: The command that starts each system's worker, by its name.
        threads: Threads of every worker, on the same processors.
        rounds: Turns of each.
        turn_seconds: Seconds of counted epochs in a turn.
        reference_epochs: Epochs whose losses are compared.
        tolerance: By which losses may differ, relative to them.
        limit: Seconds for the reference epochs of all systems but the first; one that takes longer has no turns, and
            its result is the epochs it has done, or the limit as a lower bound.

    Raises: BenchError when a worker fails or computes another loss.
    """
    shared = environment(threads)
    workers = [Worker(system, command, shared) for system, command in commands.items()]

    def body() -> None:
        losses, seconds = warmed_up(workers[:1], reference_epochs)
        in_time = workers[:1]
        for worker in workers[1:]:
            worker.prepare()
            losses[worker.system], taken = _first_epochs(worker, reference_epochs, limit)
            if len(taken) < reference_epochs:
                worker.give_up(taken, limit)
            else:
                seconds[worker.system] = min(taken)
                in_time.append(worker)
            most = {worker.system: losses[worker.system], workers[0].system: losses[workers[0].system][: len(taken)]}
            refcheck(most, workers[0].system, tolerance)
        interleave(in_time, rounds, turn_seconds, seconds)
        for worker in in_time:
            worker.finish()

    closing(workers, body)
    return [worker.result for worker in workers]


def _first_epochs(worker: Worker, epochs: int, limit: float) -> tuple[list[float], list[float]]:
    """Losses and seconds of at most ``epochs`` epochs, as many as end within ``limit`` seconds."""
    losses: list[float] = []
    seconds: list[float] = []
    end = time.monotonic() + limit
    while len(losses) < epochs:
        try:
            loss, taken = worker.run(1, max(0.0, end - time.monotonic()))
        except OverrunError:
            break
        losses += loss
        seconds += taken
    return losses, seconds


def figures(result: Result, ours: Result) -> dict[str, object]:
    """The columns that every table of systems has, beside those of ``ours``."""
    return {
        "system": result.system,
        "epoch_ms": round(result.median_ms, 3),
        "spread": round(result.spread, 3),
        "epochs": len(result.seconds),
        "times_ours": round(result.median_ms / ours.median_ms, 2),
        "peak_mib": round(result.peak_above_start / 2**20, 1),
        "memory_times_ours": round(result.peak_above_start / max(ours.peak_above_start, 1), 2),
        "prepare_s": round(result.prepare_seconds, 3),
        "note": result.note,
    }


def _busy() -> float:
    """Processors in use for a second, in which all workers wait."""
    return psutil.cpu_percent(1.0) / 100 * (psutil.cpu_count() or 1)


def quiet(most: float, patience: float = 120.0) -> float:
    """Processors that other work takes, once it takes at most ``most`` for a second.

    Raises: BenchError when that does not happen within ``patience`` seconds.
    """
    end = time.monotonic() + patience
    while (busy := _busy()) > most:
        if time.monotonic() > end:
            raise BenchError(f"other work takes {busy:.1f} processors: expected at most {most:g}")
    return round(busy, 2)


def stamp(threads: int) -> dict[str, str]:
    """The machine's stamp, with the threads of the workers and the commit that was measured."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=RESULTS)
    return {**machine_stamp(), "threads": str(threads), "commit": done.stdout.strip()}


def show(title: str, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Prints some columns of ``rows`` as aligned text."""
    cells = [[str(column) for column in columns], *([str(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    sys.stdout.write(f"\n{title}\n")
    for line in cells:
        sys.stdout.write("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + "\n")
    sys.stdout.flush()


def warmed_up(workers: Sequence[Worker], epochs: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Prepares every worker and runs its first epochs; their losses, and seconds an epoch of the fastest seen."""
    losses: dict[str, list[float]] = {}
    guess: dict[str, float] = {}
    for worker in workers:
        worker.prepare()
        losses[worker.system], seconds = worker.run(epochs)
        guess[worker.system] = min(seconds)
    return losses, guess


def closing(workers: Sequence[Worker], body: Callable[[], None]) -> None:
    """Runs ``body`` and ends every worker even when it fails."""
    try:
        body()
    finally:
        for worker in workers:
            worker.close()
