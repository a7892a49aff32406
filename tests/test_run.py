"""Runs from Python: names to dataset, model and trainer, and what the summary says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import assert_same_run, lines

import graphweft as gw
from graphweft import cli
from graphweft import run as run_module
from graphweft._errors import CheckpointError, ConfigError, DataError
from graphweft.loaded_run import load_run
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.gin import GIN
from graphweft.nn.propagation import APPNP, GCNII
from graphweft.nn.sage import SAGE
from graphweft.nn.transformer import Transformer
from graphweft.run import complete, load_dataset, make_model, run
from graphweft.train.spec import TrainSpec


def _spec(**changes: Any) -> TrainSpec:
    return TrainSpec(**{"data": "products", "scale": 0.0002, "epochs": 4, "threads": 1, **changes})


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """Two communities with features that hint at them, in the .npz form."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 40)
    src, dst = rng.integers(0, 80, (2, 600))
    keep = (y[src] == y[dst]) | (rng.random(600) < 0.1)
    x = rng.random((80, 5), dtype=np.float32) + 0.3 * y[:, None].astype(np.float32)
    path = tmp_path / "pairs.npz"
    np.savez(path, edge_index=np.stack([src[keep], dst[keep]]), x=x, y=y)
    return path


def test_the_summary_agrees_with_the_files(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    summary = run(_spec(out=str(tmp_path)))
    assert torch.get_num_threads() == threads and summary["threads"] == 1
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    records = lines(tmp_path)
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    for part in ("train", "val", "test"):
        assert summary[f"{part}_acc"] == records[-1][f"{part}_acc"]
    best = max(records, key=lambda record: record["val_acc"])
    assert (summary["best_epoch"], summary["test_acc_at_best_val"]) == (best["epoch"], best["test_acc"])
    assert summary["loss"] == records[-1]["loss"]
    assert 0 < summary["epoch_seconds_median"] < summary["total_seconds"]
    assert summary["peak_rss_mb"] > 50


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gcn", GCN), ("sage", SAGE), ("gin", GIN), ("gat", GAT), ("gatv2", GAT), ("transformer", Transformer)],
)
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_options_reach_the_model(name: str, kind: type, norm: str) -> None:
    reduce = "sum" if kind in (GAT, Transformer) else "mean"  # attention is a sum
    sizes = {"model": name, "layers": 4, "hidden": 6} | ({"heads": 2} if kind in (GAT, Transformer) else {})
    spec = _spec(**sizes, dropout=0.25, norm=norm, residual=True, reduce=reduce, seed=3)
    ds = load_dataset(spec)
    model = make_model(spec, ds)
    assert type(model) is kind and len(model.layers) == 4 and len(model.norms) == (3 if norm == "layer" else 0)
    assert (model.dropout, model.residual) == (0.25, True)
    assert kind in (GAT, Transformer) or model.layers[0].reduce == "mean"
    assert kind not in (GAT, Transformer) or [layer.heads for layer in model.layers[:3]] == [2, 2, 2]
    assert model(ds.graph, ds.x).shape == (ds.num_nodes, ds.num_classes)
    again = make_model(spec, ds)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    other = make_model(_spec(**sizes, seed=4), ds)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["appnp", "gcnii"])
def test_models_that_propagate_train_and_come_back(name: str, tmp_path: Path) -> None:
    options = {"model": name, "alpha": 0.2, "layers": 2} | ({"hops": 3} if name == "appnp" else {})
    run(_spec(**options, out=str(tmp_path), dropout=0.0))
    loaded = load_run(tmp_path)
    model = loaded.model
    assert (type(model), model.alpha) == ({"appnp": APPNP, "gcnii": GCNII}[name], 0.2)
    assert name == "gcnii" or model.hops == 3
    ds = load_dataset(_spec())
    again = make_model(_spec(**options), ds)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(ds.graph, ds.x), model.eval()(ds.graph, ds.x))


@pytest.mark.parametrize(
    "more", [{"mode": "mini"}, {"mode": "macro"}, {"norm": "batch"}, {"residual": True}, {"reduce": "max"}], ids=str
)
def test_models_that_propagate_refuse_options_of_layers(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(more))}=.* cannot be combined with model=appnp"):
        _spec(model="appnp", **more)


