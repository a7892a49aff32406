"""Accuracy of tasks beside node classification against loops of PyTorch Geometric at equal settings.

    python benchmarks/accuracy/tasks.py gae vgae dgi node2vec regression multilabel edge edge_regression --data cora.npz
    python benchmarks/accuracy/tasks.py link --data cora.npz
    python benchmarks/accuracy/tasks.py graph_regression --data ogb/ogbg_molesol   # the raw folder
    python benchmarks/accuracy/tasks.py dgi --data cora.npz --alone   # without the peer, for a published number
    python benchmarks/accuracy/tasks.py gae --data cora.npz --seeds 1 --epochs 3 --out /dev/null   # a try

gae: a graph auto-encoder (GCN 32, 16), ROC AUC on held-out edges, the same edges and negatives on both sides.
vgae: the same with a mean and a deviation a node, each by a GCN layer on the 32 columns. Published for Cora, with
features: 91.4 +- 0.01 (Kipf and Welling, 2016), which trains on 85 % of the edges.
link: PyTorch Geometric's example link_pred.py (GCN 128, 64, dot products, as many negatives as edges, new ones in every
epoch), ROC AUC on held-out edges at the epoch of the best on validation edges. Both sides draw negatives by themselves.
dgi: Deep Graph Infomax as published (one GCN layer of 512, PReLU with one slope, features scaled to sum 1, uniform
weights of the bilinear form by Glorot, the weights of the least loss, of which none is better for 20 epochs), accuracy
on the split of the file of a logistic regression on the embeddings as they are, 100 steps of Adam (0.01). Published for
Cora: 82.3 +- 0.6 (Velickovic et al., 2019).
node2vec: the accuracy of a logistic regression with a penalty on scaled columns, on embeddings of 64 columns from equal
walks, windows and batches. PyTorch Geometric's module takes walks from torch_cluster; uniform ones in plain torch stand
in for that here.
regression: RMSE of values made on the spot from the mean features of the neighbours, GraphSAGE 64.
multilabel: micro F1 of eight labels made likewise, GraphSAGE 64.
edge_regression: RMSE of values of edges made of both ends' mean features, model and batches as edge.
graph_regression: RMSE of scaled values of graphs on the split of the set, GIN of three layers of 32 with batch norms,
sums of all layers, 64 graphs a step, edges without features.
edge: accuracy on whether an edge joins nodes of one class, GraphSAGE 64 and a perceptron over both ends, all in-edges
of the ends of 1024 pairs a step.

Both sides train by Adam (0.01, dgi and graph_regression 0.001) for equally many epochs, all but dgi and node2vec from
the same first weights: the peer's GraphSAGE begins with smaller ones than ours. Scores are those of the last epoch, of
edge_regression and graph_regression those of the epoch of the least validation error: from one epoch to the next they
swing by more than seeds differ, on both sides.
Appends a line per task to results/tasks.csv.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

import graphweft as gw
from graphweft.train.link_metrics import roc_auc
from graphweft.train.probe import probe

COLUMNS = ("dataset", "task", "score", "epochs", "seeds", "ours_mean", "ours_sd", "pyg_mean", "pyg_sd")
EPOCHS = {"gae": 200, "dgi": 2000, "node2vec": 30, "regression": 100, "multilabel": 100}
EPOCHS |= {"vgae": 200, "link": 100, "edge": 30, "edge_regression": 20, "graph_regression": 60}
SCORES = {"gae": "ROC AUC", "dgi": "accuracy", "node2vec": "accuracy", "regression": "RMSE", "multilabel": "micro F1"}
SCORES |= {
    "vgae": "ROC AUC",
    "link": "ROC AUC",
    "edge": "accuracy",
    "edge_regression": "RMSE",
    "graph_regression": "RMSE",
}
Pair = tuple[float, float | None]
Scored, Loss = tuple[float, Tensor], Callable[..., Tensor]


def dense(ds: gw.Dataset) -> Tensor:
    """Features as PyTorch Geometric reads them."""
    return ds.x.to_dense() if isinstance(ds.x, gw.data.SparseFeatures) else ds.x


def train(parameters: object, epochs: int, loss: Callable[[], Tensor], lr: float = 0.01) -> None:
    """A plain loop."""
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


class Activated(nn.Module):
    """A layer and a PReLU with one slope."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.slope = layer, nn.PReLU()

    def forward(self, first: object, second: object) -> Tensor:
        return self.slope(self.layer(first, second))


