"""MPI programs on one host: losses against the library's, and sums over ranks that travel while gradients are computed.

    python benchmarks/dist/programs.py --data arxiv --hidden 256 --ranks 1 2 4 --delay 50

Every process has one thread. The same program runs without and with a delay of every sum over ranks, in turns, and
traces its first epoch. ``ready`` counts the sums between whose beginning and use at least the delay is computed: they
should not be waited for, which ``waited_ms`` tells, the most of them. ``added_ms`` is by how much epochs get longer,
where each of ``sums`` delays would come one after the other if none was hidden. Appends rows to
``benchmarks/results/ranks_programs.csv``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, quiet, show, stamp, write_csv

from graphweft.data.synthetic import synthetic
from graphweft.run import run
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program

COLUMNS = ("graph", "model", "ranks", "delay_ms", "epoch_ms", "added_ms", "sums", "ready", "waited_ms", "loss_error")
_ERROR = 1e-4  # most by which losses may differ, relative: sums over ranks have another order


def built(spec: ProgramSpec, folder: Path, ranks: list[int]) -> Path:
    """The executable of an MPI program. Raises: BenchError without an MPI."""
    compiler = _tool("mpicxx")
    made = write_program(spec, folder, target="mpi", ranks=tuple(ranks)).folder
    cmake = ["cmake", "-S", made, "-B", made / "build", f"-DCMAKE_CXX_COMPILER={compiler}"]
    for command in (cmake, ["cmake", "--build", made / "build", "-j2"]):
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return made / "build" / "train"


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise BenchError(f"{name} is not installed")
    return found


def one_run(train: Path, ranks: int, delay: float, trace: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Epochs of one run over ranks, and the sums of its first epoch."""
    starter = _tool("mpiexec")
    version = subprocess.run([starter, "--version"], capture_output=True, text=True, check=True).stdout
    more = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if "Open" in version else []
    command = [starter, *more, "-n", ranks, train, "--data", train.parents[1] / f"parts-{ranks}", "--threads", 1]
    variables = {"PROGRAM_SUM_DELAY_MS": str(delay), "PROGRAM_TRACE": str(trace)}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    sums: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["what"].startswith("sum of d_"):  # of gradients; the first is that of the first epoch
            sums.setdefault(line["what"], line)
    return [json.loads(line) for line in done.stdout.splitlines()], list(sums.values())


def measure(spec: ProgramSpec, graph: str, folder: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Rows for every number of ranks. Raises: BenchError where losses differ."""
    train = built(spec, folder / "program", arguments.ranks)
    run(replace(spec.to_train(), out=str(folder / "run"), threads=2))
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = [json.loads(line)["loss"] for line in lines]
    rows: list[dict[str, object]] = []
    for ranks in arguments.ranks:
        seconds: dict[float, list[float]] = {0.0: [], arguments.delay: []}
        errors: dict[float, float] = dict.fromkeys(seconds, 0.0)
        waits: dict[float, list[tuple[float, float]]] = {}
        for _ in range(arguments.rounds):
            for delay in seconds:
                epochs, sums = one_run(train, ranks, delay, folder / "trace")
                seconds[delay] += [epoch["epoch_seconds"] for epoch in epochs[1:]]
                found = [epoch["loss"] for epoch in epochs]
                errors[delay] = max(abs(a / b - 1) for a, b in zip(found, wanted, strict=True))
                waits[delay] = [(s["waited_from"] - s["begun"], s["done"] - s["waited_from"]) for s in sums]
        if max(errors.values()) > _ERROR:
            raise BenchError(f"{ranks} ranks: losses differ from the library's by {max(errors.values()):.1e}")
        plain = statistics.median(seconds[0.0])
        for delay, times in seconds.items():
            ready = [waited for computed, waited in waits[delay] if computed >= 1e-3 * delay]
            middle = statistics.median(times)
            row = {"graph": graph, "model": f"{spec.model} {spec.layers}x{spec.hidden}", "ranks": ranks}
            row |= {"delay_ms": delay, "epoch_ms": round(1e3 * middle, 2), "added_ms": round(1e3 * (middle - plain), 2)}
            row |= {"sums": len(waits[delay]), "ready": len(ready) if delay else ""}
            row |= {"waited_ms": round(1e3 * max(ready, default=0.0), 3) if delay else ""}
            rows.append({**row, "loss_error": f"{errors[delay]:.1e}"})
    return rows


def main() -> None:
    """Parses, measures, appends rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="arxiv")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--delay", type=float, default=50.0, help="milliseconds of every sum over ranks")
    parser.add_argument("--busy", type=float, default=0.5, help="most processors that other work may take")
    parser.add_argument("--csv", type=Path, default=RESULTS / "ranks_programs.csv")
    arguments = parser.parse_args()
    quiet(arguments.busy)
    with tempfile.TemporaryDirectory() as name:
        folder, graph = Path(name), f"{arguments.data}@{arguments.scale}"
        data = folder / "data.npz"
        synthetic(arguments.data, scale=arguments.scale, seed=0).save(data)
        options = {"model": arguments.model, "layers": arguments.layers, "hidden": arguments.hidden}
        spec = ProgramSpec(data=str(data), epochs=arguments.epochs, seed=0, dropout=0.0, **options)
        rows = measure(spec, graph, folder, arguments)
    show("MPI programs with delayed sums", rows, COLUMNS)
    mark = stamp(1)
    write_csv(arguments.csv, [{**row, **mark} for row in rows])


if __name__ == "__main__":
    main()
