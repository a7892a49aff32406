"""Epochs with sums over edges and products that read bfloat16, against those in float32.

    python benchmarks/training/precision.py --twins arxiv products:0.25 reddit:0.25
    python benchmarks/training/precision.py --twins products:0.25 --model sage --hidden 256 --fanouts 15 10 5
    python benchmarks/training/precision.py --twins arxiv:0.05 --seconds 1 --out /dev/null   # a try

Each precision trains in a process of its own; the two take turns of a second and a half. With ``--fanouts`` epochs are
of mini-batches, evaluation left out. Losses of the first epochs are printed beside each other. Peaks are above what a
process held after its imports. Appends to results/precision.csv.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, environment, quiet, show, stamp, write_csv

import graphweft as gw

COLUMNS = ("case", "precision", "epoch_ms", "ratio", "peak_mb", "loss", "turns")
PRECISIONS = ("float32", "bf16")


def peak() -> int:
    """Bytes: the most that the process had in memory."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def child(options: argparse.Namespace) -> None:
    """Answers every line of standard input with the seconds of so many epochs."""
    torch.set_num_threads(options.threads)
    name, _, scale = options.child.partition(":")
    kept = None if options.data is None else options.data / f"{options.child.replace(':', '-')}.npz"
    ds = gw.synthetic(name, scale=float(scale or 1), seed=0) if kept is None or not kept.exists() else gw.load(kept)
    if kept is not None and not kept.exists() and options.precision == PRECISIONS[0]:
        ds.save(kept, compress=False)
    if options.train_nodes:
        ds = replace(ds, train_idx=ds.train_idx[: options.train_nodes])
    torch.manual_seed(0)
    batches = {"mode": "mini", "fanouts": options.fanouts, "batch_size": options.batch_size} if options.fanouts else {}
    kind = {"gcn": gw.nn.GCN, "sage": gw.nn.SAGE, "gin": gw.nn.GIN}[options.model]
    model = kind(ds.num_features, options.hidden, ds.num_classes, num_layers=3)
    start = peak()
    with gw.config(precision=options.precision):
        trainer = gw.Trainer(model, ds, lr=0.01, eval_every=10**6, restore_best=False, **batches)
        trainer.fit(1 if options.fanouts else 3)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            begun, epochs = time.perf_counter(), int(line)
            trainer.fit(epochs)
            seconds = (time.perf_counter() - begun) / epochs
            if options.fanouts:
                seconds = statistics.mean(record.epoch_seconds for record in trainer.history[-epochs:])
            told = {"seconds": seconds, "loss": trainer.history[-1].loss, "peak": peak() - start}
            print(json.dumps(told), flush=True)


def measure(options: argparse.Namespace, twin: str) -> list[dict[str, Any]]:
    """Both precisions on one twin, in turns."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", twin, "--precision"]
    env = environment(options.threads)
    workers = {
        p: subprocess.Popen([*command, p], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        for p in PRECISIONS
    }
    for worker in workers.values():
        read(worker)
    if options.wait_quiet:
        quiet(0.2)
    epochs = {
        p: max(1, round(options.seconds / ask(worker, 1 if options.fanouts else 3)["seconds"]))
        for p, worker in workers.items()
    }
    found: dict[str, list[dict[str, Any]]] = {p: [] for p in PRECISIONS}
    for _ in range(options.turns):
        for precision, worker in workers.items():
            found[precision].append(ask(worker, epochs[precision]))
    for worker in workers.values():
        worker.communicate()
    medians = {p: statistics.median(turn["seconds"] for turn in turns) for p, turns in found.items()}
    return [
        {
            "case": f"{options.model} 3 x {options.hidden}, {twin}" + _sampled(options),
            "precision": precision,
            "epoch_ms": round(1e3 * medians[precision], 2),
            "ratio": round(medians[precision] / medians["float32"], 3),
            "peak_mb": round(turns[-1]["peak"] / 1e6, 1),
            "loss": round(turns[-1]["loss"], 4),
            "turns": len(turns),
        }
        for precision, turns in found.items()
    ]


def _sampled(options: argparse.Namespace) -> str:
    fanouts = "-".join(map(str, options.fanouts))
    seeds = f" of {options.train_nodes} nodes" if options.train_nodes else ""
    return f", batches of {options.batch_size}{seeds}, {fanouts}" if fanouts else ""


def ask(worker: subprocess.Popen[str], epochs: int) -> dict[str, Any]:
    """Lets a worker train."""
    assert worker.stdin is not None
    worker.stdin.write(f"{epochs}\n")
    worker.stdin.flush()
    return read(worker)


def read(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """A worker's next line."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended with status {worker.wait()}")
    told: dict[str, Any] = json.loads(line)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twins", nargs="+", default=["arxiv", "products:0.25", "reddit:0.25"], help="name[:scale]")
    parser.add_argument("--model", choices=["gcn", "sage", "gin"], default="gcn")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--fanouts", type=int, nargs="*", default=[], help="mini-batches; none: full batches")
    parser.add_argument("--train-nodes", type=int, default=0, help="so many of them; 0: all")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--data", type=Path, help="folder that keeps the data between runs; else it is made anew")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait-quiet", action="store_true", help="wait until nothing else computes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "precision.csv")
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    for twin in options.twins:
        rows = measure(options, twin)
        show(twin, rows, COLUMNS)
        write_csv(options.out, [{**row, **stamp(options.threads)} for row in rows])


if __name__ == "__main__":
    main()
