"""Memory of runs over stores against their budget: predicted and taken, where the data are eight times the budget.

    python benchmarks/training/store_memory.py make --folder F --kind plain --nodes 4000000 --width 128
    python benchmarks/training/store_memory.py prepare --folder F --memory 256MB
    python benchmarks/training/store_memory.py train --folder F --memory 256MB --modes macro mini --models SAGE GCN GAT

``make`` writes communities in random order, with hubs, as files of edges and features (``plain``), or makes them in
memory with weights of edges (``weighted``) or node types (``typed``). ``prepare`` writes the store, ``train`` runs an
epoch and an evaluation in a forked child of its own. What is counted is anonymous memory above a bare import, and the
pages of the store's and of temporary files that the system kept, as ``tests/fuzz/stores.py`` counts them. A budget that
is refused is followed by the least that it named. Appends to results/store_memory.csv.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fuzz.stores import forked, within
from harness import RESULTS, show, stamp, write_csv

import graphweft as gw
from graphweft.storage.memory_size import memory_bytes
from graphweft.train.trainer import Trainer

COLUMNS = (
    "case",
    "step",
    "model",
    "data_mb",
    "budget_mb",
    "predicted_mb",
    "peak_mb",
    "pages_mb",
    "predicted_over_peak",
    "group",
    "seconds",
    "accounts",
)
_ROWS, _EDGES = 1 << 16, 1 << 21  # written at a time
_COMMUNITY, _CLASSES = 400, 40
_RELATIONS = (("a", "first", "b"), ("b", "second", "a"), ("b", "third", "b"))


def ends_of(rng: np.random.Generator, nodes: int, count: int) -> tuple[Any, Any]:
    """Both ends of some edges: four in five within communities, the others rather to hubs."""
    src = rng.integers(0, nodes, count)
    inside = np.minimum(src // _COMMUNITY * _COMMUNITY + rng.integers(0, _COMMUNITY, count), nodes - 1)
    far = (nodes * rng.random(count) ** 2).astype(np.int64)
    return src, np.where(rng.random(count) < 0.8, inside, far)


def make(folder: Path, nodes: int, width: int, degree: int) -> None:
    """Files of a graph."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, edges = np.random.default_rng(0), nodes * degree
    name = rng.permutation(nodes)
    table = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int64, (2, edges))
    for first in range(0, edges, _EDGES):
        src, dst = ends_of(rng, nodes, min(_EDGES, edges - first))
        table[:, first : first + len(src)] = name[src], name[dst]
    rows = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (nodes, width))
    some = rng.standard_normal((_ROWS, width), np.float32)
    for first in range(0, nodes, _ROWS):
        rows[first : first + _ROWS] = some[: nodes - first]
    y = np.empty(nodes, np.int64)
    y[name] = np.arange(nodes) // _COMMUNITY % _CLASSES
    np.save(folder / "y.npy", y)
    order = rng.permutation(nodes)
    parts = {"train_idx": order[: nodes // 20], "val_idx": order[-2000:], "test_idx": order[-4000:-2000]}
    np.savez(folder / "split.npz", **parts)


def in_memory(kind: str, nodes: int, width: int, degree: int) -> gw.Dataset:
    """A graph with weights of edges, or with two types of nodes that have features of different widths."""
    rng = np.random.default_rng(0)
    src, dst = ends_of(rng, nodes, nodes * degree)
    order, x = rng.permutation(nodes), torch.randn(nodes, width, generator=torch.Generator().manual_seed(0))
    y = np.arange(nodes) // _COMMUNITY % _CLASSES
    rest = {"num_classes": _CLASSES}
    if kind == "weighted":
        split = {"train_idx": order[: nodes // 20], "val_idx": order[-2000:], "test_idx": order[-4000:-2000]}
        weight = torch.from_numpy(rng.random(len(src), np.float32))
        return gw.Dataset("weighted", gw.Graph(src, dst, num_nodes=nodes), x, y, edge_weight=weight, **split, **rest)
    half = nodes // 2
    sizes, edges = {"a": half, "b": nodes - half}, {}
    for number, (one, name, other) in enumerate(_RELATIONS):
        some = slice(number, None, len(_RELATIONS))
        edges[one, name, other] = src[some] % sizes[one], dst[some] % sizes[other]
    order = order[order >= half]
    split = {"train_idx": order[: nodes // 20], "val_idx": order[-2000:], "test_idx": order[-4000:-2000]}
    y[:half] = -1
    features = {"a": x[:half], "b": x[half:]}
    graph = gw.Graph.hetero(edges, sizes)
    return gw.Dataset("typed", graph, None, y, features=features, target_type="b", **split, **rest)


def prepare(options: argparse.Namespace, told: dict[str, Any]) -> dict[str, Any]:
    """The store, within a budget where the graph is in files."""
    (options.folder / "work").mkdir(exist_ok=True)
    given = {"parts": options.parts, "memory": options.memory, "method": options.method}
    if told["kind"] != "plain":
        sizes = (told["nodes"], told["width"], told["degree"])
        status, _ = forked(
            lambda: (
                gw.macro.prepare_store(
                    in_memory(told["kind"], *sizes), options.folder / "work" / "store", **given
                ).nbytes
            )
        )
        return {"status": status}
    files = gw.macro.GraphFiles(
        *(options.folder / f"{name}.npy" for name in ("edges", "x", "y")), options.folder / "split.npz", bidirected=True
    )
    return measured(
        options.folder / "work",
        lambda: gw.macro.prepare_store(files, options.folder / "work" / "store", **given).nbytes and None,
    )


def measured(folder: Path, step: Callable[[], Any]) -> dict[str, Any]:
    """What a step took, and how long it ran."""
    begun = time.perf_counter()
    status, found = forked(within(folder, step))
    if status:
        raise SystemExit(f"status {status}: {found}")
    return {**found, "seconds": round(time.perf_counter() - begun, 1)}


def run_of(options: argparse.Namespace, mode: str, name: str, memory: int) -> dict[str, Any]:
    """Trains an epoch, which ends with an evaluation; what was predicted."""
    torch.set_num_threads(options.threads)
    opened = gw.macro.Store(options.folder / "work" / "store")
    torch.manual_seed(0)
    sizes, layers = (opened.num_features, options.hidden, opened.num_classes), len(options.fanouts)
    types: dict[str, Any] = {}
    if opened.types is not None and name == "RGCN":
        types = {"num_relations": len(opened.types.relations)}
    elif opened.types is not None:
        types = {"num_node_types": len(opened.types.node_types), "num_relations": len(opened.types.relations)}
    model = getattr(gw.nn, name)(*sizes, num_layers=layers, dropout=0.5, **types)
    given: dict[str, Any] = {"fanouts": options.fanouts, "batch_size": options.batch, "seed": 0, "task": options.task}
    trainer = Trainer(model, opened, mode=mode, memory=memory, **given)
    trainer.fit(options.epochs)
    needs = trainer.needs
    told = {} if needs is None else {"total": needs.total, "text": needs.text()}
    metrics = trainer.history[-1].metrics
    return {**told, "group": getattr(trainer._batch, "group", ""), "metrics": metrics}


def row_of(
    options: argparse.Namespace, told: dict[str, Any], step: str, name: str, memory: int, found: dict[str, Any]
) -> dict[str, Any]:
    """A row of the table."""
    predicted = found.get("predicted") or {}
    taken = found["peak"]
    return {
        "case": f"{told['kind']} {told['nodes']:,} x {told['width']}",
        "step": step,
        "model": name,
        "data_mb": round(told["bytes"] / 1e6),
        "budget_mb": round(memory / 1e6, 1),
        "predicted_mb": round(predicted["total"] / 1e6, 1) if "total" in predicted else "",
        "peak_mb": round(taken / 1e6, 1),
        "pages_mb": round(found["pages"] / 1e6, 1),
        "predicted_over_peak": round(predicted["total"] / taken, 2) if "total" in predicted else "",
        "group": predicted.get("group", ""),
        "seconds": found["seconds"],
        "accounts": found.get("words", predicted.get("text", "")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "prepare", "train"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kind", choices=("plain", "weighted", "typed"), default="plain")
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--degree", type=int, default=6, help="edges a node; those of files go both ways")
    parser.add_argument("--parts", type=int, default=256)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--memory", default="256MB")
    parser.add_argument("--modes", nargs="+", default=["macro", "mini"])
    parser.add_argument("--models", nargs="+", default=["SAGE"])
    parser.add_argument("--task", default="nodes")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "store_memory.csv")
    options = parser.parse_args()
    about = options.folder / "told.json"
    if options.what == "make":
        sizes = (options.nodes, options.width, options.degree)
        options.folder.mkdir(parents=True, exist_ok=True)
        if options.kind == "plain":
            make(options.folder, *sizes)
        both = 2 if options.kind == "plain" else 1
        nbytes = 4 * options.nodes * options.width + 4 * both * options.nodes * options.degree + 8 * options.nodes
        names = ("kind", "nodes", "width", "degree")
        about.write_text(json.dumps({**{name: getattr(options, name) for name in names}, "bytes": nbytes}))
        return
    told, memory = json.loads(about.read_text()), memory_bytes(options.memory)
    rows = []
    if options.what == "prepare":
        found = prepare(options, told)
        if "peak" in found:
            rows.append(row_of(options, told, "prepare", options.method, memory, found))
    for mode in options.modes if options.what == "train" else ():
        for name in options.models:
            given = memory
            for _ in range(2):
                found = measured(options.folder / "work", lambda: run_of(options, mode, name, given))  # noqa: B023
                rows.append(row_of(options, told, mode, name, given, found))
                print(rows[-1], found.get("predicted"), flush=True)
                if "least" not in found:
                    break
                given = found["least"]
    show("memory of runs over stores", rows, COLUMNS)
    if rows:
        write_csv(options.out, [{**row, **stamp(options.threads)} for row in rows])


if __name__ == "__main__":
    main()
