"""The one run of a benchmark over a single task: save it, compare losses, time interleaved turns, show and keep rows.

Called by ``gat.py``, ``ngcf.py`` and ``user_functions.py``; their systems are those of ``worker.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import case as cases
from harness import RESULTS, BenchError, figures, paired, show, stamp, write_csv

WORKER = Path(__file__).with_name("worker.py")
COLUMNS = ("system", "epoch_ms", "spread", "epochs", "times_ours", "peak_mib", "memory_times_ours", "prepare_s")


def add_options(parser: argparse.ArgumentParser, results: str) -> None:
    """What all of them take."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds of counted epochs in a turn")
    parser.add_argument("--reference-epochs", type=int, default=3, help="epochs whose losses are compared")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds a peer has for them; inf: no limit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--out", type=Path, default=RESULTS / results)


def run(
    ds, pythons: dict[str, str], about: dict[str, object], title: str, arguments: argparse.Namespace, module: str = ""
) -> int:
    """Measures ``pythons`` (interpreter by system, ours first, empty to leave one out) on ``ds``, two layers 64 wide.

    With ``module``, the name of one of them, rows have the ratio to it too, from turns that follow each other, and its
    quartiles. 1 if a system failed or computes another loss.
    """
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        case = cases.save(Path(folder), ds, hidden=64, layers=2, lr=0.005, seed=0)
        del ds
        commands = {s: [python, str(WORKER), s, str(case.folder)] for s, python in pythons.items() if python}
        options = {"threads": arguments.threads, "rounds": arguments.rounds, "turn_seconds": arguments.turn}
        try:
            results = paired(commands, reference_epochs=arguments.reference_epochs, limit=arguments.limit, **options)
        except BenchError as failure:
            sys.stderr.write(f"{case.meta.name}: {failure}\n")
            return 1
    sizes = {"num_nodes": case.meta.num_nodes, "num_edges": case.meta.num_edges}
    rows = [{**about, **sizes, **figures(result, results[0])} for result in results]
    columns = COLUMNS
    if module:
        columns = (*COLUMNS, "times_module", "quartiles")
        other = next(result for result in results if result.system == module)
        for row, result in zip(rows, results, strict=True):
            if len(result.turns) < len(other.turns):  # a peer that was stopped
                row |= {"times_module": "", "quartiles": "", "rounds": 0}
                continue
            low, middle, high = result.ratio_to(other)
            quartiles = f"{low:.3f} to {high:.3f}"
            row |= {"times_module": round(middle, 3), "quartiles": quartiles, "rounds": len(result.turns)}
    show(f"{title} on {case.meta.name}: {case.meta.num_nodes:,} nodes, {case.meta.num_edges:,} edges", rows, columns)
    write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in rows])
    return 0
