"""Bytes that an epoch reads from the lower tier: single stage, large batches, parts; counters against the cost model.

``python benchmarks/sampling/multistage.py [--twin ogbn-products] [--scale 0.25] [--threads 2]``. Every line is one
epoch of the loader, its batches consumed and let go. ``fall`` is the single stage's bytes over the line's, ``model``
the ratio of normalised working sets measured beforehand on other draws. Bytes are features and structure; rows of
historical embeddings come on top in training. Thesis, sections 3.2 and 5.4.3.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

from graphweft.data.dataset import Dataset, training_labels
from graphweft.data.synthetic import synthetic
from graphweft.loader.multistage import MultistageLoader
from graphweft.partitioning.partition import partition
from graphweft.sample.stages import Key, LargeBatch, Parts, Stage, Whole
from graphweft.sample.working_set import working_set

COLUMNS = ("macro", "ahead", "low_mib", "high_mib", "reads", "batches", "fall", "model", "error", "epoch_seconds")


def measure(ds: Dataset, macro: Stage, ahead: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """One epoch."""
    loader = MultistageLoader(
        ds, None, arguments.fanouts, arguments.batch_size, True, arguments.seed, macro=macro, ahead=ahead, prefetch=0
    )
    start = time.perf_counter()
    batches = sum(1 for _ in loader)
    seconds = time.perf_counter() - start
    low, high = loader.traffic[0], loader.traffic[-1]
    return {
        "ahead": ahead,
        "low": low.total,
        "low_mib": round(low.total / 2**20, 1),
        "high_mib": round(high.total / 2**20, 1),
        "reads": low.reads,
        "batches": batches,
        "epoch_seconds": round(seconds, 2),
        "stages": loader.stages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twin", default="ogbn-products")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--shares", type=int, nargs="+", default=[24, 12, 8])
    parser.add_argument("--parts", type=int, nargs=2, default=[16, 128])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "multistage.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ds = synthetic(arguments.twin, scale=arguments.scale)
    row_bytes = 4.0 * ds.num_features
    key, trials = Key(arguments.seed + 1000, 7), 4
    seeds = torch.sort(ds.train_idx).values
    single = measure(ds, Whole(), False, arguments)
    flat = working_set(ds.graph, seeds, single["stages"][-1], row_bytes, trials, key).normalized
    rows = [{"macro": "single", "fall": 1.0, "model": 1.0, "error": 0.0, **single}]
    count, of = arguments.parts
    part = partition(ds.graph, of, labels=training_labels(ds)).part
    cases: list[tuple[str, Stage]] = [(f"large 1/{share}", LargeBatch(1 / share)) for share in arguments.shares]
    for name, stage in [*cases, (f"parts {count}/{of}", Parts(part, count))]:
        for ahead in (False, True):
            row = measure(ds, stage, ahead, arguments)
            fall = single["low"] / row["low"]
            model = ""
            if not ahead:
                model = flat / working_set(ds.graph, seeds, row["stages"][0], row_bytes, trials, key).normalized
            error = "" if ahead else round(model / fall - 1, 4)
            rounded = "" if ahead else round(model, 3)
            rows.append({"macro": name, "fall": round(fall, 3), "model": rounded, "error": error, **row})
    size = {"twin": arguments.twin, "scale": arguments.scale, "num_nodes": ds.num_nodes, "num_edges": ds.num_edges}
    size |= {"fanouts": " ".join(map(str, arguments.fanouts)), "batch_size": arguments.batch_size}
    full = [{column: row.get(column, "") for column in COLUMNS} for row in rows]
    show(f"{arguments.twin}@{arguments.scale:g}", full, COLUMNS)
    write_csv(arguments.out, [{**size, **row, **stamp(arguments.threads)} for row in full])


if __name__ == "__main__":
    main()
