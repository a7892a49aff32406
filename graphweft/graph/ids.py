"""User input (tensors, arrays, lists) as id tensors and sizes.

Comes in: whatever a user hands over as ids, offsets or a number of nodes. Goes out: contiguous one-dimensional int32 or
int64 CPU tensors, without a copy where that is possible, or one clear error. Called by the constructors of graphs and
of sparse features.
"""

from __future__ import annotations

import ctypes
import operator
import warnings
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from graphweft import _machine
from graphweft._errors import DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft._native import declare

Ids: TypeAlias = Any  # torch.Tensor | numpy.ndarray | sequence of integers

INT32_MAX = 2**31 - 1
_MOST_NODES = _machine.memory() // 8  # more offsets than fit this machine are a mistake
_FEW_NODES = 1 << 27  # below this, free memory is not asked for
_WIDENS = (torch.int8, torch.uint8, torch.int16)


_summary = declare("gw_ids_summary")
_require = declare("gw_ids_require")


def is_wide(ids: torch.Tensor) -> int:
    """1 for int64 ids, 0 for int32: how the core is told."""
    return int(ids.dtype == torch.int64)


def to_array(who: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    """``value`` (an array or a sequence) as a NumPy array, or one clear error."""
    if value is None or isinstance(value, str | bytes | dict | set):
        raise DtypeError(f"{who}: expected {name} as a tensor, an array or a list, got {type(value).__name__}")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        raise ShapeError(f"{who}: expected {name} as a flat list of numbers, got a ragged or mixed one") from None


def borrow(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor over the array's memory, for reading only: memory maps and other read-only arrays are fine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def _from_numpy(who: str, name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise IndexRangeError(f"{who}: expected {name} that fit 64 bits with a sign, got {array.max()}")
    if array.dtype.kind in "ui" and (array.dtype not in (np.int32, np.int64) or not array.dtype.isnative):
        array = array.astype(np.int64)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)  # an empty list has no kind of its own
    if array.dtype.kind not in "ui":
        raise DtypeError(f"{who}: expected {name} of integers, got {array.dtype}")
    return borrow(array)


def as_ids(who: str, name: str, value: Ids) -> torch.Tensor:
    """``value`` as a contiguous int32 or int64 vector on the CPU.

    Raises: DtypeError for floats, booleans and other kinds; ShapeError for anything but one dimension.

    Example:
        >>> as_ids("Graph", "src", [2, 0])
        tensor([2, 0])
        >>> as_ids("Graph", "src", [0.5])
        Traceback (most recent call last):
        graphweft._errors.DtypeError: Graph: expected src of integers, got float64
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.layout != torch.strided or tensor.is_meta:
            kind = "a meta tensor" if tensor.is_meta else str(tensor.layout)
            raise DtypeError(f"{who}: expected {name} as a dense tensor, got {kind}")
        if tensor.dtype in _WIDENS or (tensor.numel() == 0 and tensor.is_floating_point()):
            tensor = tensor.long()
        if tensor.dtype not in (torch.int32, torch.int64):
            raise DtypeError(f"{who}: expected {name} of integers, got {tensor.dtype}")
        tensor = tensor.cpu()
    else:
        tensor = _from_numpy(who, name, to_array(who, name, value))
    if tensor.dim() != 1:
        raise ShapeError(f"{who}: expected {name} with 1 dimension, got shape {tuple(tensor.shape)}")
    return tensor.contiguous()


def _brief(value: Any) -> str:
    """A value for a message: itself if it is a plain scalar, else its type."""
    return repr(value) if isinstance(value, float | str | bool) else type(value).__name__


def as_count(who: str, name: str, value: Any) -> int:
    """``value`` as a number of nodes whose offsets fit in this machine's memory.

    Raises: DtypeError if it is no integer; GraphError if it is negative or impossible here.
    """
    try:
        if isinstance(value, bool | np.bool_) or (isinstance(value, torch.Tensor) and value.dtype == torch.bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise DtypeError(f"{who}: expected {name} as an integer, got {_brief(value)}") from None
    if count < 0:
        raise GraphError(f"{who}: expected {name} >= 0, got {count}")
    if count > _MOST_NODES:
        raise GraphError(
            f"{who}: expected {name} <= {_MOST_NODES}, whose offsets fit this machine's memory, got {count}"
        )
    if count > _FEW_NODES and 8 * count > (free := _machine.free_memory()):
        raise GraphError(f"{who}: expected {name} <= {free // 8}, whose offsets fit the free memory, got {count}")
    return count


@dataclass(frozen=True)
class IdSummary:
    """Smallest and largest id, and whether the ids ascend; (0, -1, True) for none."""

    low: int
    high: int
    ascending: bool


def summarize(ids: torch.Tensor) -> IdSummary:
    """One native pass over contiguous int32 or int64 ids."""
    if ids.numel() == 0:
        return IdSummary(0, -1, True)
    low, high, ascending = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int32()
    _summary(is_wide(ids), ids.numel(), ids.data_ptr(), ctypes.byref(low), ctypes.byref(high), ctypes.byref(ascending))
    return IdSummary(low.value, high.value, bool(ascending.value))


def require_ids(who: str, name: str, ids: torch.Tensor, bound: int) -> None:
    """Every id lies in [0, bound).

    Raises: IndexRangeError that names the first bad id and its position.
    """
    _require(is_wide(ids), ids.numel(), ids.data_ptr(), bound, f"{who}: expected {name} ids".encode())


def index_dtype(num_rows: int, num_cols: int, num_edges: int, with_edge_ids: bool) -> torch.dtype:
    """int32 where all ids fit, else int64. Both directions of a structure get the same one.

    Example:
        >>> index_dtype(10, 10, 2**31, with_edge_ids=False), index_dtype(10, 10, 2**31, with_edge_ids=True)
        (torch.int32, torch.int64)
    """
    largest = max(num_rows, num_cols, num_edges if with_edge_ids else 0)
    return torch.int32 if largest <= INT32_MAX else torch.int64
