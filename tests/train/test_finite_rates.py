"""A learning rate that is no number is told before it reaches a parameter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import graphweft as gw


def _trainer(**options: Any) -> gw.Trainer:
    ds = gw.synthetic("cora", scale=0.05, seed=0)
    torch.manual_seed(0)
    return gw.Trainer(gw.nn.GCN(ds.num_features, 8, ds.num_classes), ds, **options)


def _finite(trainer: gw.Trainer) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())


@pytest.mark.parametrize("rate", [math.nan, math.inf])
@pytest.mark.parametrize("mode", [{}, {"mode": "mini", "batch_size": 3}])
def test_a_scheduler_that_gives_none(rate: float, mode: dict[str, Any]) -> None:
    def make(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: rate if epoch == 2 else 1.0)

    trainer = _trainer(scheduler=make, restore_best=False, **mode)
    with pytest.raises(
        gw.errors.ConfigError, match=f"scheduler: expected a finite learning rate, got {rate} after epoch 2"
    ):
        trainer.fit(5)
    assert len(trainer.history) == 2 and _finite(trainer)


@pytest.mark.parametrize("mode", [{}, {"mode": "mini", "batch_size": 3}])
@pytest.mark.parametrize("event", ["on_epoch_end", "on_batch_end"])
def test_a_callback_that_sets_none(event: str, mode: dict[str, Any]) -> None:
    def change(trainer: gw.Trainer, *more: Any) -> None:
        trainer.optimizer.param_groups[0]["lr"] = math.nan

    trainer = _trainer(callbacks=[type("Changing", (), {event: staticmethod(change)})()], restore_best=False, **mode)
    with pytest.raises(gw.errors.ConfigError, match="lr: expected a finite learning rate, got nan"):
        trainer.fit(5)
    assert _finite(trainer) and len(trainer.history) <= 1


def test_a_tensor_is_a_rate() -> None:
    ds = gw.synthetic("cora", scale=0.05, seed=0)
    model = gw.nn.GCN(ds.num_features, 8, ds.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    trainer = gw.Trainer(model, ds, optimizer=optimizer)
    assert len(trainer.fit(2)) == 2
    optimizer.param_groups[0]["lr"].fill_(math.inf)
    with pytest.raises(gw.errors.ConfigError, match="lr: expected a finite learning rate, got inf after epoch 2"):
        trainer.fit(1)
