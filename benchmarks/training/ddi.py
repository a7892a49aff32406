"""Link prediction on ogbl-ddi by the published recipe and split, beside the same loop over PyTorch Geometric or torch.

    python benchmarks/training/ddi.py ogbl_ddi.npz split/target --systems graphweft torch_geometric
    python benchmarks/training/ddi.py ogbl_ddi.npz split/target --device cuda --systems graphweft torch
    python benchmarks/training/ddi.py ogbl_ddi.npz split/target --hidden 64 --epochs 2 --out /dev/null   # a try
    python benchmarks/training/ddi.py ogbl_ddi.npz split/target --state folder --seconds 150   # the next call goes on

The first file has the training edges, the folder is OGB's own: ``valid.pt`` and ``test.pt`` with the edges held out by
protein targets and the pairs they are ranked among. Both are needed. Of the pairs that are no training edge 3.3 % are
held-out edges, so among 100,000 pairs drawn from the training file alone thousands are edges, the 20th best is one of
them, and Hits@20 stays near 1 % for every model.

The recipe is that of OGB's example (Hu et al., NeurIPS 2020): learned rows for the nodes, two layers over all training
edges in every step, a perceptron of three layers over the product of both ends, 65,536 pairs and as many that are no
training edge a step, dropout 0.5, Adam 0.005, gradients of the layers and of the perceptron clipped to norm 1, width
256, 200 epochs, scores every 5. Published Hits@20: GraphSAGE 62.62 +- 0.37 validation, 53.90 +- 4.74 test; GCN
55.50 +- 2.08 and 37.07 +- 5.07, of ten seeds. All sides begin with the same weights and see the same pairs; masks of
dropout differ. Appends a line per system and seed to results/ddi.csv: scores of the epoch of the best validation, and
of the last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

import graphweft as gw

COLUMNS = ("dataset", "system", "model", "hidden", "epochs", "seed", "best_epoch", "val_hits20", "test_hits20")
COLUMNS += ("last_val", "last_test", "loss", "epoch_s", "device")
OURS, PEER, PLAIN, BATCH, HITS, EVERY = "graphweft", "torch_geometric", "torch", 65536, 20, 5
Call = Callable[[nn.Module, Tensor], Tensor]


class Predictor(nn.Module):
    """A logit for every pair, from the product of the rows of both ends."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)])
        self.dropout = dropout

    def forward(self, h: Tensor, pairs: Tensor) -> Tensor:
        x = h[pairs[0]] * h[pairs[1]]
        for layer in self.layers[:-1]:
            x = functional.dropout(torch.relu(layer(x)), self.dropout, self.training)
        out: Tensor = self.layers[-1](x)
        return out.squeeze(1)


class Model(nn.Module):
    """Rows of the nodes, an encoder, a predictor."""

    def __init__(self, nodes: int, width: int, dropout: float, encoder: nn.Module) -> None:
        super().__init__()
        self.rows, self.encoder = nn.Parameter(torch.empty(nodes, width)), encoder
        self.predictor = Predictor(width, dropout)
        nn.init.xavier_uniform_(self.rows)


class PlainLayer(nn.Module):
    """A layer of GraphSAGE or GCN over a sparse matrix, with the names of PyTorch Geometric's parameters."""

    def __init__(self, width: int, own: bool) -> None:
        super().__init__()
        if own:
            self.lin_l, self.lin_r = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        else:
            self.lin, self.bias = nn.Linear(width, width, bias=False), nn.Parameter(torch.zeros(width))
            nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: Tensor, matrix: tuple[Tensor, Tensor]) -> Tensor:
        if hasattr(self, "lin_l"):
            out: Tensor = self.lin_l(Product.apply(x, *matrix)) + self.lin_r(x)
        else:
            out = Product.apply(self.lin(x), *matrix) + self.bias
        return out


class Plain(nn.Module):
    """Two layers in plain torch."""

    def __init__(self, width: int, dropout: float, own: bool) -> None:
        super().__init__()
        self.convs, self.dropout = nn.ModuleList([PlainLayer(width, own) for _ in range(2)]), dropout

    def forward(self, x: Tensor, matrix: tuple[Tensor, Tensor]) -> Tensor:
        h = functional.dropout(torch.relu(self.convs[0](x, matrix)), self.dropout, self.training)
        out: Tensor = self.convs[1](h, matrix)
        return out