class Normal(nn.Module):
    """The published encoder of a variational auto-encoder: mean and logarithm of the deviation from shared columns."""

    def __init__(self, first: nn.Module, mean: nn.Module, spread: nn.Module) -> None:
        super().__init__()
        self.first, self.mean, self.spread = first, mean, spread

    def forward(self, one: Any, other: Any) -> tuple[Tensor, Tensor]:
        hidden = self.first(one, other).relu()
        given = (one, hidden) if isinstance(one, gw.Graph) else (hidden, other)
        return self.mean(*given), self.spread(*given)


def auto_encoders(ds: gw.Dataset, variational: bool) -> tuple[nn.Module, nn.Module]:
    """Ours and the peer's, with the same weights."""
    from torch_geometric.nn import GAE, GCN, VGAE

    if not variational:
        peer, encoder = GAE(GCN(ds.num_features, 32, 2, 16)), gw.nn.GCN(ds.num_features, 32, 16)
        gw.nn.load_pyg_state_dict(encoder, peer.encoder.state_dict())
        return gw.nn.GAE(encoder), peer
    sizes = (ds.num_features, 32), (32, 16), (32, 16)
    theirs = [GCN(one, out, 1) for one, out in sizes]
    ours = [gw.nn.GCN(one, out, out, num_layers=1) for one, out in sizes]
    for layer, like in zip(ours, theirs, strict=True):
        gw.nn.load_pyg_state_dict(layer, like.state_dict())
    return gw.nn.VGAE(Normal(*ours)), VGAE(Normal(*theirs))


def gae(ds: gw.Dataset, seed: int, epochs: int, _: bool, variational: bool = False) -> Pair:
    """Areas under the ROC curve."""
    split = gw.transforms.split_links(ds.graph, seed=seed)
    negatives = gw.sampling.NegativeSampler(ds.graph).pairs(torch.arange(split.test.shape[1]), seed=seed, stage=7)
    torch.manual_seed(seed)
    model, peer = auto_encoders(ds, variational)
    trainer = gw.Trainer(model, ds, seed=seed, restore_best=False, eval_every=10**6)
    trainer.fit(epochs)
    x, edges = dense(ds), torch.stack(split.graph.edges())

    def loss() -> Tensor:
        found: Tensor = peer.recon_loss(peer.encode(x, edges), edges)
        return found + peer.kl_loss() / ds.num_nodes if variational else found

    train(peer.parameters(), epochs, loss)
    scores = []
    with torch.no_grad():
        for z in (trainer.predict(), peer.eval().encode(x, edges)):
            there, other = ((z[a] * z[b]).sum(1) for a, b in (split.test, negatives))
            scores.append(100 * roc_auc(there, other))
    return scores[0], scores[1]


def vgae(ds: gw.Dataset, seed: int, epochs: int, alone: bool) -> Pair:
    """Areas under the ROC curve."""
    return gae(ds, seed, epochs, alone, variational=True)


def link_auc(
    model: nn.Module,
    encode: Callable[[], Tensor],
    pairs: Tensor,
    negatives: Callable[[int], Tensor],
    held_out: list[tuple[Tensor, Tensor]],
    epochs: int,
) -> float:
    """Area under the ROC curve of the test pairs, where that of the validation pairs is best."""
    optimizer, best = torch.optim.Adam(model.parameters(), lr=0.01), (0.0, 0.0)
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        z, drawn = encode(), negatives(epoch)
        scores = torch.cat([(z[a] * z[b]).sum(1) for a, b in (pairs, drawn)])
        wanted = torch.cat([torch.ones(pairs.shape[1]), torch.zeros(drawn.shape[1])])
        functional.binary_cross_entropy_with_logits(scores, wanted).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            z = encode()
            found = [roc_auc(*((z[a] * z[b]).sum(1) for a, b in each)) for each in held_out]
        best = max(best, (found[0], found[1]), key=lambda scores: scores[0])
    return 100 * best[1]


