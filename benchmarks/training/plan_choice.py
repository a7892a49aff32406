"""The mode that a plan takes against the fastest one, found by training in every mode that fits.

    python benchmarks/training/plan_choice.py --cases 30 --seed 0 --threads 2

A case draws a small graph, a model and how batches are drawn, so that it takes seconds. A process of its own trains it
in mode "full" and "mini" and compares the median epoch of the mode that ``gw.plan`` takes with the fastest; a mode that
refuses the case is skipped. Run ``graphweft doctor --calibrate`` first, with as many threads, while nothing else runs.
Rows are appended to the CSV file as they come.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, stamp, write_csv
from plan_truth import random_case, shown

COLUMNS = (
    *("graph", "scale", "model", "layers", "hidden", "batch_size", "fanout", "chosen", "fastest", "ratio"),
    *("full_ms", "mini_ms", "full_predicted_ms", "mini_predicted_ms", "full_slowest", "mini_slowest", "plan_ms"),
)
_LEVEL = 1.10  # times the fastest that counts as right

_CHILD = """
import json, statistics, sys, time
import torch
given = json.loads(sys.argv[1])
torch.set_num_threads(given["threads"])
import graphweft as gw
ds = gw.synthetic(given["graph"], scale=given["scale"], seed=given["seed"])
drawn = {"batch_size": given["batch_size"], "fanouts": (given["fanout"],) * given["layers"]}
def model():
    torch.manual_seed(0)
    kind = getattr(gw.nn, given["model"])
    return kind(ds.num_features, given["hidden"], ds.num_classes, num_layers=given["layers"])
gw.plan(model(), ds, **drawn)  # compiles
begun = time.perf_counter()
plan = gw.plan(model(), ds, **drawn)
found = {"plan_ms": 1000 * (time.perf_counter() - begun), "chosen": plan.mode}
for way in [plan.strategy, *(other.strategy for other in plan.others)]:
    if way.epoch_seconds is not None:
        found |= {f"{way.mode}_predicted_ms": 1000 * way.epoch_seconds, f"{way.mode}_slowest": way.slowest}
for mode, epochs in (("full", 12), ("mini", 4)):
    try:
        trainer = gw.Trainer(model(), ds, mode=mode, **(drawn if mode == "mini" else {}))
    except (gw.errors.ConfigError, gw.errors.MemoryBudgetError):
        continue
    seconds = [record.epoch_seconds for record in trainer.fit(epochs)]
    found[f"{mode}_ms"] = 1000 * statistics.median(seconds[1:])
print(json.dumps(found))
"""


def drawn_case(draw: random.Random, threads: int) -> dict[str, Any]:
    """A graph, a model and how batches are drawn."""
    return {**random_case(draw, threads), "fanout": draw.choice([4, 10])}


def one_case(case: dict[str, Any]) -> dict[str, Any]:
    """The case with what its process found. Raises: RuntimeError with the last words of one that failed."""
    command = [sys.executable, "-c", _CHILD, json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(case["threads"]), check=False)
    if done.returncode:
        raise RuntimeError(f"{case}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    measured = {mode: found[f"{mode}_ms"] for mode in ("full", "mini") if f"{mode}_ms" in found}
    fastest = min(measured, key=measured.__getitem__)
    return {**case, **found, "fastest": fastest, "ratio": measured[found["chosen"]] / measured[fastest]}


def main() -> None:
    """Runs the cases and writes their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="cases before this one are drawn and left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("plan_choice.csv"))
    given = parser.parse_args()
    draw = random.Random(given.seed)
    cases = [drawn_case(draw, given.threads) for _ in range(given.first + given.cases)][given.first :]
    right = 0
    for number, case in enumerate(cases, 1):
        row = one_case(case)
        right += row["ratio"] <= _LEVEL
        told = shown(row, COLUMNS)
        write_csv(given.out, [{**told, **stamp(given.threads)}])
        print(" ".join(f"{name}={value}" for name, value in told.items() if value != ""), flush=True)
        print(f"the fastest or within 10 % in {right} of {number}", flush=True)


if __name__ == "__main__":
    main()
