"""Full-batch epochs in another order of the nodes (``order="neighbours"``), against the order as given.

    python benchmarks/training/node_order.py --twins products:0.1 products:0.25 reddit:0.25
    python benchmarks/training/node_order.py --twins arxiv:0.05 --epochs 3 --out /dev/null   # a try

A GCN of three layers with 32 columns trains from the same weights in both, in turns within one process; losses have to
agree to 1e-4. ``order_s`` is what preparing takes more, which is the median of so many trainers each, in turns.
``after_20`` is the time of 20 epochs with that, over 20 epochs without. ``pays_from`` is what ``order="auto"`` expects.
Twins have ids that say nothing of their communities. Appends to results/node_order.csv.
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
from graphweft.train.order_choice import price_of

ORDERS = ("given", "neighbours")
COLUMNS = ("case", "order", "epoch_ms", "ratio", "order_s", "after_20", "loss", "turns", "pays_from")


def made(ds: gw.Dataset, order: str) -> tuple[gw.Trainer, float]:
    """A trainer that is prepared, and the seconds that preparing took."""
    torch.manual_seed(0)
    model = gw.nn.GCN(ds.num_features, 32, ds.num_classes, num_layers=3)
    trainer = gw.Trainer(model, ds, lr=0.01, eval_every=10**6, restore_best=False, order=order)
    begun = time.perf_counter()
    trainer.prepare(20)
    return trainer, time.perf_counter() - begun


def measure(options: argparse.Namespace, twin: str) -> list[dict[str, Any]]:
    """Both orders on one twin, in turns."""
    name, _, scale = twin.partition(":")
    ds = gw.synthetic(name, scale=float(scale or 1), seed=0)
    pays = price_of(gw.Trainer(gw.nn.GCN(ds.num_features, 32, ds.num_classes, num_layers=3), ds)._batch)
    made(ds, "given")  # decides by measured costs, which are then remembered
    trainers, prepared = {}, {order: list[float]() for order in ORDERS}
    if options.wait_quiet:
        quiet(0.2)
    for _ in range(options.tries):
        for order in ORDERS:
            trainers.pop(order, None)
            trainers[order], seconds = made(ds, order)
            prepared[order].append(seconds)
    turns: dict[str, list[float]] = {order: [] for order in ORDERS}
    for turn in range(options.turns + 1):
        for order, trainer in trainers.items():
            trainer.fit(options.epochs if turn else 2)
            turns[order].append(statistics.median(r.epoch_seconds for r in trainer.history[-options.epochs :]))
    medians = {order: statistics.median(seconds[1:]) for order, seconds in turns.items()}
    losses = {order: trainer.history[-1].loss for order, trainer in trainers.items()}
    if abs(losses["neighbours"] - losses["given"]) > 1e-4 * losses["given"]:
        raise SystemExit(f"{twin}: expected the same losses in both orders, got {losses}")
    before = statistics.median(prepared["given"])
    found_in = {order: max(statistics.median(seconds) - before, 0.0) for order, seconds in prepared.items()}
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
            "pays_from": "" if order == "given" or pays is None else pays.epochs,
        }
        for order in trainers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twins", nargs="+", default=["products:0.1", "products:0.25", "reddit:0.25"])
    parser.add_argument("--epochs", type=int, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tries", type=int, default=3, help="of preparing")
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
