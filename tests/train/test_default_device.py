"""Loops under a default device of torch: the same batches and the same training as without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import stored_kinds
import torch
from graphs import learnable
from torch import Tensor, nn

import graphweft as gw


def _nodes() -> gw.Dataset:
    return gw.synthetic("cora", scale=0.1, seed=0)


def _loaders(folder: Path) -> dict[str, Callable[[], Iterable[Any]]]:
    ds, typed, graphs = _nodes(), stored_kinds.academic(), learnable(20)
    store = gw.macro.prepare_store(ds, folder / "store", parts=4, method="hash")
    edges = torch.stack(ds.graph.edges())[:, :40]
    return {
        "nodes": lambda: gw.Loader(ds, ds.train_idx, [3, 2], batch_size=8, shuffle=True, seed=1),
        "ahead": lambda: gw.Loader(ds, ds.train_idx, [3, 2], batch_size=8, shuffle=True, seed=1, prefetch=2),
        "weighted": lambda: gw.Loader(ds, ds.train_idx, [3], batch_size=8, item_weight="balanced"),
        "typed": lambda: gw.Loader(typed, typed.train_idx, [3, 2], batch_size=50),
        "links": lambda: gw.LinkLoader(ds, edges, None, [3, 2], batch_size=16, shuffle=True),
        "graphs": lambda: gw.GraphLoader(graphs, 8, shuffle=True),
        "store": lambda: gw.Loader(store, None, [3, 2], batch_size=8, memory="64MB"),
        "macro": lambda: gw.macro.MultistageLoader(
            ds, ds.train_idx, [3, 2], batch_size=4, macro=gw.macro.LargeBatch(0.5)
        ),
    }


NAMES = ("n_id", "e_id", "edge_index", "x", "y", "blocks", "subgraph", "typed", "ptr", "input_id", "edge_label_index",
         "edge_label", "batch", "index", "x_dict", "edge_index_dict", "root_n_id", "num_nodes", "owner")  # fmt: skip


def _numbers(item: Any) -> Any:
    """What is compared of an attribute of a batch."""
    if isinstance(item, gw.data.SparseFeatures):
        return item.to_dense().tolist()
    if isinstance(item, Tensor):
        assert item.device.type == "cpu"
        return item.tolist()
    if isinstance(item, gw.Graph):
        return [end.tolist() for end in item.edges()]
    if isinstance(item, tuple | list):
        return [_numbers(one) for one in item]
    if isinstance(item, dict):
        return {key: _numbers(one) for key, one in item.items()}
    return item if isinstance(item, int | str | None) else type(item).__name__


def _seen(loader: Iterable[Any]) -> list[Any]:
    found = []
    for batch in loader:
        found.append({})
        for name in NAMES:
            try:
                found[-1][name] = _numbers(getattr(batch, name))
            except (AttributeError, gw.errors.GraphWeftError) as failure:
                found[-1][name] = type(failure).__name__
    return found


@pytest.mark.parametrize("name", ["nodes", "ahead", "weighted", "typed", "links", "graphs", "store", "macro"])
def test_batches_are_the_same(name: str, tmp_path: Path) -> None:
    make = _loaders(tmp_path)[name]
    expected = _seen(make())
    assert len(expected) > 1
    loader = make()
    with torch.device("meta"):
        assert _seen(make()) == expected
        batches = iter(loader)
        next(batches)
        assert torch.ones(1).device.type == "meta"  # the caller's, with every batch
        del batches


class Mean(gw.MessagePassing):
    def __init__(self, ds: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(ds.num_features, ds.num_classes)

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"]}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph: gw.Graph, x: Any) -> Tensor:
        dense = x if isinstance(x, Tensor) else x.to_dense()
        return self.propagate(graph, ndata={"h": self.linear(dense)})["h"] + torch.zeros(())


def _trained(kind: str, folder: Path) -> gw.Trainer:
    torch.manual_seed(0)
    if kind == "graphs":
        graphs = learnable(40)
        return gw.Trainer(gw.nn.GraphModel.for_data(graphs, 8), graphs, mode="mini", batch_size=16)
    ds: Any = _nodes()
    model: nn.Module = Mean(ds) if kind == "user" else gw.nn.SAGE(ds.num_features, 8, ds.num_classes, dropout=0.3)
    options: dict[str, Any] = {
        "full": {},
        "user": {},
        "auto": {"mode": "auto"},
        "mini": {"mode": "mini", "fanouts": (4, 3), "batch_size": 8},
        "saint": {"mode": "mini", "sampler": "saint-node", "batch_size": 20},
        "macro": {"mode": "macro", "macro": "parts:2/8", "fanouts": (4, 3), "batch_size": 8},
        "links": {"mode": "mini", "task": "link", "fanouts": (4, 3), "batch_size": 100},
        "store": {"mode": "macro", "macro": "parts:2/4", "fanouts": (4, 3), "batch_size": 8},
        "recipe": {"scheduler": "cosine", "warmup": 1, "clip": 1.0, "ema": 0.9, "metrics": ["f1_macro"], "patience": 9},
    }
    if kind == "store":
        ds = gw.macro.prepare_store(ds, folder / "store", parts=4, method="hash")
    return gw.Trainer(model, ds, lr=0.05, **options[kind])


@pytest.mark.parametrize(
    "kind", ["full", "user", "auto", "mini", "saint", "macro", "links", "store", "graphs", "recipe"]
)
def test_training_is_the_same(kind: str, tmp_path: Path) -> None:
    one = _trained(kind, tmp_path / "a")
    expected = [record.loss for record in one.fit(3)]
    state = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    with torch.device("cpu"):
        made = _trained(kind, tmp_path / "b")
    with torch.device("meta"):
        again = gw.Trainer if False else made
        assert [record.loss for record in again.fit(3)] == expected
        assert again.predict().device.type == "cpu" and isinstance(again.evaluate("test"), float)
        saved = again.state_dict()
        again.load_state_dict(saved)
        assert "kernels forward" in gw.explain(again)
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_a_trainer_is_made_under_a_default_device() -> None:
    ds = _nodes()
    torch.manual_seed(0)
    model, other = (gw.nn.GCN(ds.num_features, 8, ds.num_classes) for _ in range(2))
    other.load_state_dict(model.state_dict())
    expected = [record.loss for record in gw.Trainer(model, ds, mode="mini", batch_size=8).fit(2)]
    torch.set_default_device("meta")
    try:
        trainer = gw.Trainer(other, ds, mode="mini", batch_size=8)
        assert [record.loss for record in trainer.fit(2)] == expected
        elsewhere = gw.nn.GCN(ds.num_features, 8, ds.num_classes)
        with pytest.raises(gw.errors.ConfigError, match="meta"):
            gw.Trainer(elsewhere, ds)
        with pytest.raises(gw.errors.ConfigError, match="expected no default device, got meta"):
            gw.Trainer(other, ds, device="cpu")
    finally:
        torch.set_default_device(None)
