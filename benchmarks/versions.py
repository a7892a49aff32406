"""The package against an older checkout of itself, in one run: every kind of row that the other benchmarks keep.

    python benchmarks/versions.py --old /path/to/older/checkout                 # both with their native libraries built
    python benchmarks/versions.py --old /path --cases arxiv gat update_all --rounds 9

Both heads run the scripts of this checkout, a worker each, in turns that alternate. A row is one case, with the median
over rounds of the new head's turn over the old one's, its quartiles, and memory and preparation of both. Losses are
compared first. A machine that does other work is refused: see ``--busy``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "sampling"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "training"))

import case as cases
import epoch
import neighbor
import ngcf
import typed
from full_batch import TWINS
from harness import (
    RESULTS,
    BenchError,
    Worker,
    closing,
    environment,
    interleave,
    quiet,
    refcheck,
    show,
    stamp,
    warmed_up,
    write_csv,
)

from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic

HERE = Path(__file__).resolve().parent
TRAINING, SAMPLING, EPOCHS = HERE / "training/worker.py", HERE / "sampling/worker.py", HERE / "sampling/epoch_worker.py"
COLUMNS = (
    "case",
    "old_ms",
    "new_ms",
    "ratio",
    "quartiles",
    "turns",
    "old_mib",
    "new_mib",
    "old_prepare",
    "new_prepare",
)


class Row(NamedTuple):
    """One case: how its folder is written, the worker and the system that run it, and by how much losses may differ."""

    save: Callable[[Path], object]
    worker: Path
    system: str
    tolerance: float = 1e-4


def _twin(name: str, hidden: int = 32, layers: int = 3, scale: float = 1.0) -> Callable[[Path], object]:
    def save(folder: Path) -> object:
        options: dict[str, Any] = dict(TWINS.get(name, {}))
        options["scale"] = options.get("scale", 1.0) * scale
        return cases.save(folder, synthetic(name, seed=0, **options), hidden=hidden, layers=layers, lr=0.01, seed=0)

    return save


def _of(make: Callable[[], Dataset]) -> Callable[[Path], object]:
    return lambda folder: cases.save(folder, make(), hidden=64, layers=2, lr=0.005, seed=0)


def _sampled(folder: Path) -> object:
    given = {"twin": "ogbn-products", "scale": 0.25, "fanouts": [15, 10, 5], "batch_size": 1000, "threads": 2}
    return neighbor.save(folder, SimpleNamespace(**given))


def _epochs(hidden: int) -> Callable[[Path], object]:
    def save(folder: Path) -> object:
        given = {"twin": "ogbn-products", "scale": 0.25, "fanouts": [15, 10, 5], "batch_size": 1000, "threads": 2}
        arguments = SimpleNamespace(**given, lr=0.003)
        epoch.save(folder, arguments)
        return epoch.write_case(folder, hidden, arguments)

    return save


def _typed(folder: Path) -> object:
    return typed.save_random(folder, 32, 64)


ROWS = {name.removeprefix("ogbn-"): Row(_twin(name), TRAINING, "graphweft") for name in TWINS}
ROWS |= {
    "gat": Row(_twin("ogbn-arxiv", 64, 2), TRAINING, "gat-graphweft"),
    "ngcf": Row(_of(lambda: ngcf.data("light", 0.5)), TRAINING, "ngcf-graphweft"),
    "rgcn": Row(_typed, TRAINING, "rgcn-graphweft"),
    "hgt": Row(_typed, TRAINING, "hgt-graphweft"),
}
ROWS |= {f"user_{kind}": Row(_twin("ppi", 64, 2), TRAINING, f"{kind}-user") for kind in ("gcn", "gat", "cgat")}
ROWS |= {
    "update_all": Row(_twin("ppi", 64, 2, 0.05), TRAINING, "update-all"),
    "update_all_tiny": Row(_twin("ppi", 64, 2, 0.001), TRAINING, "update-all"),
    "update_all_grad": Row(_twin("ppi", 64, 2, 0.05), TRAINING, "update-all-grad"),
    "sampling": Row(_sampled, SAMPLING, "each"),
    "sampling+x": Row(_sampled, SAMPLING, "ahead+x"),
    "epoch_64": Row(_epochs(64), EPOCHS, "own", 0.1),
    "epoch_256": Row(_epochs(256), EPOCHS, "own", 0.1),
}


def measure(row: Row, folder: Path, arguments: argparse.Namespace) -> tuple[Worker, Worker]:
    """Old and new worker of one case, finished."""
    shared = environment(arguments.threads)
    heads = {"old": arguments.old.resolve(), "new": HERE.parent}
    command = [sys.executable, str(row.worker), row.system, str(folder)]
    workers = [Worker(name, command, shared | {"PYTHONPATH": str(place)}) for name, place in heads.items()]

    def body() -> None:
        losses, guess = warmed_up(workers, arguments.reference_epochs)
        refcheck({name: seen[: arguments.reference_epochs] for name, seen in losses.items()}, "old", row.tolerance)
        interleave(workers, arguments.rounds, arguments.turn, guess)
        for worker in workers:
            worker.finish()

    closing(workers, body)
    return workers[0], workers[1]


def _figures(name: str, old: Worker, new: Worker) -> dict[str, object]:
    low, middle, high = new.result.ratio_to(old.result)
    return {
        "case": name,
        "old_ms": round(old.result.median_ms, 3),
        "new_ms": round(new.result.median_ms, 3),
        "ratio": round(middle, 3),
        "quartiles": f"{low:.3f} to {high:.3f}",
        "turns": len(new.result.turns),
        "old_mib": round(old.result.peak_above_start / 2**20, 1),
        "new_mib": round(new.result.peak_above_start / 2**20, 1),
        "old_prepare": round(old.result.prepare_seconds, 3),
        "new_prepare": round(new.result.prepare_seconds, 3),
        "note": f"{new.result.note}; old: {old.result.note}" if name.startswith("update_all") else new.result.note,
    }


def main() -> int:
    """Measures one case after the other; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="an older checkout with its native libraries")
    parser.add_argument("--cases", nargs="+", choices=[*ROWS, "all"], default=["all"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds of counted epochs in a turn")
    parser.add_argument("--reference-epochs", type=int, default=3, help="epochs whose losses are compared")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", type=float, default=0.5, help="processors that other work may take before a case")
    parser.add_argument("--out", type=Path, default=RESULTS / "versions.csv")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    status = 0
    for name in ROWS if "all" in arguments.cases else arguments.cases:
        with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as made:
            try:
                ROWS[name].save(Path(made))
                busy = quiet(arguments.busy)
                rows.append(_figures(name, *measure(ROWS[name], Path(made), arguments)) | {"busy": busy})
            except BenchError as failure:
                sys.stderr.write(f"{name}: {failure}\n")
                status = 1
                continue
        show(name, rows[-1:], COLUMNS)
        write_csv(arguments.out, [{**rows[-1], **stamp(arguments.threads)}])
    show("all", rows, COLUMNS)
    return status


if __name__ == "__main__":
    sys.exit(main())
