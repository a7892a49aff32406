"""Link prediction by trainer and command line: it learns, hides what it predicts, and resumes bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphweft import cli
from graphweft._errors import ConfigError, DataError
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.nn.gcn import GCN
from graphweft.storage.feature import SparseFeatures
from graphweft.train import steps
from graphweft.train.device_link import DeviceLinkTask
from graphweft.train.link_task import LinkTask
from graphweft.train.trainer import Trainer

OPTIONS: dict[str, Any] = {"mode": "mini", "task": "link", "fanouts": (10, 5), "batch_size": 256, "lr": 0.01}


def trainer(seed: int = 0, **more: Any) -> Trainer:
    torch.manual_seed(0)
    ds = synthetic("default", scale=0.05, seed=1)
    return Trainer(GCN(ds.num_features, 32, 32, dropout=0.1), ds, seed=seed, **{**OPTIONS, **more})


def test_it_learns_and_reports() -> None:
    made = trainer(restore_best=False)
    history = made.fit(8)
    first, last = history[0], history[-1]
    assert last.loss < first.loss
    assert last.val_acc is not None and last.val_acc > 0.75 and last.test_acc is not None and last.test_acc > 0.75
    assert made.metric == "ROC AUC" and made.evaluate("test") == last.test_acc
    for name in ("val_mrr", "test_mrr", "val_hits", "test_hits", "val_ap", "test_ap"):
        assert 0 < getattr(last, name) <= 1
    line = json.loads(last.to_json())
    assert line["val_mrr"] == last.val_mrr
    assert made.predict().shape == (made.ds.num_nodes, 32)
    with pytest.raises(DataError, match="train split"):
        made.evaluate("train")


@pytest.mark.parametrize("is_sparse", [False, True])
def test_steps_on_a_device_are_those_of_the_cpu(is_sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is the CPU here: all tensors are sent there; ``tests/cuda`` has a real one."""
    losses = []
    for place in (LinkTask, DeviceLinkTask):
        monkeypatch.setattr(steps, "draws_on_device", lambda model, place=place: place is DeviceLinkTask)
        torch.manual_seed(0)
        ds = synthetic("default", scale=0.05, seed=1)
        if is_sparse:
            ds = replace(ds, x=SparseFeatures.from_dense(ds.x))
        made = Trainer(GCN(ds.num_features, 16, 16, dropout=0.1), ds, **OPTIONS)
        assert type(made._batch) is place
        losses.append([(r.loss, r.val_acc, r.test_mrr) for r in made.fit(2)])
    if is_sparse:
        for there, here in zip(losses[1], losses[0], strict=True):
            assert there == pytest.approx(here, rel=1e-3)  # the first product is another one
    else:
        assert losses[1] == losses[0]
    with pytest.raises(ConfigError, match=r"^task='link' cannot be combined with macro, accumulate"):
        trainer(accumulate=2)