def test_a_file_is_learned(graph_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = run(TrainSpec(data=str(graph_file), epochs=60, hidden=16, threads=1, out=str(out)))
    assert (summary["dataset"], summary["num_nodes"], summary["num_classes"]) == ("pairs", 80, 2)
    assert summary["train_acc"] > 0.9 and summary["test_acc_at_best_val"] > 0.7


def test_rows_are_normalised_on_demand(graph_file: Path) -> None:
    plain = load_dataset(TrainSpec(data=str(graph_file))).x
    normal = load_dataset(TrainSpec(data=str(graph_file), normalize="row")).x
    expected = plain.double() / plain.double().abs().sum(1, keepdim=True)
    torch.testing.assert_close(normal.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["full", "auto"])
def test_a_longer_run_is_a_resumed_shorter_one(tmp_path: Path, mode: str) -> None:
    whole = run(_spec(epochs=6, dropout=0.5, norm="batch", mode=mode, out=str(tmp_path / "whole")))
    run(_spec(epochs=2, dropout=0.5, norm="batch", out=str(tmp_path / "parts")))
    parts = run(_spec(epochs=6, dropout=0.5, norm="batch", out=str(tmp_path / "parts"), resume=True))
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert parts["resumed_after_epoch"] == 2 and whole["resumed_after_epoch"] == 0
    assert {k: v for k, v in whole.items() if "acc" in k} == {k: v for k, v in parts.items() if "acc" in k}


def test_a_finished_run_is_left_as_it_is_by_resume(tmp_path: Path) -> None:
    first = run(_spec(out=str(tmp_path)))
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}
    again = run(_spec(out=str(tmp_path), resume=True))
    assert before == {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}
    assert again["epochs"] == 4 and again["test_acc"] == first["test_acc"]
    assert run(_spec(out=str(tmp_path), epochs=2, resume=True))["epochs"] == 4


def test_options_left_out_come_from_the_run(tmp_path: Path) -> None:
    run(_spec(out=str(tmp_path), hidden=7, epochs=3, patience=9))
    spec = complete({"out": str(tmp_path), "resume": True})
    assert (spec.data, spec.scale, spec.hidden, spec.epochs, spec.patience) == ("products", 0.0002, 7, 3, 9)
    assert complete({"out": str(tmp_path), "resume": True, "hidden": 8}).hidden == 8
    assert complete({"out": str(tmp_path)}).hidden == TrainSpec().hidden
    none = {"out": str(tmp_path / "none"), "resume": True}
    assert complete({**none, "data": "cora"}).hidden == TrainSpec().hidden
    with pytest.raises(ConfigError, match=r"^resume: expected a run in .*none, found none; .* --data$"):
        complete(none)  # a mistyped folder: nobody asked for the graph of the README


def test_another_run_in_the_folder_is_found_before_data_is_read(tmp_path: Path) -> None:
    run(_spec(out=str(tmp_path)))
    with pytest.raises(CheckpointError, match="expected data 'products'"):
        run(_spec(data="/no/such/file", scale=None, out=str(tmp_path), resume=True))


def test_what_is_wrong_is_found_before_anything_is_written(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="hidden: expected a model that fits"):
        run(_spec(hidden=10**9, out=out))
    with pytest.raises(DataError):
        run(TrainSpec(data="/no/such/file", out=out))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="out: expected a folder"):
        run(_spec(out=str(tmp_path / "file")))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_a_split_for_it_there_is_no_number(graph_file: Path, tmp_path: Path) -> None:
    masks = {"train_mask": np.ones(80, bool), "val_mask": np.zeros(80, bool), "test_mask": np.zeros(80, bool)}
    with np.load(graph_file) as content:
        np.savez(graph_file, **content, **masks)
    summary = run(TrainSpec(data=str(graph_file), epochs=2, threads=1, out=str(tmp_path / "run")))
    assert summary["val_acc"] is None and summary["test_acc"] is None and summary["test_acc_at_best_val"] is None
    assert summary["train_acc"] is not None


@pytest.mark.slow
def test_cora_reaches_what_the_gcn_paper_reports(shared_data: Path, tmp_path: Path) -> None:
    options = {"threads": 1, "hidden": 16, "dropout": 0.5, "normalize": "row", "epochs": 200}
    options |= {"weight_decay": 5e-4, "weight_decay_on": "first"}
    accuracies = [
        run(TrainSpec(data=str(shared_data / "cora.npz"), seed=seed, out=str(tmp_path / str(seed)), **options))[
            "test_acc"
        ]
        for seed in range(3)
    ]
    assert sum(accuracies) / 3 > 0.80


@pytest.mark.parametrize("options", [{"model": "rgcn", "bases": 2}, {"model": "hgt", "heads": 4}])
def test_typed_models_train_on_a_typed_dataset(options: dict[str, Any], tmp_path: Path) -> None:
    statements = [f"<u{i}> <likes> <v{i % 3}> .\n<u{i}> <knows> <u{(i + 3) % 30}> .\n" for i in range(30)]
    (tmp_path / "people.nt").write_text("".join(statements), encoding="utf-8")
    rows = [f"u{i}\tgroup{i % 3}\n" for i in range(30)]
    (tmp_path / "trainingSet.tsv").write_text("person\tlabel\n" + "".join(rows[:27]), encoding="utf-8")
    (tmp_path / "testSet.tsv").write_text("person\tlabel\n" + "".join(rows[27:]), encoding="utf-8")
    spec = TrainSpec(data=str(tmp_path), hidden=8, epochs=60, out=str(tmp_path / "run"), **options)
    summary = run(spec)
    assert summary["train_acc"] == 1.0
    assert summary["num_edges"] == 2 * 60
    again = run(dataclasses.replace(spec, epochs=65, resume=True))
    assert again["resumed_after_epoch"] == 60


