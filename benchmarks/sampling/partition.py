"""Partitions: time of GAP against the exhaustive search of Fennel as k grows, cut by pass, labels by method.

``python benchmarks/sampling/partition.py [--twin ogbn-arxiv] [--scale 1.0] [--threads 2]``. Rows of ``time`` are a pass
from scratch (median of some turns that alternate between the searches, which have given the same parts); rows of
``quality`` are finished partitions of the twin and of a stochastic block model whose labels are its communities.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

from graphweft.data.dataset import training_labels
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.partitioning.partition import partition
from graphweft.partitioning.streaming import stream

COLUMNS = (
    "kind",
    "graph",
    "method",
    "k",
    "passes",
    "seconds",
    "cut_share",
    "balance",
    "label_distance_max",
    "halo_mean",
)


def timed(name: str, graph: Graph, ks: list[int], turns: int, exhaustive_most: int) -> list[dict[str, object]]:
    """A pass under both searches for every k."""
    rows: list[dict[str, object]] = []
    seconds: dict[tuple[int, bool], list[float]] = {}
    for _ in range(turns):
        for k in ks:
            parts = []
            for exhaustive in (False, True):
                if exhaustive and k > exhaustive_most:
                    continue
                part = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
                start = time.perf_counter()
                stream(graph, k, None, part, exhaustive=exhaustive)
                seconds.setdefault((k, exhaustive), []).append(time.perf_counter() - start)
                parts.append(part)
            if len(parts) == 2 and not torch.equal(*parts):
                raise BenchError(f"{name}, k = {k}: the two searches differ")
    for (k, exhaustive), taken in seconds.items():
        method = "exhaustive" if exhaustive else "gap"
        rows.append({"kind": "time", "graph": name, "method": method, "k": k, "passes": 1})
        rows[-1]["seconds"] = round(statistics.median(taken), 4)
    return rows


def block_model(count: int, size: int, seed: int = 0) -> tuple[Graph, torch.Tensor]:
    """Ten in-community and one other edge a node on average; labels are communities."""
    rng = np.random.default_rng(seed)
    n = count * size
    mine = rng.integers(0, n, 10 * n)
    src = np.concatenate([mine, rng.integers(0, n, n)])
    dst = np.concatenate([mine // size * size + rng.integers(0, size, mine.size), rng.integers(0, n, n)])
    return Graph(src, dst, num_nodes=n).to_bidirected(), torch.arange(n) // size


def quality(name: str, graph: Graph, labels: torch.Tensor | None, k: int) -> list[dict[str, object]]:
    """Finished partitions by every method."""
    rows: list[dict[str, object]] = []
    for method, passes in (
        ("gap", 1),
        ("gap", 2),
        ("gap", 3),
        ("gap", 5),
        ("multilevel", 1),
        ("metis", 1),
        ("random", 1),
    ):
        start = time.perf_counter()
        try:
            made = partition(graph, k, method, labels, passes=passes)
        except ImportError:
            continue
        seconds = time.perf_counter() - start
        report = made.report
        distance = None if report.label_distance is None else round(float(report.label_distance.max()), 4)
        row: dict[str, object] = {"kind": "quality", "graph": name, "method": made.method, "k": k, "passes": passes}
        row |= {"seconds": round(seconds, 3), "cut_share": round(report.cut_share, 4)}
        row |= {"balance": round(report.balance, 3), "label_distance_max": distance}
        rows.append(row | {"halo_mean": round(float(report.halo.double().mean()), 1)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twin", default="ogbn-arxiv")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--ks", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--exhaustive-most", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "partition.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ds = synthetic(arguments.twin, scale=arguments.scale)
    name = f"{arguments.twin}@{arguments.scale:g}"
    rows = timed(name, ds.graph, arguments.ks, arguments.turns, arguments.exhaustive_most)
    rows += quality(name, ds.graph, training_labels(ds), arguments.parts)
    graph, labels = block_model(8, 2000)
    rows += quality("sbm 8 x 2000", graph, labels, 8)
    full = [{column: row.get(column, "") for column in COLUMNS} for row in rows]
    show(name, full, COLUMNS)
    write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in full])


if __name__ == "__main__":
    main()
