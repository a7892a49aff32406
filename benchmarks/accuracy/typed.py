"""Test accuracy of R-GCN and HGT on typed data sets: mean and deviation over seeds.

    python benchmarks/accuracy/typed.py path/to/aifb.npz
    python benchmarks/accuracy/typed.py path/to/acm.npz --split 24/6/70

Every relation's inverse is added. Where the source has a validation split, accuracy is that of the epoch with the best
validation accuracy, else that of the last epoch. Options not given are those of :data:`USUAL` for the model and data
set. A row of the result holds the options, so that a figure can be had again.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from harness import RESULTS, show, stamp, write_csv

from graphweft.data.dataset import Dataset
from graphweft.data.flat_features import with_flat_features
from graphweft.data.load import load
from graphweft.graph.graph import Graph
from graphweft.nn.hgt import HGT
from graphweft.nn.rgcn import RGCN
from graphweft.train.trainer import Trainer


@dataclass(frozen=True)
class Options:
    """One configuration."""

    model: str = "rgcn"
    hidden: int = 16
    layers: int = 2
    bases: int = 0
    heads: int = 4
    epochs: int = 50
    lr: float = 0.01
    dropout: float = 0.0
    weight_decay: float = 0.0
    decay_on: str = "first"
    normalize: bool = False
    norm: str = ""
    bias: bool = True
    self_relation: bool = False  # a node's own row is one more relation, sharing the bases, as in the authors' code


# layers, norm, learning rate and epochs of ACM and DBLP chosen by validation accuracy of one or two seeds
_ACM = Options(hidden=64, dropout=0.5, normalize=True, weight_decay=5e-4, decay_on="all")
_RGCN = replace(_ACM, layers=3, epochs=60)
_HGT = replace(_ACM, model="hgt", norm="layer", lr=0.003, epochs=100)
USUAL = {
    ("rgcn", "aifb"): Options(),
    # as in the authors' code, whose l2 of 5e-4 has twice that as its gradient's factor
    ("rgcn", "mutag_rdf"): Options(bases=30, weight_decay=1e-3, bias=False, self_relation=True),
    ("rgcn", "acm"): _RGCN,
    ("rgcn", "dblp"): _RGCN,
    ("hgt", "acm"): _HGT,
    ("hgt", "dblp"): _HGT,
}
COLUMNS = ("graph", "model", "split", "accuracy", "deviation", "least", "most", "validation", "seeds", "seconds")


def with_self_relation(graph: Graph) -> Graph:
    """The graph with one more relation per node type: from every node to itself."""
    src, dst = graph.edges()
    edges = {}
    for relation in graph.relations:
        ids, a, b = (graph.layout.edge_range(relation), *(graph.layout.node_range(relation[end]) for end in (0, 2)))
        edges[relation] = (src[ids.start : ids.stop] - a.start, dst[ids.start : ids.stop] - b.start)
    counts = {name: len(graph.layout.node_range(name)) for name in graph.node_types}
    every = {(name, "self", name): (torch.arange(count),) * 2 for name, count in counts.items()}
    return Graph.hetero(edges | every, counts)


def split_by_shares(ds: Dataset, shares: str) -> Dataset:
    """``24/6/70``: so many per cent of the labelled nodes train, validate and test, drawn once for all seeds."""
    train, val, test = (int(share) for share in shares.split("/"))
    labelled = torch.nonzero(ds.y >= 0)[:, 0]
    order = labelled[torch.randperm(labelled.numel(), generator=torch.Generator().manual_seed(0))]
    cuts = [order.numel() * train // 100, order.numel() * (train + val) // 100]
    if train + val + test != 100 or not 0 < cuts[0] < cuts[1]:
        raise SystemExit(f"--split: expected shares that add up to 100, got {shares}")
    return replace(ds, train_idx=order[: cuts[0]], val_idx=order[cuts[0] : cuts[1]], test_idx=order[cuts[1] :])


def train(ds: Dataset, options: Options, seed: int) -> tuple[float, float]:
    """Test and validation accuracy of one run, per cent; the latter nan where there is no such split."""
    torch.manual_seed(seed)
    shared: dict[str, Any] = {"dropout": options.dropout, "num_relations": len(ds.graph.relations)}
    shared |= {"bias": options.bias, "norm": options.norm or None}
    sizes = (options.hidden, ds.num_classes, options.layers)
    if options.model == "rgcn":
        nodes = ds.num_nodes if ds.x is None else None
        shared |= {"num_bases": options.bases or None, "self_loop": not options.self_relation}
        model: RGCN | HGT = RGCN(ds.num_features or None, *sizes, num_nodes=nodes, **shared)
    else:
        model = HGT(ds.num_features, *sizes, num_node_types=len(ds.graph.node_types), heads=options.heads, **shared)
    chosen = {"lr": options.lr, "weight_decay": options.weight_decay, "weight_decay_on": options.decay_on, "seed": seed}
    validated = ds.val_idx.numel() > 0
    trainer = Trainer(model, ds, eval_every=1 if validated else options.epochs, **chosen)
    history = trainer.fit(options.epochs)
    record = history.best if validated else history.last
    if record is None or record.test_acc is None:
        raise SystemExit(f"{ds.name}: expected test labels, got none")
    return 100 * record.test_acc, math.nan if record.val_acc is None else 100 * record.val_acc


def main(given: list[str] | None = None) -> int:
    """Trains one configuration with several seeds and writes a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a typed dataset's name or path")
    parser.add_argument("--split", default=None, help="which of several splits of the source, or shares like 24/6/70")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "accuracy_typed.csv")
    for name, default in vars(Options()).items():
        kind = {"type": type(default)} if not isinstance(default, bool) else {"action": argparse.BooleanOptionalAction}
        parser.add_argument(f"--{name.replace('_', '-')}", default=None, **kind)
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    shared_out = arguments.split is not None and "/" in arguments.split
    ds = load(arguments.data, split=None if shared_out else arguments.split)
    ds = split_by_shares(ds, arguments.split) if shared_out else ds
    named = {name: getattr(arguments, name) for name in vars(Options())}
    model = arguments.model or "rgcn"
    usual = USUAL.get((model, ds.name), Options(model=model))
    options = replace(usual, **{n: v for n, v in named.items() if v is not None})
    ds = ds.row_normalized() if options.normalize else ds
    if ds.features or options.model != "rgcn":
        ds = with_flat_features(ds)
    graph = ds.graph.add_inverse_relations()
    ds = replace(ds, graph=with_self_relation(graph) if options.self_relation else graph)
    began = time.perf_counter()
    found, validation = zip(*[train(ds, options, seed) for seed in range(arguments.seeds)], strict=True)
    row = {
        "graph": ds.name,
        "split": arguments.split or "source",
        "accuracy": round(statistics.mean(found), 2),
        "deviation": round(statistics.stdev(found), 2) if len(found) > 1 else 0.0,
        "least": round(min(found), 2),
        "most": round(max(found), 2),
        "validation": round(statistics.mean(validation), 2),
        "seeds": len(found),
        "seconds": round(time.perf_counter() - began, 1),
        **vars(options),
    }
    show(f"{options.model} on {ds.name}", [row], COLUMNS)
    write_csv(arguments.out, [{**row, **stamp(arguments.threads)}])
    return 0


if __name__ == "__main__":
    sys.exit(main())
