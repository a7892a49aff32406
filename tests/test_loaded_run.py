"""A run back from its folder: equal to the model in memory to the bit, on its own data and on others."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fraud import fraud_tables, write_fraud
from torch import nn

import graphweft as gw
from graphweft._errors import CheckpointError, ConfigError, DataError, DataWarning
from graphweft.run import run
from graphweft.storage.feature import SparseFeatures
from graphweft.train.description import how_made, make_model
from graphweft.train.spec import TrainSpec

ROLES = {"id": "user", "source": "sender", "target": "receiver", "label": "fraud"}
FEW = {"drop": ["amount", "time"]}


def on_tables(folder: Path, **options: object) -> TrainSpec:
    """A run on the fraud tables."""
    nodes, edges = write_fraud(folder)
    given = {"nodes": str(nodes), "edges": str(edges), **ROLES, "drop": "amount,time", "model": "sage"}
    return TrainSpec(**{**given, "epochs": 12, "hidden": 16, "threads": 1, "out": str(folder / "run"), **options})


def in_memory(spec: TrainSpec) -> gw.Trainer:
    """The same run as a program has it."""
    ds = gw.Dataset.from_tables(spec.nodes, spec.edges, **ROLES, **FEW, seed=spec.seed)
    torch.manual_seed(spec.seed)
    model = gw.nn.SAGE(ds.num_features, spec.hidden, ds.num_classes)
    trainer = gw.Trainer(model, ds, lr=spec.lr, seed=spec.seed, mode=spec.mode)
    trainer.fit(spec.epochs)
    return trainer


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_a_run_is_the_model_in_memory(tmp_path, mode) -> None:
    spec = on_tables(tmp_path, mode=mode)
    summary = run(spec)
    loaded, trainer = gw.load_run(tmp_path / "run"), in_memory(spec)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name])
    assert torch.equal(loaded.predictions().outputs, trainer.predictions().outputs)
    assert torch.equal(loaded.predict(), trainer.predict())
    assert torch.equal(loaded.predict(probabilities=True), trainer.predict(probabilities=True))
    assert loaded.evaluate("test") == trainer.evaluate("test") == summary["test_acc_at_best_val"]
    assert loaded.evaluate("val") == summary["best_val_acc"]
    assert loaded.class_names == ("no", "yes") and loaded.metric == "accuracy" and len(loaded.history) == 12
    other_users, other_transfers = fraud_tables(users=150, transfers=900, seed=5)
    later = loaded.tables(other_users.drop(columns="fraud"), other_transfers)
    with torch.no_grad():
        wanted = trainer.model.eval()(later.graph, later.x)
    assert torch.equal(loaded.predictions(later).outputs, wanted)
    assert later.node_names == tuple(other_users["user"])
    same = gw.Dataset.from_tables(other_users, other_transfers, encoding=trainer.ds.encoding)
    assert torch.equal(same.x, later.x)
    correct = (wanted.argmax(1) == same.y)[same.y >= 0].double().mean()
    assert loaded.evaluate("all", same) == pytest.approx(float(correct))


@pytest.mark.parametrize(
    "options",
    [
        {"model": "gcn", "normalize": "row"},
        {"model": "gat", "heads": 4, "out_heads": 2},
        {"model": "gatv2", "heads": 4},
        {"model": "gin", "norm": "batch", "dropout": 0.3},
        {"model": "ngcf"},
        {"model": "sage", "reduce": "max", "residual": True, "activation": "elu"},
        {"features": "degree"},
        {"features": "embedding"},
        {"mode": "mini", "batch_size": 64, "fanouts": "5,5"},
        {"mode": "mini", "sampler": "shadow", "fanouts": "4,4"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_kind_of_run_comes_back(tmp_path, options) -> None:
    spec = on_tables(tmp_path, epochs=3, **options)
    summary = run(spec)
    loaded = gw.load_run(tmp_path / "run")
    assert loaded.evaluate("test") == summary["test_acc_at_best_val"]
    assert loaded.predict().shape == (400,)
    if options.get("features") == "embedding":
        with pytest.raises(DataError, match="learned a row for every node, so it cannot be used on another graph"):
            loaded.predict(loaded.tables(*fraud_tables(users=50, transfers=100)))
    else:
        assert loaded.predict(loaded.tables(*fraud_tables(users=50, transfers=100))).shape == (50,)


def test_metrics_of_the_run_are_scored_again(tmp_path) -> None:
    summary = run(on_tables(tmp_path, epochs=4, metrics="f1_macro,roc_auc", best="f1_macro"))
    scores = gw.load_run(tmp_path / "run").scores("test")
    assert scores["f1_macro"] == summary["test_f1_macro_at_best_val"]
    assert scores["auc"] == pytest.approx(summary["test_roc_auc_at_best_val"]) and "roc_auc" not in scores


@pytest.mark.parametrize("model", ["rgcn", "hgt"])
def test_typed_runs_come_back(tmp_path, shared_data, model) -> None:
    file = str(shared_data / "aifb.npz")
    summary = run(TrainSpec(data=file, model=model, epochs=2, hidden=16, threads=1, out=str(tmp_path), patience=0))
    loaded = gw.load_run(tmp_path)
    assert loaded.evaluate("test") == summary["test_acc"]
    assert loaded.predictions().columns()["node"].size == loaded.dataset().num_nodes


def test_links_come_back(tmp_path) -> None:
    spec = on_tables(tmp_path, task="link", mode="mini", label=None, epochs=2, metrics="hits@20")
    summary = run(spec)
    loaded = gw.load_run(tmp_path / "run")
    assert loaded.evaluate("test") == summary["test_acc_at_best_val"]
    scores = loaded.scores("val")
    best = loaded.history.best
    assert best is not None
    assert scores["mrr"] == best.val_mrr and scores["hits@10"] == best.val_hits and scores["ap"] == best.val_ap
    assert scores["hits@20"] == best.metrics["val_hits@20"] and scores["loss"] == best.val_loss
    assert "loss" not in loaded.scores("test") and loaded.scores("test").keys() < scores.keys()
    table = loaded.predictions().columns()
    assert list(table) == ["user", *[f"e_{i}" for i in range(16)]]
    with pytest.raises(ConfigError, match="got the task link"):
        loaded.predict(probabilities=True)


def test_a_run_by_name_or_of_a_program(tmp_path) -> None:
    ds = gw.synthetic("cora", scale=0.2)
    trainer = gw.Trainer(gw.nn.GCN(ds.num_features, 8, ds.num_classes, dropout=0.5), ds, out=tmp_path / "program")
    trainer.fit(5)
    loaded = gw.load_run(tmp_path / "program", ds=ds)
    assert torch.equal(loaded.predictions().outputs, trainer.predictions().outputs)
    assert repr(loaded.model) == repr(trainer.model) and loaded.evaluate("test") == trainer.evaluate("test")
    assert loaded.trainer.fit(2).last.loss == trainer.fit(2).last.loss
    with pytest.raises(DataError, match=r"expected the dataset, since the run was trained by a program"):
        gw.load_run(tmp_path / "program").predict()
    run(TrainSpec(data="cora", scale=0.2, hidden=8, epochs=3, threads=1, out=str(tmp_path / "named")))
    assert gw.load_run(tmp_path / "named").predict().shape == (ds.num_nodes,)


class Net(nn.Module):
    """A model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = gw.nn.SAGEConv(9, 8), nn.Linear(8, 2)

    def forward(self, graph: gw.Graph, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(graph, x)))


