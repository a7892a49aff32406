"""The child process of one system that trains on mini-batches: obeys the harness; an "epoch" of it is one batch.

``python epoch_worker.py SYSTEM FOLDER``; FOLDER is as ``epoch.py`` writes it. An answer to "run" has the batches'
losses; that of ``own`` ends with the seconds that the model waited in the counted batches.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from orders import serve


def _weights(folder: Path, layers: int):
    return [[np.load(folder / f"{kind}{layer}.npy") for kind in ("neighbor", "self")] for layer in range(layers)]


def _own_trainer(folder: Path, case):
    """The trainer's mini-batches over the case."""
    import torch

    from graphweft._memory import empty
    from graphweft.data.dataset import Dataset
    from graphweft.graph.adjacency import Adjacency
    from graphweft.graph.graph import Graph
    from graphweft.nn.sage import SAGE
    from graphweft.train.mini_batch import MiniBatch
    from graphweft.train.optimizer import make_optimizer
    from graphweft.train.setup import Drawn, Setup

    def load(name):
        array = torch.from_numpy(np.load(folder / f"{name}.npy"))
        return empty(tuple(array.shape), array.dtype).copy_(array)

    indptr = load("indptr")
    graph = Graph.from_adjacency(Adjacency(indptr, load("indices"), None, indptr.numel() - 1))
    seeds = torch.from_numpy(np.load(folder / "seeds.npy"))
    ds = Dataset("case", graph, load("x"), load("y"), seeds, seeds[:0], seeds[:0], case["classes"])
    model = SAGE(ds.num_features, case["hidden"], case["classes"], num_layers=len(case["fanouts"]))
    with torch.no_grad():
        for layer, (neighbor, own) in zip(model.layers, _weights(folder, len(case["fanouts"])), strict=True):
            layer.neighbor_weight.copy_(torch.from_numpy(neighbor))
            layer.self_weight.copy_(torch.from_numpy(own))
    optimizer = make_optimizer(model, "adam", case["lr"], 0.0, "all")
    drawn = Drawn(case["fanouts"], case["batch_size"])
    batches = MiniBatch(Setup(model, ds, ds.x, optimizer, drawn, 0, lambda epoch, batch: 0))
    batches.prepare()
    return batches


def build_own(folder: Path, case):
    """The epoch as users run it; whole epochs go by under it, and the time between batches counts."""
    batches = _own_trainer(folder, case)
    source = _endless(batches.loader)

    def one():
        batch = next(source)
        while batch.batch_size < case["batch_size"]:
            batch = next(source)
        return float(batches._train_on(batch))

    for _ in range(40):  # until the way of preparing has been found
        one()
    batches = _reset(batches, folder, case)

    def run(count):
        losses, seconds, waited = [], [], batches.loader.stall_seconds
        for _ in range(count):
            begun = time.perf_counter()
            losses.append(one())
            seconds.append(time.perf_counter() - begun)
        return [*losses, batches.loader.stall_seconds - waited], seconds

    return run, lambda: f"graphweft, {batches.loader.way}"


def _reset(batches, folder: Path, case):
    """The first weights again."""
    import torch

    with torch.no_grad():
        for layer, (neighbor, own) in zip(batches.model.layers, _weights(folder, len(case["fanouts"])), strict=True):
            layer.neighbor_weight.copy_(torch.from_numpy(neighbor))
            layer.self_weight.copy_(torch.from_numpy(own))
            layer.bias.zero_()
    batches.optimizer.state.clear()
    return batches


def _endless(loader):
    while True:
        yield from loader


