"""Runs on data as people have it: what is told before training, features made of the graph, and models that fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from graphweft.cli import main
from graphweft.data.link_split import split_links
from graphweft.data.structure_features import structure_features
from graphweft.run import complete, load_dataset, run
from graphweft.train.spec import TrainSpec

RING = np.array([[*range(40), *range(40)], [*range(1, 40), 0, *range(2, 40), 0, 1]])
TYPED = {"edge_index": RING, "edge_type": np.arange(80) % 2, "num_nodes": 40}


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A graph with labels, without features, with a member that nobody reads."""
    np.savez(tmp_path / "bare.npz", edge_index=RING, num_nodes=40, y=np.arange(40) % 2, colour=np.arange(40))
    return str(tmp_path / "bare.npz")


def test_notes_are_told_before_training_and_in_the_json(bare: str, tmp_path: Path, capfd) -> None:
    common = ["train", "--data", bare, "--features", "degree", "--epochs", "2", "--out", str(tmp_path / "run")]
    assert main([*common, "--json"]) == 0
    out, err = capfd.readouterr()
    lines = err.splitlines()
    wanted = [f"note: {note}" for note in json.loads(out)["notes"]]
    assert "note: members of the source that are not used: colour" in wanted and len(wanted) == 3
    assert lines[:3] == wanted and lines[3].startswith("epoch 1/2")
    assert main([*common, "--quiet", "--json"]) == 0
    out, err = capfd.readouterr()
    assert not err and len(json.loads(out)["notes"]) == 3


def test_without_features_the_error_names_the_way(bare: str, tmp_path: Path, capfd) -> None:
    assert main(["train", "--data", bare, "--out", str(tmp_path / "run")]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert "expected node features x, got none" in line
    assert line.endswith("--features degree|degree_onehot|onehot|random|laplacian|embedding")


@pytest.mark.parametrize("features", ["degree", "onehot", "random", "laplacian", "embedding"])
@pytest.mark.parametrize(("task", "mode"), [("nodes", "full"), ("nodes", "mini"), ("link", "mini")])
def test_every_kind_trains_every_task(bare: str, tmp_path: Path, features: str, task: str, mode: str) -> None:
    spec = TrainSpec(data=bare, features=features, task=task, mode=mode, hidden=8, epochs=1, out=str(tmp_path / "run"))
    summary = run(spec)
    assert np.isfinite(summary["loss"]) and summary["test_acc"] is not None
    again = complete({"data": bare, "out": spec.out, "resume": True, "epochs": 2})
    assert again.features == features and run(again)["resumed_after_epoch"] == 1


@pytest.mark.parametrize("features", ["degree", "laplacian"])
def test_features_of_links_do_not_know_what_is_held_out(bare: str, features: str) -> None:
    ds = load_dataset(TrainSpec(data=bare, features=features, task="link", mode="mini", seed=3))
    seen = split_links(ds.graph, seed=3).graph  # as the trainer splits it
    assert isinstance(ds.x, torch.Tensor) and seen.num_edges < ds.num_edges
    assert torch.equal(ds.x, torch.as_tensor(structure_features(seen, features, seed=3)))
    assert not torch.equal(ds.x, torch.as_tensor(structure_features(ds.graph, features, seed=3)))


def test_a_model_that_knows_no_types_is_refused_by_name(tmp_path: Path, capfd) -> None:
    np.savez(tmp_path / "typed.npz", **TYPED, y=np.arange(40) % 2)
    data = ["train", "--data", str(tmp_path / "typed.npz"), "--out", str(tmp_path / "run"), "--quiet"]
    for model in ("gcn", "gat"):
        assert main([*data, "--model", model, "--features", "degree"]) == 2
        line = capfd.readouterr().err
        assert "--model: expected rgcn or hgt for a typed graph (2 relations)" in line and f"got {model}" in line
    assert main([*data, "--model", "rgcn", "--features", "embedding"]) == 2
    assert "--features embedding cannot be combined with --model rgcn" in capfd.readouterr().err


def test_triples_are_trained_as_links_without_their_types(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "kg.npz",
        train_edge_index=RING,
        train_edge_type=np.arange(80) % 3,
        test_edge_index=RING[:, :2],
        test_edge_type=np.zeros(2, np.int64),
    )
    spec = TrainSpec(
        data=str(tmp_path / "kg.npz"),
        task="link",
        mode="mini",
        features="embedding",
        epochs=1,
        out=str(tmp_path / "run"),
    )
    ds = load_dataset(spec)
    assert not ds.graph.is_typed and ds.graph.num_edges == 80
    assert any("does not use the relations and held-out edges" in note for note in ds.notes)
    assert run(spec)["test_acc"] is not None
