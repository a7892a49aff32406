"""Optimisers by name, with weight decay where it is wanted.

Comes in: a model and options. Goes out: a ``torch.optim.Optimizer``. Called by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.nn.stack import Stack
from graphweft.optim import SGD, Adam, AdamW
from graphweft.train.options import OPTIMIZERS, USUAL_RATE, check_choice


def make_optimizer(
    model: nn.Module, given: str | torch.optim.Optimizer, lr: float, weight_decay: float, weight_decay_on: str
) -> torch.optim.Optimizer:
    """The optimiser ``given`` by name over all parameters of ``model``, or a torch optimiser as it is.

    Parameters that need no gradient are among them and stay as they are, as in torch, so that they train once they
    need one. ``weight_decay_on="first"`` decays the first layer only, as in the GCN paper (Kipf and Welling 2017,
    section 5.2); "all" decays every parameter.

    Raises: ConfigError for a model without parameters to train, an unknown name, or an optimiser that does not fit.
    """
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError("optimizer: expected a model with parameters, got none that need a gradient")
    if isinstance(given, torch.optim.Optimizer):
        return _checked(given, parameters, {"lr": lr, "weight_decay": weight_decay, "weight_decay_on": weight_decay_on})
    decayed = {id(p) for p in (first_layer(model) if weight_decay_on == "first" else model).parameters()}
    groups = [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}
    if not isinstance(given, str):
        got = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise ConfigError(
            f"optimizer: expected one of {', '.join(OPTIMIZERS)}, or an optimizer over model.parameters(), got {got}"
        )
    check_choice("optimizer", given, OPTIMIZERS)
    return kinds[given](groups, lr=lr)


def _checked(
    given: torch.optim.Optimizer, parameters: list[nn.Parameter], more: dict[str, Any]
) -> torch.optim.Optimizer:
    """An optimiser object that trains this model and needs nothing ``more``. Raises: ConfigError."""
    for name, usual in {"lr": USUAL_RATE, "weight_decay": 0.0, "weight_decay_on": "all"}.items():
        if more[name] != usual:
            raise ConfigError(f"{name}={more[name]} cannot be combined with an optimizer object, which has its own")
    if isinstance(given, torch.optim.LBFGS):
        raise ConfigError("optimizer: LBFGS is not supported, since it computes the loss several times a step")
    held = {id(p) for group in given.param_groups for p in group["params"]}
    if not any(id(p) in held for p in parameters):
        raise ConfigError("optimizer: expected one over model.parameters(), got one over other tensors")
    return given


def first_layer(model: nn.Module) -> nn.Module:
    """The first child that holds parameters, inside lists and stacks of layers; the model itself when it has none.

    Example:
        >>> first_layer(nn.ModuleDict({"layers": nn.ModuleList([nn.Dropout(), nn.Linear(2, 3), nn.Linear(3, 1)])}))
        Linear(in_features=2, out_features=3, bias=True)
    """
    for child in model.children():
        if next(child.parameters(), None) is not None:
            lists = (nn.ModuleList, nn.Sequential, nn.ModuleDict, Stack)
            return first_layer(child) if isinstance(child, lists) else child
    return model