def link(ds: gw.Dataset, seed: int, epochs: int, _: bool) -> Pair:
    """Areas under the ROC curve."""
    from torch_geometric.nn import GCN
    from torch_geometric.utils import negative_sampling

    split, known = gw.transforms.split_links(ds.graph, seed=seed), gw.sampling.NegativeSampler(ds.graph)
    held_out = [
        (pairs, known.pairs(torch.arange(pairs.shape[1]), seed=seed, stage=stage))
        for pairs, stage in ((split.val, 6), (split.test, 7))
    ]
    x, edges = dense(ds.row_normalized()), torch.stack(split.graph.edges())
    count, sampler = edges.shape[1], gw.sampling.NegativeSampler(split.graph)
    torch.manual_seed(seed)
    peer, model = GCN(ds.num_features, 128, 2, 64), gw.nn.GCN(ds.num_features, 128, 64)
    gw.nn.load_pyg_state_dict(model, peer.state_dict())
    keys = torch.arange(count)
    mine = link_auc(
        model,
        lambda: model(split.graph, x),
        edges,
        lambda epoch: sampler.pairs(keys, seed=seed, epoch=epoch),
        held_out,
        epochs,
    )
    drawn = lambda _: negative_sampling(edges, ds.num_nodes, count)  # noqa: E731
    return mine, link_auc(peer, lambda: peer(x, edges), edges, drawn, held_out, epochs)


def read_by(z: Tensor, ds: gw.Dataset) -> float:
    """Accuracy of a logistic regression on embeddings."""
    return 100 * probe(z, ds.y, ds.labelled("train"), {"test": ds.labelled("test")})["test"]


def read_as_published(z: Tensor, ds: gw.Dataset) -> float:
    """Accuracy of the classifier of the DGI paper on embeddings."""
    reader = nn.Linear(z.shape[1], ds.num_classes)
    nn.init.xavier_uniform_(reader.weight)
    nn.init.zeros_(reader.bias)
    rows, test = ds.labelled("train"), ds.labelled("test")
    train(reader.parameters(), 100, lambda: functional.cross_entropy(reader(z[rows]), ds.y[rows]))
    with torch.no_grad():
        return 100 * float((reader(z[test]).argmax(1) == ds.y[test]).double().mean())


class LeastLoss:
    """Keeps the weights of the least loss and ends where none is less for ``patience`` epochs."""

    def __init__(self, model: nn.Module, patience: int = 20) -> None:
        self.model, self.patience, self.least, self.waited = model, patience, float("inf"), 0
        self.weights: dict[str, Tensor] = {}

    def on_epoch_end(self, _: object, record: object) -> bool:
        """As a callback of the trainer."""
        return self.goes_on(record.loss)  # type: ignore[attr-defined]

    def goes_on(self, loss: float) -> bool:
        """Whether another epoch is due."""
        self.waited += 1
        if loss < self.least:
            self.least, self.waited = loss, 0
            self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        return self.waited < self.patience

    def put_back(self) -> None:
        """The weights that were kept, into the model."""
        self.model.load_state_dict(self.weights)


def dgi(ds: gw.Dataset, seed: int, epochs: int, alone: bool) -> Pair:
    """Accuracies on embeddings."""
    from torch_geometric.nn import DeepGraphInfomax, GCNConv

    ds = ds.row_normalized()
    torch.manual_seed(seed)
    model = gw.nn.DGI(Activated(gw.nn.GCN(ds.num_features, 512, 512, num_layers=1)), 512)
    nn.init.xavier_uniform_(model.weight.data.unsqueeze(0))  # as of torch.nn.Bilinear: smaller than of a matrix
    kept = LeastLoss(model)
    trainer = gw.Trainer(model, ds, lr=0.001, seed=seed, restore_best=False, eval_every=10**6, callbacks=[kept])
    trainer.fit(epochs)
    kept.put_back()
    mine = read_as_published(trainer.predict(), ds)
    if alone:
        return mine, None
    x, edges = dense(ds), torch.stack(ds.graph.edges())
    peer = DeepGraphInfomax(
        512,
        Activated(GCNConv(ds.num_features, 512)),
        summary=lambda z, *_: torch.sigmoid(z.mean(0)),
        corruption=lambda x, edges: (x[torch.randperm(x.shape[0])], edges),
    )
    nn.init.xavier_uniform_(peer.weight.data.unsqueeze(0))
    kept, optimizer = LeastLoss(peer), torch.optim.Adam(peer.parameters(), lr=0.001)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = peer.loss(*peer(x, edges))
        loss.backward()
        optimizer.step()
        if not kept.goes_on(loss.item()):
            break
    kept.put_back()
    with torch.no_grad():
        z = peer.encoder(x, edges)
    return mine, read_as_published(z, ds)


