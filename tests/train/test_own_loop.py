"""The trainer with a user's loss, schedule and updates computes what a plain loop of torch does, also after a kill."""

from __future__ import annotations

import copy
import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_loop import (
    CASES,
    EPOCHS,
    LAST,
    WEIGHT,
    Loop,
    Recorder,
    balanced,
    cosine,
    degrees,
    focal,
    numpy_f1,
    plateau,
    same,
    seeded,
)
from run_files import assert_same_run
from standin import make_model, make_task
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

from graphweft._errors import CheckpointError, ConfigError
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.loaded_run import load_run
from graphweft.loader.loader import Loader
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.train.trainer import Trainer


@pytest.mark.parametrize("case", CASES)
def test_a_model_of_plain_torch_trains_as_in_a_plain_loop(case: str) -> None:
    options, plain = CASES[case]
    task = make_task()
    model, other = make_model(task, dropout=0.0), make_model(task, dropout=0.0)
    if plain.get("loss") == "balanced":
        weight = balanced(task.y[task.train_idx], 3)
        plain = {**plain, "loss": nn.CrossEntropyLoss(weight, label_smoothing=0.1)}
    loop = Loop(other, task, **plain).run()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    history = Trainer(model, task, optimizer=optimizer, **LAST, **options).fit(EPOCHS)
    assert history["loss"] == loop.losses
    assert same(model, loop.evaluated)
    if "lr" in history[0].metrics:
        assert history["lr"] == loop.rates


@pytest.mark.parametrize("case", ["callable", "weights", "clip", "warm-up and cosine", "averages"])
@pytest.mark.parametrize("kind", [GCN, SAGE])
def test_a_compiled_model_trains_as_in_a_plain_loop(kind: Any, case: str) -> None:
    options, plain = CASES[case]
    ds = synthetic("cora", scale=0.1, seed=2)
    if case == "weights":
        weight = torch.linspace(0.5, 2, ds.num_classes)
        options, plain = {"class_weight": weight}, {"loss": nn.CrossEntropyLoss(weight)}
    model, other = (seeded(kind, ds) for _ in range(2))
    trainer = Trainer(model, ds, optimizer=torch.optim.Adam(model.parameters(), lr=0.05), **LAST, **options)
    trainer.prepare()
    if model.function.cost_model is not None:
        other.function.settle(model.function.cost_model)
    history = trainer.fit(EPOCHS)
    loop = Loop(other, ds, rows={"rows": ds.train_idx}, **plain).run()
    assert history["loss"] == loop.losses
    assert same(model, loop.evaluated)


class OfBlocks(nn.Module):
    """A model of one's own, called with a batch's subgraph."""

    def __init__(self, ds: Dataset) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two = nn.Linear(ds.num_features, 8), nn.Linear(8, ds.num_classes)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        src, dst = graph.edges()
        for place, layer in enumerate((self.one, self.two)):
            rows = layer(x)
            x = rows + torch.zeros_like(rows).index_add(0, dst, rows[src])
            x = torch.relu(x) if place == 0 else x
        return x


@pytest.mark.parametrize("case", ["callable", "weights", "smoothing", "clip", "warm-up and cosine", "averages"])
def test_mini_batches_train_as_in_a_plain_loop_over_the_loader(case: str) -> None:
    options, plain = CASES[case]
    ds = synthetic("arxiv", scale=0.005, seed=1)
    if case == "weights":
        weight = torch.linspace(0.5, 2, ds.num_classes)
        options, plain = {"class_weight": weight}, {"loss": nn.CrossEntropyLoss(weight)}
    model, other = OfBlocks(ds), OfBlocks(ds)
    drawn: dict[str, Any] = {"fanouts": (4, 3), "batch_size": 64}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trainer = Trainer(model, ds, mode="mini", seed=7, optimizer=optimizer, **drawn, **LAST, **options)
    history = trainer.fit(EPOCHS)
    loader = Loader(ds, None, drawn["fanouts"], 64, True, 7)

    class Batches(Loop):
        def epoch(self) -> float:
            total = count = 0.0
            self.model.train()
            for batch in loader:
                loss = self.step(
                    self.model(batch.subgraph, batch.x)[: batch.batch_size], ds.y[batch.n_id[: batch.batch_size]]
                )
                total, count = total + loss * batch.batch_size, count + batch.batch_size
            return total / count

    loop = Batches(other, ds, **plain).run()
    assert history["loss"] == loop.losses
    assert same(model, loop.evaluated)


