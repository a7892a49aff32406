"""Weights and the state of the optimiser, between a trainer and a program.

Comes in: a :class:`graphweft.Trainer`, a path. Goes out: a safetensors file with the bytes that a program would write
with ``--save``, in whose order tensors lie; or the trainer goes on from such a file. Called by users as
``gw.synthesis.save_weights`` and ``load_weights``.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from graphweft._errors import CheckpointError
from graphweft.train.atomic import write_atomic
from graphweft.train.history import History
from graphweft.train.record import EpochRecord
from graphweft.train.trainer import Trainer

_KEPT = ("exp_avg", "exp_avg_sq", "step")  # of Adam, in the order of a program
_STATE = "optimizer."
_DTYPES = (torch.float32, torch.int64)  # numbers, and counts of batches


def save_weights(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Writes a file from which a program resumes with ``--load``: weights, state of the optimiser, number of epochs.

    Raises: OSError if the file cannot be written.
    """
    state = trainer.state_dict()
    tensors: dict[str, Tensor] = {name: value for name, value in state["model"].items() if isinstance(value, Tensor)}
    kept = state["optimizer"]["state"]
    for index, name in enumerate(_trained(trainer)):
        found = kept.get(index, {})
        tensors |= {f"{_STATE}{key}.{name}": found[key] for key in _KEPT if key in found}
    header: dict[str, Any] = {"__metadata__": {"epochs": str(state["epoch"])}}
    parts, end = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].is_floating_point()):  # as in a program
        counts = not tensor.is_floating_point()
        parts.append(tensor.detach().to("cpu", torch.int64 if counts else torch.float32).numpy().tobytes())
        begin, end = end, end + len(parts[-1])
        dtype = "I64" if counts else "F32"
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    write_atomic(Path(path), lambda file: file.write(b"".join([struct.pack("<Q", len(text)), text, *parts])))


def load_weights(trainer: Trainer, path: str | os.PathLike[str]) -> None:
    """Resumes a trainer from a file that a program saved. Epochs of the program have no figures in the history.

    Raises: CheckpointError if the file is damaged or belongs to another model; OSError if it cannot be read.
    """
    tensors, epochs = _read(Path(path))
    state = trainer.state_dict()
    wanted = {name: value for name, value in state["model"].items() if isinstance(value, Tensor)}
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith(_STATE)}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    for name, tensor in wanted.items():
        if shapes.get(name) != tuple(tensor.shape) or given[name].dtype != tensor.dtype:
            got = f"shape {shapes[name]}" if name in shapes else "none"
            got = got if name not in given or given[name].dtype == tensor.dtype else str(given[name].dtype)
            raise CheckpointError(f"{path}: expected {name} of shape {tuple(tensor.shape)}, got {got}")
    if others := sorted(given.keys() - wanted.keys()):
        raise CheckpointError(f"{path}: expected the tensors of this model alone, got {others[0]}")
    kept = {}
    for index, name in enumerate(_trained(trainer)):
        found = {key: tensors[f"{_STATE}{key}.{name}"] for key in _KEPT if f"{_STATE}{key}.{name}" in tensors}
        if found:
            kept[index] = found
    optimizer = {**state["optimizer"], "state": kept}
    history = History([EpochRecord(epoch, loss=math.nan) for epoch in range(1, epochs + 1)])
    parts = {"model": {**state["model"], **given}, "best_model": {**state["model"], **given}}
    trainer.load_state_dict({**state, **parts, "optimizer": optimizer, "history": history.to_state()})


def _trained(trainer: Trainer) -> list[str]:
    """Names of the parameters in the order in which the optimiser numbers them."""
    named = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    return [named[id(parameter)] for group in trainer.optimizer.param_groups for parameter in group["params"]]


def _read(path: Path) -> tuple[dict[str, Tensor], int]:
    """Tensors by name, and the number of epochs; 0 where the file does not tell. Raises: CheckpointError, OSError."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 no dict
            epochs = int((file.metadata() or {}).get("epochs", 0))
        if others := [f"{name} of {x.dtype}" for name, x in tensors.items() if x.dtype not in _DTYPES]:
            raise ValueError(others[0])
        return tensors, epochs
    except (ValueError, SafetensorError) as failure:
        text = " ".join(str(failure).split())[:200]
        raise CheckpointError(f"{path}: expected a safetensors file of float32 tensors, got {text}") from None


__all__ = ["load_weights", "save_weights"]
