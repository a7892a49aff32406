"""Every option of the training loop with graphs as samples: as a plain loop over the loader, or refused in one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import learnable, write_tu
from plain_loop import CASES, EPOCHS, LAST, Loop, Recorder, balanced, focal, numpy_f1, same
from run_files import assert_same_run
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import graphweft as gw
from graphweft import cli

BATCH = 16


class Means(nn.Module):
    """Plain torch: a message step, the mean over a graph's nodes, a head."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two = nn.Linear(width, 8), nn.Linear(8, out)

    def forward(self, graph: Any, x: Tensor, ptr: Tensor) -> Tensor:
        src, dst = graph.edges()
        rows = self.one(x)
        rows = torch.relu(rows + torch.zeros_like(rows).index_add(0, dst, rows[src]))
        sizes = ptr.diff()
        sums = rows.new_zeros(sizes.numel(), 8).index_add(0, torch.arange(sizes.numel()).repeat_interleave(sizes), rows)
        return self.two(sums / sizes.unsqueeze(1))


class OverGraphs(Loop):
    """The plain loop over batches of graphs."""

    def __init__(self, model: nn.Module, ds: gw.GraphDataset, **given: Any) -> None:
        super().__init__(model, ds, **given)
        self.loader = gw.GraphLoader(ds, BATCH, shuffle=True, seed=7, graphs=ds.train_idx)

    def epoch(self) -> float:
        total = count = 0.0
        self.model.train()
        for batch in self.loader:
            loss = self.step(self.out_of(self.model, batch), batch.y)
            total, count = total + loss * batch.num_graphs, count + batch.num_graphs
        return total / count

    def out_of(self, model: nn.Module, batch: Any) -> Tensor:
        out: Tensor = model(batch.graph, batch.x, batch.ptr)
        return out.squeeze(1) if self.ds.task == "regression" else out

    def all_outputs(self) -> Tensor:
        self.evaluated.eval()
        with torch.no_grad():
            return self.out_of(self.evaluated, next(iter(gw.GraphLoader(self.ds, len(self.ds)))))

    def run(self, epochs: int = EPOCHS, score: Any = None) -> OverGraphs:
        val, labels = self.ds.val_idx, self.ds.y[self.ds.val_idx]
        for _ in range(epochs):
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.losses.append(self.epoch())
            outputs = self.all_outputs()[val]
            if score is not None and score(outputs, labels) > self.best[0]:
                kept = {name: tensor.clone() for name, tensor in self.evaluated.state_dict().items()}
                self.best = score(outputs, labels), kept
            if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
                hits = float((outputs.argmax(1) == labels).double().mean())
                self.scheduler.step(hits if self.scheduler.mode == "max" else float(self.loss(outputs, labels)))
            elif self.scheduler is not None:
                self.scheduler.step()
        return self


def _trainer(ds: gw.GraphDataset, **options: Any) -> gw.Trainer:
    model = Means(ds.num_features, ds.num_classes)
    optimizer = options.pop("optimizer", None) or torch.optim.Adam(model.parameters(), lr=0.05)
    return gw.Trainer(model, ds, seed=7, batch_size=BATCH, optimizer=optimizer, **options)


@pytest.mark.parametrize("case", ["callable", "smoothing", "clip_value", "plateau of the score", "averages", "all"])
def test_classes_of_graphs_train_as_in_a_plain_loop(case: str) -> None:
    ds = learnable(60)
    options, plain = CASES[case]
    if plain.get("loss") == "balanced":
        weight = balanced(ds.y[ds.train_idx], 2)
        plain = {**plain, "loss": nn.CrossEntropyLoss(weight, label_smoothing=0.1)}
    trainer = _trainer(ds, **LAST, **options)
    history = trainer.fit(EPOCHS)
    loop = OverGraphs(Means(4, 2), ds, **plain).run()
    assert history["loss"] == loop.losses
    assert same(trainer.model, loop.evaluated)
    if "lr" in history[0].metrics:
        assert history["lr"] == loop.rates


@pytest.mark.parametrize("loss", ["class_weight", "module"])
def test_weights_of_classes_of_graphs(loss: str) -> None:
    ds, weight = learnable(60), torch.tensor([0.25, 3.0])
    given = {"class_weight": "0.25,3", "module": nn.CrossEntropyLoss(weight)}[loss]
    trainer = _trainer(ds, **LAST, **{"loss" if loss == "module" else loss: given})
    history = trainer.fit(4)
    loop = OverGraphs(Means(4, 2), ds, loss=nn.CrossEntropyLoss(weight)).run(4)
    assert history["loss"] == loop.losses and same(trainer.model, loop.evaluated)