def uniform_walks(rowptr: Tensor, col: Tensor, start: Tensor, length: int, p: float, q: float) -> Tensor:
    """Walks of ``length`` steps, each along any edge of the last node alike; a node without edges is not left."""
    if (p, q) != (1.0, 1.0):
        raise BenchError(f"expected p = q = 1, got {p} and {q}")
    nodes = [start]
    for _ in range(length):
        first, degree = rowptr[nodes[-1]], rowptr[nodes[-1] + 1] - rowptr[nodes[-1]]
        place = first + (torch.rand(start.shape) * degree).long().clamp(max=(degree - 1).clamp(min=0))
        nodes.append(torch.where(degree > 0, col[place.clamp(max=col.numel() - 1)], nodes[-1]))
    return torch.stack(nodes, 1)


def peer_node2vec(ds: gw.Dataset, epochs: int) -> Tensor:
    """Embeddings of PyTorch Geometric's module."""
    from torch_geometric.nn.models import node2vec as module

    compiled = mock.patch.object(torch.ops.pyg, "random_walk", None, create=True)  # looked up, then replaced
    with mock.patch.object(module, "WITH_PYG_LIB", True), compiled:
        peer = module.Node2Vec(torch.stack(ds.graph.edges()), 64, 21, 10, 10, num_nodes=ds.num_nodes)
    peer.random_walk_fn = uniform_walks
    optimizer = torch.optim.Adam(peer.parameters(), lr=0.01)
    for _ in range(epochs):
        for part in torch.randperm(ds.num_nodes).split(128):
            optimizer.zero_grad()
            peer.loss(*peer.sample(part)).backward()
            optimizer.step()
    return peer().detach()


def node2vec(ds: gw.Dataset, seed: int, epochs: int, alone: bool) -> Pair:
    """Accuracies on embeddings."""
    torch.manual_seed(seed)
    trainer = gw.Trainer(
        gw.nn.Node2Vec(ds.graph, 64), ds, seed=seed, batch_size=128, restore_best=False, eval_every=10**6
    )
    trainer.fit(epochs)
    mine = read_by(trainer.predict(), ds)
    return mine, None if alone else read_by(peer_node2vec(ds, epochs), ds)


def smoothed(ds: gw.Dataset, seed: int, columns: int) -> Tensor:
    """Values (N, columns) that follow from a node's features and the mean of its neighbours', scaled."""
    x, edges = dense(ds), torch.stack(ds.graph.edges())
    degree = ds.graph.in_degrees().clamp(min=1).unsqueeze(1)
    mean = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / degree
    value = (x + mean) @ torch.randn(x.shape[1], columns, generator=torch.Generator().manual_seed(seed))
    return (value - value.mean(0)) / value.std(0)


def of_nodes(
    ds: gw.Dataset, made: gw.Dataset, seed: int, epochs: int, loss: Callable[..., Tensor]
) -> tuple[float, Tensor]:
    """Our score on the test nodes, and the peer's outputs there."""
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(seed)
    width = 1 if made.y.dim() == 1 else made.y.shape[1]
    peer, model = GraphSAGE(ds.num_features, 64, 2, width), gw.nn.SAGE(ds.num_features, 64, width)
    gw.nn.load_pyg_state_dict(model, peer.state_dict())
    trainer = gw.Trainer(model, made, seed=seed, restore_best=False, eval_every=10**6)
    trainer.fit(epochs)
    x, edges, rows = dense(ds), torch.stack(ds.graph.edges()), made.train_idx
    train(peer.parameters(), epochs, lambda: loss(peer(x, edges)[rows].squeeze(1), made.y[rows]))
    with torch.no_grad():
        return trainer.evaluate("test"), peer.eval()(x, edges)[made.test_idx].squeeze(1)


