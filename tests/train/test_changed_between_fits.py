"""Labels, splits and parameters that are changed between two fits count from then on."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.nn.sage import SAGE
from graphweft.train.trainer import Trainer

MODES: list[dict[str, Any]] = [
    {"mode": "full"},
    {"mode": "mini", "fanouts": (-1, -1), "batch_size": 10_000},
    {"mode": "mini", "fanouts": (-1, -1), "batch_size": 10_000, "macro": "large:1/1"},
]


def _dataset() -> Dataset:
    ds = synthetic("default", scale=0.02, seed=0)
    parts = {f"{part}_idx": ds.idx(part).clone() for part in ("train", "val", "test")}  # type: ignore[arg-type]
    return replace(ds, y=ds.y.clone(), **parts)  # type: ignore[arg-type]


def _model(ds: Dataset) -> SAGE:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SAGE(ds.num_features, 8, ds.num_classes, num_layers=2)


class _Plain:
    """A plain loop in float64 that reads the dataset anew in every step."""

    def __init__(self, model: SAGE, ds: Dataset, weight_decay: float = 0.0) -> None:
        self.model, self.ds = copy.deepcopy(model).double(), ds
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05, weight_decay=weight_decay)

    def fit(self, epochs: int) -> list[float]:
        losses = []
        for _ in range(epochs):
            self.optimizer.zero_grad()
            assert isinstance(self.ds.x, Tensor)
            rows = self.ds.labelled("train")
            loss = functional.cross_entropy(self.model(self.ds.graph, self.ds.x.double())[rows], self.ds.y[rows])
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return losses


def _relabel(ds: Dataset) -> None:
    ds.y[ds.train_idx] = (ds.y[ds.train_idx] + 1) % ds.num_classes


def _unlabel(ds: Dataset) -> None:
    ds.y[ds.train_idx[::3]] = -1


def _resplit(ds: Dataset) -> None:
    ds.train_idx[:5] = ds.test_idx[:5]


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("change", [_relabel, _unlabel, _resplit])
def test_changed_data_count_from_the_next_fit_on(options: dict[str, Any], change: Any) -> None:
    ds = _dataset()
    model = _model(ds)
    plain, trainer = _Plain(model, ds), Trainer(model, ds, lr=0.05, **options)
    expected, history = plain.fit(3), trainer.fit(3)
    change(ds)
    expected += plain.fit(4)
    history = trainer.fit(4)
    assert history["loss"] == pytest.approx(expected, rel=1e-4)
    assert history.best is not None and history.best.epoch > 3 and history.since == 3
    predicted, rows = trainer.predict(), ds.labelled("train")
    assert trainer.evaluate("train") == pytest.approx(float((predicted[rows] == ds.y[rows]).double().mean()))
    assert trainer.evaluate("train") == history[-1].train_acc  # the last weights: scores before do not compare


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_evaluation_reads_the_labels_as_they_are(mode: str) -> None:
    ds = _dataset()
    trainer = Trainer(_model(ds), ds, lr=0.05, mode=mode)
    trainer.fit(3)
    ds.y[ds.test_idx] = trainer.predict()[ds.test_idx]
    assert trainer.evaluate("test") == 1.0
    ds.y[ds.train_idx] = -1
    with pytest.raises(DataError, match="at least one training node with a label"):
        trainer.fit(1)


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize(
    ("id_", "text"), [(-1, r"expected ids in \[0, .*, got -1"), (10**6, r"got 1000000"), (None, "each id")]
)
def test_ids_that_a_change_made_wrong_are_one_line(options: dict[str, Any], id_: int | None, text: str) -> None:
    ds = _dataset()
    trainer = Trainer(_model(ds), ds, **options)
    trainer.fit(1)
    ds.train_idx[1] = ds.train_idx[0] if id_ is None else id_
    with pytest.raises(DataError, match=f"^train_idx: .*{text}"):
        trainer.fit(1)


@pytest.mark.parametrize("options", MODES)
def test_a_parameter_trains_from_when_it_is_unfrozen(options: dict[str, Any]) -> None:
    ds = _dataset()
    model = _model(ds)
    name, frozen = next(iter(model.named_parameters()))
    frozen.requires_grad_(False)
    start = frozen.detach().clone()
    plain = _Plain(model, ds, weight_decay=0.1)
    trainer = Trainer(model, ds, lr=0.05, weight_decay=0.1, restore_best=False, **options)
    expected, history = plain.fit(3), trainer.fit(3)
    assert torch.equal(frozen, start)  # weight decay does not move it either
    for one in (model, plain.model):
        dict(one.named_parameters())[name].requires_grad_(True)
    expected += plain.fit(3)
    history = trainer.fit(3)
    assert not torch.equal(frozen, start) and history.since == 3
    for one in (model, plain.model):
        dict(one.named_parameters())[name].requires_grad_(False)
    moved = frozen.detach().clone()
    expected += plain.fit(3)
    history = trainer.fit(3)
    assert torch.equal(frozen, moved)
    assert history["loss"] == pytest.approx(expected, rel=1e-4)


def test_a_run_on_changed_labels_resumes_with_the_same_bits(tmp_path: Path) -> None:
    losses = []
    for stops in (False, True):
        ds = _dataset()
        out = tmp_path / str(stops)
        trainer = Trainer(_model(ds), ds, lr=0.05, out=out)
        trainer.fit(3)
        _relabel(ds)
        trainer.fit(2 if stops else 6)
        if stops:
            trainer = Trainer(_model(ds), ds, lr=0.05, out=out)
            assert trainer.resume() and trainer.history.since == 3
            trainer.fit(4)
        assert trainer.history.best is not None
        losses.append((trainer.history["loss"], trainer.history.best.epoch))
    assert losses[0] == losses[1]
