"""``precision=`` of the trainer and the command: where rows are rounded, and that a resumed run agrees on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import graphweft as gw
from graphweft._errors import CheckpointError, ConfigError
from graphweft.runtime import dense, sparse
from graphweft.train.spec import TrainSpec


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "rounds_rows", lambda columns, edges, row_bytes: True)


def trainer(ds: gw.Dataset, **options: object) -> gw.Trainer:
    torch.manual_seed(0)
    return gw.Trainer(gw.nn.GCN.for_data(ds, hidden=16), ds, **options)  # type: ignore[arg-type]


def test_the_trainers_precision_is_its_own(rounding: None, tmp_path: Path) -> None:
    ds = gw.synthetic("default", scale=0.05, seed=0)
    exact = trainer(ds).fit(3)
    rounded = trainer(ds, precision="bf16", out=tmp_path / "run").fit(3)
    with gw.config(precision="bf16"):
        outside = trainer(ds)
    again = outside.fit(3)  # as it was when the trainer was made
    assert [r.loss for r in rounded] == [r.loss for r in again] != [r.loss for r in exact]
    assert rounded[-1].loss == pytest.approx(exact[-1].loss, rel=0.02)
    longer = trainer(ds, precision="bf16", out=tmp_path / "run")
    assert longer.resume()
    assert longer.fit(2)[-1].loss == trainer(ds, precision="bf16").fit(5)[-1].loss
    with pytest.raises(CheckpointError, match="precision"):
        trainer(ds, out=tmp_path / "run").resume()


def test_an_unknown_precision_is_one_line() -> None:
    ds = gw.synthetic("default", scale=0.05, seed=0)
    with pytest.raises(ConfigError, match="precision: expected one of float32, bf16, int8, got 'fp16'"):
        trainer(ds, precision="fp16")
    with pytest.raises(ConfigError, match="precision: expected one of float32, bf16, int8, got 'half'"):
        TrainSpec(precision="half")
    assert "precision" not in TrainSpec().identity() and TrainSpec(precision="bf16").identity()["precision"] == "bf16"


@pytest.fixture
def rounding_products(rounding: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products round their operands, too, whatever the processor and the widths."""
    monkeypatch.setattr(dense, "rounds_operands", lambda k, m: True)


def accuracy(ds: gw.Dataset, precision: str, epochs: int, **options: object) -> float:
    """Mean share of test nodes that are predicted right, of three seeds."""
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = gw.nn.SAGE.for_data(ds, hidden=32)
        trainer = gw.Trainer(model, ds, lr=0.01, seed=seed, eval_every=1000, precision=precision, **options)  # type: ignore
        trainer.fit(epochs)
        found.append(trainer.evaluate("test"))
    return sum(found) / len(found)


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_accuracy_stays_on_a_planted_graph(rounding_products: None, mode: str) -> None:
    ds = gw.synthetic("default", scale=0.2, seed=0, homophily=0.8)
    options = {"mode": "mini", "fanouts": (5, 5), "batch_size": 200} if mode == "mini" else {}
    exact, rounded = (accuracy(ds, precision, 4 if options else 15, **options) for precision in ("float32", "bf16"))
    assert exact > 0.8
    assert abs(rounded - exact) <= 0.003


def test_accuracy_stays_on_cora(rounding_products: None, shared_data: Path) -> None:
    ds = gw.load(shared_data / "cora.npz")
    exact, rounded = (accuracy(ds, precision, 20) for precision in ("float32", "bf16"))
    assert exact > 0.6
    assert abs(rounded - exact) <= 0.003
