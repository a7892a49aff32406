"""What full batches of the whole ogbn-papers100M would take on up to 1,024 ranks, from real parts of a small twin.

``python benchmarks/dist/scaling.py [--scale 0.004] [--network 100Gbit/s:5us] [--ranks 1,4,16,64,256,1024]`` cuts the
twin into so many parts, counts edges, rows and ghosts of each, takes the counts times 1 / scale, and appends rows by
the formula of :mod:`graphweft.partitioning.report` to ``benchmarks/results/ranks_scaling.csv``. A rank is one core
with the usual rates. Nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

import graphweft as gw
from graphweft.commands.scaling import network_of
from graphweft.data.synthetic import synthetic
from graphweft.partitioning.report import Rates, predict, ring_bytes
from graphweft.train.ranked_full import exchange_of

COLUMNS = (
    *("graph", "model", "network", "ranks", "cut_share", "ghosts_per_node", "sent_gb_a_rank", "compute_s"),
    *("halo_s", "sums_s", "epoch_s", "speedup", "note"),
)


def scaled(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A row for every number of ranks."""
    ds = synthetic(arguments.data, scale=arguments.scale, seed=0)
    model = getattr(gw.nn, arguments.model.upper()).for_data(ds, arguments.hidden, num_layers=arguments.layers)
    epoch = exchange_of(model, ds.labelled("train"), "exact", ds.x)
    rate, latency = network_of(arguments.network)
    usual, times = Rates(latency, 1 / rate), 1 / arguments.scale
    # what is counted on the twin is so much more on the graph; latencies, sums and what a layer takes anyway stay
    names = ("seconds_per_byte", "entry", "table", "multiply", "row")
    larger = replace(usual, **{name: getattr(usual, name) * times for name in names})
    rows: list[dict[str, object]] = []
    alone = 0.0
    for ranks in map(int, arguments.ranks.split(",")):
        made = gw.partition(ds.graph, ranks, "multilevel")
        counted = predict(ds.graph, made.part, ranks, epoch, larger)
        sums = predict(ds.graph, made.part, ranks, epoch, usual)
        rings = sum(ring_bytes(nbytes, ranks) for nbytes in epoch.sums)
        sent = (counted.bytes_sent / ranks - rings) * times + rings
        busiest = max(a + b for a, b in zip(counted.compute, counted.halo, strict=True)) + sums.gradients
        ghosts = sum(counted.ghosts)
        alone = alone or busiest * ranks
        row = {"cut_share": made.report.cut / ds.num_edges, "ghosts_per_node": ghosts / ds.num_nodes}
        row |= {"sent_gb_a_rank": sent / 1e9, "compute_s": max(counted.compute)}
        row |= {"halo_s": max(counted.halo), "sums_s": sums.gradients, "epoch_s": busiest, "speedup": alone / busiest}
        shown = {"ranks": ranks, **{name: f"{value:.4g}" for name, value in row.items()}}
        note = f"counts of a twin of {ds.num_nodes} nodes and {ds.num_edges} edges, times {times:.0f}"
        text = f"{arguments.model} {arguments.layers}x{arguments.hidden}"
        rows.append({"graph": arguments.data, "model": text, "network": arguments.network, **shown, "note": note})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Appends the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ogbn-papers100m")
    parser.add_argument("--scale", type=float, default=0.004)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--network", default="100Gbit/s:5us")
    parser.add_argument("--ranks", default="1,4,16,64,256,1024")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # steps of a partition are small
    rows = scaled(arguments)
    show("full batches on many ranks, predicted", rows, COLUMNS)
    mark = stamp(1)
    write_csv(RESULTS / "ranks_scaling.csv", [{**one, **mark} for one in rows])


if __name__ == "__main__":
    main()
