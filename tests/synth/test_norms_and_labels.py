"""Norms, averaged heads, several labels and numbers: the library's bits, and what plain torch makes of the weights."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from built_program import Build, Built
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import graphweft as gw
from graphweft.model_of_spec import make_model
from graphweft.run import run
from graphweft.synth.spec import ProgramSpec
from graphweft.synthesis import write_program

Graphs = dict[str, Path]
CASES: list[dict[str, Any]] = [
    {"norm": "batch", "layers": 3, "hidden": 13, "model": "sage"},
    {"norm": "batch", "y": "values", "model": "gin", "train_eps": True, "dropout": 0.3},
    {"norm": "layer", "layers": 3, "hidden": 19, "model": "gin", "reduce": "max", "y": "two"},
    {"model": "gat", "heads": 2, "out_heads": 3, "norm": "batch", "y": "labels"},
    {"model": "gatv2", "heads": 2, "out_heads": 2, "hidden": 14, "norm": "layer", "residual": True},
    {"model": "transformer", "heads": 1, "out_heads": 5, "y": "flat"},
    {"y": "labels", "x": "sparse", "optimizer": "sgd"},
]


def _name(case: dict[str, Any]) -> str:
    return "-".join(str(value) for value in case.values())


def _data(graphs: Graphs, kind: str, folder: Path, x: str = "dense") -> str:
    """A graph with labels of a kind, some of them unknown."""
    arrays, rng = dict(np.load(graphs[x])), np.random.default_rng(2)
    nodes = len(arrays["y"])
    arrays.pop("num_classes", None)
    if kind == "two":
        arrays["y"] %= 2
    if kind == "labels":
        arrays["y"] = (rng.random((nodes, 5)) < 0.3).astype(np.uint8)
    if kind in ("values", "flat"):
        y = rng.standard_normal((nodes, 2) if kind == "values" else nodes).astype(np.float32)
        y[rng.random(y.shape) < 0.2] = np.nan
        arrays |= {"y": y, "task": np.array("regression")}
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


def _in_torch(spec: ProgramSpec, weights: dict[str, Tensor]) -> Tensor:
    """Logits in float64 by the library's interpreter, which has no kernels."""
    ds = gw.load(spec.data)
    model: Any = make_model(spec.to_train(), ds)
    model.load_state_dict({name: t for name, t in weights.items() if not name.startswith("optimizer.")})
    x = ds.x.to_dense() if isinstance(ds.x, gw.data.SparseFeatures) else ds.x
    assert x is not None
    with torch.no_grad(), gw.config(opt_level=0):
        made: Tensor = model.double().eval()(ds.graph, x.double())
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::graphweft.errors.DenseFeaturesWarning")
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_records_and_weights_are_the_librarys(
    case: dict[str, Any], build: Build, graphs: Graphs, tmp_path: Path
) -> None:
    options = {name: value for name, value in case.items() if name not in ("x", "y")}
    data = _data(graphs, case.get("y", "classes"), tmp_path, case.get("x", "dense"))
    spec = ProgramSpec(**{"data": data, "epochs": 4, "hidden": 16, **options})
    built: Built = build(write_program(spec, tmp_path / "program").folder)
    summary = run(replace(spec.to_train(), out=str(tmp_path / "run"), threads=1))
    wanted = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for threads in (1, 2):
        found = built.records("--threads", threads, "--save", tmp_path / "weights")
        for line, other in zip(found, wanted, strict=True):
            assert line.keys() == other.keys()
            for name in line.keys() - {"epoch_seconds", "eval_seconds"}:
                # torch adds up errors of values in another order
                is_sum = "val_rmse" in line and (name == "val_loss" or name.endswith(("rmse", "mae", "r2")))
                assert line[name] == (pytest.approx(other[name], rel=1e-9) if is_sum else other[name]), name
    told = built.summary("--threads", 2)
    assert told["metric"] == summary["metric"] and told["best_epoch"] == summary["best_epoch"]
    for name in told.keys() & {f"best_val_{kind}" for kind in ("auc", "rmse", "mae", "r2")}:
        assert told[name] == pytest.approx(summary[name], rel=1e-9)
    weights = load_file(tmp_path / "weights")
    trained = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["model"]
    for name, tensor in trained.items():
        assert torch.equal(weights[name], tensor), name
    if "dropout" not in case:
        _check_scores(found[-1], _in_torch(spec, weights), gw.load(spec.data))
    built.run("--epochs", 2, "--save", tmp_path / "half")
    built.run("--load", tmp_path / "half", "--save", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "weights").read_bytes()


