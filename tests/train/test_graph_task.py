"""Tasks whose samples are graphs: equal to a plain loop, learning, resuming bit for bit, by trainer and command."""

from __future__ import annotations

import copy
import csv
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from graphs import learnable, write_tu
from plain_loop import same
from torch import nn
from torch.nn import functional

import graphweft as gw
from graphweft import cli
from graphweft._draws import keyed, mixed
from graphweft.loader.graphs import GraphLoader
from graphweft.runtime.compile import CompiledFunction

QUIET = ("--quiet", "--edge-data", "ignore")


def _trainer(ds: gw.GraphDataset, model: nn.Module | None = None, **more: Any) -> gw.Trainer:
    torch.manual_seed(0)
    model = model or gw.nn.GraphModel.for_data(ds, 8, num_layers=2, dropout=0.2, readout="mean")
    return gw.Trainer(model, ds, **{"lr": 0.02, "batch_size": 16, "seed": 3, **more})


@pytest.mark.parametrize("conv", ["gin", "gcn", "gat", "transformer"])
def test_steps_without_the_engine_have_the_bits_of_calls_of_the_model(conv: str) -> None:
    """Batch norms, dropout within the layers, several readouts; a program is looked up once a class of sizes."""
    ds = learnable(80)
    runs = []
    for usual in (False, True):
        torch.manual_seed(0)
        options: dict[str, Any] = {"heads": 2} if conv in ("gat", "transformer") else {}
        options |= {"num_layers": 2, "conv": conv, "dropout": 0.2, "readout": "mean+max"}
        model: Any = gw.nn.GraphModel.for_data(ds, 8, **options)
        model.encoder.dropout = 0.3
        with mock.patch("graphweft.train.graph_task.repeated", lambda *_: None) if usual else nullcontext():
            trainer = _trainer(ds, model, accumulate=2)
            history = trainer.fit(2)
            with mock.patch.object(
                CompiledFunction, "ready", autospec=True, side_effect=CompiledFunction.ready
            ) as asked:
                history = trainer.fit(1)
        mine = sum(call.args[0] is model.encoder.function for call in asked.call_args_list)
        batch: Any = trainer._batch
        assert (mine >= 2 * len(batch.loader)) if usual else (mine <= 2), mine  # evaluations ask as well
        runs.append((history["loss"], history["val_acc"], model.state_dict(), trainer.predict()))
    for a, b in zip(*runs, strict=True):
        assert same(a, b) if isinstance(a, dict) else torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_a_hook_or_a_changed_layer_counts_at_once() -> None:
    seen: list[int] = []
    trainer = _trainer(learnable(80))
    trainer.fit(1)
    model: Any = trainer.model
    batch: Any = trainer._batch
    handle = model.encoder.register_forward_hook(lambda *_: seen.append(1))
    trainer.fit(1)
    assert len(seen) >= len(batch.loader)
    handle.remove()
    model.encoder.layers[0].reduce = "max"
    with mock.patch("graphweft.train.graph_task.repeated", lambda *_: None):
        expected = batch.logits()
    assert torch.equal(batch.logits(), expected)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_it_equals_a_plain_loop(task: str) -> None:
    """The same loader, model and optimiser written out; without norms, before which biases have no gradient."""
    ds = learnable(80, task=task)
    model = gw.nn.GraphModel.for_data(ds, 8, num_layers=2, dropout=0.2, readout="mean", norm=None)
    trainer = _trainer(ds, model, restore_best=False)
    model = copy.deepcopy(trainer.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    history = trainer.fit(3)
    loader = gw.GraphLoader(ds, 16, shuffle=True, seed=3, graphs=ds.train_idx)
    for epoch in range(3):
        total = 0.0
        model.train()
        for place, batch in enumerate(loader):
            with keyed(mixed(mixed(3, epoch), place + 1)):
                optimizer.zero_grad()
                out = model(batch.graph, batch.x, batch.ptr)
            if task == "regression":
                loss = functional.mse_loss(out.squeeze(1), batch.y)
            else:
                loss = functional.cross_entropy(out, batch.y)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * batch.num_graphs
        assert history[epoch].loss == pytest.approx(total / ds.train_idx.numel(), rel=1e-5)
    for p, q in zip(model.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    model.eval()
    whole = next(iter(gw.GraphLoader(ds, len(ds))))
    with torch.no_grad():
        out = model(whole)
    if task == "regression":
        error = (out.squeeze(1) - ds.y)[ds.test_idx]
        assert trainer.evaluate("test") == pytest.approx(float(error.square().mean().sqrt()), rel=1e-3)
        assert history[-1].test_mae == pytest.approx(float(error.abs().mean()), rel=1e-3)
    else:
        hits = out.argmax(1) == ds.y
        assert trainer.evaluate("test") == pytest.approx(float(hits[ds.test_idx].float().mean()))


def test_it_learns_and_predicts_a_row_a_graph() -> None:
    ds = learnable(150)
    trainer = _trainer(ds)
    assert (trainer.task, trainer.mode, trainer.metric) == ("graph_classification", "mini", "accuracy")
    trainer.fit(25)
    assert trainer.evaluate("test") >= 0.85
    found = trainer.predictions()
    assert found.labels.shape == (150,) and list(found.columns()) == ["graph", "prediction", "p_0", "p_1"]
    torch.testing.assert_close(trainer.predict(probabilities=True).sum(1), torch.ones(150))


def test_several_labels_a_graph() -> None:
    ds = learnable(60)
    two = torch.stack([ds.y, 1 - ds.y], dim=1).float()
    many = gw.GraphDataset.from_list(list(ds), y=two).split(seed=0)
    trainer = _trainer(many)
    trainer.fit(15)
    assert trainer.metric == "micro-F1" and trainer.predict().shape == (60, 2) and trainer.evaluate("train") > 0.8


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resume_is_bit_for_bit(tmp_path: Path, accumulate: int) -> None:
    ds = learnable(70)
    whole = _trainer(ds, out=tmp_path / "whole", accumulate=accumulate)
    whole.fit(6)
    begun = _trainer(ds, out=tmp_path / "parts", accumulate=accumulate)
    begun.fit(4)
    again = _trainer(ds, out=tmp_path / "parts", accumulate=accumulate)
    assert again.resume() and again.epoch == 4
    again.fit(2)
    a, b = whole.state_dict(), again.state_dict()
    assert all(torch.equal(t, b["model"][name]) for name, t in a["model"].items())
    assert a["history"]["loss"].tolist() == b["history"]["loss"].tolist()
    assert torch.equal(whole.predict(), again.predict())
    other = _trainer(ds, out=tmp_path / "parts", batch_size=8, accumulate=accumulate)
    with pytest.raises(gw.errors.CheckpointError, match="batch_size"):
        other.resume()


def test_a_stop_within_an_epoch_is_taken_up(tmp_path: Path) -> None:
    """A checkpoint between two batches leads to the same bits."""
    ds = learnable(70)
    whole = _trainer(ds, restore_best=False)
    whole.fit(2)
    begun = _trainer(ds, restore_best=False)
    states: list[dict[str, Any]] = []
    begun._batch.after_batch = lambda done, total, loss: None

    class Stop(Exception):
        pass

    def after(done: int, total: int, loss: float) -> None:
        if done == 2:
            states.append(copy.deepcopy(begun.state_dict()))
            raise Stop

    begun.prepare()
    with mock.patch("graphweft.train.trainer.between_batches", lambda *parts: after), pytest.raises(Stop):
        begun.fit(2)
    fresh = _trainer(ds, restore_best=False)
    fresh.load_state_dict(states[0])
    fresh.fit(2)
    for p, q in zip(whole.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_models_of_other_forms() -> None:
    """Called as PyTorch Geometric's models, or with the batch; weights of edges go where they are asked for."""
    ds = learnable(40)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            out = x.new_zeros(int(batch[-1]) + 1, 4).index_add(0, batch, x)
            return self.lin(out)

    class OfBatch(Plain):
        def forward(self, data: Any) -> torch.Tensor:  # type: ignore[override]
            return super().forward(data.x, data.edge_index, data.batch)

    class WithPtr(Plain):
        def forward(self, graph: gw.Graph, x: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.lin(gw.nn.readout(x, ptr))

    scores = [_trainer(ds, model()).fit(3)[-1].loss for model in (Plain, OfBatch, WithPtr)]
    assert scores[0] == pytest.approx(scores[1]) == pytest.approx(scores[2], rel=1e-4)


def test_edge_weights_reach_the_model() -> None:
    ds = learnable(40)
    plain = gw.GraphDataset.of(ds)
    weighted = gw.GraphDataset.from_list(
        list(ds), y=ds.y, edge_weight=[torch.full((s.graph.num_edges,), 0.5) for s in ds], name="made"
    )
    doubled = gw.GraphDataset.from_list(list(ds), y=ds.y, edge_weight=[torch.ones(s.graph.num_edges) for s in ds])
    losses = [_trainer(d.split(seed=0)).fit(1)[0].loss for d in (plain, weighted, doubled)]
    assert losses[0] == pytest.approx(losses[2], rel=1e-4) and losses[1] != pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "graph_regression"}, "task: expected graph_classification for made, whose labels are for class"),
        ({"sampler": "shadow"}, "sampler='shadow' cannot be combined with a set of graphs"),
        ({"fanouts": (3,)}, r"fanouts=\(3,\) cannot be combined with a set of graphs"),
        ({"prepare": "subtasks"}, "prepare='subtasks' cannot be combined with a set of graphs"),
        ({"macro": "large:1/2"}, "macro"),
        ({"task": "node"}, "task: expected one of nodes, link, graphs, graph_classification, graph_regression"),
        ({"batch_size": 0}, "batch_size: expected an integer"),
        ({"model": gw.nn.GIN(4, 8, 2)}, "Trainer: expected a model of graphs, such as gw.nn.GraphModel, got GIN"),
        ({"model": nn.Linear(4, 2)}, "Trainer: expected a model"),
    ],
)
def test_wrong_use_is_told_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gw.errors.GraphWeftError, match=message) as found:
        _trainer(learnable(30), **options).fit(1)
    assert "\n" not in str(found.value)


