"""Models that learn without labels through the trainer and the command: plain loops, scores, resume, wrong use."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import graphweft as gw
from graphweft.cli import main
from graphweft.data.link_split import split_links
from graphweft.train.probe import probe


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("cora", scale=0.1, seed=0)


def _made(name: str, ds: gw.Dataset) -> torch.nn.Module:
    torch.manual_seed(0)
    width = ds.num_features
    if name == "node2vec":
        return gw.nn.Node2Vec(ds.graph, 16, walk_length=8, context_size=4, walks_per_node=2)
    if name == "dgi":
        return gw.nn.DGI(gw.nn.GCN(width, 16, 16, num_layers=1), 16)
    kind = {"gae": gw.nn.GAE, "vgae": gw.nn.VGAE}[name]
    return kind(gw.nn.GCN(width, 16, 16))


def test_an_auto_encoder_trains_as_in_a_plain_loop(ds: gw.Dataset) -> None:
    model = _made("gae", ds)
    other = copy.deepcopy(model)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = gw.Trainer(model, ds, optimizer=adam, restore_best=False, seed=3)
    seen: list[int] = []
    loss = model.loss
    model.loss = lambda graph, x, seed=0: (seen.append(seed), loss(graph, x, seed=seed))[1]  # type: ignore[assignment]
    history = trainer.fit(epochs=4)
    assert (trainer.task, trainer.metric) == ("unsupervised", "ROC AUC")
    split = split_links(ds.graph, seed=3)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    losses = []
    for seed in seen:
        optimizer.zero_grad()
        value = other.loss(split.graph, trainer.x, seed=seed)  # type: ignore[operator]
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    assert losses == history["loss"] and len(set(seen)) == 4
    del model.loss
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    with torch.no_grad():
        assert torch.equal(trainer.predict(), other.eval()(split.graph, trainer.x))


@pytest.mark.parametrize("name", ["gae", "vgae", "dgi", "node2vec"])
def test_scores_rise_and_a_resumed_run_has_the_same_bits(name: str, ds: gw.Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr": 0.02, "seed": 1, "batch_size": 64, "eval_every": 6}
    whole = gw.Trainer(_made(name, ds), ds, out=tmp_path / "whole", **options)
    history = whole.fit(epochs=12)
    assert history[-1].loss < history[0].loss
    first = gw.Trainer(_made(name, ds), ds, out=tmp_path / "parts", **options)
    first.fit(epochs=6)
    second = gw.Trainer(_made(name, ds), ds, out=tmp_path / "parts", **options)
    assert second.resume()
    assert second.fit(epochs=6)["loss"] == history["loss"]
    a, b = (t.state_dict()["model"] for t in (whole, second))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert whole.metric == ("accuracy" if name in ("dgi", "node2vec") else "ROC AUC")
    if whole.metric == "ROC AUC":
        assert history[-1].test_acc > 0.55 and 0 <= history[-1].metrics["test_probe"] <= 1
    else:
        assert history[-1].test_acc > 1 / ds.num_classes
    run = gw.load_run(tmp_path / "whole", ds=ds)
    assert torch.equal(run.predict(), whole.predict())
    columns = whole.predictions().columns()
    assert list(columns)[:2] == ["node", "e_0"] and len(columns["node"]) == ds.num_nodes


def test_without_labels_held_out_edges_are_scored_and_walks_avoid_them(ds: gw.Dataset) -> None:
    bare = gw.Dataset("bare", ds.graph)
    trainer = gw.Trainer(_made("node2vec", ds), bare, lr=0.02, batch_size=64)
    history = trainer.fit(epochs=6)
    assert trainer.metric == "ROC AUC" and history[-1].val_acc is not None and history[-1].metrics == {}
    model = trainer.model
    assert isinstance(model, gw.nn.Node2Vec) and model.graph.num_edges < ds.num_edges


def test_the_probe_is_a_logistic_regression() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 3)), draw.integers(0, 3, 60)
    x[:, 0] += y
    fit, rest = torch.arange(40), torch.arange(40, 60)
    scaled = (x - x[:40].mean(0)) / x[:40].std(0)

    def objective(flat: np.ndarray) -> float:
        weight, bias = flat[:9].reshape(3, 3), flat[9:]
        logits = scaled[:40] @ weight + bias
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return float(-logs[np.arange(40), y[:40]].sum() + (weight**2).sum() / 2)

    best = scipy.optimize.minimize(objective, np.zeros(12)).x
    found = (scaled @ best[:9].reshape(3, 3) + best[9:]).argmax(1)
    mine = probe(torch.tensor(x), torch.tensor(y), fit, {"fit": fit, "rest": rest})
    assert mine == {"fit": float((found[:40] == y[:40]).mean()), "rest": float((found[40:] == y[40:]).mean())}


@pytest.mark.parametrize("name", ["gae", "vgae", "dgi", "node2vec"])
def test_the_command_trains_predicts_and_evaluates(
    name: str, ds: gw.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = str(ds.save(tmp_path / "data.npz")), str(tmp_path / "run")
    assert (
        main(["train", "--data", data, "--task", name, "--epochs", "2", "--hidden", "8", "--out", run, "--json"]) == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["task"] == "unsupervised" and summary["test_acc"] is not None
    assert main(["predict", run, "--out", str(tmp_path / "rows.csv")]) == 0
    assert (tmp_path / "rows.csv").read_text().splitlines()[0] == "node," + ",".join(f"e_{i}" for i in range(8))
    assert main(["evaluate", run, "--split", "test"]) == 0


def test_mistakes_are_one_line(ds: gw.Dataset) -> None:
    gae, gcn = _made("gae", ds), gw.nn.GCN(ds.num_features, 8, ds.num_classes)
    for model, options, text in [
        (gcn, {"task": "unsupervised"}, "expected gw.nn.GAE, VGAE, DGI, Node2Vec, or a module with loss(graph, x)"),
        (gae, {"task": "dgi"}, "expected DGI for task dgi, got GAE"),
        (gae, {"loss": "l1"}, "loss cannot be combined with task='unsupervised'"),
        (gae, {"class_weight": "balanced"}, "class_weight cannot be combined with task='unsupervised'"),
        (gae, {"fanouts": [5, 5]}, "fanouts cannot be combined with a model that learns without labels"),
        (gae, {"mode": "macro"}, "mode=macro cannot be combined"),
        (gcn, {"task": "regression"}, "expected nodes, and gw.Dataset(..., task='regression') where the labels do not"),
        (_made("dgi", ds), {"metrics": "roc_auc"}, "metrics=roc_auc cannot be combined with DGI"),
    ]:
        with pytest.raises(gw.errors.GraphWeftError) as failure:
            gw.Trainer(model, ds, **options)  # type: ignore[arg-type]
        assert text in str(failure.value) and "\n" not in str(failure.value)
    with pytest.raises(gw.errors.ShapeError, match="rows of width=5 from the encoder, got shape"):
        gw.Trainer(gw.nn.DGI(gw.nn.GCN(ds.num_features, 8, 7), 5), ds).fit(epochs=1)
