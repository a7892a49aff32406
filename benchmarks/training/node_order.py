"""Full-batch epochs with nodes numbered anew by ``gw.transforms.reorder``, against the numbers as given.

    python benchmarks/training/node_order.py --twins products:0.1 products:0.25 reddit:0.25
    python benchmarks/training/node_order.py --twins arxiv:0.05 --epochs 3 --out /dev/null   # a try

A GCN of three layers with 32 columns trains from the same weights on both, in turns within one process; losses have to
agree to 1e-4. ``after_20`` is the time of 20 epochs with that of finding the order, over 20 epochs without. Twins have
ids that say nothing of their communities. Appends to results/node_order.csv.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, quiet, show, stamp, write_csv

import graphweft as gw

COLUMNS = ("case", "order", "epoch_ms", "ratio", "order_s", "after_20", "loss", "turns")


def reordered(ds: gw.Dataset) -> gw.Dataset:
    """The same data under other numbers."""
    graph, nodes = gw.transforms.reorder(ds.graph)
    place = torch.empty_like(nodes)
    place[nodes] = torch.arange(nodes.numel())
    splits = [place[ids].sort().values for ids in (ds.train_idx, ds.val_idx, ds.test_idx)]
    return gw.Dataset(ds.name, graph, ds.x[nodes], ds.y[nodes], *splits, ds.num_classes)


def measure(options: argparse.Namespace, twin: str) -> list[dict[str, Any]]:
    """Both orders on one twin, in turns."""
    name, _, scale = twin.partition(":")
    ds = gw.synthetic(name, scale=float(scale or 1), seed=0)
    begun = time.perf_counter()
    other = reordered(ds)
    found_in = {"given": 0.0, "reordered": time.perf_counter() - begun}
    trainers = {}
    for order, data in (("given", ds), ("reordered", other)):
        torch.manual_seed(0)
        model = gw.nn.GCN(data.num_features, 32, data.num_classes, num_layers=3)
        trainers[order] = gw.Trainer(model, data, lr=0.01, eval_every=10**6, restore_best=False)
        trainers[order].fit(3)
    if options.wait_quiet:
        quiet(0.2)
    turns: dict[str, list[float]] = {order: [] for order in trainers}
    for _ in range(options.turns):
        for order, trainer in trainers.items():
            trainer.fit(options.epochs)
            turns[order].append(statistics.median(r.epoch_seconds for r in trainer.history[-options.epochs :]))
    medians = {order: statistics.median(seconds) for order, seconds in turns.items()}
    losses = {order: trainer.history[-1].loss for order, trainer in trainers.items()}
    if abs(losses["reordered"] - losses["given"]) > 1e-4 * losses["given"]:
        raise SystemExit(f"{twin}: expected the same losses in both orders, got {losses}")
    twenty = {order: 20 * medians[order] + found_in[order] for order in medians}
    return [
        {
            "case": f"gcn 3 x 32, {twin}",
            "order": order,
            "epoch_ms": round(1e3 * medians[order], 2),
            "ratio": round(medians[order] / medians["given"], 3),
            "order_s": round(found_in[order], 2),
            "after_20": round(twenty[order] / twenty["given"], 3),
            "loss": round(losses[order], 4),
            "turns": options.turns,
        }
        for order in trainers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twins", nargs="+", default=["products:0.1", "products:0.25", "reddit:0.25"])
    parser.add_argument("--epochs", type=int, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait-quiet", action="store_true", help="wait until nothing else computes")
    parser.add_argument("--out", type=Path, default=RESULTS / "node_order.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for twin in options.twins:
        rows = measure(options, twin)
        show(twin, rows, COLUMNS)
        write_csv(options.out, [{**row, **stamp(options.threads)} for row in rows])


if __name__ == "__main__":
    main()
