"""Training on sampled neighbourhoods: accuracy, the same bits after any interruption, exact evaluation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphweft._errors import CheckpointError, ConfigError
from graphweft.cli import main
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.gin import GIN
from graphweft.nn.sage import SAGE
from graphweft.nn.stack import Stack
from graphweft.runtime.staged import StagedPlan
from graphweft.storage.feature import SparseFeatures
from graphweft.train import mini_batch
from graphweft.train.inference import infer
from graphweft.train.trainer import Trainer


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return synthetic("arxiv", scale=0.02, seed=1)


def made(ds: Dataset, kind: Any = SAGE, **options: Any) -> Trainer:
    torch.manual_seed(5)
    model = kind(ds.num_features, 32, ds.num_classes, num_layers=2, dropout=0.3)
    return Trainer(model, ds, lr=0.01, mode="mini", **{"fanouts": (10, 5), "batch_size": 200, "seed": 3, **options})


def bits(trainer: Trainer) -> list[torch.Tensor]:
    return [t.clone() for t in trainer.model.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", [SAGE, GCN])
def test_accuracy_is_that_of_the_full_batch(ds: Dataset, kind: Any) -> None:
    torch.manual_seed(5)
    full = Trainer(kind(ds.num_features, 32, ds.num_classes, num_layers=2), ds, lr=0.01, eval_every=10)
    full.fit(80)
    torch.manual_seed(5)
    model = kind(ds.num_features, 32, ds.num_classes, num_layers=2)
    mini = Trainer(model, ds, lr=0.01, mode="mini", fanouts=(10, 10), batch_size=256)
    history = mini.fit(12)
    assert history[-1].loss < 0.7 * history[0].loss
    assert mini.evaluate("test") > full.evaluate("test") - 0.03


@pytest.mark.parametrize("kind", [SAGE, GAT])
def test_bits_do_not_depend_on_threads(ds: Dataset, kind: Any, threads_restored: None) -> None:
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        trainer = made(ds, kind)
        trainer.fit(2)
        found.append(bits(trainer))
    assert same(found[0], found[1]) and same(found[0], found[2])


@pytest.mark.parametrize("batch", [1, 3, 7])
@pytest.mark.parametrize("kind", [SAGE, GCN, GIN])
def test_an_epoch_goes_on_where_it_was_left(ds: Dataset, kind: Any, batch: int) -> None:
    whole = made(ds, kind)
    whole.fit(3)

    class LeftError(Exception):
        pass

    first = made(ds, kind)
    first.fit(1)
    state: dict[str, Any] = {}
    assert isinstance(first._batch, mini_batch.MiniBatch)
    train_on = first._batch._train_on

    def leave(given: Any) -> Any:
        if first._batch.loader.state_dict()["position"] == batch + 1:
            raise LeftError
        result = train_on(given)
        if first._batch.loader.state_dict()["position"] == batch:
            first._batch._sum += float(result) * given.batch_size
            first._batch._count += given.batch_size
            state.update(json_safe(first.state_dict()))
            first._batch._sum -= float(result) * given.batch_size
            first._batch._count -= given.batch_size
        return result

    first._batch._train_on = leave  # type: ignore[method-assign]
    with pytest.raises(LeftError):
        first.fit(2)
    again = made(ds, kind)
    again.load_state_dict(state)
    again.fit(2)
    assert same(bits(whole), bits(again))
    assert whole.history["loss"] == again.history["loss"]


def json_safe(state: dict[str, Any]) -> dict[str, Any]:
    """The state as it comes back from a file."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


COMMAND = [
    *("train", "--data", "arxiv", "--scale", "0.02", "--model", "sage", "--mode", "mini"),
    *("--fanouts", "6,4", "--batch-size", "16", "--hidden", "16", "--epochs", "3", "--dropout", "0.2", "--quiet"),
]


def _last(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "last.pt", weights_only=True)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3])
def test_a_killed_command_ends_with_the_same_tensors(
    tmp_path: Path, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*COMMAND, "--out", str(whole)]) == 0
    rng, within = np.random.default_rng(0), 0
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-m", "graphweft", *COMMAND, "--out", str(killed), "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        begun, before = time.monotonic(), (killed / "last.pt").stat().st_mtime if (killed / "last.pt").exists() else 0.0
        while time.monotonic() - begun < 60 and child.poll() is None:
            if (killed / "last.pt").exists() and (killed / "last.pt").stat().st_mtime > before:
                break
            time.sleep(0.01)
        time.sleep(float(rng.random()) * 0.2)
        child.send_signal(signal.SIGKILL)
        child.wait()
        within += _last(killed).get("batches", 0) > 0
    capsys.readouterr()
    assert main([*COMMAND, "--out", str(killed), "--resume", "--json"]) == 0
    assert within > 0  # some checkpoint lay inside an epoch
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mode"] == "mini"
    one, other = _last(whole), _last(killed)
    assert same(list(one["model"].values()), list(other["model"].values()))
    assert same(list(one["best_model"].values()), list(other["best_model"].values()))
    assert torch.equal(one["history"]["loss"], other["history"]["loss"])
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("kind", [SAGE, GCN, GIN])
@pytest.mark.parametrize("sparse", [False, True])
def test_inference_by_tiles_is_the_whole_graphs(ds: Dataset, kind: Any, sparse: bool) -> None:
    model = kind(ds.num_features, 16, ds.num_classes, num_layers=3, dropout=0.5, norm="batch").train()
    assert isinstance(ds.x, torch.Tensor)
    x = SparseFeatures.from_dense(torch.where(ds.x > 0.5, ds.x, 0.0)) if sparse else ds.x
    rows, others = (infer(model, ds.graph, x, tile=tile) for tile in (700, 999))
    assert model.training
    with torch.no_grad():
        expected = model.eval()(ds.graph, x)
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(others, expected, rtol=1e-4, atol=1e-4)