def test_the_task_needs_graphs() -> None:
    ds = gw.synthetic("default", scale=0.01)
    with pytest.raises(gw.errors.DataError, match="expected a set of graphs for the task graphs, got one graph"):
        gw.Trainer(gw.nn.GCN(ds.num_features, 4, ds.num_classes), ds, task="graphs")


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_the_command_finds_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tu(tmp_path / "SET", "SET", count=40)
    run = tmp_path / "run"
    words = ("train", "--data", tmp_path / "SET", "--hidden", 8, "--layers", 2, *QUIET, "--out", run)
    code, out, err = _run(capsys, *words, "--epochs", 4, "--fold", 2, "--json")
    summary = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert (summary["task"], summary["model"], summary["num_graphs"]) == ("graph_classification", "gin", 40)
    code, out, err = _run(capsys, "train", "--out", run, "--resume", "--epochs", 6, "--quiet", "--json")
    assert code == 0 and json.loads(out)["resumed_after_epoch"] == 4, err
    for more in ((), ("--data", tmp_path / "SET")):
        code, out, err = _run(capsys, "predict", run, "--out", tmp_path / f"p{len(more)}.csv", *more)
        assert code == 0, err
    assert (tmp_path / "p0.csv").read_bytes() == (tmp_path / "p2.csv").read_bytes()
    rows = list(csv.DictReader((tmp_path / "p0.csv").read_text().splitlines()))
    assert len(rows) == 40 and set(rows[0]) == {"graph", "prediction", "p_-1", "p_1"}
    loaded = gw.load_run(run)
    assert type(loaded.model).__name__ == "GraphModel"
    assert loaded.evaluate("test") == pytest.approx(
        json.loads((run / "summary.json").read_text())["test_acc_at_best_val"]
    )
    code, out, err = _run(capsys, "explain", "--data", tmp_path / "SET", "--model", "gin", "--edge-data", "ignore")
    assert code == 0 and out.startswith("GraphModel on ") and "batches of 24 graphs" in out, err


