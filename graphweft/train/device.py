"""Where a run trains: the device of its model.

Comes in: a model, and the device that a trainer was given. Goes out: the model there. Called by the trainer and by
full-batch steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from graphweft import _config
from graphweft._checks import check_device
from graphweft._errors import ConfigError
from graphweft.nn.module import CompiledModule
from graphweft.runtime.captures import CUDA
from graphweft.runtime.cuda.jit import find_triton
from graphweft.runtime.targets import target_of
from graphweft.schedule.known_places import is_apart
from graphweft.storage.feature import SparseFeatures


def on_device(model: Any, device: Any, mode: str) -> Any:
    """Moves ``model`` to ``device``; None leaves it. Returns where it trains: a device, or the name of a place apart.

    Raises: ConfigError for a device that is not there or has no memory, or a mode that trains on the CPU;
    MissingPackageError for one whose kernels need a package.
    """
    if is_apart(device):
        if mode != "mini":
            raise ConfigError(f"device={str(device)!r} cannot be combined with mode={mode!r}; it trains mini-batches")
        return device
    if device is not None:
        place = check_device("device", device)
        if target_of(place) is CUDA and _config.current().opt_level:
            find_triton()
        if isinstance(model, nn.Module):
            model.to(place)
    if mode not in ("full", "auto") and (place := device_of(model)).type != "cpu":
        if mode == "mini" and target_of(place).has_samplers:
            return place
        remedy = "a loop of your own over a loader takes batch.to(device)"
        raise ConfigError(f"device={str(place)!r} cannot be combined with mode={mode!r}; {remedy}")
    if device_of(model).type == "meta":
        raise ConfigError(
            "model: expected parameters with values, got parameters on the device meta, which has no memory"
        )
    return device_of(model)


def stays_sparse(model: Any, x: SparseFeatures) -> bool:
    """Whether ``x`` stays sparse where ``model`` is, on a device: kernels there and the model read it so."""
    compiled = isinstance(model, CompiledModule) and model.takes_sparse and not model.runs_apart()
    return compiled and _config.current().opt_level > 0 and target_of(device_of(model)).keeps_sparse(x)


def device_of(model: Any) -> torch.device:
    """Where the parameters of ``model`` lie; the CPU for a model without any."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((p.device for p in parameters), torch.device("cpu"))
