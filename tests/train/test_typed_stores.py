"""Typed graphs and weighted edges from a store: the bits of memory, and the scores of the whole graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_kinds import academic

import graphweft as gw

PARTS, MEMORY = 4, 1_200_000  # about half of the rows have room


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "store"
    gw.prepare_store(academic(), path, parts=PARTS, memory="64MB", method="hash")
    return path


def _model(kind: str, features: int, **more: Any) -> Any:
    torch.manual_seed(0)
    options = {"num_relations": 6, "num_layers": 2, "dropout": 0.2, **more}
    if kind == "HGT":
        options |= {"num_node_types": 4, "heads": 2}
    return getattr(gw.nn, kind)(features, 16, 3, **options)


def _trainer(kind: str, data: Any, features: int, mode: str = "mini", **more: Any) -> gw.Trainer:
    options = {"fanouts": (3, 3), "batch_size": 16, "seed": 0, "restore_best": False, **more}
    return gw.Trainer(_model(kind, features), data, mode=mode, **options)


def _same(one: gw.Trainer, other: gw.Trainer) -> bool:
    weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
    losses = [[record.loss for record in trainer.history] for trainer in (one, other)]
    return losses[0] == losses[1] and all(torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize("kind", ["RGCN", "HGT"])
def test_losses_of_a_typed_store_are_those_of_memory_bit_for_bit(kind: str, folder: Path) -> None:
    store, ds = gw.Store(folder), gw.load(folder)
    disk = _trainer(kind, store, store.num_features, memory=MEMORY)
    memory = _trainer(kind, ds, store.num_features)
    told = disk.fit(3)
    memory.fit(3)
    assert _same(disk, memory)
    assert told[-1].loss < told[0].loss
    assert (told[-1].metrics["bytes_read"] or 0) > 0  # not all rows have room
    assert torch.allclose(disk.predictions().outputs, memory.predictions().outputs, atol=1e-4)
    assert disk.evaluate("test") == pytest.approx(memory.evaluate("test"), abs=2 / 80)


def test_a_loader_gives_the_typed_batches_of_memory(folder: Path) -> None:
    options: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 16, "shuffle": True, "seed": 5}
    disk, memory = gw.Loader(gw.Store(folder), memory=MEMORY, **options), gw.Loader(gw.load(folder), **options)
    known = gw.load(folder).features
    for mine, other in zip(disk, memory, strict=True):
        for name in ("n_id", "y", "edge_index", "e_id"):
            assert torch.equal(getattr(mine, name), getattr(other, name)), name
        papers = mine["paper"].n_id
        at = ((mine.n_id >= 240) & (mine.n_id < 600)).nonzero().reshape(-1)
        rows = mine.x.to_dense()[at]
        assert torch.equal(rows[:, 240:880], known["paper"][papers])
        assert not rows[:, :240].any() and not rows[:, 880:].any()


@pytest.mark.parametrize("kind", ["GCN", "SAGE"])
def test_weights_of_a_store_are_used_as_those_of_memory(kind: str, tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.05)
    gw.prepare_store(replace(ds, edge_weight=torch.rand(ds.num_edges)), tmp_path / "s", parts=PARTS, method="hash")
    store, again = gw.Store(tmp_path / "s"), gw.load(tmp_path / "s")

    def trainer(data: Any, **more: Any) -> gw.Trainer:
        torch.manual_seed(0)
        model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, num_layers=2)
        options = {"mode": "mini", "fanouts": (4, 3), "batch_size": 32, "seed": 0, "restore_best": False}
        return gw.Trainer(model, data, **options, **more)

    disk, memory, without = (trainer(store, memory="1MB"), trainer(again), trainer(again, edge_data="ignore"))
    for one in (disk, memory, without):
        one.fit(2)
    assert _same(disk, memory) and not _same(disk, without)
    assert torch.allclose(disk.predictions().outputs, memory.predictions().outputs, atol=1e-4)


def test_models_and_stores_that_do_not_fit_are_told(folder: Path, tmp_path: Path) -> None:
    store = gw.Store(folder)
    plain = gw.prepare_store(gw.synthetic("default", scale=0.02), tmp_path / "plain", parts=2)
    for mode in ("mini", "macro"):
        with pytest.raises(
            gw.ConfigError, match=r"model: expected gw\.nn\.RGCN or HGT for a store of a typed graph, got SAGE"
        ):
            gw.Trainer(gw.nn.SAGE(store.num_features, 8, 3), store, mode=mode)
        with pytest.raises(
            gw.ConfigError, match="model: expected one without types for a store without types, got RGCN"
        ):
            gw.Trainer(_model("RGCN", 64), plain, mode=mode)
        with pytest.raises(gw.ConfigError, match="RGCN without in_features cannot be combined with a store"):
            gw.Trainer(gw.nn.RGCN(None, 8, 3, num_relations=6, num_nodes=store.num_nodes), store, mode=mode)