def test_mode_full_takes_all_graphs_in_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = learnable(60)
    model = gw.nn.GraphModel.for_data(ds, 8, num_layers=2, norm=None)
    other = copy.deepcopy(model)
    history = gw.Trainer(model, ds, mode="full", lr=0.02, restore_best=False).fit(3)
    adam, rows = torch.optim.Adam(other.parameters(), lr=0.02), ds[ds.train_idx]
    whole = next(iter(gw.GraphLoader(rows, len(rows))))
    for epoch in range(3):
        adam.zero_grad()
        loss = functional.cross_entropy(other(whole), whole.y)
        loss.backward()
        adam.step()
        assert history[epoch].loss == pytest.approx(float(loss.detach()), rel=1e-4)
    message = "batch_size: expected mode mini as well, got mode 'full'"
    with pytest.raises(gw.errors.ConfigError, match=message):
        gw.Trainer(model, ds, mode="full", batch_size=8)
    write_tu(tmp_path / "SET", "SET", count=40)
    words = ("train", "--data", tmp_path / "SET", "--hidden", 8, "--layers", 2, *QUIET, "--mode", "full")
    code, _, err = _run(capsys, *words, "--batch-size", 8, "--out", tmp_path / "none")
    assert (code, err.strip().endswith("--batch-size: expected mode mini as well, got mode 'full'")) == (2, True), err
    seen = []
    with mock.patch.object(GraphLoader, "make", autospec=True, side_effect=GraphLoader.make) as made:
        for more in (("--epochs", 2), ("--epochs", 4, "--resume")):
            made.reset_mock()
            code, _, err = _run(capsys, *words, *more, "--out", tmp_path / "run")
            assert code == 0, err
            seen.append({call.args[1].numel() for call in made.call_args_list})
    assert seen == [{24}, {24}]  # all of the training part


