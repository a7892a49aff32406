"""Mini-batch training of a three-layer SAGE, preparation included, against DGL, paired in one run.

``python benchmarks/sampling/epoch.py [--twin ogbn-products] [--scale 0.25] [--hidden 64 256] [--dgl-python PYTHON]``.
Lines: ``own`` (the trainer's mini-batch step as it comes), ``high`` (the same after
``torch.set_float32_matmul_precision("high")``), ``bf16`` (with ``precision="bf16"``), ``prepare``
(its preparation alone, all threads), ``model`` (its model alone over batches prepared beforehand), ``dgl``
(DataLoader over DGL's fused neighbour sampler) and ``graphbolt`` (DGL's newer data loading). All systems start from
the same weights; before timing their mean losses over the first batches agree within three per cent (over six batches
DGL's own runs differ by five). ``stall`` is the share of the epoch in which the model waits, ``of_longer`` the epoch
over the longer of ``prepare`` and ``model``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, Worker, closing, environment, show, stamp, write_csv

from graphweft.data.synthetic import synthetic

WORKER = Path(__file__).parent / "epoch_worker.py"
COLUMNS = ("system", "hidden", "batches_per_s", "spread", "times_slower", "stall", "of_longer", "peak_mib")
LOSS_BOUND = 0.03
READY = 6  # batches that the model alone trains on, again and again: it learns these sooner
TURN = {"own": 24, "high": 24, "bf16": 24, "prepare": 24, "model": 12, "dgl": 6, "graphbolt": 5}  # batches of a turn


def save(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Writes the data; what the rows of the table say about it."""
    ds = synthetic(arguments.twin, scale=arguments.scale)
    csc = ds.graph.csc
    tables = {"indptr": csc.indptr, "indices": csc.indices, "seeds": ds.train_idx, "x": ds.x, "y": ds.y}
    for name, tensor in tables.items():
        np.save(folder / f"{name}.npy", tensor.numpy())
    arguments.sizes = (ds.num_features, ds.num_classes)
    return {"twin": arguments.twin, "scale": arguments.scale, "num_nodes": ds.num_nodes, "num_edges": ds.num_edges}


def write_case(folder: Path, hidden: int, arguments: argparse.Namespace) -> None:
    """The model: widths, and weights that every system starts from."""
    features, classes = arguments.sizes
    generator = torch.Generator().manual_seed(1)
    widths = [features, *[hidden] * (len(arguments.fanouts) - 1), classes]
    for layer, (one, two) in enumerate(itertools.pairwise(widths)):
        bound = (6 / (one + two)) ** 0.5
        for kind in ("neighbor", "self"):
            weight = (2 * torch.rand(one, two, generator=generator) - 1) * bound
            np.save(folder / f"{kind}{layer}.npy", weight.numpy())
    case = {"fanouts": arguments.fanouts, "batch_size": arguments.batch_size, "threads": arguments.threads}
    (folder / "case.json").write_text(json.dumps({**case, "hidden": hidden, "classes": classes, "lr": arguments.lr}))


def measure(folder: Path, hidden: int, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Interleaved turns of all systems; rows of the table."""
    write_case(folder, hidden, arguments)
    peers = arguments.peers if arguments.dgl_python else []
    systems = [*arguments.systems, *peers]
    own = environment(arguments.threads)
    pythons = {system: arguments.dgl_python if system in peers else sys.executable for system in systems}
    workers = [Worker(s, [pythons[s], str(WORKER), s, str(folder)], own) for s in systems]
    stalls: list[float] = []

    def body() -> None:
        losses = {}
        for worker in workers:
            worker.prepare()
            losses[worker.system] = worker.run(arguments.check_batches)[0][: arguments.check_batches]
        for system in [system for system in systems if system not in ("own", "prepare")]:
            most = READY if system == "model" else arguments.check_batches
            wanted, got = (statistics.mean(losses[name][:most]) for name in ("own", system))
            if abs(got / wanted - 1) > LOSS_BOUND:
                raise BenchError(f"{system}: expected a loss of {wanted:.4f}, got {got:.4f}")
        for turn in range(arguments.rounds):
            first = turn % len(workers)
            for worker in (*workers[first:], *workers[:first]):
                seen, seconds = worker.run(TURN[worker.system])
                worker.result.seconds.append(statistics.mean(seconds))
                if worker.system == "own":
                    stalls.append(seen[-1] / sum(seconds))
        for worker in workers:
            worker.finish()

    closing(workers, body)
    took = {w.system: w.result.median_ms for w in workers}
    longer = max(took.get("prepare", 0), took.get("model", 0))
    return [
        {
            "system": w.system,
            "hidden": hidden,
            "batches_per_s": round(1e3 / w.result.median_ms, 2),
            "batch_ms": round(w.result.median_ms, 2),
            "spread": round(w.result.spread, 3),
            "rounds": len(w.result.seconds),
            "times_slower": round(w.result.median_ms / took["own"], 2),
            "stall": round(statistics.median(stalls), 4) if w.system == "own" else "",
            "of_longer": round(took["own"] / longer, 3) if w.system == "own" and longer else "",
            "peak_mib": round(w.result.peak_above_start / 2**20, 1),
            "note": w.result.note,
        }
        for w in workers
    ]


def main() -> int:
    """Measures one width after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check-batches", type=int, default=60)  # of other draws: fewer differ by chance
    parser.add_argument("--data", type=Path, help="folder that keeps the data between runs; else it is made anew")
    parser.add_argument("--peers", nargs="+", default=["dgl", "graphbolt"])
    parser.add_argument(
        "--systems", nargs="+", default=["own", "high", "bf16", "prepare", "model"], help="beside DGL's"
    )
    parser.add_argument("--dgl-python", default="", help="interpreter of an environment with DGL; empty: without DGL")
    parser.add_argument("--out", type=Path, default=RESULTS / "sampling_epoch.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as made:
        folder = arguments.data or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "head.json"
        if kept.exists():
            head, arguments.sizes = json.loads(kept.read_text())
        else:
            head = save(folder, arguments)
            kept.write_text(json.dumps([head, arguments.sizes]))
        head |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
        for hidden in arguments.hidden:
            rows = measure(folder, hidden, arguments)
            show(f"{arguments.twin} x {arguments.scale}, hidden {hidden}", rows, COLUMNS)
            write_csv(arguments.out, [{**head, **row, **stamp(arguments.threads)} for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
