"""Checks of shapes, dtypes and ids with one wording: ``<who>: expected <what>, got <what>``.

Comes in: user input. Goes out: nothing, or one clear error. Diagnosis (finding the offending position) runs only
after a cheap test failed.
"""

from __future__ import annotations

import operator
import re
import zlib
from typing import Any

import numpy as np
import torch

from graphweft._errors import ConfigError, DtypeError, IndexRangeError, ShapeError
from graphweft._torch_private import default_device_is_elsewhere


def as_integer(value: Any) -> int | None:
    """``value`` as a Python integer where it is one of any kind, NumPy's too; None for all else, booleans included.

    Example:
        >>> as_integer(3), as_integer(3.0), as_integer(True)
        (3, None, None)
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, torch.Tensor) and value.dtype == torch.bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_default_device(who: str) -> None:
    """Tensors are made in host memory where nobody says otherwise.

    Raises: ConfigError under ``torch.set_default_device`` or ``with torch.device``.
    """
    if default_device_is_elsewhere():
        given = torch.get_default_device()
        raise ConfigError(f"{who}: expected no default device, got {given}; device= sends batches and models there")


def as_plain(value: Any) -> Any:
    """A number of NumPy as Python's; all else as it is.

    Example:
        >>> as_plain(np.int64(3)), as_plain("3")
        (3, '3')
    """
    return value.item() if isinstance(value, np.generic) else value


def check_ids(who: str, ids: torch.Tensor, bound: int) -> None:
    """Every id lies in [0, bound); integer dtype.

    Example:
        >>> check_ids("gather_rows", torch.tensor([0, 5]), 3)
        Traceback (most recent call last):
        graphweft._errors.IndexRangeError: gather_rows: expected ids in [0, 3), got 5 at position 1
    """
    found = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
    if found not in (torch.int32, torch.int64):
        raise DtypeError(f"{who}: expected int32 or int64 ids, got {found}")
    if ids.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(ids))
    if low >= 0 and high < bound:
        return
    position = int(((ids < 0) | (ids >= bound)).reshape(-1).nonzero()[0])
    raise IndexRangeError(
        f"{who}: expected ids in [0, {bound}), got {int(ids.reshape(-1)[position])} at position {position}"
    )


def check_rows(who: str, tensor: torch.Tensor, rows: int, what: str) -> None:
    """``tensor`` has ``rows`` rows, one per ``what``."""
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        got = "a scalar" if tensor.dim() == 0 else f"{tensor.shape[0]} rows"
        raise ShapeError(f"{who}: expected {rows} rows, one per {what}, got {got}")


def check_width(who: str, tensor: torch.Tensor, width: int) -> None:
    """``tensor`` is a matrix with ``width`` columns."""
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise ShapeError(f"{who}: expected a matrix with {width} columns, got shape {tuple(tensor.shape)}")


def check_device(who: str, device: Any) -> torch.device:
    """``device`` as a device that this machine has; a tensor without elements is made there once.

    Raises: ConfigError for another name, or a device that is not there.

    Example:
        >>> check_device("Tier", "cpu")
        device(type='cpu')
        >>> check_device("Tier", "gpu")
        Traceback (most recent call last):
        graphweft._errors.ConfigError: Tier: expected a device of this machine (cpu), got 'gpu'
    """
    try:
        found = torch.device(device)
        if found.type not in ("cpu", "meta"):
            torch.zeros(1, device=found)  # a launch: a GPU for which torch has no code has memory
        return found
    except (RuntimeError, AssertionError, TypeError, NotImplementedError, ImportError) as failure:
        named = str(device) if isinstance(device, torch.device) else device
        why = _without_cuda(str(failure)) if str(named).startswith("cuda") else ""
        there = ["cpu"] if why else ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise ConfigError(
            f"{who}: expected a device of this machine ({', '.join(there)}), got {named!r}{why}"
        ) from None


def _without_cuda(said: str) -> str:
    """Why torch cannot use any CUDA device, by what it ``said``; "" where it can use another."""
    built = torch.version.cuda
    if built is None:
        return "; this torch is built without CUDA: pip install torch from the index of a CUDA version"
    if "too old" in said or "driver version is insufficient" in said:
        known = re.search(r"found version (\d+)", said)  # 1000 * major + 10 * minor
        has = f", it has {int(known[1]) // 1000}.{int(known[1]) % 1000 // 10}" if known else ""
        return f"; the driver is too old for CUDA {built}{has}: update it, or install torch for an older CUDA"
    if "no NVIDIA driver" in said:
        return "; there is no NVIDIA driver"
    if "no kernel image" in said:
        return "; this torch is built without code for that GPU: install one that lists its compute capability"
    if "out of memory" in said:
        return "; its memory is taken: nvidia-smi lists the processes that hold it"
    if torch.cuda.device_count() == 0:
        return (
            f"; torch is built for CUDA {built} and sees no GPU: nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides some"
        )
    return ""


def checksum(tensor: torch.Tensor | None) -> int | None:
    """A number that tells tensors apart, for what is kept beside a state; None for none.

    Example:
        >>> checksum(torch.tensor([1, 2])) == checksum(torch.tensor([2, 1])), checksum(None)
        (False, None)
    """
    return None if tensor is None else zlib.crc32(tensor.contiguous().numpy().data)
