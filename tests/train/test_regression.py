"""Values as labels: the mean squared error of torch, scores of NumPy, and what is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphweft._errors import ConfigError, DataError
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.train.target import class_auc, target_of
from graphweft.train.trainer import Trainer

MODES: list[dict[str, Any]] = [
    {"mode": "full"},
    {"mode": "mini", "fanouts": (-1, -1), "batch_size": 10_000},
    {"mode": "mini", "fanouts": (-1, -1), "batch_size": 10_000, "macro": "large:1/1"},
]


def _dataset(columns: int | None = 3, unknown: bool = True) -> Dataset:
    ds = synthetic("default", scale=0.02, seed=0)
    assert isinstance(ds.x, Tensor)
    y = 30 + 10 * ds.x[:, : columns or 1] + torch.randn(ds.num_nodes, columns or 1, generator=_rng())
    if unknown:
        y[torch.rand(y.shape, generator=_rng()) < 0.2] = float("nan")
        y[ds.train_idx[0]] = float("nan")  # a node without any
    width = columns or 1
    return replace(ds, y=y if columns else y[:, 0].contiguous(), num_classes=width, task="regression")


def _rng() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _model(ds: Dataset, kind: type = SAGE) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(ds.num_features, 8, ds.num_classes, num_layers=2)


def _reference(ds: Dataset, model: Any, epochs: int, weight_decay: float = 0.0) -> tuple[list[float], Any]:
    """Losses of a plain loop in float64, and the model after it."""
    model = copy.deepcopy(model).double()
    y = ds.y.reshape(ds.num_nodes, -1).double()[ds.train_idx]
    known, losses = ~y.isnan(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=weight_decay)
    assert isinstance(ds.x, Tensor)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(ds.graph, ds.x.double())[ds.train_idx][known], y[known])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("columns", [None, 3])
def test_training_is_a_plain_loop_over_the_squared_error(options: dict[str, Any], columns: int | None) -> None:
    ds = _dataset(columns)
    model = _model(ds)
    expected, trained = _reference(ds, model, 6, weight_decay=0.01)
    trainer = Trainer(model, ds, lr=0.05, weight_decay=0.01, restore_best=False, **options)
    assert trainer.fit(6)["loss"] == pytest.approx(expected, rel=1e-4)
    assert isinstance(ds.x, Tensor)
    outputs = trained(ds.graph, ds.x.double()).detach()
    predicted = trainer.predict()
    assert predicted.shape == ds.y.shape and predicted.dtype == torch.float32
    torch.testing.assert_close(predicted.reshape(outputs.shape).double(), outputs, rtol=1e-3, atol=1e-3)


def test_a_step_on_values_or_several_labels_is_recorded() -> None:
    values = _dataset()
    several = replace(values, y=(values.y > 30).float(), task="multilabel")
    for ds in (values, several):
        trainer = Trainer(_model(ds, GCN), ds)
        plain = Trainer(_model(ds, GCN), ds)
        trainer.prepare()
        assert trainer._batch._tape is not None  # type: ignore[union-attr]
        plain.model.register_forward_hook(lambda *_: None)  # makes steps call by call
        assert trainer.fit(4)["loss"] == plain.fit(4)["loss"]


def test_scores_are_those_of_numpy() -> None:
    ds = _dataset()
    trainer = Trainer(_model(ds), ds, lr=0.05, restore_best=False)
    last = trainer.fit(3)[-1]
    predicted = trainer.predict().numpy().astype(np.float64)
    for part in ("train", "val", "test"):
        rows = ds.idx(part).numpy()  # type: ignore[arg-type]
        wanted, got = ds.y.numpy().astype(np.float64)[rows], predicted[rows]
        error = got - wanted
        explained = 1 - np.nansum(error**2, 0) / np.nansum((wanted - np.nanmean(wanted, 0)) ** 2, 0)
        assert getattr(last, f"{part}_rmse") == pytest.approx(np.sqrt(np.nanmean(error**2)), rel=1e-9)
        assert getattr(last, f"{part}_mae") == pytest.approx(np.nanmean(np.abs(error)), rel=1e-9)
        assert getattr(last, f"{part}_r2") == pytest.approx(explained.mean(), rel=1e-9)
        assert trainer.evaluate(part) == getattr(last, f"{part}_rmse") and getattr(last, f"{part}_acc") is None
    assert trainer.metric == "RMSE"


def test_the_best_epoch_has_the_lowest_error(tmp_path: Path) -> None:
    ds = _dataset()
    trainer = Trainer(_model(ds), ds, lr=0.3, out=tmp_path)
    history = trainer.fit(25)
    errors = history["val_rmse"]
    assert history.best is not None and errors.index(min(errors)) + 1 == history.best.epoch < 25  # type: ignore[type-var]
    assert trainer.evaluate("test") == history.best.test_rmse
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["val_rmse"] == history[-1].val_rmse and line["val_acc"] is None and "val_auc" not in line
    stopping = Trainer(_model(ds), ds, lr=0.3, patience=3)
    assert len(stopping.fit(200)) == stopping.history.improved + 3


@pytest.mark.parametrize(
    ("task", "y", "words"),
    [
        ("multilabel", torch.rand(200, 3) * 50 + 2, "expected labels from 0 to 1 .* multilabel, got .*regression"),
        ("regression", torch.full((200, 3), float("inf")), "expected finite values of y, or nan where .*, got inf"),
    ],
)  # fmt: skip
def test_labels_that_are_not_of_the_task_are_refused(task: Any, y: Tensor, words: str) -> None:
    ds = replace(_dataset(), y=y, task=task)
    with pytest.raises(DataError, match=words):
        Trainer(_model(ds), ds)


def test_a_task_without_a_target_is_refused() -> None:
    class Other:
        name, y, task = "ranks", torch.zeros(3), "ranking"

    with pytest.raises(DataError, match=r"ranks: expected the task classification, multilabel, .* 'ranking'"):
        target_of(Other())


def test_a_model_of_another_width_is_refused() -> None:
    ds = _dataset()
    for options in ({}, {"mode": "mini"}):
        with pytest.raises(Exception, match=r"model: expected logits of shape \(\d+, 3\), got"):
            Trainer(SAGE(ds.num_features, 8, 4), ds, **options).fit(1)
    with pytest.raises(ConfigError, match="stop_on"):
        Trainer(_model(ds), ds, stop_on="rmse")


def test_the_area_under_the_curve_counts_pairs() -> None:
    rng = _rng()
    outputs, labels = torch.randn(60, 2, generator=rng).round(decimals=1), torch.randint(2, (60,), generator=rng)
    margin = (outputs[:, 1] - outputs[:, 0]).numpy()
    pairs = margin[labels.numpy() == 1][:, None] - margin[labels.numpy() == 0][None]
    assert class_auc(outputs, labels) == pytest.approx(float(((pairs > 0) + 0.5 * (pairs == 0)).mean()), rel=1e-12)
    assert class_auc(outputs, torch.ones(60, dtype=torch.int64)) is None
    assert class_auc(outputs * float("nan"), labels) is None


@pytest.mark.parametrize("options", MODES[:2])
def test_two_classes_have_an_area_and_a_constant_guess(options: dict[str, Any]) -> None:
    ds = synthetic("default", scale=0.02, seed=0)
    ds = replace(ds, y=(ds.y == 1).long(), num_classes=2)
    trainer = Trainer(_model(ds), ds, lr=0.05, restore_best=False, **options)
    last = trainer.fit(3)[-1]
    assert isinstance(ds.x, Tensor)
    with torch.no_grad():
        outputs = trainer.model.eval()(ds.graph, ds.x)
    margin = outputs[ds.test_idx, 1] - outputs[ds.test_idx, 0]
    positive = ds.y[ds.test_idx] == 1
    pairs = margin[positive][:, None] - margin[~positive][None]
    assert last.test_auc == pytest.approx(float(((pairs > 0) + 0.5 * (pairs == 0)).float().mean()), abs=1e-6)
    assert trainer.history.constant_guess == float((ds.y[ds.test_idx] == 0).double().mean())
