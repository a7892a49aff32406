"""Whether equal calls give equal bits, whatever else the process does: all models and modes, as a program.

    python -m same_bits            # in tests/, with the tree on PYTHONPATH; everything, some minutes
    python -m same_bits full mini  # cases whose names begin so

Every case is run: twice; then after all other cases with the machine's free memory said to be 1 GB and 20 GB, and with
1, 2 and 3 threads. Models on two graphs in turn have to equal each graph alone. ``test_same_bits.py`` runs a few.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from graphs import learnable
from nn.models import MODELS, UserGAT, UserGCN, features, make
from torch import Tensor, nn
from typed_zoo import academic
from zoo import random_edges

import graphweft as gw

Case = Callable[[], Any]
FREE = (10**9, 20 * 10**9)


def digest(found: Any) -> str:
    """The bits of everything in ``found``, in order."""
    made = hashlib.sha256()

    def put(item: Any) -> None:
        if isinstance(item, Tensor):
            made.update(f"{item.dtype}{tuple(item.shape)}".encode() + item.detach().contiguous().numpy().tobytes())
        elif isinstance(item, dict):
            for name, value in sorted(item.items()):
                made.update(str(name).encode())
                put(value)
        elif isinstance(item, list | tuple):
            for value in item:
                put(value)
        else:
            made.update(repr(item).encode())

    put(found)
    return made.hexdigest()[:16]


def graph_of(seed: int, nodes: int = 3001, edges: int = 24_000) -> gw.Graph:
    """A graph over which loops are shared out to threads."""
    drawn = random_edges(nodes, edges, seed)
    return gw.Graph(drawn.src, drawn.dst, num_nodes=nodes)


def step(model: nn.Module, graph: gw.Graph, x: Tensor) -> list[Tensor]:
    """A forward pass and the gradients, with dropout keyed by torch's seed."""
    torch.manual_seed(7)
    x = x.clone().requires_grad_()
    model.zero_grad()
    out = model(graph, x)
    out.square().mean().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def call(name: str, seed: int = 0) -> list[Tensor]:
    """A new model, called once."""
    graph = graph_of(seed)
    return step(make(name).train(), graph, features(seed, graph.num_nodes))


@functools.cache
def dataset(kind: str = "cora", scale: float = 0.2) -> gw.Dataset:
    """A small twin of a named dataset."""
    return gw.synthetic(kind, scale=scale, seed=0)


def trained(model: Callable[[gw.Dataset], nn.Module], ds: gw.Dataset, **options: Any) -> list[Any]:
    """The weights, losses and predictions of two epochs."""
    torch.manual_seed(0)
    made = model(ds)
    trainer = gw.Trainer(made, ds, **options)
    losses = [(record.loss, record.val_loss, record.test_acc) for record in trainer.fit(2)]
    return [losses, dict(made.state_dict()), trainer.predict()]


def built(kind: str, **own: Any) -> Callable[[gw.Dataset], nn.Module]:
    """Makes a model of ``gw.nn`` for a dataset."""
    return lambda ds: getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, **{"dropout": 0.3, **own})


