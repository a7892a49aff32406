"""Test accuracy of training on groups of parts from a store, beside mini-batches of the same graph in memory.

    python benchmarks/accuracy/stored_groups.py --data facebook blogcatalog --folder data --work F --seeds 5 --jobs 2

Ways: ``mini`` in memory; groups of 8 of 64 parts from a store (typed sets: 3 of 64): ``multilevel`` and ``random``
parts, each also with hubs of a sixteenth of the bytes; ``whole`` has all parts in one group; ``neighbours`` has groups
of half as many parts, each of which brings as many nodes of others as it has, ``more`` of them a quarter of the parts
and three times as many, ``most`` an eighth and seven times; ``first`` has five parts in eight with the first layer on
all edges of the graph. Every run is a process with one thread;
a run that is in the file already is not made again, and none begins after ``--seconds``. Data are those of
``multistage.py``, DBLP, and ``academic``, a typed graph that is made here; typed sets have hubs of a sixty-fourth.
Wide sparse features are projected to 128 columns at random for all ways, as parts make rows dense. The test accuracy is
that at the best validation of four or more. Differences are in points from ``mini``, paired by seed. Appends to
results/stored_groups.csv.
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

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.multistage import data
from accuracy.typed import split_by_shares
from harness import RESULTS, show, stamp, write_csv

import graphweft as gw
from graphweft.data.flat_features import with_flat_features

COLUMNS = ("data", "model", "way", "seed", "test_acc", "val_acc", "best_epoch", "epochs", "seconds")
WAYS = ("mini", "multilevel hubs", "random", "multilevel", "random hubs", "whole", "multilevel neighbours")
# half of the fan-outs; twice the parts of a group; twice the hubs; a quarter of the parts with three times their nodes,
# an eighth with seven times; the first layer on the whole graph, with five parts in eight, as rows are twice as wide
MORE_WAYS = (
    "mini few",
    "multilevel wide",
    "multilevel hubs more",
    "multilevel neighbours more",
    "multilevel neighbours most",
    "multilevel first",
    "multilevel first neighbours",
)
WIDTH = 128
FANOUTS, HIDDEN = (10, 10), 64
TYPED = ("academic", "dblp")
MODELS = {"sage": False, "gat": False, "rgcn": True, "hgt": True}  # whether they are for types


class Recipe(NamedTuple):
    """How a set is trained.

    Attributes:
        epochs: Epochs.
        every: Epochs between evaluations.
        batch: Seeds of a batch.
        dropout: Of all layers.
        group: Parts of a group.
        lr: Learning rate.
        parts: Parts of the store.
        hubs: Hubs have one in so many bytes.
    """

    epochs: int
    every: int
    batch: int
    dropout: float = 0.5
    group: int = 8
    lr: float = 0.005
    parts: int = 64
    hubs: int = 16


RECIPES = {
    "academic": Recipe(12, 3, 250, 0.3, 3, 0.01, hubs=64),
    "dblp": Recipe(30, 3, 250, 0.5, 3, 0.01, hubs=64),
    "facebook": Recipe(40, 5, 512),
    "blogcatalog": Recipe(90, 6, 256),
    "arxiv": Recipe(9, 2, 1000, 0.2),
    "products": Recipe(12, 2, 250),
    "products-mixed": Recipe(12, 2, 250),
}


def academic(papers: int = 20_000, width: int = 64, share: float = 0.2, seed: int = 0) -> gw.Dataset:
    """Papers, two authors for three papers, and 80 venues without features; papers of twenty classes are labelled.

    A community is 100 papers and their authors, and has a class, which eleven in twelve of its papers have. Papers cite
    within their community three times in five, and have two of three authors from it; two in three appear in one of
    four venues of the class. Features alone tell few labels. ``share`` of the papers train.
    """
    rng, classes, ids = np.random.default_rng(seed), 20, np.arange(papers)
    authors, of = papers * 2 // 3, ids // 100
    y = of % classes

    def near(count: int, size: int, far: float) -> tuple[Any, Any]:
        """Papers ``count`` times, and a node of the same community for each, of ``size`` a community, or of any."""
        src = np.tile(ids, count)
        inside = np.minimum(src // 100 * size + rng.integers(0, size, len(src)), papers * size // 100 - 1)
        return src, np.where(rng.random(len(src)) < far, rng.integers(0, papers * size // 100, len(src)), inside)

    cites = near(5, 100, 0.4)
    by = near(3, 66, 0.33)
    own = y * 4 + rng.integers(0, 4, papers)
    venue = np.where(rng.random(papers) < 0.33, rng.integers(0, 4 * classes, papers), own)
    order, names = rng.permutation(papers), rng.permutation(authors)
    edges = {
        ("paper", "cites", "paper"): (order[cites[0]], order[cites[1]]),
        ("paper", "by", "author"): (order[by[0]], names[by[1]]),
        ("paper", "in", "venue"): (order, venue),
    }
    sizes = {"paper": papers, "author": authors, "venue": 4 * classes}
    graph = gw.Graph.hetero(edges, sizes).add_inverse_relations()
    centres = rng.standard_normal((classes, width), np.float32)
    labels = np.full(sum(sizes.values()), -1)
    labels[order] = np.where(rng.random(papers) < 1 / 12, rng.integers(0, classes, papers), y)
    noisy = {"paper": (labels[:papers], 7.0), "author": (np.zeros(authors, int), 9.0)}
    noisy["author"][0][names] = np.minimum(np.arange(authors) // 66, of[-1]) % classes
    x = {
        kind: torch.from_numpy(centres[which] + noise * rng.standard_normal((len(which), width), np.float32))
        for kind, (which, noise) in noisy.items()
    }
    split = rng.permutation(papers)
    first = round(share * papers)
    parts = {"train_idx": split[:first], "val_idx": split[first : 2 * first], "test_idx": split[2 * first : 4 * first]}
    return gw.Dataset("academic", graph, None, labels, features=x, target_type="paper", num_classes=classes, **parts)


def typed(name: str, folder: Path) -> gw.Dataset:
    """A typed set, every relation with its inverse; features of more than four times 128 columns are projected."""
    if name == "academic":
        return academic()
    ds = split_by_shares(gw.load(str(folder / f"{name}.npz")), "24/6/70").row_normalized()
    x = {kind: narrow(rows) for kind, rows in ds.features.items()}
    return replace(ds, graph=ds.graph.add_inverse_relations(), features=x)


def narrow(x: Any) -> torch.Tensor:
    """Dense rows; where they are wide, of length one and projected at random."""
    dense: torch.Tensor = (x.to_dense() if hasattr(x, "to_dense") else x).float()
    if dense.shape[1] <= 4 * WIDTH:
        return dense
    dense = dense / dense.norm(dim=1, keepdim=True).clamp(min=1e-6)
    return dense @ torch.randn(dense.shape[1], WIDTH, generator=torch.Generator().manual_seed(0))


def dataset(name: str, folder: Path) -> gw.Dataset:
    """The set with dense features, without values of edges."""
    if name in TYPED:
        return typed(name, folder)
    ds: gw.Dataset = data(name, folder)
    return replace(ds, x=narrow(ds.x), edge_weight=None, edge_features=None)


def prepared(name: str, folder: Path, work: Path) -> None:
    """The set in a file, and its stores."""
    where = work / name
    if (where / "done").exists():
        return
    where.mkdir(parents=True, exist_ok=True)
    ds = dataset(name, folder)
    for method in ("multilevel", "random"):
        gw.macro.prepare_store(ds, where / method, parts=RECIPES[name].parts, memory="2GB", method=method)
    torch.save(with_flat_features(ds) if name in TYPED else ds, where / "data.pt")
    (where / "done").touch()


def run(name: str, model: str, way: str, seed: int, work: Path) -> dict[str, object]:
    """One run: its accuracies in per cent."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    recipe, (method, *more) = RECIPES[name], way.split()
    fanouts = tuple(fanout // 2 for fanout in FANOUTS) if "few" in more else FANOUTS
    given: dict[str, Any] = {"fanouts": fanouts, "batch_size": recipe.batch, "lr": recipe.lr, "seed": seed}
    ds: Any
    if method == "mini":
        ds = torch.load(work / name / "data.pt", weights_only=False)
        given["mode"] = "mini"
    else:
        ds = gw.macro.Store(work / name / ("multilevel" if method == "whole" else method))
        nbytes = sum(block.nbytes for part in ds.manifest.parts for block in part.blocks)
        group = recipe.parts if method == "whole" else recipe.group * (2 if "wide" in more else 1)
        share = 7 if "most" in more else 3 if "more" in more else 1
        if "first" in more:
            group = max(group * 5 // 8, 1)
        if "neighbours" in more:
            group = max(group // (share + 1), 1)
        macro = [f"parts:{group}/{recipe.parts}"]
        macro += [f"hubs:{nbytes * (2 if 'more' in more else 1) // recipe.hubs}"] if "hubs" in more else []
        macro += [f"neighbours:{share}"] if "neighbours" in more else []
        macro += ["first:whole"] if "first" in more else []
        given |= {"mode": "macro", "macro": "+".join(macro)}
    net = network(model, ds, recipe)
    begun = time.perf_counter()
    history = gw.Trainer(net, ds, eval_every=recipe.every, **given).fit(recipe.epochs)
    best = history.best
    if best is None or best.test_acc is None or best.val_acc is None:
        raise SystemExit(f"{name}: expected labels in the validation and the test split")
    row: dict[str, object] = {"data": name, "model": model, "way": way, "seed": seed}
    row |= {"test_acc": round(100 * best.test_acc, 3), "val_acc": round(100 * best.val_acc, 3)}
    row |= {"best_epoch": best.epoch, "epochs": len(history), "seconds": round(time.perf_counter() - begun)}
    return row


def network(model: str, ds: Any, recipe: Recipe) -> torch.nn.Module:
    """The model for a dataset in memory or in a store."""
    more: dict[str, Any] = {} if model in ("sage", "rgcn") else {"heads": 4}
    if MODELS[model]:
        types = ds.types if isinstance(ds, gw.macro.Store) else ds.graph.layout
        more["num_relations"] = len(types.relations)
        more |= {"num_node_types": len(types.node_types)} if model == "hgt" else {}
    made: Any = {"sage": gw.nn.SAGE, "gat": gw.nn.GAT, "rgcn": gw.nn.RGCN, "hgt": gw.nn.HGT}[model]
    sizes = (ds.num_features, HIDDEN, ds.num_classes)
    net: torch.nn.Module = made(*sizes, num_layers=len(FANOUTS), norm="layer", dropout=recipe.dropout, **more)
    return net


def known(path: Path) -> list[dict[str, str]]:
    """Runs that were made before, by the same recipe."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if int(row["epochs"]) == RECIPES[row["data"]].epochs]


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
    parser.add_argument("--models", nargs="+", default=["sage", "gat"], choices=sorted(MODELS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS + MORE_WAYS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
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
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for way in options.ways
        for model in options.models
        if MODELS[model] == (name in TYPED)
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