@pytest.mark.parametrize("ema", [None, 0.7])
def test_the_best_epoch_is_that_of_the_metric(ema: float | None) -> None:
    task = make_task(num_nodes=90)
    model, other = make_model(task, dropout=0.0), make_model(task, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trainer = Trainer(model, task, optimizer=optimizer, loss=focal, best="f1_macro", ema=ema)
    history = trainer.fit(30)
    loop = Loop(other, task, loss=focal, **({} if ema is None else {"ema": ema})).run(30, numpy_f1)
    assert history.best is not None and history.best.metrics["val_f1_macro"] == pytest.approx(loop.best[0], abs=1e-12)
    assert 1 < history.best.epoch < 30
    assert same(model, loop.best[1])
    trainer.fit(10)
    assert trainer.history["loss"] == loop.run(10).losses  # training goes on from the last weights


@pytest.mark.parametrize("seed", range(5))
def test_all_choices_together_are_a_plain_loop(seed: int, tmp_path: Path) -> None:
    """A loss of one's own with weights of classes, a schedule, clipping, averages, calls, TensorBoard, best by F1."""
    ds = synthetic("cora", scale=0.1, seed=seed)
    weight = torch.linspace(0.5, 2, ds.num_classes)

    def own(logits: Tensor, labels: Tensor) -> Tensor:
        return focal(logits, labels) + functional.cross_entropy(logits, labels, weight)

    torch.manual_seed(seed)
    model, seen = GCN(ds.num_features, 8, ds.num_classes), Recorder()
    other = copy.deepcopy(model)
    given: dict[str, Any] = {"loss": own, "clip": 0.5, "ema": 0.9, "scheduler": cosine}
    loggers = ["csv", "tensorboard"] if importlib.util.find_spec("tensorboard") else ["csv"]
    more: dict[str, Any] = {"callbacks": [seen], "loggers": loggers, "out": tmp_path}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trainer = Trainer(model, ds, optimizer=optimizer, best="f1_macro", **given, **more)
    trainer.prepare()
    if model.function.cost_model is not None:
        other.function.settle(model.function.cost_model)
    history = trainer.fit(EPOCHS)
    loop = Loop(other, ds, rows={"rows": ds.train_idx}, **given).run(EPOCHS, numpy_f1)
    assert history["loss"] == loop.losses and history["lr"] == loop.rates
    assert history.best is not None and history.best.metrics["val_f1_macro"] == pytest.approx(loop.best[0], abs=1e-12)
    assert same(model, loop.best[1])
    assert [call for call in seen.calls if call[0] == "epoch_end"] == [("epoch_end", e + 1) for e in range(EPOCHS)]


def test_patience_follows_the_metric() -> None:
    task = make_task(num_nodes=61)  # parts of different sizes
    assert len({task.train_idx.numel(), task.test_idx.numel(), task.val_idx.numel()}) > 1
    values = iter([0.9, 0.5, 0.6, 0.4, 0.7, 0.8, 0.9])
    seen: list[int] = []

    class Error:
        higher_is_better = False

        def __init__(self) -> None:
            self.value = 0.0

        def reset(self) -> None:
            self.value = 0.0

        def update(self, logits: Tensor, labels: Tensor) -> None:
            seen.append(labels.shape[0])
            self.value = next(values) if len(seen) % 3 == 2 else 1.0  # train, val, test

        def compute(self) -> Tensor:
            return torch.tensor(self.value)

    trainer = Trainer(make_model(task), task, metrics=Error(), best="Error", patience=2)
    history = trainer.fit(20)
    assert history["val_Error"] == pytest.approx([0.9, 0.5, 0.6, 0.4, 0.7, 0.8])
    assert history.best is not None and history.best.epoch == 4 and trainer.stopped_early


@pytest.mark.parametrize(("name", "function"), [("l1", functional.l1_loss), ("huber", functional.huber_loss)])
def test_losses_of_values_by_name(name: str, function: Any) -> None:
    ds = degrees()
    first = Trainer(seeded(SAGE, ds), ds, loss=name, **LAST)
    second = Trainer(seeded(SAGE, ds), ds, loss=function, **LAST)
    assert first.fit(5)["loss"] == second.fit(5)["loss"]
    assert same(first.model, second.model)


def test_the_usual_loss_stays_the_native_one() -> None:
    ds = synthetic("cora", scale=0.1, seed=2)
    for loss in ("cross_entropy", nn.CrossEntropyLoss()):
        plain, named = (Trainer(seeded(GCN, ds), ds, **LAST, **given) for given in ({}, {"loss": loss, "clip": 1e9}))
        assert plain.fit(3)["loss"] == named.fit(3)["loss"]
        assert named._batch.target is not None and type(named._batch.target) is type(plain._batch.target)
        assert named._batch._tape is not None  # type: ignore[union-attr]


SCHEDULED: dict[str, Any] = {
    "loss": focal,
    "clip": 0.5,
    "ema": 0.8,
    "warmup": 2,
    "metrics": "roc_auc",
    "best": "f1_macro",
}


@pytest.mark.parametrize("scheduler", [None, "cosine", "step:3", "plateau:1", cosine, plateau("max")])
@pytest.mark.parametrize("mode", ["full", "mini"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, mode: str, scheduler: Any) -> None:
    ds = synthetic("cora", scale=0.1, seed=2)
    drawn = {} if mode == "full" else {"fanouts": (3, 3), "batch_size": 10}

    def made(name: str) -> tuple[Trainer, Recorder]:
        seen = Recorder()
        options = {**SCHEDULED, "scheduler": scheduler, "callbacks": [seen], "loggers": "csv", **drawn}
        model = seeded(SAGE, ds, dropout=0.4)
        return Trainer(model, ds, mode=mode, lr=0.05, out=tmp_path / name, **options), seen

    whole, seen = made("whole")
    whole.fit(8)
    first, _ = made("parts")

    class Killed(BaseException):
        pass

    done = {"batches": 0}
    train = first._batch.step if mode == "full" else first._batch._train_on  # type: ignore[union-attr]

    def dies(*given: Any) -> Any:
        done["batches"] += 1
        if done["batches"] == (5 if mode == "full" else 9):
            raise Killed
        return train(*given)

    if mode == "full":
        first._batch.step = dies  # type: ignore[method-assign]
    else:
        first._batch._train_on = dies  # type: ignore[method-assign, union-attr]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr("graphweft.train.run_folder.RunFolder.is_due", lambda self: True)
        first.fit(8)
    again, other = made("parts")
    assert again.resume() and again.epoch in (1, 2, 3, 4) and other.count > 0
    again.fit(8 - again.epoch)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert whole.history["lr"] == again.history["lr"] and other.count == seen.count
    assert whole.history["val_f1_macro"] == again.history["val_f1_macro"]
    assert same(whole.model, again.model)
    assert torch.equal(load_run(tmp_path / "parts", ds=ds).predict(), whole.predict())
    with (tmp_path / "parts" / "metrics.csv").open() as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == list(range(1, 9))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"loss": nn.CrossEntropyLoss(WEIGHT)}, "loss"),
        ({"scheduler": lambda o: lr_scheduler.StepLR(o, 4)}, "scheduler"),
        ({"clip": None}, "clip"),
        ({"ema": 0.9}, "ema"),
        ({"warmup": 0}, "warmup"),
        ({"best": None}, "best"),
        ({"class_weight": [1, 2, 3], "loss": None}, "class_weight"),
    ],
)
def test_options_that_change_the_numbers_agree_on_a_resume(tmp_path: Path, other: dict[str, Any], name: str) -> None:
    task = make_task()
    given = {**SCHEDULED, "scheduler": lambda o: lr_scheduler.StepLR(o, 3), "out": tmp_path}
    Trainer(make_model(task), task, **given).fit(2)
    assert Trainer(make_model(task), task, **given).resume()
    with pytest.raises(CheckpointError, match=rf"^resume: expected (loss|metrics|{name}) "):
        Trainer(make_model(task), task, **{**given, **other}).resume()
    with pytest.raises(CheckpointError, match=r"^callbacks: expected those .*, none, got Recorder$"):
        Trainer(make_model(task), task, callbacks=[Recorder()], **given).resume()