class Written(nn.Module):
    """A user's layer and plain torch around it."""

    def __init__(self, ds: gw.Dataset, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(ds.num_features, 16), layer(16, ds.num_classes)

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.second(graph, nn.functional.dropout(torch.relu(self.first(graph, x)), 0.3, self.training))


def of_types(graph: gw.Graph, kind: str) -> nn.Module:
    """A new model of types."""
    torch.manual_seed(0)
    relations, types = len(graph.relations), len(graph.node_types)
    own = {"num_relations": relations} if kind == "RGCN" else {"num_relations": relations, "num_node_types": types}
    made: nn.Module = getattr(gw.nn, kind)(6, 8, 4, **own)
    return made


TYPED = {kind.lower(): partial(of_types, kind=kind) for kind in ("RGCN", "HGT")}


def typed(kind: str) -> list[Any]:
    """R-GCN and HGT on a typed graph."""
    graph = academic()
    return step(of_types(graph, kind), graph, features(0, graph.num_nodes))


def on_disk(**options: Any) -> list[Any]:
    """A run in groups of parts of a store, or in batches from it."""
    ds = gw.synthetic("default", scale=0.05, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        store = gw.macro.prepare_store(ds, Path(folder) / "store", parts=8, memory="64MB")
        torch.manual_seed(0)
        model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, dropout=0.3)
        trainer = gw.Trainer(model, store, fanouts=(5, 5), batch_size=32, restore_best=False, **options)
        losses = [record.loss for record in trainer.fit(2)]
        return [losses, dict(model.state_dict()), trainer.predict()]


def batches(**options: Any) -> list[Any]:
    """Ids, edges and rows of features that a loader gives in an epoch."""
    ds = dataset("arxiv", 0.01)
    made = gw.Loader(ds, seeds=ds.train_idx, fanouts=(5, 5), batch_size=100, shuffle=True, seed=3, **options)
    return [[batch.n_id, batch.edge_index, batch.x, batch.y] for batch in made]


def embedded(make_model: Callable[[gw.Dataset], nn.Module], **options: Any) -> list[Any]:
    """Embeddings that are learned without labels."""
    return trained(make_model, dataset(scale=0.1), **options)


def _pairs() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    graph = graph_of(3, 400, 2000)
    src, dst = graph.edges()
    x = torch.randn(400, 6, generator=generator)
    ds = gw.Dataset("edges", graph, x).with_edge_labels((x[src, 0] > x[dst, 1]).long(), seed=1)
    return trained(lambda ds: gw.nn.EdgeModel.for_data(ds, 8), ds, fanouts=(4, 4), batch_size=128)


def _samples() -> list[Any]:
    return trained(lambda ds: gw.nn.GraphModel.for_data(ds, 8, dropout=0.2), learnable(), batch_size=16)


MINI: dict[str, Any] = {"mode": "mini", "fanouts": (4, 4), "batch_size": 40}
SAMPLERS = ("layer", "shadow", "saint-node", "saint-edge", "saint-walk")


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {f"call {name}": partial(call, name) for name in MODELS}
    found |= {"call rgcn": partial(typed, "RGCN"), "call hgt": partial(typed, "HGT")}
    for kind in ("GCN", "SAGE", "GIN", "GAT", "CGAT", "NGCF", "APPNP", "GCNII", "Transformer"):
        own = {} if kind in ("GCN", "SAGE", "GIN", "NGCF", "APPNP", "GCNII") else {"heads": 2}
        found[f"full {kind}"] = lambda kind=kind, own=own: trained(built(kind, **own), dataset())
        if kind not in ("APPNP", "GCNII"):
            found[f"mini {kind}"] = lambda kind=kind, own=own: trained(built(kind, **own), dataset(), **MINI)
    for layer in (UserGCN, UserGAT):
        written = partial(Written, layer=layer)
        found[f"full {layer.__name__}"] = lambda made=written: trained(made, dataset())
        found[f"mini {layer.__name__}"] = lambda made=written: trained(made, dataset(), **MINI)
    sage = built("SAGE")
    found["full norms"] = lambda: trained(built("SAGE", norm="batch"), dataset())
    found["auto"] = lambda: trained(sage, dataset(), mode="auto", memory="2GB")
    found["memory"] = lambda: trained(built("GCN"), dataset(), memory="1GB")
    found["mini subtasks"] = lambda: trained(sage, dataset(), prepare="subtasks", **MINI)
    found["mini large"] = lambda: trained(sage, dataset(), macro="large:1/2", **MINI)
    found["mini parts"] = lambda: trained(sage, dataset(), macro="parts:2/8", **MINI)
    for name in SAMPLERS:
        own = {"fanouts": None, **({"batch_size": 40} if name != "layer" else {"fanouts": (60, 60)})}
        if name == "shadow":
            own["fanouts"] = (4, 4)
        found[f"mini {name}"] = lambda own=own, name=name: trained(sage, dataset(), **{**MINI, **own, "sampler": name})
    found["macro store"] = partial(on_disk, mode="macro", macro="parts:3/8")
    found["macro hubs"] = partial(on_disk, mode="macro", macro="parts:3/8+hubs:1MB")
    found["mini disk"] = partial(on_disk, mode="mini", memory="64MB")
    found["loader"] = batches
    found["loader threads"] = partial(batches, workers=3)
    found["link"] = lambda: trained(lambda ds: gw.nn.GCN(ds.num_features, 16, 16), dataset(), task="link", **MINI)
    found["gae"] = partial(embedded, lambda ds: gw.nn.GAE(gw.nn.GCN(ds.num_features, 16, 16)))
    found["vgae"] = partial(embedded, lambda ds: gw.nn.VGAE(gw.nn.GCN(ds.num_features, 16, 16)))
    found["dgi"] = partial(embedded, lambda ds: gw.nn.DGI(gw.nn.GCN(ds.num_features, 16, 16, num_layers=1), 16))
    found["node2vec"] = partial(embedded, lambda ds: gw.nn.Node2Vec(ds.graph, 16, 8, 4, walks_per_node=2))
    return found | {"edges": _pairs, "graphs": _samples}


CASES = _cases()


@contextlib.contextmanager
def free_memory(count: int) -> Iterator[None]:
    """The machine says that so many bytes are free."""
    real = psutil.virtual_memory()
    with mock.patch.object(psutil, "virtual_memory", lambda: real._replace(available=count, free=count)):
        yield


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch and the kernels use so many."""
    former = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(former)


def conditions() -> dict[str, Callable[[], Any]]:
    """What must not matter, by name."""
    found: dict[str, Callable[[], Any]] = {f"with {n // 10**9} GB free": partial(free_memory, n) for n in FREE}
    return found | {f"with {n} threads": partial(threads, n) for n in (1, 2, 3)}


def differences(names: list[str], rounds: dict[str, Callable[[], Any]] | None = None) -> list[str]:
    """What gave other bits than the first call, as lines; all cases run between two calls of one."""
    first, found = {}, []
    for name in names:
        first[name] = digest(CASES[name]())
        if digest(CASES[name]()) != first[name]:
            found.append(f"{name}: other bits in the second call")
    for what, context in (conditions() if rounds is None else rounds).items():
        with context():
            found += [f"{name}: other bits {what}" for name in names if digest(CASES[name]()) != first[name]]
    return found


def turns(name: str) -> list[str]:
    """One model on two graphs in turn against new models on each alone, also with constant features."""
    if name in TYPED:
        worlds = [(academic(5 + seed), features(seed, academic().num_nodes)) for seed in (0, 1)]
    else:
        worlds = [(graph_of(seed, 3001 + 500 * seed), features(seed, 3001 + 500 * seed)) for seed in (0, 1)]
    found = []
    for constant in (False, True):
        model = _new(name).train()
        given = [(graph, gw.constant(x.clone()) if constant else x) for graph, x in worlds]
        alone = [digest(_plain_step(_new(name).train(), *world)) for world in given]
        for place in (0, 1, 0, 1, 1, 0):
            if digest(_plain_step(model, *given[place])) != alone[place]:
                found.append(f"{name}: other bits on graph {place} in turn, constant={constant}")
    return found


def _new(name: str) -> nn.Module:
    return TYPED[name](academic()) if name in TYPED else make(name)


def _plain_step(model: nn.Module, graph: gw.Graph, x: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    model.zero_grad()
    out = model(graph, x)
    out.square().mean().backward()
    return [out.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def main(wanted: list[str]) -> int:
    """All cases whose names begin as asked for; 1 where some bits differ."""
    warnings.simplefilter("ignore")
    names = [name for name in CASES if not wanted or name.startswith(tuple(wanted))]
    failed = differences(names)
    for name in (*MODELS, *TYPED) if not wanted or "turns" in wanted else ():
        failed += turns(name)
    print("\n".join([*failed, f"{len(names)} cases, {len(failed)} differences: {', '.join(names)}"]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
