"""Training on stand-ins: same numbers as a plain loop, same bits after a resume."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import assert_same_run
from run_files import lines as _lines
from standin import DenseGCN, Task, make_model, make_task
from torch.nn import functional

from graphweft._errors import CheckpointError, ConfigError, DataError, ShapeError
from graphweft.data.synthetic import synthetic
from graphweft.nn.gcn import GCN
from graphweft.train.checkpoint import load_checkpoint
from graphweft.train.interrupt import Interrupted
from graphweft.train.trainer import Trainer


def _trainer(task: Task, out: Path | None = None, **options) -> Trainer:
    return Trainer(make_model(task, dropout=options.pop("dropout", 0.5)), task, out=out, **options)


def test_an_epoch_is_a_plain_step_of_adam() -> None:
    task = make_task()
    options = {"weight_decay": 5e-2, "weight_decay_on": "first", "restore_best": False}
    trainer = _trainer(task, lr=0.02, dropout=0.0, **options)
    model = make_model(task, dropout=0.0).double()
    groups = [
        {"params": model.layers[0].parameters(), "weight_decay": 5e-2},
        {"params": model.layers[1].parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.02)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        logits = model(task.graph.double(), task.x.double())
        loss = functional.cross_entropy(logits[task.train_idx], task.y[task.train_idx])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    history = trainer.fit(15)
    assert history["loss"] == pytest.approx(losses, rel=1e-4)
    with torch.no_grad():
        predicted = model(task.graph.double(), task.x.double()).argmax(1)
    assert torch.equal(trainer.predict(), predicted)
    for split in ("train", "val", "test"):
        rows = getattr(task, f"{split}_idx")
        assert trainer.evaluate(split) == float((predicted[rows] == task.y[rows]).float().mean(dtype=torch.float64))
        assert history[-1].__getattribute__(f"{split}_acc") == trainer.evaluate(split)


def test_several_labels_a_node() -> None:
    task = make_task(multi_label=True)
    trainer = _trainer(task, lr=0.05, dropout=0.0, restore_best=False)
    with torch.no_grad():
        logits = trainer.model(task.graph, task.x)[task.train_idx].double()
    labels = task.y[task.train_idx].double()
    p = torch.sigmoid(logits)
    expected = -(labels * p.log() + (1 - labels) * (1 - p).log()).mean()
    history = trainer.fit(150)
    assert history[0].loss == pytest.approx(float(expected), rel=1e-5)
    assert trainer.metric == "micro-F1" and trainer.predict().dtype == torch.bool
    assert trainer.predict().shape == task.y.shape
    assert trainer.evaluate("train") > 0.9


@pytest.mark.parametrize("multi_label", [False, True])
def test_validation_loss_is_that_of_torch_after_the_update(multi_label: bool) -> None:
    task = make_task(multi_label=multi_label)
    trainer = _trainer(task, lr=0.05, dropout=0.0, restore_best=False)
    history = trainer.fit(3)
    with torch.no_grad():
        logits = trainer.model(task.graph, task.x)[task.val_idx].double()
    labels = task.y[task.val_idx]
    loss = functional.binary_cross_entropy_with_logits if multi_label else functional.cross_entropy
    assert history[-1].val_loss == pytest.approx(
        float(loss(logits, labels.double() if multi_label else labels)), rel=1e-5
    )


@pytest.mark.parametrize("stop_on", ["accuracy", "loss", "both"])
def test_patience_counts_epochs_without_a_better_validation(stop_on: str) -> None:
    trainer = _trainer(make_task(), lr=0.05, patience=4, stop_on=stop_on)
    history = trainer.fit(400)
    assert trainer.stopped_early and len(history) - history.improved == 4
    pairs = [(-(r.val_acc or 0.0), r.val_loss) for r in history]
    chosen = {"accuracy": [0], "loss": [1], "both": [0, 1]}[stop_on]
    improved = [
        any(
            pair[i] < min((p[i] for p in pairs[:at]), default=1e9)
            or (stop_on == "both" and pair[i] == min(p[i] for p in pairs[:at]))
            for i in chosen
        )
        for at, pair in enumerate(pairs)
    ]
    assert not any(improved[-4:]) and improved[-5]


def test_the_seed_decides_and_the_callers_generator_is_left_alone() -> None:
    task = make_task()
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    a = _trainer(task, seed=1).fit(5)["loss"]
    assert torch.equal(torch.rand(3), expected)
    assert _trainer(task, seed=1).fit(5)["loss"] == a
    assert _trainer(task, seed=2).fit(5)["loss"] != a


def test_two_fits_are_one_fit(tmp_path: Path) -> None:
    task = make_task()
    _trainer(task, tmp_path / "a").fit(12)
    trainer = _trainer(task, tmp_path / "b")
    trainer.fit(5)
    assert len(trainer.fit(7)) == 12
    assert_same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd"}, {"optimizer": "adamw", "weight_decay_on": "all"}])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, options: dict) -> None:
    task = make_task()
    options = {"weight_decay": 1e-2, **options}
    _trainer(task, tmp_path / "whole", **options).fit(20)
    _trainer(task, tmp_path / "parts", **options).fit(8)
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 9, "loss": 1.0}\n{"epoch": 10, "lo')  # a later line, and a torn one
    (tmp_path / "parts" / ".last.pt.partial").write_bytes(b"half")
    torch.manual_seed(99)
    trainer = _trainer(task, tmp_path / "parts", **options)
    assert trainer.resume() and trainer.epoch == 8
    trainer.fit(12)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert [line["epoch"] for line in _lines(tmp_path / "parts")] == list(range(1, 21))
    assert not (tmp_path / "parts" / ".last.pt.partial").exists()


def test_best_is_the_model_of_the_best_validation_epoch(tmp_path: Path) -> None:
    task = make_task()
    trainer = _trainer(task, tmp_path, lr=0.05)
    history = trainer.fit(30)
    best = load_checkpoint(tmp_path / "best.pt")
    values = history["val_acc"]
    assert best["epoch"] == values.index(max(values)) + 1 and best["best_val_acc"] == max(values)
    model = make_model(task)
    model.load_state_dict(best["model"])
    again = Trainer(model, task)
    assert again.evaluate("val") == max(values)
    assert again.evaluate("test") == history[best["epoch"] - 1].test_acc


def test_no_measured_time_outside_keys_that_say_so(tmp_path: Path) -> None:
    task = make_task()
    for name in ("a", "b"):
        _trainer(task, tmp_path / name).fit(3)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_no_run_yet_means_nothing_to_resume(tmp_path: Path) -> None:
    trainer = _trainer(make_task(), tmp_path / "none")
    assert not trainer.resume() and not (tmp_path / "none").exists()
    assert not _trainer(make_task()).resume()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.5}, "expected lr 0.01 as in the run that"),
        ({"seed": 7}, "expected seed 0 .* got 7"),
        ({"config": {"hidden": 64}}, "expected hidden 8 .* got 64"),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, options: dict, words: str) -> None:
    task = make_task()
    _trainer(task, tmp_path, config={"hidden": 8}).fit(2)
    with pytest.raises(CheckpointError, match=words) as caught:
        _trainer(task, tmp_path, **{"config": {"hidden": 8}, **options}).resume()
    assert "\n" not in str(caught.value)


def test_changed_data_and_another_model_are_refused(tmp_path: Path) -> None:
    task = make_task()
    _trainer(task, tmp_path).fit(2)
    with pytest.raises(CheckpointError, match="expected data_checksum"):
        _trainer(replace(task, y=1 - task.y.clamp(max=1)), tmp_path).resume()
    for changed in (replace(task, x=task.x + 1), replace(task, graph=2 * task.graph)):
        with pytest.raises(CheckpointError, match=r"expected the features and edges of the run that .* got others"):
            _trainer(changed, tmp_path).resume()
    with pytest.raises(CheckpointError, match="expected a state of this model and optimiser"):
        Trainer(DenseGCN(task.num_features, 9, task.num_classes), task, out=tmp_path).resume()


def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    task = make_task()
    _trainer(task, tmp_path).fit(2)
    (tmp_path / "last.pt").write_bytes((tmp_path / "last.pt").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged file"):
        _trainer(task, tmp_path).resume()
    assert len(_lines(tmp_path)) == 2


def test_a_new_run_moves_the_old_one_aside(tmp_path: Path) -> None:
    task = make_task()
    _trainer(task, tmp_path).fit(2)
    old = (tmp_path / "last.pt").read_bytes()
    trainer = _trainer(task, tmp_path)
    trainer.fit(3)
    assert trainer.moved_to == tmp_path / "earlier-1"
    assert (tmp_path / "earlier-1" / "last.pt").read_bytes() == old
    assert len(_lines(tmp_path)) == 3 and len(_lines(tmp_path / "earlier-1")) == 2
    _trainer(task, tmp_path).fit(1)
    assert len(_lines(tmp_path / "earlier-2")) == 3


def test_two_runs_cannot_write_one_folder(tmp_path: Path) -> None:
    task = make_task()
    seen: list[str] = []

    class Nosy(DenseGCN):
        def forward(self, graph, x):
            if not seen:
                seen.append("")
                with pytest.raises(ConfigError, match="no other run writes to") as caught:
                    _trainer(task, tmp_path).fit(1)
                seen[0] = str(caught.value)
            return super().forward(graph, x)

    Trainer(Nosy(task.num_features, 8, task.num_classes), task, out=tmp_path).fit(2)
    assert seen[0]


def test_early_stopping_counts_from_the_best_epoch(tmp_path: Path) -> None:
    task = make_task()
    history = _trainer(task, tmp_path / "whole", lr=0.05, patience=5).fit(500)
    assert history.best is not None and len(history) == history.best.epoch + 5
    _trainer(task, tmp_path / "parts", lr=0.05, patience=5).fit(history.best.epoch + 1)
    trainer = _trainer(task, tmp_path / "parts", lr=0.05, patience=5)
    trainer.resume()
    trainer.fit(500)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert len(trainer.fit(10)) == len(history)


def test_evaluation_is_only_where_it_is_due() -> None:
    history = _trainer(make_task(), eval_every=4).fit(10)
    assert [r.epoch for r in history if r.val_acc is not None] == [4, 8, 10]
    assert all((r.eval_seconds > 0) == (r.val_acc is not None) for r in history)


def test_splits_without_labels() -> None:
    task = make_task()
    none = torch.zeros(0, dtype=torch.int64)
    trainer = _trainer(replace(task, val_idx=none, test_idx=none))
    history = trainer.fit(3)
    assert history["val_acc"] == [None] * 3 and history.best is None
    with pytest.raises(ConfigError, match="patience=3 cannot be combined with a split without validation labels"):
        _trainer(replace(task, val_idx=none), patience=3)
    with pytest.raises(DataError, match="planted: expected nodes with a label in the test split, got none"):
        trainer.evaluate("test")
    with pytest.raises(DataError, match="at least one training node with a label"):
        _trainer(replace(task, y=torch.full_like(task.y, -1)))


def test_nodes_without_a_label_count_nowhere() -> None:
    task = make_task()
    y = task.y.clone()
    y[task.train_idx[:5]] = -1
    y[task.val_idx[:7]] = -1
    fewer = replace(task, train_idx=task.train_idx[5:], val_idx=task.val_idx[7:])
    assert _trainer(replace(task, y=y)).fit(4)["val_acc"] == _trainer(fewer).fit(4)["val_acc"]


def test_without_validation_the_best_file_holds_the_last_epoch(tmp_path: Path) -> None:
    task = replace(make_task(), val_idx=torch.zeros(0, dtype=torch.int64))
    _trainer(task, tmp_path).fit(3)
    last, best = load_checkpoint(tmp_path / "last.pt"), load_checkpoint(tmp_path / "best.pt")
    assert best["epoch"] == 3 and best["best_val_acc"] is None
    torch.testing.assert_close(best["model"], last["model"], rtol=0, atol=0)


def test_a_loss_that_is_not_finite_stops_with_one_line() -> None:
    task = make_task()
    with pytest.raises(ConfigError, match=r"lr: expected a rate at which the loss stays finite, got 1e\+30") as caught:
        _trainer(task, lr=1e30, optimizer="sgd").fit(50)
    assert "\n" not in str(caught.value)


def test_logits_of_the_wrong_shape() -> None:
    task = make_task()
    with pytest.raises(ShapeError, match=r"expected logits of shape \(60, 3\), got \(60, 4\)"):
        Trainer(DenseGCN(task.num_features, 8, 4), task).fit(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0}, "lr: expected a finite number > 0, got 0"),
        ({"lr": float("nan")}, "lr: expected a finite number > 0, got nan"),
        ({"weight_decay": -1.0}, "weight_decay: expected a finite number >= 0, got -1.0"),
        ({"weight_decay_on": "last"}, "weight_decay_on: expected one of first, all, got 'last'"),
        ({"optimizer": "lion"}, "optimizer: expected one of adam, adamw, sgd, got 'lion'"),
        ({"seed": -1}, "seed: expected an integer from 0"),
        ({"patience": -1}, "patience: expected an integer >= 0, got -1"),
        ({"stop_on": "f1"}, "stop_on: expected one of accuracy, loss, both, got 'f1'"),
        ({"eval_every": 0}, "eval_every: expected an integer >= 1, got 0"),
        ({"mode": "mini", "fanouts": (5, 0)}, "fanouts: expected numbers >= 1, or -1 for all, one a layer"),
        ({"mode": "mini", "batch_size": 0}, "batch_size: expected an integer from 1"),
        ({"mode": "macro"}, "macro: expected parts:B/P with mode macro on a dataset in memory, got None"),
        ({"mode": "fast"}, "mode: expected one of full, mini, macro, auto, mapped, got 'fast'$"),
    ],
)
def test_options_out_of_range(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _trainer(make_task(), **options)
    assert _trainer(make_task(), mode="auto").mode == "full"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_after_the_epoch_and_saves(tmp_path: Path, signum: int) -> None:
    task = make_task()
    calls = []

    class Interrupting(DenseGCN):
        def forward(self, graph, x):
            if self.training:
                calls.append(0)
                if len(calls) == 4:
                    os.kill(os.getpid(), signum)
            return super().forward(graph, x)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Interrupting(task.num_features, 8, task.num_classes)
    former = signal.getsignal(signum)
    with pytest.raises(Interrupted) as caught:
        Trainer(model, task, out=tmp_path / "parts").fit(10)
    assert caught.value.epoch == 4 and caught.value.signum == signum and isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(signum) is former
    assert load_checkpoint(tmp_path / "parts" / "last.pt")["epoch"] == 4
    trainer = _trainer(task, tmp_path / "parts")
    trainer.resume()
    trainer.fit(6)
    _trainer(task, tmp_path / "whole").fit(10)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    task = make_task()

    class Stubborn(DenseGCN):
        def forward(self, graph, x):
            if self.training:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return super().forward(graph, x)

    with pytest.raises(KeyboardInterrupt):
        Trainer(Stubborn(task.num_features, 8, task.num_classes), task, out=tmp_path).fit(10)
    assert not (tmp_path / "last.pt").exists()


def test_what_is_no_module_or_dataset_is_told_in_one_line() -> None:
    ds = synthetic("cora", scale=0.05, seed=0)
    for model in (None, "gcn"):
        wrong: Any = model
        with pytest.raises(ConfigError, match=f"^Trainer: expected model as .*, got {type(model).__name__}$"):
            Trainer(wrong, ds)
    for data in (None, ds.graph, {"x": ds.x}):
        other: Any = data
        with pytest.raises(ConfigError, match=rf"^Trainer: expected ds as a gw.Dataset, got {type(data).__name__}$"):
            Trainer(GCN(ds.num_features, 4, ds.num_classes), other)