def regression(ds: gw.Dataset, seed: int, epochs: int, _: bool) -> Pair:
    """Root mean squared errors."""
    made = gw.Dataset("values", ds.graph, ds.x, smoothed(ds, seed, 1)[:, 0], task="regression", seed=seed)
    mine, theirs = of_nodes(ds, made, seed, epochs, functional.mse_loss)
    return mine, float(functional.mse_loss(theirs, made.y[made.test_idx]).sqrt())


def multilabel(ds: gw.Dataset, seed: int, epochs: int, _: bool) -> Pair:
    """Micro F1 in per cent."""
    made = gw.Dataset("labels", ds.graph, ds.x, (smoothed(ds, seed, 8) > 0.5).float(), task="multilabel", seed=seed)
    mine, theirs = of_nodes(ds, made, seed, epochs, functional.binary_cross_entropy_with_logits)
    said, there = theirs > 0, made.y[made.test_idx] > 0.5
    return 100 * mine, 200 * float((said & there).sum()) / max(float(said.sum() + there.sum()), 1.0)


class LeastError:
    """The error on test rows where that on validation rows is least."""

    def __init__(self) -> None:
        self.least, self.found = float("inf"), float("nan")

    def take(self, validation: Tensor, test: Callable[[], Tensor]) -> None:
        """Mean squared errors after an epoch."""
        if float(validation) < self.least:
            self.least, self.found = float(validation), float(test().sqrt())


def of_edges(ds: gw.Dataset, made: gw.Dataset, seed: int, epochs: int, loss: Callable[..., Tensor]) -> Pair:
    """Our score on the test pairs, and the peer's: of classes that of the last epoch, else the root of the loss."""
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(seed)
    model, classes = gw.nn.EdgeModel.for_data(made, hidden=64), made.task != "regression"
    peer, decoder = GraphSAGE(ds.num_features, 64, 2, 64), copy.deepcopy(model.decoder)
    gw.nn.load_pyg_state_dict(model.encoder, peer.state_dict())
    every = {"restore_best": False, "eval_every": 10**6} if classes else {}
    trainer = gw.Trainer(model, made, seed=seed, fanouts=(-1, -1), **every)
    trainer.fit(epochs)
    x, edges, rows, pairs = dense(ds), torch.stack(ds.graph.edges()), made.train_idx, made.edge_label_index
    optimizer, kept = torch.optim.Adam([*peer.parameters(), *decoder.parameters()], lr=0.01), LeastError()

    def out(ids: Tensor) -> Tensor:
        return decoder(peer(x, edges), pairs[:, ids]).squeeze(1)

    for _ in range(epochs):
        for part in rows[torch.randperm(rows.numel())].split(1024):
            optimizer.zero_grad()
            loss(out(part), made.y[part]).backward()
            optimizer.step()
        if not classes:
            with torch.no_grad():
                kept.take(
                    loss(out(made.val_idx), made.y[made.val_idx]),
                    lambda: loss(out(made.test_idx), made.y[made.test_idx]),
                )
    if not classes:
        return trainer.evaluate("test"), kept.found
    with torch.no_grad():
        right = out(made.test_idx).argmax(1) == made.y[made.test_idx]
    return 100 * trainer.evaluate("test"), 100 * float(right.float().mean())


def edge(ds: gw.Dataset, seed: int, epochs: int, _: bool) -> Pair:
    """Accuracies on edges."""
    src, dst = ds.graph.edges()
    known = ((ds.y[src] >= 0) & (ds.y[dst] >= 0)).nonzero().reshape(-1)
    pairs, label = torch.stack([src[known], dst[known]]), (ds.y[src] == ds.y[dst])[known].long()
    made = ds.with_edge_labels(label, pairs, seed=seed)
    return of_edges(ds, made, seed, epochs, functional.cross_entropy)


