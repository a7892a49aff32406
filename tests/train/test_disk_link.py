"""Link prediction from a store: the losses of memory bit for bit, and its scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw

MEMORY = 3_900_000  # about three quarters of the rows have room


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("default", scale=0.1, num_features=512)


@pytest.fixture(scope="module")
def folder(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("link") / "store"
    gw.prepare_store(ds, path, parts=4, method="hash")
    return path


def _trainer(ds: gw.Dataset, data: Any, kind: str = "SAGE", **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(ds.num_features, 16, 8, num_layers=2, dropout=0.2)
    options = {"mode": "mini", "task": "link", "fanouts": (4, 3), "batch_size": 32, "seed": 0, "restore_best": False}
    return gw.Trainer(model, data, **{**options, **more})


def _losses(trainer: gw.Trainer) -> list[float]:
    return [record.loss for record in trainer.history]


@pytest.mark.parametrize("kind", ["SAGE", "GCN"])
def test_losses_are_those_of_memory_bit_for_bit(kind: str, ds: gw.Dataset, folder: Path) -> None:
    disk, memory = _trainer(ds, gw.Store(folder), kind, memory=MEMORY), _trainer(ds, ds, kind)
    told, known = disk.fit(2), memory.fit(2)
    assert _losses(disk) == _losses(memory)
    weights = zip(disk.model.parameters(), memory.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)
    assert told[-1].val_acc == pytest.approx(known[-1].val_acc, abs=1e-3)
    for name in ("val_mrr", "test_ap", "test_hits"):
        assert getattr(told[-1], name) == pytest.approx(getattr(known[-1], name), abs=5e-3)
    assert (told[-1].metrics["rows_read"] or 0) > 0  # not all rows have room


def test_an_interrupted_run_goes_on(ds: gw.Dataset, folder: Path, tmp_path: Path) -> None:
    whole = _trainer(ds, gw.Store(folder), memory=MEMORY)
    whole.fit(3)
    _trainer(ds, gw.Store(folder), memory=MEMORY, out=tmp_path / "run").fit(1)
    again = _trainer(ds, gw.Store(folder), memory="6MB", out=tmp_path / "run")
    again.resume()
    again.fit(2)
    assert _losses(again) == _losses(whole)


def test_weights_of_the_training_graph_are_used(ds: gw.Dataset, tmp_path: Path) -> None:
    weight = torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0))
    gw.prepare_store(replace(ds, edge_weight=weight), tmp_path / "s", parts=3, method="hash")
    disk = _trainer(ds, gw.Store(tmp_path / "s"), memory=MEMORY)
    memory = _trainer(ds, gw.load(tmp_path / "s"))
    without = _trainer(ds, gw.load(tmp_path / "s"), edge_data="ignore")
    for trainer in (disk, memory, without):
        trainer.fit(1)
    assert _losses(disk) == _losses(memory) != _losses(without)


def test_too_little_memory_and_other_options_are_refused(ds: gw.Dataset, folder: Path) -> None:
    store = gw.Store(folder)
    for options, text in (
        ({"memory": 100_000}, r"memory: expected more than \d+ MB, the structure and labels of"),
        ({"memory": MEMORY, "accumulate": 2}, "task='link' cannot be combined with macro, accumulate, sampler"),
        ({"mode": "macro"}, "mode: expected mini for the task link, got 'macro'"),
    ):
        with pytest.raises(gw.ConfigError, match=text):
            _trainer(ds, store, **options)
