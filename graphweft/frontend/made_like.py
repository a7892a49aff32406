"""Tensors that are made of another's shape and dtype alone, by operation.

Comes in: an ATen operation such as ``zeros_like``. Goes out: its result, which is structure though the other tensor is
a stand-in. Read by ``recorder.py`` and ``sized_recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

aten = torch.ops.aten


def _zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Zeros in pages that the system hands out when they are written: sums start from them, and few are ever read."""
    if dtype not in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool):
        return torch.zeros(shape, dtype=dtype)
    return torch.from_numpy(np.zeros(shape, torch.empty(0, dtype=dtype).numpy().dtype))


LIKE: dict[Any, Callable[[Any, Sequence[Any]], Tensor]] = {
    aten.new_zeros.default: lambda out, args: _zeros(out.shape, out.dtype),
    aten.zeros_like.default: lambda out, args: _zeros(out.shape, out.dtype),
    aten.new_ones.default: lambda out, args: torch.ones(out.shape, dtype=out.dtype),
    aten.ones_like.default: lambda out, args: torch.ones(out.shape, dtype=out.dtype),
    aten.new_empty.default: lambda out, args: _zeros(out.shape, out.dtype),
    aten.empty_like.default: lambda out, args: _zeros(out.shape, out.dtype),
    aten.new_full.default: lambda out, args: torch.full(out.shape, args[2], dtype=out.dtype),
    aten.full_like.default: lambda out, args: torch.full(out.shape, args[1], dtype=out.dtype),
}
DRAWN_LIKE = {aten.randn_like.default: aten.randn.default, aten.rand_like.default: aten.rand.default}

__all__ = ["DRAWN_LIKE", "LIKE"]
