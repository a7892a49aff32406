"""Epochs on a device, beside PyTorch Geometric where it is installed: the last part of ``graphweft doctor --device``.

Comes in: a device. Goes out: milliseconds by model and system, on a graph that is made on the spot. Systems that fail
say so in their line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib import util
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.loader.loader import Loader
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.train.trainer import Trainer

_HIDDEN, _LAYERS, _FANOUTS, _BATCH = 64, 3, (15, 10, 5), 1024
_WARM, _TIMED = 3, 5
_RATE = 0.01


class Epoch(NamedTuple):
    """Median milliseconds of an epoch: forward, loss, backward and update; ``failure`` is what was raised."""

    model: str
    system: str
    ms: float
    failure: str = ""


def epochs(place: torch.device, scale: float = 1.0) -> list[Epoch]:
    """GCN on all nodes and SAGE on batches, 3 layers of 64, over the twin of ogbn-arxiv times ``scale``."""
    ds = synthetic("ogbn-arxiv", scale=scale)
    ours = {"GCN, all nodes": _trained(GCN, ds, place, mode="full")}
    ours["SAGE, batches"] = _trained(SAGE, ds, place, mode="mini", fanouts=_FANOUTS, batch_size=_BATCH)
    systems: dict[tuple[str, str], Callable[[], Callable[[], Any]]] = {
        (name, "graphweft"): made for name, made in ours.items()
    }
    if util.find_spec("torch_geometric") is not None:
        systems["GCN, all nodes", "pyg"] = lambda: _peer_of_all(ds, place)
        systems["SAGE, batches", "pyg, our batches"] = lambda: _peer_of_batches(ds, place)
    return [_timed(*names, make, place) for names, make in sorted(systems.items())]


def _timed(model: str, system: str, make: Callable[[], Callable[[], Any]], place: torch.device) -> Epoch:
    try:
        run, seconds = make(), []
        for _ in range(_WARM + _TIMED):
            begin = time.perf_counter()
            run()
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            seconds.append(time.perf_counter() - begin)
    except Exception as failure:  # of a system, which is a result, too
        return Epoch(model, system, 0.0, " ".join(f"{type(failure).__name__}: {failure}".split())[:200])
    return Epoch(model, system, 1e3 * statistics.median(seconds[_WARM:]))


def _trained(kind: Any, ds: Dataset, place: torch.device, **given: Any) -> Callable[[], Callable[[], Any]]:
    """Steps of a trainer, without evaluations."""

    def make() -> Callable[[], Any]:
        model = kind(ds.num_features, _HIDDEN, ds.num_classes, num_layers=_LAYERS)
        at = None if place.type == "cpu" else str(place)
        options = {"lr": _RATE, "device": at, "progress": False, "restore_best": False, "eval_every": 10**6, **given}
        trainer = Trainer(model, ds, **options)
        return lambda: trainer.fit(1)

    return make


def _updates(model: nn.Module, place: torch.device) -> Callable[[Tensor, Tensor], None]:
    """One update of a loop of one's own."""
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE, fused=place.type == "cuda")

    def update(outputs: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(outputs, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update


def _layers(kind: Any, ds: Dataset, place: torch.device, **options: Any) -> nn.ModuleList:
    sizes = [ds.num_features, *[_HIDDEN] * (_LAYERS - 1), ds.num_classes]
    return nn.ModuleList(kind(a, b, **options) for a, b in pairwise(sizes)).to(place)


def _peer_of_all(ds: Dataset, place: torch.device) -> Callable[[], Any]:
    """GCNConv on an edge list, normalised once."""
    from torch_geometric.nn import GCNConv

    assert isinstance(ds.x, Tensor)  # of the twin
    model = _layers(GCNConv, ds, place, cached=True)
    x, edges = ds.x.to(place), torch.stack(ds.graph.edges()).to(place)
    rows, labels, update = ds.train_idx.to(place), ds.y[ds.train_idx].to(place), _updates(model, place)

    def run() -> None:
        h = x
        for k, conv in enumerate(model):
            h = conv(h, edges) if k == _LAYERS - 1 else conv(h, edges).relu()
        update(h[rows], labels)

    return run


def edges_on(place: torch.device, block: Graph) -> Tensor:
    """int64 (2, edges): sources and destinations of a batch's layer, on a device that it was drawn on."""
    csc = block.csc.to(place)
    rows = torch.arange(block.num_dst, device=place)
    into = torch.repeat_interleave(rows, csc.indptr.diff(), output_size=csc.num_edges)
    return torch.stack([csc.indices.long(), into])


def _peer_of_batches(ds: Dataset, place: torch.device) -> Callable[[], Any]:
    """SAGEConv on batches of our loader, as PyTorch Geometric's own needs an extension."""
    from torch_geometric.nn import SAGEConv

    assert isinstance(ds.x, Tensor)  # of the twin
    model, y = _layers(SAGEConv, ds, place), ds.y.to(place)
    there: dict[str, Any] = {}
    if place.type != "cpu":
        there = {"device": place, "device_memory": ds.x.nbytes + ds.graph.csc.nbytes + 4 * ds.num_nodes}
    loader = Loader(ds, seeds=ds.train_idx, fanouts=_FANOUTS, batch_size=_BATCH, shuffle=True, seed=0, **there)
    update = _updates(model, place)

    def run() -> None:
        for batch in loader:
            h = batch.x
            for k, (conv, block) in enumerate(zip(model, batch.blocks, strict=True)):
                h = conv((h, h[: block.num_dst]), edges_on(place, block), size=(block.num_src, block.num_dst))
                h = h if k == _LAYERS - 1 else h.relu()
            update(h, y[batch.input_id.to(place)])

    return run


__all__ = ["Epoch", "edges_on", "epochs"]
