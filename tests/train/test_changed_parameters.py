"""A model whose parameters are other objects than the optimiser has is not trained on silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import graphweft as gw


def _trainer(**options: Any) -> gw.Trainer:
    ds = gw.synthetic("cora", scale=0.05, seed=0)
    return gw.Trainer(gw.nn.GCN(ds.num_features, 8, ds.num_classes), ds, **options)


def _replace_layer(model: Any) -> None:
    model.layers[1] = gw.nn.GCNConv(8, 7)


def _assign_state(model: Any) -> None:
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def _parametrize(model: Any) -> None:
    parametrizations.weight_norm(model.layers[1], "weight")


@pytest.mark.parametrize("change", [_replace_layer, _assign_state, _parametrize])
@pytest.mark.parametrize("options", [{}, {"mode": "mini", "batch_size": 3}], ids=["full", "mini"])
def test_parameters_that_no_update_would_change(change: Callable[[Any], None], options: dict[str, Any]) -> None:
    trainer = _trainer(**options)
    trainer.fit(1)
    change(trainer.model)
    with pytest.raises(gw.errors.ConfigError, match=r"fit: expected the parameters .* got another object as layers"):
        trainer.fit(1)
    assert len(trainer.history) == 1


def test_what_goes_on_as_before() -> None:
    trainer = _trainer()
    trainer.fit(1)
    trainer.model.load_state_dict({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    trainer.fit(1)
    trainer.model.layers[1].bias.requires_grad_(False)
    trainer.fit(1)
    added = nn.Parameter(torch.zeros(8, 7))
    trainer.optimizer.add_param_group({"params": [added]})
    trainer.model.layers[1].weight = added
    before = added.clone()
    trainer.fit(2)
    assert len(trainer.history) == 5 and not torch.equal(added, before)