@pytest.mark.parametrize(
    ("loss", "plain"),
    [("l1", functional.l1_loss), ("huber", functional.huber_loss), (nn.SmoothL1Loss(), functional.smooth_l1_loss)],
)
def test_values_of_graphs_train_as_in_a_plain_loop(loss: Any, plain: Any) -> None:
    ds = learnable(60, task="regression")
    trainer = _trainer(ds, loss=loss, clip=0.5, ema=0.8, scheduler="step:3:0.5", best="mae", **LAST)
    history = trainer.fit(5)
    scheduler = lambda o: lr_scheduler.StepLR(o, 3, 0.5)  # noqa: E731
    loop = OverGraphs(Means(4, 1), ds, loss=plain, clip=0.5, ema=0.8, scheduler=scheduler).run(5)
    assert history["loss"] == pytest.approx(loop.losses, rel=1e-6) and history["lr"] == loop.rates
    assert same(trainer.model, loop.evaluated)
    error = (loop.all_outputs() - ds.y)[ds.val_idx].double()
    around = (ds.y[ds.val_idx] - ds.y[ds.val_idx].mean()).double()
    assert history[-1].val_mae == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert history[-1].val_r2 == pytest.approx(1 - float(error @ error / (around @ around)), rel=1e-4)


@pytest.mark.parametrize("ema", [None, 0.7])
def test_the_best_epoch_of_graphs_is_that_of_the_metric(ema: float | None) -> None:
    ds = learnable(90)
    trainer = _trainer(ds, loss=focal, best="f1_macro", ema=ema)
    history = trainer.fit(12)
    loop = OverGraphs(Means(4, 2), ds, loss=focal, **({} if ema is None else {"ema": ema})).run(12, numpy_f1)
    assert history.best is not None and history.best.metrics["val_f1_macro"] == pytest.approx(loop.best[0], abs=1e-12)
    assert same(trainer.model, loop.best[1])
    trainer.fit(3)
    assert trainer.history["loss"] == loop.run(3).losses


def test_metrics_of_graphs_get_outputs_and_labels() -> None:
    ds = learnable(60)

    class Counts:
        higher_is_better = False

        def reset(self) -> None:
            self.count = 0

        def update(self, outputs: Tensor, labels: Tensor) -> None:
            assert outputs.shape == (labels.shape[0], 2)
            self.count += labels.shape[0]

        def compute(self) -> int:
            return self.count

    given = {"roc_auc": "roc_auc", "average": "average_precision", "rows": Counts()}
    record = _trainer(ds, metrics=given, eval_every=2, **LAST).fit(3)[-1]
    loop = OverGraphs(Means(4, 2), ds).run(3)
    margin, test = loop.all_outputs()[:, 1] - loop.all_outputs()[:, 0], ds.test_idx
    above = margin[test][ds.y[test] == 1].unsqueeze(1) - margin[test][ds.y[test] == 0]
    assert record.metrics["test_roc_auc"] == pytest.approx(float((above > 0).double().mean()))
    hits = ds.y[test][margin[test].argsort(descending=True)].double()
    precision = hits.cumsum(0) / torch.arange(1, hits.numel() + 1)
    assert record.metrics["test_average"] == pytest.approx(float(precision[hits == 1].mean()))
    assert record.metrics["train_rows"] == ds.train_idx.numel()


def test_several_labels_of_a_graph_with_a_loss_of_ones_own() -> None:
    one = learnable(60)
    labels = torch.stack([one.y, 1 - one.y], dim=1).float()
    labels[3, 1] = math.nan
    ds = gw.GraphDataset.from_list(list(one), y=labels).split(seed=0)
    weigh = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 0.5]))
    own = lambda out, y: weigh(out[~y.isnan().any(1)], y[~y.isnan().any(1)])  # noqa: E731
    trainer = _trainer(ds, loss=own, clip_value=0.1, metrics="f1_macro", best="f1_micro", restore_best=False)
    history = trainer.fit(4)
    loop = OverGraphs(Means(4, 2), ds, loss=own, clip_value=0.1).run(4)
    assert history["loss"] == loop.losses and same(trainer.model, loop.evaluated)
    assert history.best is not None and history.best.metrics["val_f1_micro"] == history.best.val_acc


SCHEDULED: dict[str, Any] = {"clip": 0.5, "ema": 0.8, "warmup": 2, "loggers": "csv"}


