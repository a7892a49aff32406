"""Choices that do not fit the labels: one line that names them, where a number or a traceback came before."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import graphweft as gw
from graphweft.errors import ConfigError, DataError, DataWarning, ShapeError, UserCodeError
from graphweft.train.scores import shown


def graphs(y: Any, **others: Any) -> gw.GraphDataset:
    """30 rings of different sizes."""
    draw = torch.Generator().manual_seed(0)
    sizes = [3 + i % 5 for i in range(30)]
    rings = [gw.Graph(torch.arange(n), (torch.arange(n) + 1) % n) for n in sizes]
    return gw.GraphDataset.from_list(rings, x=[torch.randn(n, 4, generator=draw) for n in sizes], y=y, **others)


def classes(**others: Any) -> gw.GraphDataset:
    """Of three classes."""
    return graphs(torch.arange(30) % 3, **others)


def trained(ds: gw.GraphDataset, epochs: int = 2, **options: Any) -> gw.Trainer:
    """A trainer after a few epochs."""
    trainer = gw.Trainer(gw.nn.GraphModel.for_data(ds, 8, num_layers=2), ds, **options)
    trainer.fit(epochs)
    return trainer


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"class_weight": [0, 0, 0]}, "class_weight: expected a number above 0 for some class of the training labels"),
        ({"task": "edge_classification"}, "expected labels of edges for the task edge_classification, got labels of"),
        ({"task": "edge"}, "graphs: expected labels of edges for the task edge, got labels of graphs"),
        ({"macro": "parts:2/4"}, "macro cannot be combined with a set of graphs"),
    ],
)
def test_what_graphs_do_not_have_is_named(options: dict[str, Any], line: str) -> None:
    with pytest.raises((ConfigError, DataError), match=line):
        trained(classes(), **options)


def test_best_needs_validation_labels_as_patience_does() -> None:
    with pytest.raises(ConfigError, match="best=f1_macro cannot be combined with a split without validation labels"):
        trained(classes().split(0.8, 0.0, 0.2), best="f1_macro")


def test_a_metric_that_the_validation_part_does_not_define_is_told_once() -> None:
    y = torch.zeros(30, dtype=torch.int64)
    y[:10] = 1
    parts = {"train_idx": torch.arange(20), "val_idx": torch.arange(20, 25), "test_idx": torch.arange(25, 30)}
    with pytest.warns(DataWarning, match="best: expected a metric .* got roc_auc, which has no value there") as told:
        trainer = trained(graphs(y, **parts), 3, best="roc_auc")
    assert len(told) == 1
    assert trainer.history.best is None


def test_smoothing_of_several_labels_gives_no_remedy_for_weights() -> None:
    ds = graphs((torch.rand(30, 4) > 0.5).float())
    with pytest.raises(ConfigError, match=r"label_smoothing=0\.1 cannot be combined with labels that are no classes$"):
        trained(ds, label_smoothing=0.1)


@pytest.mark.parametrize("values", ["regression", "multilabel"])
def test_a_loss_that_does_not_leave_unknown_labels_out_is_named(values: str) -> None:
    y = torch.rand(30, 2) if values == "regression" else (torch.rand(30, 2) > 0.5).float()
    y[::3, 0] = torch.nan
    loss = functional.mse_loss if values == "regression" else functional.binary_cross_entropy_with_logits
    with pytest.raises(ConfigError, match=f"loss={loss.__name__}: expected a loss that leaves unknown labels out"):
        trained(graphs(y, task=values), loss=loss)

    def known(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        there = ~labels.isnan()
        return loss(outputs[there], labels[there])

    losses = []
    for given in (known, None):
        torch.manual_seed(0)
        losses.append(trained(graphs(y, task=values), loss=given).history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_scheduler_that_is_over_is_one_line() -> None:
    def once(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)

    with pytest.raises(UserCodeError, match="scheduler: ValueError after epoch 4: Tried to step"):
        trained(classes(), 5, scheduler=once)


def test_features_of_another_width_are_told_as_of_nodes() -> None:
    with pytest.raises(ShapeError, match="GraphModel: expected features with 7 columns, got shape"):
        gw.Trainer(gw.nn.GraphModel(7, 8, 3, num_layers=2), classes()).fit(1)


@pytest.mark.parametrize("form", [list, np.array])
def test_names_of_classes_become_ids_and_come_back(form: Any, tmp_path: Any) -> None:
    ds = graphs(form(["ring", "path", "star"] * 10))
    assert ds.class_names == ("path", "ring", "star")
    assert ds.y.tolist() == [1, 0, 2] * 10
    trainer = trained(ds)
    trainer.predictions().save(tmp_path / "p.csv")
    said = [line.split(",")[1] for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    assert said == [ds.class_names[i] for i in trainer.predict().tolist()]
    assert graphs(["a", None, "b"] * 10).y.tolist() == [0, -1, 1] * 10
    with pytest.raises(DataError, match="y: expected names of classes, or None where unknown, got 3 among them"):
        graphs(["a", 3, "b"] * 10)


def test_r2_is_no_share() -> None:
    assert shown(-7.898, "r2") == "-7.898"


def test_numbers_whose_squares_are_infinite_are_standardised() -> None:
    ages = np.array([31.0, 35.0, 52.0, 44.0])
    tables = [{"user": [1, 2, 3, 4], "age": ages * scale, "y": [0, 1, 0, 1]} for scale in (1.0, 1e300)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edges = {"s": [1, 2, 3], "t": [2, 3, 4]}
        made = [gw.Dataset.from_tables(t, edges, id="user", source="s", target="t", label="y").x for t in tables]
    torch.testing.assert_close(made[0], made[1])
