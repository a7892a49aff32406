"""Options of a run: ranges, the folder, and what must agree on a resume."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from graphweft._errors import ConfigError
from graphweft.train.spec import TrainSpec
from graphweft.train.table_options import TableOptions

BAD: list[tuple[str, Any]] = [
    ("cuda_graphs", "yes"),
    ("data", ""), ("data", None), ("data", "a\0b"), ("data", "\ud800"), ("root", ""), ("out", ""), ("out", 7),
    ("scale", 0.0), ("scale", -1.0), ("scale", float("inf")), ("scale", 1e9),
    ("task", "edges"), ("bases", -1), ("features", "pagerank"), ("features", ""),
    ("model", "mlp"), ("model", ""), ("layers", 0), ("layers", 10**6), ("layers", 2.0), ("hidden", 0), ("hidden", -4),
    ("epochs", 0), ("epochs", -3), ("epochs", True), ("lr", 0.0), ("lr", -0.1), ("lr", float("nan")),
    ("heads", 0), ("heads", 2.0), ("hops", 0), ("alpha", 1.5),
    ("lr", float("inf")), ("lr", "0.1"), ("optimizer", "lion"), ("dropout", 1.0), ("dropout", -0.1),
    ("dropout", float("nan")), ("weight_decay", -1e-3), ("weight_decay", float("inf")), ("weight_decay_on", "last"),
    ("normalize", "col"), ("norm", "group"), ("order", "random"), ("reduce", "min"), ("mode", "x"),
    ("seed", -1), ("seed", 2**63), ("threads", -1), ("threads", 10**6), ("patience", -1), ("eval_every", 0),
    ("stop_on", "f1"), ("out_heads", 0), ("activation", "tanh"), ("attention_dropout", 1.0), ("value_dropout", 1.0),
    ("macro", "large"), ("macro", "parts:9/8"), ("macro", 3), ("quality", 0.0), ("accumulate", 0),
    ("fanouts", "5,0"), ("fanouts", "a"), ("batch_size", 0), ("sampler", "best"), ("sampler", 7),
    ("prepare", "twice"), ("edge_data", "some"), ("trace", 5),
    ("loss", "hinge"), ("class_weight", "even"), ("class_weight", 2), ("label_smoothing", 1.0), ("warmup", -1),
    ("scheduler", "cyclic"), ("scheduler", "step:0"), ("scheduler", "step:a"), ("scheduler", 5), ("clip", 0.0),
    ("clip_value", -1.0), ("ema", 1.0), ("metrics", "f1"), ("metrics", 3), ("best", "f1"), ("logger", "json"),
    ("fold", 10), ("readout", "add"), ("ranks", -1), ("rank_reduce", "some"), ("halo", "int4"),
    ("precision", "half"), ("matmul_precision", "medium"), ("max_restarts", -1),
    ("device", ""), ("device", 3), ("schedule", "some"), ("schedule", 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value!r}" for name, value in BAD])
def test_a_value_out_of_range_is_named_with_what_was_expected(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: expected .* got ") as caught:
        TrainSpec(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"heads": 3}, "heads=3 cannot be combined with model=gcn; it is for gat, gatv2, cgat, transformer, hgt"),
        ({"train_eps": True}, "train_eps=True cannot be combined with model=gcn; it is for gin"),
        ({"model": "hgt", "out_heads": 2}, "out_heads=2 cannot be combined with model=hgt; it is for gat, gatv2, cgat"),
        ({"model": "sage", "attention_dropout": 0.0}, "attention_dropout=0.0 cannot be combined with model=sage"),
        ({"model": "gatv2", "value_dropout": 0.5}, "value_dropout=0.5 cannot be combined with model=gatv2"),
        ({"model": "hgt", "bases": 2}, "bases=2 cannot be combined with model=hgt; it is for rgcn"),
        ({"model": "gcnii", "hops": 3}, "hops=3 cannot be combined with model=gcnii; it is for appnp"),
        ({"alpha": 0.3}, "alpha=0.3 cannot be combined with model=gcn; it is for appnp, gcnii"),
        ({"task": "node2vec", "layers": 3}, "layers=3 cannot be combined with task=node2vec, which has no layers"),
        ({"task": "node2vec", "model": "sage"}, "model=sage cannot be combined with task=node2vec"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_an_option_that_the_model_would_ignore_is_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}"):
        TrainSpec(**given)


def test_options_are_taken_by_the_models_that_have_them() -> None:
    for given in (
        {"model": "hgt", "heads": 4},
        {"model": "appnp", "hops": 3, "alpha": 0.2},
        {"model": "rgcn", "bases": 2},
    ):
        assert vars(TrainSpec(**given)).items() >= given.items()


def test_every_option_is_checked() -> None:
    unchecked = {field.name for field in fields(TrainSpec)} - {name for name, _ in BAD}
    tables = {field.name for field in fields(TableOptions)}  # see test_table_options.py
    assert unchecked - tables == {"residual", "train_eps", "resume", "progress", "memory"}


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        ("default", "runs/default"),
        ("cora", "runs/cora"),
        ("/data/my graph.npz", "runs/my-graph"),
        ("../sets/reddit/", "runs/reddit"),
        ("..", "runs/run"),
    ],
)
def test_the_folder_follows_the_data(data: str, folder: str) -> None:
    assert TrainSpec(data=data).folder == Path(folder)
    assert TrainSpec(data=data, out="there").folder == Path("there")


def test_identity_holds_what_decides_the_numbers() -> None:
    base = TrainSpec()
    for free in ({"epochs": 7}, {"threads": 1}, {"out": "x"}, {"resume": True}, {"patience": 3}, {"mode": "auto"}):
        assert TrainSpec(**free).identity() == base.identity()
    for other in ({"lr": 0.1}, {"hidden": 8}, {"seed": 1}, {"data": "cora"}, {"scale": 2.0}, {"residual": True}):
        assert TrainSpec(**other).identity() != base.identity()


def test_options_need_no_torch(root: Path) -> None:
    code = "import sys, graphweft.train.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_bound_that_only_measures_and_options_of_mini_batches_without_them() -> None:
    assert TrainSpec(mode="mini", macro="large:1/4", quality=float("inf")).quality == float("inf")
    given = {"fanouts": "5,3", "batch_size": 64, "macro": "large:1/4", "accumulate": 2, "sampler": "layer"}
    for name, value in {**given, "prepare": "subtasks"}.items():
        with pytest.raises(ConfigError, match=f"^{name}: expected mode mini as well, got mode 'full'$"):
            TrainSpec(**{name: value})
        TrainSpec(**{"mode": "auto", name: value})
