"""Batches of several systems in one run: as many nodes in each, then interleaved turns.

Called by ``links.py`` and ``typed.py``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from harness import BenchError, Worker, closing, environment, interleave, warmed_up

ALLOWED = 0.10  # by which the mean number of distinct nodes a batch may differ


def run(
    script: Path, folder: Path, pythons: Mapping[str, str], arguments: argparse.Namespace
) -> tuple[list[Worker], dict[str, float]]:
    """The workers of ``script``, finished, and mean nodes a batch; ``pythons``: interpreter by system.

    Raises: BenchError when a worker fails or a system's batches have another size than the first one's.
    """
    shared = environment(arguments.threads)
    workers = [Worker(system, [python, str(script), system, str(folder)], shared) for system, python in pythons.items()]
    nodes: dict[str, float] = {}

    def body() -> None:
        seen, guess = warmed_up(workers, arguments.check_batches)
        nodes.update({system: statistics.mean(counts) for system, counts in seen.items()})
        expected = nodes[workers[0].system]
        for system, count in nodes.items():
            if abs(count / expected - 1) > ALLOWED:
                raise BenchError(f"{system}: expected {expected:.0f} distinct nodes a batch, got {count:.0f}")
        interleave(workers, arguments.rounds, arguments.turn, guess)
        for worker in workers:
            worker.finish()

    closing(workers, body)
    return workers, nodes
