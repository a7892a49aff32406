"""A look at a module sees what the full description of it sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import graphweft as gw
from graphweft.nn.settings import settings_of, tensors_of
from graphweft.nn.standing import Standing


def _model() -> gw.nn.GraphModel:
    return gw.nn.GraphModel(4, 8, 2, num_layers=2, dropout=0.5)


def _layer(model: gw.nn.GraphModel) -> nn.Module:
    return model.encoder.layers[1]


CHANGES: dict[str, Callable[[gw.nn.GraphModel], object]] = {
    "number": lambda m: setattr(m.drop, "p", 0.1),
    "new attribute": lambda m: setattr(_layer(m), "more", 1),
    "numbers in a tensor": lambda m: _layer(m).eps.fill_(0.5),
    "parameter": lambda m: setattr(_layer(m), "weight1", nn.Parameter(_layer(m).weight1.detach().clone())),
    "buffer": lambda m: setattr(_layer(m), "eps", _layer(m).eps.clone()),
    "frozen parameter": lambda m: _layer(m).weight1.requires_grad_(False),
    "no parameter": lambda m: setattr(_layer(m), "bias1", None),
    "dtype": lambda m: _layer(m).double(),
    "layer": lambda m: m.encoder.layers.__setitem__(1, gw.nn.GINConv(8, 8, mlp_norm="batch")),
    "more layers": lambda m: m.encoder.layers.append(gw.nn.GINConv(8, 8, mlp_norm="batch")),
    "hook": lambda m: _layer(m).register_forward_hook(lambda *_: None),
    "hook on a gradient": lambda m: _layer(m).weight1.register_hook(lambda g: g),
    "hook after a gradient": lambda m: _layer(m).weight1.register_post_accumulate_grad_hook(lambda p: None),
    "forward": lambda m: setattr(_layer(m), "forward", lambda *_: None),
    "parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.head),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    model = _model()
    standing = Standing.of(model)
    assert standing is not None and standing.holds()
    CHANGES[name](model)
    assert not standing.holds()


def test_what_training_changes_is_none() -> None:
    model = _model()
    standing, before, tensors = Standing.of(model), settings_of(model), tensors_of(model)
    assert standing is not None
    model.eval()
    with torch.no_grad():
        _layer(model).weight1.add_(1.0)
        _layer(model).norm.running_mean.add_(1.0)
    _layer(model).weight1.grad = torch.ones(8, 8)
    assert standing.holds()
    assert all(module.training for module in model.modules())
    assert settings_of(model) == before and all(tensors_of(model)[name] is t for name, t in tensors.items())


def test_what_is_around_is_seen() -> None:
    standing = Standing.of(_model())
    assert standing is not None
    with gw.config(opt_level=0):
        assert not standing.holds()
    with torch.autocast("cpu"):
        assert not standing.holds()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not standing.holds() and Standing.of(_model()) is None
    handle.remove()
    assert standing.holds()


def test_modules_that_could_change_unseen_have_none() -> None:
    class Own(nn.Linear):
        pass

    model = _model()
    model.head = Own(20, 2)
    assert Standing.of(model) is None
    model = _model()
    model.drop.table = {"inside": torch.ones(2)}
    assert Standing.of(model) is None
    model = _model()
    _layer(model).weight1.register_hook(lambda g: g)
    assert Standing.of(model) is None