def _people(folder: Path) -> Path:
    """A typed dataset in RDF."""
    folder.mkdir()
    statements = [f"<u{i}> <likes> <v{i % 3}> .\n<u{i}> <knows> <u{(i + 3) % 30}> .\n" for i in range(30)]
    (folder / "people.nt").write_text("".join(statements), encoding="utf-8")
    rows = "".join(f"u{i}\tgroup{i % 3}\n" for i in range(30))
    lines = rows.splitlines(keepends=True)
    for name, part in (("trainingSet.tsv", lines[:20]), ("testSet.tsv", lines[20:])):
        (folder / name).write_text("person\tlabel\n" + "".join(part), encoding="utf-8")
    return folder


@pytest.mark.parametrize("model", ["gcn", "gat", "gatv2", "cgat"])
def test_a_model_that_needs_one_type_names_those_for_typed_data(model: str, tmp_path: Path) -> None:
    spec = TrainSpec(data=str(_people(tmp_path / "data")), model=model, out=str(tmp_path / "run"))
    words = rf"model: expected rgcn or hgt for a typed graph \(\d relations\), got {model}"
    with pytest.raises(ConfigError, match=words):
        run(spec)


def test_edge_weights_of_a_file_are_used_unless_they_are_switched_off(graph_file: Path, tmp_path: Path) -> None:
    with np.load(graph_file) as archive:
        arrays = dict(archive)
    count = arrays["edge_index"].shape[1]
    weights = np.random.default_rng(1).random(count).astype(np.float32) * 4
    np.savez(tmp_path / "weighted.npz", **arrays, edge_weight=weights)

    def losses(data: Path, model: str, edge_data: str) -> float:
        given = {"data": str(data), "model": model, "edge_data": edge_data, "epochs": 3, "hidden": 8}
        out = tmp_path / f"{data.stem}-{model}-{edge_data}"
        found: float = run(TrainSpec(threads=1, out=str(out), **given))["loss"]
        return found

    for model in ("gcn", "gat"):
        plain = losses(graph_file, model, "use")
        assert losses(tmp_path / "weighted.npz", model, "ignore") == plain
        assert abs(losses(tmp_path / "weighted.npz", model, "use") - plain) > 1e-4


def test_typed_models_in_mini_batches_want_neighbours_of_labelled_nodes() -> None:
    assert TrainSpec(model="rgcn", mode="mini").mode == "mini"
    for given, words in (
        ({"sampler": "shadow"}, "sampler: expected neighbor for rgcn, got shadow"),
        ({"macro": "large:1/2"}, "macro: expected None for rgcn"),
        ({"task": "link"}, "task: expected nodes for rgcn, got link"),
    ):
        with pytest.raises(ConfigError, match=words):
            TrainSpec(model="rgcn", mode="mini", **given)


def test_the_first_command_says_what_the_graph_gave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Features alone score as logistic regression in plain torch does."""
    spec = TrainSpec(epochs=60, threads=1, out=str(tmp_path), progress=False)
    ds = load_dataset(spec)
    assert isinstance(ds.x, torch.Tensor) and ds.y is not None
    linear = torch.nn.Linear(ds.num_features, ds.num_classes)
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(linear(ds.x[ds.train_idx]), ds.y[ds.train_idx]).backward()
        optimizer.step()
    expected = float((linear(ds.x[ds.test_idx]).argmax(1) == ds.y[ds.test_idx]).float().mean())

    assert cli.main(["train", "--epochs", "60", "--threads", "1", "--out", str(tmp_path), "--quiet"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    summary = json.loads((tmp_path / "summary.json").read_text())
    alone, graph = summary["features_alone_acc"], summary["test_acc_at_best_val"]
    assert last == f"test accuracy: features alone {100 * alone:.1f} %, with the graph {100 * graph:.1f} %"
    assert abs(alone - expected) < 0.04 and graph > alone + 0.3


def test_a_run_within_memory_ends_where_the_comparison_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What features alone give is asked after the run, whose budget may have no room left."""
    made: list[Any] = []
    make = run_module.make_trainer

    def once(*arguments: Any, **options: Any) -> Any:
        if made:
            raise gw.errors.MemoryBudgetError("memory: expected at least 79 MB for this run, got 47 MB", 79_000_000)
        made.append(make(*arguments, **options))
        return made[0]

    monkeypatch.setattr(run_module, "make_trainer", once)
    assert cli.main(["train", "--epochs", "2", "--threads", "1", "--out", str(tmp_path), "--quiet"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["features_alone_acc"] is None and summary["epochs"] == 2
    assert "features alone" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"data": "cora", "scale": 0.05}, {"scale": 0.05}, {"scale": 0.05, "mode": "mini"}])
def test_other_runs_do_not_train_on_features_alone(options: dict[str, Any], tmp_path: Path) -> None:
    summary = run(TrainSpec(epochs=2, threads=1, out=str(tmp_path), progress=False, **options))
    assert "features_alone_acc" not in summary
