"""Test accuracy by way of training: full batch, sampled mini-batches, large batches, parts with historical embeddings.

``python benchmarks/accuracy/multistage.py --data cora facebook arxiv --models sage gat [--seeds 5] [--folder data]``.
The test accuracy at the epoch of the best validation, mean and standard error over seeds; ``difference`` is in points
from the reference of the line (full batch for mini, mini for the others), paired by seed. ``arxiv`` is the citation
structure with features and labels drawn here: labels that neighbours share, features of a class plus noise. Graphs are
made undirected.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, show, stamp, write_csv

from graphweft.data.dataset import Dataset
from graphweft.data.load import load
from graphweft.graph.graph import Graph
from graphweft.nn.gat import GAT
from graphweft.nn.sage import SAGE
from graphweft.train.trainer import Trainer

COLUMNS = ("data", "model", "way", "test_acc", "std_error", "difference", "difference_std_error", "seeds", "epochs")
FILES = {"cora": "cora.npz", "facebook": "facebook_pages.npz", "arxiv": "ogbn_arxiv_structure.npz"}
BATCHES = {"cora": 32, "facebook": 1000, "arxiv": 1000}
EPOCHS = {"cora": (100, 20), "facebook": (100, 12), "arxiv": (100, 6)}  # full, mini
REFERENCE = {"mini": "full", "large 1/8": "mini", "large 1/24": "mini", "parts 8/64": "mini"}


def synthetic_labels(graph: Graph, classes: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels that neighbours share, by a few rounds of majority votes; noisy features of the class."""
    generator = torch.Generator().manual_seed(seed)
    n = graph.num_nodes
    votes = torch.randn(n, classes, generator=generator)
    src, dst = graph.edges()
    for _ in range(3):
        total = torch.zeros(n, classes).index_add_(0, dst, votes[src]) + votes
        votes = total / total.norm(dim=1, keepdim=True).clamp(min=1e-9)
    y = (votes - votes.mean(0)).argmax(1)
    centres = torch.randn(classes, width, generator=generator)
    return centres[y] + 3.0 * torch.randn(n, width, generator=generator), y


def data(name: str, folder: Path) -> Dataset:
    """The set, undirected, with a split."""
    file = folder / FILES[name]
    if name != "arxiv":
        ds = load(str(file), seed=0)
        return replace(ds, graph=ds.graph.to_bidirected(), edge_weight=None, edge_features=None)
    with np.load(file, allow_pickle=False) as arrays:
        if "edge_index" in arrays:
            src, dst = arrays["edge_index"]
        else:
            indptr, dst = arrays["indptr"], arrays["indices"]
            src = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    nodes = int(max(src.max(), dst.max())) + 1
    graph = Graph(src, dst, num_nodes=nodes).to_bidirected()
    x, y = synthetic_labels(graph, 40, 64, 0)
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))
    train, val, test = torch.tensor_split(order, (int(0.54 * nodes), int(0.72 * nodes)))
    return Dataset("arxiv structure", graph, x, y, train, val, test, 40)


def accuracy(ds: Dataset, name: str, model: str, way: str, seed: int) -> float:
    """One run."""
    torch.manual_seed(seed)
    options = {"heads": 4} if model == "gat" else {}
    made = (GAT if model == "gat" else SAGE)(
        ds.num_features, 64, ds.num_classes, num_layers=3, dropout=0.5, norm="layer", **options
    )
    full, mini = EPOCHS[name]
    if way == "full":
        history = Trainer(made, ds, lr=0.005, seed=seed, eval_every=2).fit(full)
    else:
        kind, _, share = way.partition(" ")
        macro = None if kind == "mini" else f"{kind}:{share}"
        given = {"fanouts": (15, 10, 5), "batch_size": BATCHES[name], "macro": macro, "seed": seed}
        history = Trainer(made, ds, lr=0.003, mode="mini", **given).fit(mini)
    return float(history.best.test_acc) if history.best is not None else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["cora", "facebook"], choices=sorted(FILES))
    parser.add_argument("--models", nargs="+", default=["sage", "gat"], choices=["sage", "gat"])
    parser.add_argument("--ways", nargs="+", default=["full", *REFERENCE])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=RESULTS / "accuracy_multistage.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.data:
        ds = data(name, arguments.folder)
        for model in arguments.models:
            found: dict[str, list[float]] = {}
            rows = []
            for way in arguments.ways:
                found[way] = [100 * accuracy(ds, name, model, way, seed) for seed in range(arguments.seeds)]
                base = found.get(REFERENCE.get(way, ""), [])
                gaps = [a - b for a, b in zip(found[way], base, strict=False)]
                root = arguments.seeds**0.5
                error = statistics.stdev(found[way]) / root if arguments.seeds > 1 else 0.0
                row = {"data": name, "model": model, "way": way, "test_acc": round(statistics.mean(found[way]), 2)}
                row |= {"std_error": round(error, 2), "difference": round(statistics.mean(gaps), 2) if gaps else ""}
                spread = round(statistics.stdev(gaps) / root, 2) if len(gaps) > 1 else ""
                row |= {"difference_std_error": spread, "seeds": arguments.seeds}
                rows.append(row | {"epochs": EPOCHS[name][0 if way == "full" else 1]})
            show(f"{name}, {model}", rows, COLUMNS)
            write_csv(arguments.out, [{**row, **stamp(arguments.threads)} for row in rows])


if __name__ == "__main__":
    main()
