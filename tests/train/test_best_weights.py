"""Which weights a model holds after training, and that training continues from the last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import assert_same_run
from standin import make_model, make_task

from graphweft._errors import ConfigError
from graphweft.data.synthetic import synthetic
from graphweft.nn.gcn import GCN
from graphweft.nn.sage import SAGE
from graphweft.train.best_weights import BestWeights
from graphweft.train.checkpoint import load_checkpoint
from graphweft.train.trainer import Trainer


def _trainer(out: Path | None = None, **options: Any) -> Trainer:
    ds = synthetic("default", scale=0.02, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kind = GCN if options.get("mode", "full") == "full" else SAGE
        model = kind(ds.num_features, 8, ds.num_classes, num_layers=2, dropout=0.5, norm="batch")
    return Trainer(model, ds, lr=0.1, out=out, **options)


def _copy(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("mode", "epochs"), [("full", 24), ("mini", 25)])
def test_the_model_holds_the_best_weights_and_training_continues_from_the_last(
    tmp_path: Path, mode: str, epochs: int
) -> None:
    kept = _trainer(tmp_path / "kept", mode=mode, restore_best=False)
    kept.fit(epochs)
    last = _copy(kept.model)
    restored = _trainer(tmp_path / "restored", mode=mode)
    history = restored.fit(epochs)
    best = history.best
    assert best is not None and best.epoch < epochs  # else the test says nothing
    assert restored.evaluate("test") == best.test_acc and restored.evaluate("val") == best.val_acc
    assert kept.evaluate("test") == history[-1].test_acc
    assert _equal(load_checkpoint(tmp_path / "restored" / "best.pt")["model"], _copy(restored.model))
    assert _equal(load_checkpoint(tmp_path / "restored" / "last.pt")["model"], last)
    assert _equal(restored.state_dict()["model"], last)
    assert_same_run(tmp_path / "kept", tmp_path / "restored")
    kept.fit(5)
    restored.fit(0)
    restored.fit(5)
    assert_same_run(tmp_path / "kept", tmp_path / "restored")


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_a_resumed_run_holds_the_best_weights_too(tmp_path: Path, mode: str) -> None:
    whole = _trainer(tmp_path / "whole", mode=mode)
    whole.fit(14)
    _trainer(tmp_path / "parts", mode=mode).fit(9)
    again = _trainer(tmp_path / "parts", mode=mode)
    assert again.resume()
    assert again.history.best is not None and again.evaluate("test") == again.history.best.test_acc
    again.prepare()
    again.fit(5)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert _equal(_copy(whole.model), _copy(again.model))


def test_weights_that_were_put_in_by_hand_are_trained_on() -> None:
    trainer = _trainer()
    trainer.fit(12)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.zero_()
    assert all(float(value.abs().sum()) == 0 for value in trainer.state_dict()["model"].values() if value.dim() == 2)
    loss = trainer.fit(1)[-1].loss
    assert loss == pytest.approx(float(torch.tensor(trainer.ds.num_classes).log()), rel=1e-4)  # of equal logits


def test_without_validation_nodes_the_last_weights_stay() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    task = replace(make_task(), val_idx=none)
    trainer = Trainer(make_model(task), task, lr=0.1)
    trainer.fit(5)
    assert _equal(_copy(trainer.model), trainer.state_dict()["model"])


def test_a_model_with_other_parameters_keeps_them() -> None:
    trainer = _trainer()
    trainer.fit(12)
    model: Any = trainer.model
    model.register_buffer("extra", torch.ones(2))
    with pytest.warns(UserWarning, match="restore_best: the model has other parameters than in its best epoch"):
        trainer.fit(0)


def test_another_value_than_true_or_false_is_refused() -> None:
    ds = synthetic("default", scale=0.02)
    with pytest.raises(ConfigError, match="restore_best: expected True or False, got 'last'"):
        Trainer(GCN(ds.num_features, 4, ds.num_classes), ds, restore_best="last")


def test_better_weights_take_the_memory_of_the_former_best() -> None:
    model = torch.nn.Linear(300, 300)
    kept = BestWeights(model, restores=True)
    kept.keep({})
    places = [tensor.data_ptr() for tensor in kept.best.values()]
    with torch.no_grad():
        model.weight.add_(1.0)
    kept.keep({})
    assert places == [tensor.data_ptr() for tensor in kept.best.values()]
    assert torch.equal(kept.best["weight"], model.weight) and kept.best["weight"].data_ptr() != model.weight.data_ptr()
