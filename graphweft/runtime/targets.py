"""The targets by name.

Comes in: ``gw.config(target=)``, or the device of a call. Goes out: the :class:`Target`. Another one joins by
:func:`register_target`. Called by ``compile.py``.
"""

from __future__ import annotations

import torch

from graphweft import _config
from graphweft._errors import ConfigError
from graphweft.runtime.cpu.target import CPU
from graphweft.runtime.cuda.target import CUDA
from graphweft.runtime.null import Null
from graphweft.runtime.target import Target

REFERENCE = Target("reference")  # no launcher at all: everything by the interpreter
NULL = Null("null")
_TARGETS: dict[str, Target] = {target.name: target for target in (CPU, CUDA, NULL, REFERENCE)}


def register_target(target: Target) -> Target:
    """Makes ``target`` known by its name."""
    _TARGETS[target.name] = target
    return target


def target_of(device: torch.device) -> Target:
    """Who runs plans over tensors on ``device``: the configured target where it can, else the device's own.

    A device without a target of its own is served by plain torch.
    """
    chosen = target_named(_config.current().target)
    if chosen.device in (None, device.type) or device.type == "cpu":
        return chosen
    return next((target for target in _TARGETS.values() if target.device == device.type), REFERENCE)


def target_named(name: str) -> Target:
    """The target called ``name``.

    Raises: ConfigError for an unknown one.
    """
    if name not in _TARGETS:
        raise ConfigError(f"target: expected one of {', '.join(sorted(_TARGETS))}, got {name!r}")
    return _TARGETS[name]
