"""Metrics are their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from plain_loop import (
    LAST,
    degrees,
    numpy_f1,
    seeded,
)
from standin import make_model, make_task

from graphweft.nn.sage import SAGE
from graphweft.train import named_metrics
from graphweft.train.trainer import Trainer


def _ranked(scores: np.ndarray[Any, Any], positive: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Area under the ROC curve and average precision by counting pairs and thresholds."""
    plus, minus = scores[positive], scores[~positive]
    pairs = (plus[:, None] > minus[None, :]) + 0.5 * (plus[:, None] == minus[None, :])
    precision = [np.sum(plus >= one) / np.sum(scores >= one) for one in plus]
    return float(pairs.mean()), float(np.mean(precision))


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_classes_are_their_formulas(classes: int) -> None:
    task = make_task(num_nodes=90, classes=classes)
    names = ["accuracy", "f1_micro", "f1_macro", "roc_auc", "average_precision"]
    trainer = Trainer(make_model(task), task, metrics=names, **LAST)
    history = trainer.fit(3)
    logits = trainer.predictions().outputs
    for part in ("train", "val", "test"):
        rows = getattr(task, f"{part}_idx")
        z, y = logits[rows].double().numpy(), task.y[rows].numpy()
        found = {name: history[-1].metrics[f"{part}_{name}"] for name in names}
        right = float(np.mean(z.argmax(1) == y))
        assert found["accuracy"] == found["f1_micro"] == pytest.approx(right)
        assert found["f1_macro"] == pytest.approx(numpy_f1(logits[rows], task.y[rows]))
        chances = np.exp(z - z.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        curves = [_ranked(chances[:, c], y == c) for c in range(classes)]
        curves = curves[1:] if classes == 2 else curves
        assert found["roc_auc"] == pytest.approx(np.mean([area for area, _ in curves]))
        assert found["average_precision"] == pytest.approx(np.mean([precision for _, precision in curves]))


def test_metrics_of_several_labels_and_of_values_are_their_formulas() -> None:
    task = make_task(num_nodes=90, multi_label=True)
    trainer = Trainer(make_model(task), task, metrics="f1_micro,f1_macro,roc_auc,average_precision", **LAST)
    last = trainer.fit(3)[-1]
    rows = task.val_idx
    z, y = trainer.predictions().outputs[rows].numpy(), task.y[rows].numpy() > 0.5
    hits, said, there = (np.sum(one, 0) for one in ((z > 0) & y, z > 0, y))
    singles = [2 * h / (s + t) for h, s, t in zip(hits, said, there, strict=True)]
    assert last.metrics["val_f1_micro"] == pytest.approx(2 * hits.sum() / (said.sum() + there.sum()))
    assert last.metrics["val_f1_macro"] == pytest.approx(np.mean(singles))
    areas, precisions = zip(*[_ranked(z[:, c], y[:, c]) for c in range(3)], strict=True)
    assert last.metrics["val_roc_auc"] == pytest.approx(np.mean(areas))
    assert last.metrics["val_average_precision"] == pytest.approx(np.mean(precisions))

    ds = degrees()
    trainer = Trainer(seeded(SAGE, ds), ds, metrics={"worst": lambda a, b: (a - b).abs().max()}, best="mae", **LAST)
    last = trainer.fit(5)[-1]
    error = trainer.predict()[ds.val_idx].double().numpy() - ds.y[ds.val_idx].double().numpy()
    assert last.val_mae == pytest.approx(np.abs(error).mean())
    assert last.val_rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert last.metrics["val_worst"] == pytest.approx(np.abs(error).max())
    best = trainer.history.best
    assert best is not None and best.val_mae == min(v for v in trainer.history["val_mae"] if v is not None)


@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
@pytest.mark.usefixtures("threads_restored")
def test_errors_of_values_are_the_same_for_any_number_of_threads(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(2, 300_001, generator=generator)
    measure = named_metrics._BY_KIND["regression"][name]
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.add(measure(outputs, labels))
    assert len(found) == 1
