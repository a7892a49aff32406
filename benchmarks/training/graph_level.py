"""Graph classification with GIN: accuracy over ten folds, and epochs and batches against PyTorch Geometric.

    python benchmarks/training/graph_level.py accuracy FOLDER_OR_NPZ ...
    python benchmarks/training/graph_level.py accuracy mutag.npz --epochs 20 --folds 2 --out /dev/null   # a try
    python benchmarks/training/graph_level.py time FOLDER_OR_NPZ ... --rounds 20

``accuracy`` follows the paper (Xu et al., ICLR 2019, section 7): five layers with batch norms, sums of all layers, Adam
0.01 halved every 50 epochs, no validation part; of all epochs that one counts whose accuracy, the mean over the folds,
is the best. ``last`` is the last epoch. ``--systems`` graphweft torch_geometric: PyTorch Geometric's model is trained
on the same folds by the same recipe, too. Appends a line per set and system to results/graph_accuracy.csv.

``time`` measures one epoch of training (loader, model, loss, update), by the same plain loop on both sides ("epoch")
and by our trainer ("trainer"), and one pass over the loader alone, in turns of one process of ``--turn`` epochs each;
PyTorch Geometric with its DataLoader over an in-memory list, whose number of workers is the best of --workers. Both
models have the same weights, and their first losses agree, before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

import graphweft as gw

ACCURACY = (
    "dataset",
    "system",
    "graphs",
    "hidden",
    "batch_size",
    "dropout",
    "epochs",
    "folds",
    "best_epoch",
    "best_mean",
)
ACCURACY += ("best_sd", "last_mean", "last_sd")
TIMES = ("dataset", "graphs", "batch_size", "hidden", "what", "ours_ms", "pyg_ms", "ratio", "workers")
PARTS = ("loader", "epoch", "trainer")
LAYERS, OURS, PEER = 5, "graphweft", "torch_geometric"


def prepared(path: str) -> gw.GraphDataset:
    """The set with attributes and tags of its nodes, or their degrees where it has neither."""
    ds = gw.load(path)
    assert isinstance(ds, gw.GraphDataset), f"{path}: expected a set of graphs"
    if "node_tag" in ds.arrays:
        ds = ds.with_tags()
    return ds if ds.x is not None else gw.GraphDataset.of(ds.with_features("degree_onehot"))


def our_curve(fold: gw.GraphDataset, options: argparse.Namespace) -> list[float]:
    """Test accuracies in per cent, epoch by epoch."""
    model = gw.nn.GraphModel.for_data(fold, options.hidden, num_layers=LAYERS, dropout=options.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = gw.Trainer(model, fold, optimizer=optimizer, batch_size=options.batch_size, seed=options.seed)
    for begin in range(0, options.epochs, 50):
        optimizer.param_groups[0]["lr"] = 0.01 * 0.5 ** (begin // 50)
        trainer.fit(min(50, options.epochs - begin))
    return [100 * float(value or 0.0) for value in trainer.history["test_acc"]]


def peer_curve(fold: gw.GraphDataset, options: argparse.Namespace) -> list[float]:
    """The same of PyTorch Geometric's model and loop."""
    from torch_geometric.loader import DataLoader

    items = data_objects(fold)
    parts = [[items[i] for i in fold.idx(part).tolist()] for part in ("train", "test")]
    train, test = DataLoader(parts[0], options.batch_size, shuffle=True), DataLoader(parts[1], options.batch_size)
    model = Peer(fold.num_features, options.hidden, fold.num_classes, options.dropout)
    optimizer, curve = torch.optim.Adam(model.parameters(), lr=0.01), []
    for epoch in range(options.epochs):
        optimizer.param_groups[0]["lr"] = 0.01 * 0.5 ** (epoch // 50)
        model.train()
        epoch_of(model, train, optimizer)()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(batch).argmax(1) == batch.y).sum()) for batch in test)
        curve.append(100 * right / len(parts[1]))
    return curve


def accuracy(path: str, options: argparse.Namespace, system: str) -> dict[str, object]:
    """One row: test accuracies in per cent over the folds."""
    ds = prepared(path)
    curves = []
    for number, fold in enumerate(ds.folds(10, options.seed, validation=False)[: options.folds]):
        torch.manual_seed(options.seed)
        curves.append((our_curve if system == OURS else peer_curve)(fold, options))
        sys.stderr.write(f"{ds.name} {system} fold {number}: best {max(curves[-1]):.1f} last {curves[-1][-1]:.1f}\n")
    means = [statistics.fmean(column) for column in zip(*curves, strict=True)]
    best = max(range(len(means)), key=lambda epoch: means[epoch])
    spread = statistics.stdev if len(curves) > 1 else (lambda _: 0.0)
    scores, last = [curve[best] for curve in curves], [curve[-1] for curve in curves]
    sizes = {"dataset": ds.name, "system": system, "graphs": len(ds)}
    sizes |= {"hidden": options.hidden, "batch_size": options.batch_size}
    return {
        **sizes,
        **{"dropout": options.dropout, "epochs": options.epochs, "folds": len(curves), "best_epoch": best + 1},
        **{"best_mean": round(means[best], 2), "best_sd": round(spread(scores), 2)},
        **{"last_mean": round(statistics.fmean(last), 2), "last_sd": round(spread(last), 2)},
    }


def data_objects(ds: gw.GraphDataset) -> list[Any]:
    """The graphs as PyTorch Geometric has them."""
    from torch_geometric.data import Data

    return [Data(x=s.x, y=s.y.reshape(1), edge_index=torch.stack(s.graph.edges())) for s in ds]