def _check_scores(record: dict[str, Any], logits: Tensor, ds: gw.Dataset) -> None:
    """Against their definitions in double precision."""
    rows = ds.labelled("val")
    y, outputs = ds.y[rows], logits[rows]
    if ds.task == "classification":
        assert record["val_loss"] == pytest.approx(float(functional.cross_entropy(outputs, y)), rel=1e-4)
        if outputs.shape[1] == 2:
            margin = outputs[:, 1] - outputs[:, 0]
            pairs = margin[y == 1][:, None] - margin[y == 0]
            ties = (pairs == 0).double()
            assert record["val_auc"] == pytest.approx(float(((pairs > 0) + ties / 2).mean()), rel=1e-2)
    elif ds.task == "multilabel":
        loss = functional.binary_cross_entropy_with_logits(outputs, y.double())
        assert record["val_loss"] == pytest.approx(float(loss), rel=1e-4)
        said, wanted = outputs > 0, y > 0.5
        score = 2 * int((said & wanted).sum()) / int(said.sum() + wanted.sum())
        assert record["val_acc"] == pytest.approx(score, rel=1e-2)
    else:
        known = ~y.reshape(len(rows), -1).isnan()
        labels, values = y.reshape(len(rows), -1)[known].double(), outputs[known]
        error = values - labels
        assert record["val_rmse"] == pytest.approx(math.sqrt(float((error**2).mean())), rel=1e-4)
        assert record["val_mae"] == pytest.approx(float(error.abs().mean()), rel=1e-4)


@pytest.mark.slow
def test_a_batch_norm_goes_on_in_either(build: Build, graphs: Graphs, tmp_path: Path) -> None:
    """Running statistics and the count of batches go from the program to a trainer and back, in the same bytes."""
    spec = ProgramSpec(data=str(graphs["dense"]), epochs=4, hidden=8, norm="batch")
    built: Built = build(write_program(spec, tmp_path / "program").folder)
    built.run("--save", tmp_path / "whole")
    built.run("--epochs", 2, "--save", tmp_path / "half")
    ds = gw.load(spec.data)
    trainer = gw.Trainer(make_model(spec.to_train(), ds), ds)  # type: ignore[arg-type]
    gw.synthesis.load_weights(trainer, tmp_path / "half")
    trainer.fit(2)
    gw.synthesis.save_weights(trainer, tmp_path / "end")
    assert (tmp_path / "end").read_bytes() == (tmp_path / "whole").read_bytes()
    assert int(load_file(tmp_path / "end")["norms.0.num_batches_tracked"]) == 4


@pytest.mark.slow
def test_labels_that_do_not_fit(build: Build, graphs: Graphs, tmp_path: Path) -> None:
    """Other columns, other known entries, labels that are no labels; labels listed by node are the same ones."""
    spec = ProgramSpec(data=_data(graphs, "labels", tmp_path), epochs=2, hidden=8)
    built: Built = build(write_program(spec, tmp_path / "program").folder)
    arrays = dict(np.load(spec.data))
    y = arrays.pop("y").astype(np.float32)
    wrong, unknown = y.copy(), y.copy()
    wrong[0, 1] = 0.5
    unknown[np.flatnonzero(arrays["train_mask"])[0], 0] = np.nan
    for labels, said in (
        (y[:, :4], f"y: expected {y.size}, which this program was written for, got {y[:, :4].size}"),
        (wrong, "y: expected 0 or 1, got 0.5"),
        (unknown, "y: expected 0 or 1, got nan"),
    ):
        np.savez(tmp_path / "other.npz", **arrays, y=labels)
        done = built.run("--data", tmp_path / "other.npz", status=2)
        assert done.stderr.count("\n") == 1 and said in done.stderr
    rows, columns = np.nonzero(y)
    indptr = np.concatenate([[0], np.bincount(rows, minlength=len(y)).cumsum()])
    listed = {"y_indptr": indptr, "y_indices": columns, "y_shape": np.array(y.shape)}
    np.savez(tmp_path / "listed.npz", **arrays, **listed)
    same = [line["loss"] for line in built.records("--data", tmp_path / "listed.npz")]
    assert same == [line["loss"] for line in built.records()]
