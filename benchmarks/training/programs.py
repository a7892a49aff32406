"""Stand-alone programs against the library: epochs, time to the first epoch, peak memory, time to compile.

    python benchmarks/training/programs.py --data arxiv --scale 0.25 --models gcn sage gin --rounds 5
    python benchmarks/training/programs.py --data arxiv --scale 0.25 --models gatv2 transformer appnp gcnii gin-eps

Runs of both take turns, each a process of its own with the same epochs and threads, and their losses have to agree bit
for bit before a figure is shown. ``start_s`` is from the start of a process to the end of its first epoch; ``lines``
are those of model.cpp. The row "torch" is a process that imports torch and nothing else. ``gin-eps`` learns eps.
``--folder`` keeps data and programs between calls, so that compiling (``--rounds 0``) and measuring are apart. With
``--epochs-only`` the library trains in this process, which saves its imports; starts and memory are then left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, environment, quiet, show, stamp, write_csv

from graphweft.data.synthetic import synthetic
from graphweft.run import run
from graphweft.synth.spec import ProgramSpec, read_spec
from graphweft.synthesis import write_program

COLUMNS = ("system", "model", "layers", "epoch_ms", "start_s", "peak_mib", "compile_s", "lines", "ratio")


_BARE = "import torch; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"  # KiB


def compiled(spec: ProgramSpec, folder: Path, launcher: str = "") -> tuple[Path, float, int]:
    """The executable of a program, how long it took to compile it on two processors, and the lines of its model.

    One that an earlier call compiled is taken as it is, whatever its number of epochs.
    """
    train, model = folder / "build" / "train", folder / "model.cpp"
    if train.exists() and replace(read_spec(folder / "model.toml"), epochs=spec.epochs) == spec:
        return train, math.nan, model.read_text(encoding="utf-8").count("\n")
    made = write_program(spec, folder).folder
    start = time.perf_counter()
    launched = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []
    subprocess.run(["cmake", "-S", made, "-B", made / "build", *launched], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", made / "build", "-j2"], check=True, capture_output=True)
    return train, time.perf_counter() - start, model.read_text(encoding="utf-8").count("\n")


def bare_import(threads: int) -> dict[str, object]:
    """The peak memory of a process that imports torch."""
    done = subprocess.run(
        [sys.executable, "-c", _BARE], check=True, capture_output=True, text=True, env=environment(threads)
    )
    return {**dict.fromkeys(COLUMNS, ""), "system": "torch", "peak_mib": round(int(done.stdout) / 1024, 1)}


def one_run(command: Sequence[object], metrics: Path, threads: int, pin: bool = True) -> dict[str, Any]:
    """Figures of one process: its summary, its losses, and the seconds until its first epoch was over."""
    start = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True, env=environment(threads, pin)
    )
    whole = time.perf_counter() - start
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    later = sum(line["epoch_seconds"] + line["eval_seconds"] for line in lines) - lines[0]["epoch_seconds"]
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        "losses": [line["loss"] for line in lines],
        "start": whole - later,
    }


def own_run(spec: ProgramSpec, out: Path, threads: int) -> dict[str, Any]:
    """Figures of the library in this process, less those that are of a process."""
    summary = run(replace(spec.to_train(), out=str(out), threads=threads))
    lines = (json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {**summary, "losses": [line["loss"] for line in lines], "start": math.nan, "peak_rss_mb": math.nan}


def measure(
    spec: ProgramSpec,
    folder: Path,
    rounds: int,
    threads: int,
    warm: int = 1,
    epochs_only: bool = False,
    launcher: str = "",
) -> list[dict[str, object]]:
    """Rows of both systems for one spec; none without rounds. Raises: BenchError where their losses differ."""
    train, seconds, written = compiled(spec, folder / "program", launcher)
    spec_file, metrics, out = folder / "spec.toml", folder / "metrics.jsonl", folder / "run"
    spec_file.write_text(spec.to_toml() + "\n", encoding="utf-8")
    library = [sys.executable, "-m", "graphweft", "train", "--spec", spec_file, "--threads", threads, "--out", out]
    library += ["--json", "--quiet", "--order", "given"]  # programs do not renumber nodes, and sums keep their order
    program = [train, "--data", spec.data, "--threads", threads, "--metrics", metrics, "--json"]
    program += ["--epochs", spec.epochs]
    systems: dict[str, Callable[[], dict[str, Any]]] = {
        "library": lambda: (
            own_run(spec, out, threads) if epochs_only else one_run(library, out / "metrics.jsonl", threads)
        ),
        "program": lambda: one_run(program, metrics, threads, pin=not epochs_only),  # as the library beside it
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    if rounds == 0:
        return []
    for turn in range(-warm, rounds):
        for name, once in systems.items():
            result = once()
            if turn >= 0:
                found[name].append(result)
    if found["library"][-1]["losses"] != found["program"][-1]["losses"]:
        raise BenchError(f"{spec}: losses of library and program differ")

    def median(name: str, key: str) -> float:
        return statistics.median(run[key] for run in found[name])

    ratios = [
        b["epoch_seconds_median"] / a["epoch_seconds_median"]
        for a, b in zip(found["library"], found["program"], strict=True)
    ]
    rows: list[dict[str, object]] = []
    for name in systems:
        rows.append(
            {
                "system": name,
                "model": f"{spec.model}{'-eps' if spec.train_eps else ''} {spec.reduce}",
                "layers": spec.layers,
                "epoch_ms": round(1e3 * median(name, "epoch_seconds_median"), 3),
                "start_s": _known(median(name, "start"), 3),
                "peak_mib": _known(median(name, "peak_rss_mb"), 1),
                "compile_s": _known(seconds, 1) if name == "program" else "",
                "lines": written if name == "program" else "",
                "ratio": round(statistics.median(ratios), 3) if name == "program" else 1.0,
            }
        )
    return rows


def _known(value: float, digits: int) -> float | str:
    return "" if math.isnan(value) else round(value, digits)


def main() -> None:
    """Parses, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="corafull")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--models", nargs="+", default=["gcn", "sage", "gin"])
    parser.add_argument("--reduces", nargs="+", default=["auto"])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=1, help="turns that do not count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path, default=None, help=f"as {RESULTS / 'programs.csv'}")
    parser.add_argument("--folder", type=Path, default=None, help="keeps data and programs here")
    parser.add_argument("--busy", type=float, default=0.5, help="most processors that other work may take")
    parser.add_argument("--epochs-only", action="store_true", help="the library trains in this process")
    parser.add_argument("--launcher", default="", help="of CMake for the compiler, as ccache")
    given = parser.parse_args()
    rows: list[dict[str, object]] = [] if given.epochs_only or not given.rounds else [bare_import(given.threads)]
    with nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{given.data}-{given.scale}.npz"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            synthetic(given.data, scale=given.scale).save(file, compress=False)
        for model in given.models:
            for reduce in given.reduces:
                for layers in given.layers:
                    where = Path(folder) / f"{file.stem}-{model}-{reduce}-{layers}"
                    where.mkdir(exist_ok=True)
                    sizes: dict[str, Any] = {"layers": layers, "hidden": given.hidden, "epochs": given.epochs}
                    sizes |= {"train_eps": True} if model == "gin-eps" else {}
                    spec = ProgramSpec(data=str(file), model=model.removesuffix("-eps"), reduce=reduce, **sizes)
                    if given.rounds:
                        quiet(given.busy)
                    made = measure(
                        spec, where, given.rounds, given.threads, given.warm, given.epochs_only, given.launcher
                    )
                    rows += made
                    for row in made:
                        print(json.dumps(row), file=sys.stderr, flush=True)
    show(f"{given.data} x {given.scale}, {given.threads} threads", rows, COLUMNS)
    if given.csv is not None:
        data = f"{given.data}@{given.scale:g}"
        write_csv(given.csv, [{"data": data, **row, **stamp(given.threads)} for row in rows])


if __name__ == "__main__":
    main()