def build_prepare(folder: Path, case):
    """Preparation alone, one batch after the other with all threads."""
    loader, size = _own_trainer(folder, case).loader, case["batch_size"]
    order, place = loader.order(0), 0

    def run(count):
        nonlocal place
        seconds = []
        for _ in range(count):
            begun = time.perf_counter()
            loader.make(order[place * size : (place + 1) * size], 0)
            seconds.append(time.perf_counter() - begun)
            place = (place + 1) % (order.numel() // size)
        return [0.0] * count, seconds

    return run, lambda: "graphweft, in place"


def build_model(folder: Path, case):
    """The model alone, over batches that were prepared beforehand."""
    import torch

    batches = _own_trainer(folder, case)
    order = batches.loader.order(0)
    size = case["batch_size"]
    ready = [batches.loader.make(order[i * size : (i + 1) * size], 0) for i in range(6)]
    place = 0

    def run(count):
        nonlocal place
        losses, seconds = [], []
        for _ in range(count):
            begun = time.perf_counter()
            losses.append(float(batches._train_on(ready[place % len(ready)])))
            seconds.append(time.perf_counter() - begun)
            place += 1
        return losses, seconds

    return run, lambda: f"graphweft, torch {torch.__version__}"


def build_dgl(folder: Path, case, graphbolt: bool):
    """DGL as its examples write it."""
    import dgl
    import dgl.nn
    import torch

    indptr, indices, seeds, x, y = (
        torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("indptr", "indices", "seeds", "x", "y")
    )
    y = y.long()
    layers = len(case["fanouts"])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = [x.shape[1], *[case["hidden"]] * (layers - 1), case["classes"]]
            self.layers = torch.nn.ModuleList(
                dgl.nn.SAGEConv(one, two, "mean") for one, two in itertools.pairwise(widths)
            )
            with torch.no_grad():
                for layer, (neighbor, own) in zip(self.layers, _weights(folder, layers), strict=True):
                    layer.fc_neigh.weight.copy_(torch.from_numpy(neighbor).t())
                    layer.fc_self.weight.copy_(torch.from_numpy(own).t())
                    layer.fc_self.bias.zero_()

        def forward(self, blocks, h):
            for place, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
                h = layer(block, h)
                h = h.relu() if place + 1 < layers else h
            return h

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=case["lr"])
    batches = _graphbolt(case, indptr, indices, seeds, x, y) if graphbolt else _dgl(case, indptr, indices, seeds, x, y)
    source = _endless(batches)

    def run(count):
        losses, seconds = [], []
        for _ in range(count):
            begun = time.perf_counter()
            blocks, h, labels = next(source)
            loss = torch.nn.functional.cross_entropy(model(blocks, h), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            seconds.append(time.perf_counter() - begun)
        return losses, seconds

    return run, lambda: f"dgl {dgl.__version__}, torch {torch.__version__}"


class _dgl:
    """Batches of DGL's DataLoader; int64 ids, on which its fused sampler is right."""

    def __init__(self, case, indptr, indices, seeds, x, y):
        import dgl

        graph = dgl.graph(("csc", (indptr, indices.long(), []))).formats(["csc"])
        graph.ndata["feat"], graph.ndata["label"] = x, y
        sampler = dgl.dataloading.NeighborSampler(
            case["fanouts"][::-1], prefetch_node_feats=["feat"], prefetch_labels=["label"]
        )
        self._loader = dgl.dataloading.DataLoader(
            graph, seeds, sampler, batch_size=case["batch_size"], shuffle=True, drop_last=True, num_workers=0
        )

    def __iter__(self):
        for _, _, blocks in self._loader:
            yield blocks, blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]


class _graphbolt:
    """Batches of GraphBolt."""

    def __init__(self, case, indptr, indices, seeds, x, y):
        import dgl.graphbolt as gb

        graph = gb.fused_csc_sampling_graph(indptr, indices.long())
        features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(x)})
        items = gb.ItemSet((seeds, y[seeds]), names=("seed_nodes", "labels"))
        pipe = gb.ItemSampler(items, batch_size=case["batch_size"], shuffle=True, drop_last=True)
        pipe = pipe.sample_neighbor(graph, case["fanouts"][::-1])
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        self._loader = gb.DataLoader(pipe, num_workers=0)

    def __iter__(self):
        for batch in self._loader:
            yield batch.blocks, batch.node_features["feat"], batch.labels


def build(system: str, folder: Path):
    """What runs batches of ``system``, and its note."""
    case = json.loads((folder / "case.json").read_text())
    if system in ("dgl", "graphbolt"):
        return build_dgl(folder, case, system == "graphbolt")
    if system == "bf16":  # read when graphweft is imported
        os.environ["GRAPHWEFT_PRECISION"] = "bf16"
    if system == "high":
        import torch

        torch.set_float32_matmul_precision("high")
    own = dict.fromkeys(("own", "high", "bf16"), build_own)
    return {**own, "prepare": build_prepare, "model": build_model}[system](folder, case)


if __name__ == "__main__":
    sys.exit(serve(lambda: lambda: build(sys.argv[1], Path(sys.argv[2]))))