def test_evaluation_goes_by_tiles_where_memory_is_short(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(ds)
    trainer.fit(1)
    expected = trainer.evaluate("val")
    monkeypatch.setattr(mini_batch, "_WHOLE_SHARE", 0.0)
    assert abs(trainer.evaluate("val") - expected) < 0.005


def test_a_plain_module_trains_on_the_batch_as_a_graph(ds: Dataset) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = SAGE(ds.num_features, 16, ds.num_classes)
            self.calls: list[int] = []

        def forward(self, graph: Any, x: Any) -> Any:
            self.calls.append(graph.num_nodes)
            return self.layer(graph, x)

    model = Plain()
    history = Trainer(model, ds, mode="mini", fanouts=(5, 5), batch_size=100, eval_every=9).fit(3)
    assert history[-1].loss < history[0].loss and min(model.calls) < ds.num_nodes


def test_every_step_draws_for_itself(ds: Dataset) -> None:
    """What a model draws while it trains is keyed by the epoch and the place of the batch."""

    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(ds.num_features, ds.num_classes)
            self.drawn: list[float] = []

        def forward(self, graph: Any, x: Any) -> Any:
            if self.training:
                self.drawn.append(float(torch.rand(())))
            return self.layer(x)

    model = Drawing()
    trainer = Trainer(model, ds, mode="mini", fanouts=(2,), batch_size=200, eval_every=1)  # which ends in eval mode
    trainer.fit(3)
    assert len(set(model.drawn)) == len(model.drawn) == 3 * len(trainer._batch.loader)


def test_every_step_of_a_compiled_batch_has_a_dropout_of_its_own(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    linearize = StagedPlan.linearize

    def told(self: StagedPlan, batch: Any, parameters: Any, seed: int) -> Any:
        seeds.append(seed)
        return linearize(self, batch, parameters, seed)

    monkeypatch.setattr(StagedPlan, "linearize", told)
    trainer = made(ds)
    trainer.fit(2)
    assert len(set(seeds)) == len(seeds) == 2 * len(trainer._batch.loader)


def test_evaluation_scores_every_split_and_the_loss_of_the_second(ds: Dataset) -> None:
    trainer = made(ds)
    trainer.fit(1)
    logits, found = trainer._batch.logits(), trainer._batch.evaluate()
    for name, rows in (("train", ds.train_idx), ("val", ds.val_idx), ("test", ds.test_idx)):
        assert found.scores[name] == pytest.approx(float((logits[rows].argmax(1) == ds.y[rows]).double().mean()))
    expected = nn.functional.cross_entropy(logits[ds.val_idx], ds.y[ds.val_idx])
    assert found.val_loss == pytest.approx(float(expected), rel=1e-4)


def test_statistics_of_batch_norm_are_those_of_the_layers_on_the_blocks(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few seeds, so that the factor n / (n - 1) of a layer's rows tells the layers apart."""
    found = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(Stack, "is_staged", lambda self: False)
        torch.manual_seed(5)
        model = SAGE(ds.num_features, 8, ds.num_classes, num_layers=3, norm="batch")
        few = replace(ds, train_idx=ds.train_idx[:6])
        Trainer(model, few, mode="mini", fanouts=(2, 2, 2), batch_size=6, eval_every=9).fit(1)
        found.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    assert any(name.endswith("running_var") for name in found[0])
    for name, buffer in found[0].items():
        torch.testing.assert_close(buffer, found[1][name], rtol=1e-4, atol=1e-6)


def test_several_labels_a_node_train_too(ds: Dataset) -> None:
    y = torch.zeros(ds.num_nodes, 3)
    y[torch.arange(ds.num_nodes), ds.y % 3] = 1.0
    many = Dataset("many", ds.graph, ds.x, y, ds.train_idx, ds.val_idx, ds.test_idx, 3, task="multilabel")
    torch.manual_seed(0)
    trainer = Trainer(SAGE(many.num_features, 16, 3), many, mode="mini", fanouts=(5, 5), batch_size=200)
    history = trainer.fit(4)
    assert history[-1].loss < history[0].loss and trainer.metric == "micro-F1"


def test_what_does_not_fit_is_refused(ds: Dataset) -> None:
    with pytest.raises(ConfigError, match="fanouts: expected 2 numbers, one per layer, got 5,5,5"):
        made(ds, fanouts=(5, 5, 5))
    trainer, other = made(ds), made(ds, batch_size=100)
    trainer.fit(1)
    with pytest.raises(CheckpointError, match="batch_size"):
        other.load_state_dict(trainer.state_dict())
    with pytest.raises(ConfigError, match="loss stays finite"):
        torch.manual_seed(0)
        model = GIN(ds.num_features, 32, ds.num_classes)
        Trainer(model, ds, lr=1e30, optimizer="sgd", mode="mini", fanouts=(5, 5), batch_size=50).fit(5)