def test_regression_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tu(tmp_path / "VALUES", "VALUES", regression=True, count=30)
    words = ("train", "--data", tmp_path / "VALUES", "--epochs", 2, "--layers", 1, *QUIET, "--out", tmp_path / "r")
    code, out, err = _run(capsys, *words)
    assert code == 0 and "values a graph" in out and "RMSE" in out, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fold", 10), "--fold: expected an integer from 0 to 9, got 10"),
        (("--task", "nodes"), "expected task graphs for a set of 12 graphs"),
        (("--model", "rgcn"), "--model: expected one of gin, gcn, sage, gat, gatv2, transformer, got 'rgcn'"),
        (("--features", "embedding"), "--features embedding cannot be combined with a set of graphs"),
        (("--readout", "add"), "--readout: expected some of sum, mean, max, joined by \\+, got 'add'"),
    ],
)
def test_the_command_tells_of_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[object, ...], message: str
) -> None:
    write_tu(tmp_path / "SET", "SET")
    code, _, err = _run(capsys, "train", "--data", tmp_path / "SET", "--quiet", "--out", tmp_path / "run", *words)
    assert code == 2 and len(err.strip().splitlines()) == 1
    assert re.search(message, err)


def test_folds_belong_to_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "train", "--fold", 1, "--quiet", "--out", tmp_path / "run")
    assert code == 2 and "--fold 1 cannot be combined with --task nodes, which has no set of graphs" in err


def test_gin_learns_a_real_set(shared_data: Path) -> None:
    file = shared_data / "mutag_graphs.npz"
    if not file.is_file():
        pytest.skip(f"no real set of graphs at {file}")
    ds = gw.load(file)
    assert isinstance(ds, gw.GraphDataset)
    torch.manual_seed(0)
    fold = ds.folds(10, seed=0)[0]
    trainer = gw.Trainer(gw.nn.GraphModel.for_data(fold, 16, num_layers=3), fold, lr=0.01, batch_size=32)
    trainer.fit(20)
    assert trainer.evaluate("train") > 0.8