def test_losses_of_pairs_and_metrics_of_links() -> None:
    ds = synthetic("cora", scale=0.1, seed=2)
    drawn: dict[str, Any] = {"mode": "mini", "task": "link", "fanouts": (3, 3), "batch_size": 64}
    usual = Trainer(seeded(SAGE, ds), ds, **drawn, **LAST)
    own = Trainer(
        seeded(SAGE, ds),
        ds,
        loss=lambda z, y: functional.binary_cross_entropy_with_logits(z, y),
        metrics={"roc_auc": "roc_auc", "share": lambda scores, labels: ((scores > 0) == (labels > 0)).double().mean()},
        best="mrr",
        **drawn,
        **LAST,
    )
    assert usual.fit(2)["loss"] == pytest.approx(own.fit(2)["loss"], rel=1e-6)
    last = own.history[-1]
    assert last.metrics["val_roc_auc"] == last.val_acc and 0 <= last.metrics["test_share"] <= 1  # type: ignore[operator]


def test_hits_are_those_of_ogb() -> None:
    """OGB: the share of positives that score above the K-th best of all negatives."""
    ds = synthetic("cora", scale=0.1, seed=2)
    given: dict[str, Any] = {"mode": "mini", "task": "link", "fanouts": (3, 3), "batch_size": 64}
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(scores: Tensor, labels: Tensor) -> float:
        seen.append((scores[labels > 0], scores[labels == 0]))
        return 0.0

    trainer = Trainer(seeded(SAGE, ds), ds, metrics=["hits@20", "hits@3", keep], best="hits@20", **given, **LAST)
    history = trainer.fit(2)
    for name, k in (("hits@20", 20), ("hits@3", 3)):
        expected = [float((p > n.sort().values[-k]).double().mean()) for p, n in seen]
        assert [history[e].metrics[f"{part}_{name}"] for e in (0, 1) for part in ("val", "test")] == expected
    assert history.best is not None and history.best_by == "hits@20"
    assert history.best.metrics["val_hits@20"] == max(v for v in history["val_hits@20"] if v is not None)
    with pytest.raises(ConfigError, match=r"^metrics: expected one of roc_auc, average_precision, hits@K for the task"):
        Trainer(seeded(SAGE, ds), ds, metrics="accuracy", **given)
    with pytest.raises(ConfigError, match=r"^metrics: expected one of accuracy, .*, got 'hits@20'"):
        Trainer(seeded(SAGE, ds), ds, metrics="hits@20")
    with pytest.raises(ConfigError, match=r"^best: expected one of accuracy, loss, both, .*, got 'hits@20'"):
        Trainer(seeded(SAGE, ds), ds, best="hits@20")
