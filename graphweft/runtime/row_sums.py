"""Sums within rows, and negative powers, on native kernels.

Comes in: float32 tensors on the CPU. Goes out: new tensors from the buffer pool, the same bits for any number of
threads. Called by compiled programs: layer norms and averages over heads consist of these.
"""

from __future__ import annotations

from torch import Tensor

from graphweft import _native
from graphweft._memory import empty

EXPONENTS = (-0.5, -1.0, -1.5)
_row_sum = _native.declare("gw_row_sum_f32")
_part_sum = _native.declare("gw_part_sum_f32")
_power = _native.declare("gw_power_f32")


def row_sum(x: Tensor) -> Tensor:
    """Sums of rows.

    Shape: x (n, f) -> (n,).

    Example:
        >>> import torch
        >>> row_sum(torch.ones(2, 3))
        tensor([3., 3.])
    """
    x, (n, f) = x.contiguous(), x.shape
    out = empty((n,))
    _row_sum(n, f, x.data_ptr(), f, out.data_ptr())
    return out


def part_sum(x: Tensor) -> Tensor:
    """Sums over the heads of rows.

    Shape: x (n, heads, f) -> (n, f).

    Example:
        >>> import torch
        >>> part_sum(torch.ones(1, 3, 2))
        tensor([[3., 3.]])
    """
    x, (n, parts, f) = x.contiguous(), x.shape
    out = empty((n, f))
    _part_sum(n, parts, f, x.data_ptr(), out.data_ptr())
    return out


def power(x: Tensor, exponent: float, shift: float = 0.0) -> Tensor:
    """``(x + shift) ** exponent``, 0 where ``x + shift`` is 0; the exponent is one of ``EXPONENTS``.

    Example:
        >>> import torch
        >>> power(torch.tensor([4.0, 0.0]), -1.5)
        tensor([0.1250, 0.0000])
    """
    x = x.contiguous()
    out = empty(tuple(x.shape))
    _power(x.numel(), x.data_ptr(), shift, exponent, out.data_ptr())
    return out


__all__ = ["EXPONENTS", "part_sum", "power", "row_sum"]
