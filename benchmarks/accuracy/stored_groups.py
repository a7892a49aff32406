"""Test accuracy of training on groups of parts from a store, beside mini-batches of the same graph in memory.

    python benchmarks/accuracy/stored_groups.py --data facebook blogcatalog --folder data --work F --seeds 5 --jobs 2

Ways: ``mini`` in memory; groups of 8 of 64 parts from a store: ``multilevel`` and ``random`` parts, each also with hubs
of a sixteenth of the bytes. Every run is a process with one thread; a run that is in the file already is not made
again, and none begins after ``--seconds``. Data are those of ``multistage.py``; wide sparse features are projected to
128 columns at random for all ways, as parts make rows dense. The test accuracy is that at the best validation of six
or more. Differences are in points from ``mini``, paired by seed. Appends to results/stored_groups.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.multistage import data
from harness import RESULTS, show, stamp, write_csv

import graphweft as gw

COLUMNS = ("data", "model", "way", "seed", "test_acc", "val_acc", "best_epoch", "epochs", "seconds")
WAYS = ("mini", "multilevel hubs", "random", "multilevel", "random hubs")
GROUP, PARTS, HUBS, WIDTH = 8, 64, 16, 128
FANOUTS, HIDDEN = (10, 10), 64


class Recipe(NamedTuple):
    """Epochs, epochs between evaluations, seeds of a batch, dropout."""

    epochs: int
    every: int
    batch: int
    dropout: float = 0.5


RECIPES = {
    "facebook": Recipe(40, 5, 512),
    "blogcatalog": Recipe(60, 6, 256),
    "arxiv": Recipe(9, 2, 1000, 0.2),
    "products": Recipe(12, 2, 250),
    "products-mixed": Recipe(12, 2, 250),
}


def dataset(name: str, folder: Path) -> gw.Dataset:
    """The set with dense features, without values of edges."""
    ds: gw.Dataset = data(name, folder)
    x: Any = ds.x.to_dense() if hasattr(ds.x, "to_dense") else ds.x
    x = x.float()
    if x.shape[1] > 4 * WIDTH:
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-6)
        x = x @ torch.randn(x.shape[1], WIDTH, generator=torch.Generator().manual_seed(0))
    return replace(ds, x=x, edge_weight=None, edge_features=None)


def prepared(name: str, folder: Path, work: Path) -> None:
    """The set in a file, and its stores."""
    where = work / name
    if (where / "done").exists():
        return
    where.mkdir(parents=True, exist_ok=True)
    ds = dataset(name, folder)
    torch.save(ds, where / "data.pt")
    for method in ("multilevel", "random"):
        gw.macro.prepare_store(ds, where / method, parts=PARTS, memory="2GB", method=method)
    (where / "done").touch()


def run(name: str, model: str, way: str, seed: int, work: Path) -> dict[str, object]:
    """One run: its accuracies in per cent."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    recipe, (method, *hubs) = RECIPES[name], way.split()
    given: dict[str, Any] = {"fanouts": FANOUTS, "batch_size": recipe.batch, "lr": 0.005, "seed": seed}
    ds: Any
    if method == "mini":
        ds = torch.load(work / name / "data.pt", weights_only=False)
        given["mode"] = "mini"
        width, classes = ds.num_features, ds.num_classes
    else:
        ds = gw.macro.Store(work / name / method)
        nbytes = 4 * (ds.num_nodes * ds.num_features + ds.num_edges) // HUBS
        given |= {"mode": "macro", "macro": f"parts:{GROUP}/{PARTS}" + (f"+hubs:{nbytes}" if hubs else "")}
        width, classes = ds.num_features, ds.num_classes
    made: Any = gw.nn.SAGE if model == "sage" else gw.nn.GAT
    heads = {} if model == "sage" else {"heads": 4}
    net = made(width, HIDDEN, classes, num_layers=len(FANOUTS), norm="layer", dropout=recipe.dropout, **heads)
    begun = time.perf_counter()
    history = gw.Trainer(net, ds, eval_every=recipe.every, **given).fit(recipe.epochs)
    best = history.best
    if best is None or best.test_acc is None or best.val_acc is None:
        raise SystemExit(f"{name}: expected labels in the validation and the test split")
    row: dict[str, object] = {"data": name, "model": model, "way": way, "seed": seed}
    row |= {"test_acc": round(100 * best.test_acc, 3), "val_acc": round(100 * best.val_acc, 3)}
    row |= {"best_epoch": best.epoch, "epochs": len(history), "seconds": round(time.perf_counter() - begun)}
    return row


def known(path: Path) -> list[dict[str, str]]:
    """Runs that were made before."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary(rows: list[dict[str, str]]) -> list[dict[str, object]]:
    """A line for every set, model and way."""
    runs: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        runs.setdefault((row["data"], row["model"], row["way"]), {})[row["seed"]] = float(row["test_acc"])
    lines: list[dict[str, object]] = []
    for (name, model, way), found in sorted(runs.items()):
        base = runs.get((name, model, "mini"), {})
        gaps = [found[seed] - base[seed] for seed in found if seed in base]
        error = round(statistics.stdev(gaps) / len(gaps) ** 0.5, 2) if len(gaps) > 1 else ""
        line = {"data": name, "model": model, "way": way, "test_acc": round(statistics.mean(found.values()), 2)}
        line |= {"difference": round(statistics.mean(gaps), 2) if gaps else "", "std_error": error}
        lines.append({**line, "seeds": len(found)})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["facebook"], choices=sorted(RECIPES))
    parser.add_argument("--models", nargs="+", default=["sage", "gat"], choices=["sage", "gat"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, required=True, help="folder of stores")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no run begins")
    parser.add_argument("--one", nargs=4, metavar=("DATA", "MODEL", "WAY", "SEED"), help="one run, printed as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS / "stored_groups.csv")
    options = parser.parse_args()
    if options.one:
        name, model, way, seed = options.one
        print(json.dumps(run(name, model, way, int(seed), options.work)))
        return
    begun = time.perf_counter()
    for name in options.data:
        prepared(name, options.folder, options.work)
    done = {(row["data"], row["model"], row["way"], row["seed"]) for row in known(options.out)}
    wanted = [
        (name, model, way, str(seed))
        for name in options.data
        for seed in range(options.seeds)
        for way in options.ways
        for model in options.models
    ]

    def one(case: tuple[str, str, str, str]) -> None:
        if case in done or time.perf_counter() - begun > options.seconds:
            return
        command = [sys.executable, __file__, "--work", str(options.work), "--one", *case]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            print(*case, found.stderr.strip().splitlines()[-1:], flush=True)
            return
        row = json.loads(found.stdout.strip().splitlines()[-1])
        write_csv(options.out, [{**row, **stamp(1)}])
        print(row, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, wanted))
    rows = summary(known(options.out))
    if rows:
        show("accuracy of groups from a store", rows, tuple(rows[0]))


if __name__ == "__main__":
    main()