def edge_regression(ds: gw.Dataset, seed: int, epochs: int, _: bool) -> Pair:
    """Root mean squared errors on edges."""
    src, dst = ds.graph.edges()
    value = smoothed(ds, seed, 2)
    made = ds.with_edge_labels(value[src, 0] + value[dst, 1], torch.stack([src, dst]), seed=seed, task="regression")
    return of_edges(ds, made, seed, epochs, functional.mse_loss)


def graph_regression(ds: Any, seed: int, epochs: int, _: bool) -> Pair:
    """Root mean squared errors on graphs, of values scaled to mean 0 and deviation 1."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GIN, global_add_pool

    y = (ds.y - ds.y[ds.train_idx].mean()) / ds.y[ds.train_idx].std()
    made = replace(ds, x=dense(ds).float(), y=y.reshape(-1))
    torch.manual_seed(seed)
    model = gw.nn.GraphModel.for_data(made, 32, num_layers=3)
    peer = GIN(made.num_features, 32, 3, norm="batch_norm", jk="cat")
    peer.lin, head = nn.Identity(), copy.deepcopy(model.head)
    for layer, conv in zip(model.encoder.layers, peer.convs, strict=True):
        first, second = conv.nn.lins
        layer.weight1.data, layer.bias1.data = first.weight.data.T.contiguous(), first.bias.data.clone()
        layer.weight2.data, layer.bias2.data = second.weight.data.T.contiguous(), second.bias.data.clone()
    trainer = gw.Trainer(model, made, seed=seed, lr=0.001, batch_size=64, edge_data="ignore")
    trainer.fit(epochs)
    items = [Data(x=one.x, y=one.y.reshape(1), edge_index=torch.stack(one.graph.edges())) for one in made]

    def call(batch: Any) -> Tensor:
        rows = peer(batch.x, batch.edge_index)
        return head(torch.cat([global_add_pool(one, batch.batch) for one in (batch.x, rows)], 1))[:, 0]

    optimizer, kept = torch.optim.Adam([*peer.parameters(), *head.parameters()], lr=0.001), LeastError()
    whole = {
        part: next(iter(DataLoader([items[i] for i in ids.tolist()], len(items))))
        for part, ids in (("val", made.val_idx), ("test", made.test_idx))
    }

    def error(part: str) -> Tensor:
        return functional.mse_loss(call(whole[part]), whole[part].y)

    for _ in range(epochs):
        peer.train()
        for batch in DataLoader([items[i] for i in made.train_idx.tolist()], 64, shuffle=True):
            optimizer.zero_grad()
            functional.mse_loss(call(batch), batch.y).backward()
            optimizer.step()
        peer.eval()
        with torch.no_grad():
            kept.take(error("val"), lambda: error("test"))
    return trainer.evaluate("test"), kept.found


CASES: dict[str, Callable[[gw.Dataset, int, int, bool], Pair]] = {
    "gae": gae,
    "vgae": vgae,
    "link": link,
    "dgi": dgi,
    "node2vec": node2vec,
    "regression": regression,
    "multilabel": multilabel,
    "edge": edge,
    "edge_regression": edge_regression,
    "graph_regression": graph_regression,
}


def row(task: str, ds: gw.Dataset, options: argparse.Namespace) -> dict[str, object]:
    """Means and deviations over the seeds."""
    epochs = options.epochs or EPOCHS[task]
    found = [CASES[task](ds, seed, epochs, options.alone) for seed in range(options.seeds)]
    out: dict[str, object] = {"dataset": ds.name, "task": task, "score": SCORES[task], "epochs": epochs}
    out["seeds"] = options.seeds
    for name, column in zip(("ours", "pyg"), zip(*found, strict=True), strict=True):
        known = [float(value) for value in column if value is not None]
        out[f"{name}_mean"] = round(statistics.fmean(known), 4) if known else ""
        out[f"{name}_sd"] = round(statistics.stdev(known), 4) if len(known) > 1 else ""
    return out


def main() -> None:
    """Reads arguments, measures, appends to the CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="+", choices=sorted(CASES))
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--alone", action="store_true", help="dgi: without the peer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ds = gw.load(options.data)
    rows = [row(task, ds, options) for task in options.tasks]
    show("Tasks beside node classification", rows, COLUMNS)
    write_csv(options.out, [{**found, **stamp(options.threads)} for found in rows])


if __name__ == "__main__":
    main()
