"""A mark of the bytes of a tensor, to find changes that torch's version counter does not see.

Comes in: a tensor or sparse features. Goes out: a tuple to compare. Called by ``runtime/constants.py`` for inputs of
calls, and by ``frontend/edge_values.py`` for fields that are read later.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from graphweft._native import declare
from graphweft.storage.feature import SparseFeatures, stored
from graphweft.storage.int8_features import Int8Features

_fingerprint = declare("gw_fingerprint", recorded=False)

Mark = tuple[Any, ...]


class _Read(threading.local):
    """Tensors whose memory this thread reads once, with the version at which it was read, and the mark."""

    def __init__(self) -> None:
        self.marks: dict[int, tuple[Tensor, int, Mark | None]] = {}


_READ = _Read()


@contextlib.contextmanager
def read_once(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside, on this thread, each tensor is read once, and again after a change that torch sees.

    For one call that several programs look at; the tensors live as long as it takes.
    """
    before = _READ.marks
    _READ.marks = {id(tensor): (tensor, -1, None) for tensor in tensors if not tensor.is_inference()}
    try:
        yield
    finally:
        _READ.marks = before


def fingerprint(item: Tensor | SparseFeatures) -> Mark:
    """A mark of the content: equal for equal bytes, different, but for a chance of 2^-64, for any others.

    Memory is read once, by all threads; the mark does not depend on their number.

    Example:
        >>> import torch
        >>> x = torch.zeros(4)
        >>> before = fingerprint(x)
        >>> x.numpy()[2] = 1.0
        >>> fingerprint(x) == before, fingerprint(torch.zeros(4)) == before
        (False, True)
    """
    watched = _READ.marks.get(id(item))
    if watched is None:
        return _read(item)
    tensor, version, mark = watched
    if mark is None or version != tensor._version:
        mark = _read(tensor)
        _READ.marks[id(tensor)] = tensor, tensor._version, mark
    return mark


def is_readable(item: Tensor | SparseFeatures) -> bool:
    """Whether its bytes lie in host memory, where they can be read without waiting for anybody."""
    return stored(item).device.type == "cpu"


def _read(item: Tensor | SparseFeatures) -> Mark:
    """The mark of what memory holds now."""
    if isinstance(item, SparseFeatures):
        return (item.shape, *(fingerprint(part) for part in (item.indptr, item.indices, item.values)))
    if isinstance(item, Int8Features):
        return tuple(fingerprint(part) for part in (item.levels, item.scale, item.offset))
    tensor = item.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    made = (ctypes.c_uint64 * 2)()
    _fingerprint(tensor.data_ptr(), tensor.numel() * tensor.element_size(), ctypes.addressof(made))
    return tensor.dtype, tensor.shape, made[0], made[1]


__all__ = ["fingerprint", "is_readable", "read_once"]
