"""A mark of the bytes of a tensor, to find changes that torch's version counter does not see.

Comes in: a tensor or sparse features. Goes out: a tuple to compare. Called by ``runtime/constants.py`` for inputs of
calls, and by ``frontend/edge_values.py`` for fields that are read later.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from graphweft._native import declare
from graphweft.storage.feature import SparseFeatures

_fingerprint = declare("gw_fingerprint", recorded=False)


def fingerprint(item: Tensor | SparseFeatures) -> tuple[Any, ...]:
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
    if isinstance(item, SparseFeatures):
        return (item.shape, *(fingerprint(part) for part in (item.indptr, item.indices, item.values)))
    tensor = item.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    made = (ctypes.c_uint64 * 2)()
    _fingerprint(tensor.data_ptr(), tensor.numel() * tensor.element_size(), ctypes.addressof(made))
    return tensor.dtype, tensor.shape, made[0], made[1]


__all__ = ["fingerprint"]