class Product(torch.autograd.Function):
    """A sparse matrix times rows; its transpose is made once, not in every step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, turned: Tensor) -> Tensor:
        ctx.turned = turned
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return ctx.turned @ slopes[0], None, None


def matrices(graph: gw.Graph, model: str) -> tuple[Tensor, Tensor]:
    """The matrix that a plain layer multiplies by, and its transpose; the graph is undirected."""
    src, dst = (ids.long() for ids in graph.edges())
    if model == "gcn":
        every = torch.arange(graph.num_nodes)
        src, dst = torch.cat([src, every]), torch.cat([dst, every])
    degree = torch.bincount(dst, minlength=graph.num_nodes).clamp(min=1).double()
    values = (1 / degree)[dst] if model == "sage" else (degree[src] * degree[dst]) ** -0.5
    size = (graph.num_nodes, graph.num_nodes)
    at, turned = torch.stack([dst, src]), torch.stack([src, dst])
    return tuple(torch.sparse_coo_tensor(ij, values.float(), size).coalesce().to_sparse_csr() for ij in (at, turned))  # type: ignore[return-value]


def encoder_of(system: str, options: argparse.Namespace, graph: gw.Graph) -> tuple[nn.Module, Call]:
    """The encoder of a side, with weights that are the same for all, and its call."""
    width, dropout, place = options.hidden, options.dropout, options.device
    plain = Plain(width, dropout, options.model == "sage")
    if system == PLAIN:
        both = tuple(part.to(place) for part in matrices(graph, options.model))
        return plain, lambda m, x: m(x, both)
    if system == OURS:
        kind = gw.nn.SAGE if options.model == "sage" else gw.nn.GCN
        ours, there = kind(width, width, width, dropout=dropout), graph.to(place)
        gw.nn.load_pyg_state_dict(ours, plain.state_dict())
        return ours, lambda m, x: m(there, x)
    from torch_geometric.nn import GCN, GraphSAGE
    from torch_geometric.utils import to_torch_csr_tensor

    theirs = (GraphSAGE if options.model == "sage" else GCN)(width, width, 2, width, dropout=dropout)
    theirs.load_state_dict(plain.state_dict())
    adjacency = to_torch_csr_tensor(torch.stack(graph.edges()).long(), size=(graph.num_nodes, graph.num_nodes))
    return theirs, lambda m, x: m(x, adjacency.to(place))


def published(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """For "val" and "test" the held-out pairs and those that they are ranked among, int64 (2, P)."""
    rebuilds: Any = np.empty(0).__reduce__()[0]  # by its name of NumPy 1, which is in the files
    safe = [(rebuilds, "numpy.core.multiarray._reconstruct"), np.ndarray, np.dtype, type(np.dtype("int64"))]
    found = {}
    with torch.serialization.safe_globals(safe):
        for name, file in (("val", "valid.pt"), ("test", "test.pt")):
            if not (folder / file).exists():
                raise BenchError(f"expected OGB's split {folder / file}, which is not there")
            parts = torch.load(folder / file, weights_only=True)
            found[name] = tuple(torch.as_tensor(parts[key]).long().t().contiguous() for key in ("edge", "edge_neg"))
    return found  # type: ignore[return-value]


def hits(model: Model, h: Tensor, pairs: Tensor, negatives: Tensor) -> float:
    """Share of the pairs, in per cent, whose score is above that of the 20th of the others."""
    there, other = (torch.cat([model.predictor(h, p) for p in both.split(BATCH, 1)]) for both in (pairs, negatives))
    return 100 * float((there > torch.topk(other, HITS).values[-1]).float().mean())


def batches(train: Tensor, sampler: Any, seed: int, epoch: int) -> list[tuple[Tensor, Tensor]]:
    """The pairs of every step of an epoch, and as many that are no training edge."""
    order = torch.randperm(train.shape[1], generator=torch.Generator().manual_seed(1000 * seed + epoch))
    return [
        (train[:, part], sampler.pairs(part, seed=seed + 1, stage=1000 * (epoch + 1) + at))
        for at, part in enumerate(order.split(BATCH))
    ]


def step(model: Model, optimizer: torch.optim.Optimizer, call: Call, pairs: Tensor, none: Tensor) -> Tensor:
    """One update; the loss before it."""
    optimizer.zero_grad()
    h = call(model.encoder, model.rows)
    loss = functional.softplus(-model.predictor(h, pairs)).mean() + functional.softplus(model.predictor(h, none)).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    for part in (model.encoder, model.predictor):
        nn.utils.clip_grad_norm_(part.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def trained(system: str, options: argparse.Namespace) -> dict[str, object]:
    """A row. Raises: BenchError where the time is over before the epochs are; the next call goes on."""
    ds = gw.load(options.data)
    src, dst = ds.graph.edges()
    train = torch.stack([src, dst]).long()[:, src < dst]
    held = {name: [p.to(options.device) for p in pairs] for name, pairs in published(options.split).items()}
    sampler = gw.sampling.NegativeSampler(ds.graph)
    torch.manual_seed(options.seed)
    encoder, call = encoder_of(system, options, ds.graph)
    torch.manual_seed(options.seed + 1)
    model = Model(ds.num_nodes, options.hidden, options.dropout, encoder).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    file = options.state / f"{system}-{options.model}-{options.hidden}-{options.seed}.pt" if options.state else None
    curve: list[tuple[int, float, float, float]] = []
    drawer, ahead = ThreadPoolExecutor(1), None  # beside a device the CPU draws for the next epoch
    spent, begun = [], time.perf_counter()
    if file and file.exists():
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        curve, spent = state["curve"], state["spent"]
    while len(spent) < options.epochs:
        start, epoch = time.perf_counter(), len(spent)
        torch.manual_seed(1000 * options.seed + epoch)
        drawn = ahead.result() if ahead else batches(train, sampler, options.seed, epoch)
        ahead = drawer.submit(batches, train, sampler, options.seed, epoch + 1) if options.device != "cpu" else None
        losses = [step(model, optimizer, call, *(p.to(options.device) for p in pairs)) for pairs in drawn]
        loss = float(torch.stack(losses).mean())
        spent.append(time.perf_counter() - start)
        if (epoch + 1) % EVERY == 0 or epoch + 1 == options.epochs:
            curve.append((epoch + 1, *scores(model, call, held), loss))
            sys.stderr.write(f"{system} epoch, validation, test, loss {curve[-1]}, {spent[-1]:.2f} s\n")
        if file:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "curve": curve, "spent": spent}
            torch.save(state, file)
        if options.seconds and time.perf_counter() - begun > options.seconds:
            if not file:
                break
            if len(spent) < options.epochs:
                raise BenchError(f"{system}: {len(spent)} of {options.epochs} epochs done; call again")
    return row(ds.name, system, options, curve, spent)


def scores(model: Model, call: Call, held: dict[str, list[Tensor]]) -> tuple[float, float]:
    """Hits at 20 in per cent, validation and test."""
    model.eval()
    with torch.no_grad():
        h = call(model.encoder, model.rows)
        out = hits(model, h, *held["val"]), hits(model, h, *held["test"])
    model.train()
    return out


def row(name: str, system: str, options: argparse.Namespace, curve: Any, spent: list[float]) -> dict[str, object]:
    """What is written of a run."""
    best, last = max(curve, key=lambda at: at[1]), curve[-1]
    return {
        **{"dataset": name, "system": system, "model": options.model, "hidden": options.hidden, "epochs": len(spent)},
        **{"seed": options.seed, "best_epoch": best[0], "val_hits20": round(best[1], 2)},
        **{"test_hits20": round(best[2], 2), "last_val": round(last[1], 2), "last_test": round(last[2], 2)},
        **{"loss": round(last[3], 4), "epoch_s": round(sorted(spent)[len(spent) // 2], 3), "device": options.device},
    }


def main() -> None:
    """Reads arguments, measures, appends to the CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("split", type=Path, help="OGB's folder split/target, with valid.pt and test.pt")
    parser.add_argument("--systems", nargs="+", choices=(OURS, PEER, PLAIN), default=[OURS])
    parser.add_argument("--model", choices=("sage", "gcn"), default="sage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--state", type=Path, help="folder from which a run goes on")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many; with --state to go on; 0: never")
    parser.add_argument("--out", type=Path, default=RESULTS / "ddi.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [trained(system, options) for system in options.systems]
    show("ogbl-ddi, published split", rows, COLUMNS)
    write_csv(options.out, [{**row, **stamp(options.threads)} for row in rows])


if __name__ == "__main__":
    main()