class Peer(nn.Module):
    """The same model of PyTorch Geometric's parts."""

    def __init__(self, in_features: int, hidden: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        from torch_geometric.nn import GIN

        self.stack = GIN(in_features, hidden, LAYERS, norm="batch_norm", jk="cat")
        self.stack.lin = nn.Identity()
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(in_features + LAYERS * hidden, classes)

    def forward(self, data: Any) -> torch.Tensor:
        """A row for each graph."""
        from torch_geometric.nn import global_add_pool

        rows = self.stack(data.x, data.edge_index)
        pooled = [global_add_pool(part, data.batch, data.num_graphs) for part in (data.x, rows)]
        return self.head(self.drop(torch.cat(pooled, dim=1)))


def copied(mine: gw.nn.GraphModel, theirs: Peer) -> None:
    """The weights of the peer in our model."""
    stack: Any = mine.encoder
    for layer, conv in zip(stack.layers, theirs.stack.convs, strict=True):
        first, second = conv.nn.lins
        layer.weight1.data, layer.bias1.data = first.weight.data.T.contiguous(), first.bias.data.clone()
        layer.weight2.data, layer.bias2.data = second.weight.data.T.contiguous(), second.bias.data.clone()
    mine.head.load_state_dict(theirs.head.state_dict())


def epoch_of(model: nn.Module, loader: Any, optimizer: Any = None) -> Callable[[], float]:
    """One epoch of training; its mean loss a batch."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch() -> float:
        total = 0.0
        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        return total / len(loader)

    return epoch


def trainer_of(model: gw.nn.GraphModel, ds: gw.GraphDataset, batch_size: int) -> Callable[[], float]:
    """One epoch of our trainer over all graphs; its seconds, without those of the evaluation that follows."""
    whole = ds.split(1.0, 0.0, 0.0)
    trainer = gw.Trainer(model, whole, lr=0.01, batch_size=batch_size, seed=0)
    return lambda: float(trainer.fit(1)[-1].epoch_seconds)


def times(path: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """Rows of an epoch and of the loader alone. Raises: BenchError where the first losses differ."""
    from torch_geometric.loader import DataLoader

    ds = prepared(path)
    torch.manual_seed(options.seed)
    items = data_objects(ds)
    theirs = Peer(ds.num_features, options.hidden, ds.num_classes)
    mine = gw.nn.GraphModel.for_data(ds, options.hidden, num_layers=LAYERS)
    copied(mine, theirs)
    batch = next(iter(gw.GraphLoader(ds, options.batch_size)))
    other = next(iter(DataLoader(items, options.batch_size)))
    losses = [float(functional.cross_entropy(m(b), b.y).detach()) for m, b in ((mine, batch), (theirs, other))]
    if abs(losses[0] - losses[1]) > 1e-3 * max(1.0, abs(losses[1])):
        raise BenchError(f"{ds.name}: expected the loss {losses[1]:.6f} of PyTorch Geometric, got {losses[0]:.6f}")
    ours = gw.GraphLoader(ds, options.batch_size, shuffle=True, seed=0)
    rows = []
    for what in options.parts:
        best: dict[str, float] = {}
        mine_ms: list[float] = []
        for workers in options.workers:
            peer = DataLoader(
                items, options.batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            )
            pair = [(lambda loader=loader: sum(1 for _ in loader)) for loader in (ours, peer)]
            if what == "epoch":
                pair = [epoch_of(mine, ours), epoch_of(theirs, peer)]
            if what == "trainer":
                pair = [trainer_of(mine, ds, options.batch_size), epoch_of(theirs, peer)]
            taken: list[list[float]] = [[], []]
            for turn in range(options.warm_up + options.rounds):
                for side in (0, 1) if turn % 2 else (1, 0):
                    seconds = 0.0
                    for _ in range(options.turn):
                        begin = time.perf_counter()
                        made = pair[side]()
                        seconds += made if (what, side) == ("trainer", 0) else time.perf_counter() - begin
                    if turn >= options.warm_up:
                        taken[side].append(1e3 * seconds / options.turn)
            mine_ms += taken[0]
            best[str(workers)] = statistics.median(taken[1])
        workers_of = min(best, key=lambda key: best[key])
        here, there = statistics.median(mine_ms), best[workers_of]
        sizes = {"dataset": ds.name, "graphs": len(ds), "batch_size": options.batch_size, "hidden": options.hidden}
        found = {"ours_ms": round(here, 3), "pyg_ms": round(there, 3), "ratio": round(there / here, 2)}
        rows.append({**sizes, "what": what, **found, "workers": workers_of})
    return rows


def main() -> None:
    """Reads arguments, measures, appends to the CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("accuracy", "time"))
    parser.add_argument("data", nargs="+")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=350)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=10, help="rounds before; steps are recorded after 8 batches")
    parser.add_argument("--turn", type=int, default=1, help="epochs of a side before the other's turn")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--systems", nargs="+", choices=(OURS, PEER), default=[OURS])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "accuracy":
        rows = [accuracy(path, options, system) for path in options.data for system in options.systems]
        columns, file = ACCURACY, "graph_accuracy.csv"
    else:
        rows, columns, file = [row for path in options.data for row in times(path, options)], TIMES, "graph_times.csv"
    show(f"GIN, {options.what}", rows, columns)
    facts = stamp(options.threads)
    write_csv(options.out or RESULTS / file, [{**row, **facts} for row in rows])


if __name__ == "__main__":
    main()
