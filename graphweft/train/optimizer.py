"""Optimisers by name, with weight decay where it is wanted.

Comes in: a model and options. Goes out: a ``torch.optim.Optimizer``. Called by the trainer.
"""

from __future__ import annotations

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.optim import SGD, Adam, AdamW
from graphweft.train.options import OPTIMIZERS


def make_optimizer(
    model: nn.Module, name: str, lr: float, weight_decay: float, weight_decay_on: str
) -> torch.optim.Optimizer:
    """The optimiser ``name`` over all parameters of ``model`` that need a gradient.

    ``weight_decay_on="first"`` decays the first layer only, as in the GCN paper (Kipf and Welling 2017, section 5.2);
    "all" decays every parameter.

    Raises: ConfigError for a model without parameters or an unknown name.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("optimizer: expected a model with parameters, got none that need a gradient")
    decayed = {id(p) for p in (first_layer(model) if weight_decay_on == "first" else model).parameters()}
    groups = [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "adam":
        return Adam(groups, lr=lr)
    if name == "adamw":
        return AdamW(groups, lr=lr)
    if name == "sgd":
        return SGD(groups, lr=lr)
    raise ConfigError(f"optimizer: expected one of {', '.join(OPTIMIZERS)}, got {name!r}")


def first_layer(model: nn.Module) -> nn.Module:
    """The first child that holds parameters, looked for inside lists of layers; the model itself when it has none.

    Example:
        >>> first_layer(nn.ModuleDict({"layers": nn.ModuleList([nn.Dropout(), nn.Linear(2, 3), nn.Linear(3, 1)])}))
        Linear(in_features=2, out_features=3, bias=True)
    """
    for child in model.children():
        if next(child.parameters(), None) is not None:
            lists = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
            return first_layer(child) if isinstance(child, lists) else child
    return model