def test_a_model_of_ones_own_is_given(tmp_path) -> None:
    ds = gw.Dataset.from_tables(*write_fraud(tmp_path), **ROLES, **FEW)
    trainer = gw.Trainer(Net(), ds, out=tmp_path / "run", optimizer="sgd")
    trainer.fit(3)
    with pytest.raises(ConfigError, match=r"model: expected the Net that .* holds weights of"):
        gw.load_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"model: expected one with the parameters that .* holds"):
        gw.load_run(tmp_path / "run", model=gw.nn.GCN(9, 8, 2))
    loaded = gw.load_run(tmp_path / "run", model=Net(), ds=ds)
    assert torch.equal(loaded.predictions().outputs, trainer.predictions().outputs)


def test_a_changed_model_is_not_made_again_as_it_was(tmp_path) -> None:
    model = gw.nn.GAT(4, 8, 2, heads=2)
    assert how_made(model) == {"class": "GAT", "args": [4, 8, 2], "kwargs": {"heads": 2}}
    assert how_made(model.eval()) is not None
    model.activation = "relu"
    assert how_made(model) is None
    again = gw.nn.GAT(4, 8, 2, heads=2)
    assert how_made(copy.deepcopy(again)) == how_made(again)
    before = torch.random.get_rng_state()
    assert repr(make_model(how_made(again))) == repr(again)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_programs_run_goes_on_as_it_would_have(tmp_path) -> None:
    """With its schedule, clipping, averages, weights of classes and rule of the best epoch."""
    ds = gw.synthetic("cora", scale=0.05)
    options = {"lr": 0.05, "seed": 4, "scheduler": "cosine:10", "warmup": 2, "clip": 0.5, "ema": 0.9}
    options |= {"label_smoothing": 0.1, "class_weight": "balanced", "best": "f1_macro", "eval_every": 2}

    def trained(folder: Path, epochs: int, **more: object) -> gw.Trainer:
        torch.manual_seed(0)
        model = gw.nn.GCN(ds.num_features, 8, ds.num_classes, dropout=0.3)
        trainer = gw.Trainer(model, ds, out=folder, **{**options, **more})
        trainer.fit(epochs)
        return trainer

    whole, _ = trained(tmp_path / "whole", 10), trained(tmp_path / "part", 4)
    resumed = gw.load_run(tmp_path / "part", ds=ds).trainer
    resumed.fit(6)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])
    for column in ("loss", "val_f1_macro", "lr"):
        assert whole.history[column] == resumed.history[column]
    assert whole.history.best.epoch == resumed.history.best.epoch


