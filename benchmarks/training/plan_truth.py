"""Plans against truth: random graphs, models, modes and budgets.

    python benchmarks/training/plan_truth.py --cases 200 --seed 0 --threads 2

A case trains in a process of its own by ``mode``, with a budget somewhat above what was predicted or none, and
compares the median epoch and the most memory above what is imported with the prediction. Mini-batches are trained until
every way of preparing them was tried; the epochs that are timed come after. Run ``graphweft doctor --calibrate`` first,
with as many threads, while nothing else runs. Rows are appended to the CSV file as they come; the summary is of those
of this run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, stamp, write_csv

COLUMNS = (
    *("graph", "scale", "model", "layers", "hidden", "mode", "batch_size", "memory_mb", "predicted_ms"),
    *("measured_ms", "predicted_mb", "measured_mb", "plan_ms", "refused"),
)
_GRAPHS = {"cora": 1.0, "pubmed": 1.0, "arxiv": 0.3, "products": 0.02, "reddit": 0.05, "flickr": 0.2}

_CHILD = """
import json, statistics, sys, threading, time
import torch
given = json.loads(sys.argv[1])
torch.set_num_threads(given["threads"])
import graphweft as gw
from graphweft._budget import own_bytes
from graphweft._memory import POOL
from graphweft.train.needs import data_bytes
from graphweft.train.plan import choose
ds = gw.synthetic(given["graph"], scale=given["scale"], seed=given["seed"])
POOL.trim()
torch.manual_seed(0)
kind = getattr(gw.nn, given["model"])
model = kind(ds.num_features, given["hidden"], ds.num_classes, num_layers=given["layers"])
gw.plan, gw.Trainer  # whose modules are no part of a run
floor, peak, done = own_bytes() - data_bytes(ds), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, own_bytes())
        time.sleep(0.001)
drawn = {"batch_size": given["batch_size"]}
thread = threading.Thread(target=watch)
try:
    planned = gw.plan(model, ds, memory=given["memory"], mode=given["mode"], epochs=given["epochs"], **drawn)
    ways = [planned.strategy, *(other.strategy for other in planned.others)]
    begun = time.perf_counter()
    choose(ways, planned.statistics, planned.limit)
    plan_ms = 1000 * (time.perf_counter() - begun)
    mode = planned.mode
    thread.start()
    trainer = gw.Trainer(model, ds, mode=mode, memory=given["memory"], **(drawn if mode == "mini" else {}))
    epochs = given["epochs"]
    if mode == "mini":  # the first two batches of an epoch are not timed by the loader
        epochs = max(epochs, min(26, -(-26 // max(1, len(trainer._batch.loader) - 2))))
    trainer.fit(epochs)
finally:
    done = True
    if thread.ident:
        thread.join()
watched = trainer.epoch  # epochs are timed without the thread that looks at the memory, and after ways were tried
seconds = [r.epoch_seconds for r in list(trainer.fit(5 if mode == "full" else 3))[watched:]]
print(json.dumps({"mode": mode, "predicted_ms": 1000 * planned.epoch_seconds, "plan_ms": plan_ms,
    "measured_ms": 1000 * statistics.median(seconds), "predicted_mb": planned.peak_bytes / 1e6,
    "measured_mb": (peak - floor) / 1e6}))
"""


def random_case(draw: random.Random, threads: int) -> dict[str, Any]:
    """Options of a run; ``memory`` is None, or a share above or below what the run would take, found later."""
    graph = draw.choice(sorted(_GRAPHS))
    return {
        "graph": graph,
        "scale": round(_GRAPHS[graph] * draw.uniform(0.2, 1.0), 4),
        "model": draw.choice(["GCN", "SAGE", "GIN", "GAT"]),
        "layers": draw.choice([2, 2, 3]),
        "hidden": draw.choice([16, 32, 64, 128, 256]),
        "mode": draw.choice(["full", "mini"]),
        "batch_size": draw.choice([256, 1024]),
        "memory": None,
        "share": draw.choice([None, 0.8, 1.1, 2.0]),
        "seed": draw.randrange(1000),
        "threads": threads,
    }


def trained(case: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Figures of one process, or why it was refused."""
    options = json.dumps({**case, "epochs": epochs})
    command = [sys.executable, "-c", _CHILD, options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(case["threads"]), check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        if "MemoryBudgetError" not in last:
            raise RuntimeError(f"{case}: {last}")
        return {"refused": last.partition(": ")[2]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one_case(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The case without a budget, and again within a share of what was predicted."""
    epochs = 12 if case["mode"] == "full" else 3
    rows = [{**case, **trained(case, epochs)}]
    if case["share"] is not None:
        memory = int(case["share"] * 1e6 * rows[0]["predicted_mb"])
        found = trained({**case, "memory": memory}, epochs)
        rows.append({**case, "memory_mb": memory / 1e6, **found})
    return rows


def shown(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """The row's ``columns``, rounded; empty texts where it has none."""
    found = {name: "" if row.get(name) is None else row[name] for name in columns}
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Shares that keep to the bounds."""
    truth = [row for row in rows if not row.get("refused")]
    lines = []
    for name, unit, bound in (("seconds", "ms", 0.25), ("peak", "mb", 0.15)):
        off = [float(row[f"predicted_{unit}"]) / float(row[f"measured_{unit}"]) - 1 for row in truth]
        if off:
            within = statistics.mean(abs(value) <= bound for value in off)
            lines.append(
                f"{name}: within {bound:.0%} in {within:.0%} of {len(off)}, median {statistics.median(off):+.0%}"
            )
    over = [row for row in truth if row.get("memory_mb") and float(row["measured_mb"]) > float(row["memory_mb"])]
    lines.append(
        f"over budget: {len(over)}; planning at most {max((float(r['plan_ms']) for r in truth), default=0):.2f} ms"
    )
    return lines


def main() -> None:
    """Runs the cases and writes their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("plan_truth.csv"))
    given = parser.parse_args()
    draw, rows = random.Random(given.seed), []
    for _ in range(given.cases):
        found = one_case(random_case(draw, given.threads))
        rows += found
        for row in found:
            told = shown(row, COLUMNS)
            write_csv(given.out, [{**told, **stamp(given.threads)}])
            print(" ".join(f"{name}={value}" for name, value in told.items() if value != ""), flush=True)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