def test_a_model_of_ones_own_gives_rows_for_all_ends_of_a_batch() -> None:
    """A batch of 256 pairs has more ends than pairs; the first loss is that of the model on the batch's subgraph."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 16), nn.Linear(16, 16)

        def forward(self, graph: Graph, x: torch.Tensor) -> torch.Tensor:
            src, dst = graph.edges()
            h = self.first(x)
            h = torch.zeros_like(h).index_add_(0, dst, h[src]).tanh()
            return self.second(h)

    torch.manual_seed(0)
    graph = synthetic("default", scale=0.05, seed=1).graph
    ends = torch.full((graph.num_nodes,), -1)
    ds = Dataset("own", graph, torch.randn(graph.num_nodes, 32), ends, *[torch.arange(0)] * 3, num_classes=2)
    model = Own()
    task = Trainer(model, ds, **OPTIONS)._batch
    assert isinstance(task, LinkTask)
    batch = next(iter(task.loader))
    assert batch.num_seeds > batch.batch_size
    with torch.no_grad():
        h = model(batch.subgraph, batch.x)
        src, dst = batch.edge_label_index
        expected = functional.binary_cross_entropy_with_logits((h[src] * h[dst]).sum(1), batch.edge_label)
    torch.testing.assert_close(task._train_on(batch), expected)


def test_messages_pass_over_training_edges_less_those_of_the_batch() -> None:
    task = trainer()._batch
    assert isinstance(task, LinkTask) and task.split.undirected
    held = torch.cat([task.split.val, task.split.test], 1)
    hidden = {tuple(sorted(pair)) for pair in zip(*held.tolist(), strict=True)}
    src, dst = task.split.graph.edges()
    assert task.ds.graph is task.split.graph and task.loader.graph is task.split.graph
    assert not {tuple(sorted(pair)) for pair in zip(src.tolist(), dst.tolist(), strict=True)} & hidden
    batch = next(iter(task.loader))
    targets = {tuple(sorted(pair)) for pair in task.split.train[:, batch.input_id].T.tolist()}
    passed = {tuple(sorted(pair)) for pair in zip(src[batch.e_id].tolist(), dst[batch.e_id].tolist(), strict=True)}
    assert not passed & targets


def test_parameters_do_not_depend_on_threads(threads_restored: None) -> None:
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        made = trainer()
        made.fit(2)
        found.append({**made.model.state_dict(), "scores": torch.tensor([r.val_mrr for r in made.history])})
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in found[0])


def test_a_state_within_an_epoch_goes_on_bit_for_bit() -> None:
    whole = trainer()
    whole.fit(3)
    first = trainer()
    states: list[dict[str, Any]] = []

    def note(done: int, total: int, loss: float) -> None:
        if first._batch.loader.epoch == 1 and done == 3:  # type: ignore[union-attr]
            states.append({name: value for name, value in _copied(first.state_dict()).items()})

    with mock.patch("graphweft.train.trainer.between_batches", lambda *parts: note):
        first.fit(2)
    again = trainer()
    again.load_state_dict(states[0])
    again.fit(2)
    assert again.epoch == 3
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    assert [r.val_mrr for r in again.history] == [r.val_mrr for r in whole.history]


def _copied(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    return [_copied(item) for item in state] if isinstance(state, list) else state


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--task", "link", "--scale", "0.02", "--epochs", "3", "--hidden", "16", "--out", str(tmp_path)]
    assert cli.main([*line, "--json"]) == 0
    done = capsys.readouterr()
    summary = json.loads(done.out.splitlines()[-1])
    for part in ("val", "test"):
        for name in ("auc", "ap", "mrr", "hits_at_10"):
            assert 0 <= summary[f"{part}_{name}"] <= 1
    assert summary["task"] == "link" and summary["mode"] == "mini" and summary["metric"] == "ROC AUC"
    assert "mrr" in done.err and "hits@10" in done.err
    assert cli.main([*line[:1], "--resume", "--epochs", "5", "--out", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["task"] == "link" and summary["resumed_after_epoch"] == 3 and summary["epochs"] == 5
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 5
    assert cli.main([*line, "--mode", "full"]) == 2
    assert "--mode: expected mini for the task link, got 'full'" in capsys.readouterr().err
    assert cli.main([*line, "--task", "edges"]) == 2
    names = "nodes, link, graphs, graph_classification, graph_regression, edge, edge_classification, edge_regression"
    names += ", gae, vgae, dgi, node2vec"
    assert f"--task: expected one of {names}, got 'edges'" in capsys.readouterr().err


def test_cora(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--data", "cora", "--root", str(shared_data), "--task", "link", "--epochs", "10", "--hidden", "64"]
    assert cli.main([*line, "--normalize", "row", "--out", str(tmp_path), "--json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["test_auc"] > 0.8 and summary["test_hits_at_10"] > 0.4


def test_what_cannot_be_is_one_line() -> None:
    every = torch.arange(4)
    ds = Dataset("small", Graph([0, 1], [1, 2], 4), torch.eye(4), torch.zeros(4).long(), every, every[:0], every[:0], 1)
    with pytest.raises(DataError, match="small: expected enough edges to hold some out, got 2"):
        Trainer(GCN(4, 8, 8), ds, **OPTIONS)
    with pytest.raises(ConfigError, match="mode: expected mini for the task link, got 'full'"):
        Trainer(GCN(4, 8, 8), ds, task="link")
    with pytest.raises(DataError, match="expected edges that are held out in the train split, got none"):
        trainer().evaluate("train")
    typed = Graph.hetero({("a", "to", "a"): ([0, 1], [1, 2])}, num_nodes={"a": 4})
    with pytest.raises(ConfigError, match="task=link cannot be combined with a graph of several types"):
        Trainer(GCN(4, 8, 8), replace(ds, graph=typed, target_type="a"), **OPTIONS)