def test_a_run_with_objects_of_its_program_is_not_continued_without_them(tmp_path) -> None:
    ds = gw.synthetic("cora", scale=0.05)
    for number, (name, value) in enumerate(
        (
            ("loss", torch.nn.MultiMarginLoss()),
            ("scheduler", lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)),
        )
    ):
        trainer = gw.Trainer(
            gw.nn.GCN(ds.num_features, 8, ds.num_classes), ds, out=tmp_path / str(number), **{name: value}
        )
        trainer.fit(2)
        loaded = gw.load_run(tmp_path / str(number), ds=ds)
        assert torch.equal(loaded.predict(), trainer.predict())
        with pytest.raises(ConfigError, match=rf"fit: expected the {name} that the run was trained with, which only"):
            loaded.trainer.fit(1)


def test_files_with_other_features_are_told_of(tmp_path) -> None:
    ds = gw.synthetic("cora", scale=0.05)
    ds.save(tmp_path / "d.npz")
    run(TrainSpec(data=str(tmp_path / "d.npz"), out=str(tmp_path / "run"), epochs=2, hidden=4, threads=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = gw.load_run(tmp_path / "run").predict(probabilities=True)
    x = ds.x.to_dense() if isinstance(ds.x, SparseFeatures) else ds.x
    replace(ds, x=2 * x).save(tmp_path / "d.npz")
    with pytest.warns(DataWarning, match=r"features or edges are others than those that the run in .* was trained on"):
        after = gw.load_run(tmp_path / "run").predict(probabilities=True)
    assert not torch.allclose(before, after)


def test_files_are_found_from_another_folder(tmp_path, monkeypatch) -> None:
    write_fraud(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = {"nodes": "users.csv", "edges": "transfers.csv", **ROLES, "drop": "amount,time", "out": "run"}
    run(TrainSpec(**given, epochs=2, threads=1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert gw.load_run(tmp_path / "run").predict().shape == (400,)


def test_other_data_are_told_from_the_runs_own(tmp_path) -> None:
    spec = on_tables(tmp_path, epochs=2)
    run(spec)
    users, transfers = fraud_tables()
    users.assign(fraud=users.fraud.map({"no": "yes", "yes": "no"})).to_csv(spec.nodes, index=False)
    loaded = gw.load_run(tmp_path / "run")
    with pytest.raises(DataError, match=r"expected the data that the run in .* was trained on, got others"):
        loaded.predict()
    assert loaded.predict(loaded.tables(users, transfers)).shape == (400,)
    for changed, same in ((users.assign(age=users.age**2), transfers), (users, transfers[::-1])):  # features or edges
        changed.to_csv(spec.nodes, index=False)
        same.to_csv(spec.edges, index=False)
        with pytest.raises(DataError, match=r"expected the data that the run in .* was trained on, got others"):
            gw.load_run(tmp_path / "run").predict()
    users.to_csv(spec.nodes, index=False)
    transfers.to_csv(spec.edges, index=False)
    assert gw.load_run(tmp_path / "run").predict().shape == (400,)
    ds = loaded.tables(users, transfers)
    with pytest.raises(DataError, match="expected 9 features as the run has, got 3"):
        loaded.predict(ds.with_features("degree"))
    with pytest.raises(DataError, match="expected classification with 2 classes as the run has, got classification wi"):
        loaded.predict(replace(ds, y=ds.y + 2, num_classes=5))
    unlabelled = gw.Dataset("bare", ds.graph, ds.x)
    assert torch.equal(loaded.predict(unlabelled), loaded.predict(ds))
    with pytest.raises(DataError, match=r"bare: expected nodes with a label in the test split, got none \(train 0, "):
        loaded.evaluate("test", unlabelled)
    with pytest.raises(ConfigError, match="split: expected one of train, val, test, all, got 'dev'"):
        loaded.evaluate("dev")


@pytest.mark.parametrize(("label", "metric"), [("age", "RMSE"), ("verified,fraud_too", "micro-F1")])
def test_values_and_several_labels_come_back(tmp_path, label, metric) -> None:
    spec = on_tables(tmp_path, label=label, epochs=3)
    users, transfers = fraud_tables()
    users = users.assign(fraud_too=users["fraud"].eq("yes").astype(float).where(users["fraud"].notna()))
    users = users.assign(verified=users["verified"].astype(float)).dropna(subset=[] if metric == "RMSE" else ["fraud"])
    users.to_csv(spec.nodes, index=False)
    run(replace(spec, unknown_ids="drop"))
    loaded = gw.load_run(tmp_path / "run")
    assert loaded.metric == metric
    bare = users.drop(columns=label.split(","))
    later = gw.Dataset.from_tables(bare, transfers, encoding=loaded.encoding)
    with torch.no_grad():
        outputs = loaded.model(later.graph, later.x)
    table = loaded.predictions(later).columns()
    if metric == "RMSE":
        assert list(table) == ["user", "prediction"]
        assert torch.equal(torch.from_numpy(table["prediction"]), outputs[:, 0])
        with pytest.raises(ConfigError, match="got the task regression, which predicts values"):
            loaded.predict(later, probabilities=True)
    else:
        assert list(table) == ["user", "prediction", "p_verified", "p_fraud_too"]
        assert torch.equal(torch.from_numpy(table["p_verified"]), outputs.sigmoid()[:, 0])
        held = [";".join(n for n, p in zip(label.split(","), row, strict=True) if p > 0) for row in outputs.tolist()]
        assert table["prediction"].tolist() == held


def test_what_is_no_run_is_one_line(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"expected the folder of a run, with last.pt in it, got none"):
        gw.load_run(tmp_path)
    (tmp_path / "last.pt").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="expected a whole checkpoint, got a damaged file"):
        gw.load_run(tmp_path)


def test_an_interrupted_run_can_be_used(tmp_path) -> None:
    spec = on_tables(tmp_path)
    run(spec)
    whole = gw.load_run(tmp_path / "run").predictions().outputs
    for left in ("best.pt", "metrics.jsonl", "summary.json", "curves.png"):
        (tmp_path / "run" / left).unlink()  # what is written after last.pt
    (tmp_path / "run" / ".last.pt.partial").write_bytes(b"half")
    assert torch.equal(gw.load_run(tmp_path / "run").predictions().outputs, whole)


def test_a_loaded_run_repeats_no_warning_of_training(tmp_path) -> None:
    spec = on_tables(tmp_path, drop=None, model="gcn", epochs=1)
    with pytest.warns(DataWarning, match="edge_features not used by GCN"):
        run(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = gw.load_run(tmp_path / "run")
        loaded.predict(loaded.dataset())
        loaded.predict()