@pytest.mark.parametrize(("task", "scheduler"), [("classification", "cosine"), ("regression", "plateau:1")])
def test_a_killed_run_of_graphs_has_the_same_bits(tmp_path: Path, task: str, scheduler: str) -> None:
    ds = learnable(60, task=task)
    best = {"loss": focal, "best": "f1_macro"} if task == "classification" else {"loss": "huber", "best": "mae"}

    def made(name: str) -> tuple[gw.Trainer, Recorder]:
        seen = Recorder()
        torch.manual_seed(0)
        model = gw.nn.GraphModel.for_data(ds, 8, num_layers=2, dropout=0.3)
        options = {**SCHEDULED, **best, "scheduler": scheduler, "callbacks": [seen], "out": tmp_path / name}
        return gw.Trainer(model, ds, lr=0.02, batch_size=BATCH, seed=7, **options), seen

    whole, seen = made("whole")
    whole.fit(5)
    first, _ = made("parts")

    class Killed(BaseException):
        pass

    done, train = {"batches": 0}, first._batch._train_on  # type: ignore[union-attr]

    def dies(*given: Any) -> Any:
        done["batches"] += 1
        if done["batches"] == 8:
            raise Killed
        return train(*given)

    first._batch._train_on = dies  # type: ignore[method-assign, union-attr]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr("graphweft.train.run_folder.RunFolder.is_due", lambda self: True)
        first.fit(5)
    again, other = made("parts")
    assert again.resume() and 0 < again.epoch < 5 and other.count > 0
    again.fit(5 - again.epoch)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert other.count == seen.count and same(whole.model, again.model)
    assert torch.equal(gw.load_run(tmp_path / "parts", ds=ds).predict(), whole.predict())
    assert (tmp_path / "parts" / "metrics.csv").read_text().count("\n") == 6


def test_callbacks_and_loggers_of_graphs() -> None:
    ds, seen, rows = learnable(60), Recorder(last=2), []

    class Keeps:
        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            rows.append((step, metrics))

    history = _trainer(ds, callbacks=seen, loggers=Keeps()).fit(5)
    batches = -(-ds.train_idx.numel() // BATCH)
    assert [call for call in seen.calls if call[0] == "batch_end"] == [("batch_end", i + 1) for i in range(batches)] * 2
    assert len(history) == 2 and rows == [(record.epoch, record.values()) for record in history]


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("regression", {"class_weight": "balanced"}, "class_weight=balanced cannot be combined with labels"),
        ("regression", {"label_smoothing": 0.1}, "label_smoothing=0.1 cannot be combined with labels"),
        ("regression", {"metrics": "f1_macro"}, "metrics: expected one of mae, rmse, r2 for values, got 'f1_macro'"),
        ("regression", {"loss": "cross_entropy"}, "loss: expected one of mse, l1, huber, got 'cross_entropy'"),
        ("classification", {"best": "mrr"}, "best: expected one of"),
        ("classification", {"loss": "huber"}, "loss: expected one of cross_entropy, got 'huber'"),
        ("classification", {"class_weight": [1.0]}, "class_weight: expected 2 numbers >= 0, one per class"),
        ("classification", {"loggers": "csv"}, "csv"),
        ("classification", {"metrics": {"ap": "average_precision"}}, "metrics: expected another name than ap, which"),
        ("classification", {"patience": 3, "split": "none"}, "patience=3 cannot be combined with a split without"),
        ("classification", {"memory": "1GB"}, "memory"),
        ("classification", {"mode": "macro"}, "mode"),
    ],
)
def test_what_does_not_fit_graphs_is_one_line(task: str, options: dict[str, Any], message: str) -> None:
    ds = learnable(30, task=task)
    ds = ds.split(0.8, 0.0, 0.2) if options.pop("split", None) else ds
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        _trainer(ds, **options)
    assert "\n" not in str(found.value)


def test_flags_of_the_loop_reach_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run by flags has the numbers of the run by keywords."""
    write_tu(tmp_path / "SET", "SET", count=40)
    flags = "--class-weight balanced --label-smoothing 0.1 --scheduler step:2:0.5 --warmup 1 --clip 0.5 --ema 0.9"
    flags += " --metrics roc_auc --best f1_macro --logger csv --edge-data ignore"
    words = ["train", "--data", str(tmp_path / "SET"), "--layers", "2", "--hidden", "8", "--epochs", "4", "--quiet"]
    assert cli.main([*words, *flags.split(), "--out", str(tmp_path / "run"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    ds = gw.load(tmp_path / "SET")
    assert isinstance(ds, gw.GraphDataset)
    torch.manual_seed(0)
    options: dict[str, Any] = {"class_weight": "balanced", "label_smoothing": 0.1, "scheduler": "step:2:0.5"}
    options |= {"warmup": 1, "clip": 0.5, "ema": 0.9, "metrics": "roc_auc", "best": "f1_macro", "edge_data": "ignore"}
    history = gw.Trainer(gw.nn.GraphModel.for_data(ds, 8, num_layers=2), ds, **options).fit(4)
    assert summary["loss"] == history[-1].loss and history.best is not None
    assert summary["best_val_f1_macro"] == history.best.metrics["val_f1_macro"]
    assert summary["test_roc_auc"] == history[-1].metrics["test_roc_auc"]
    assert (tmp_path / "run" / "metrics.csv").is_file()
