"""Rows of node tables by id.

Comes in: a dense table or sparse features, and ids. Goes out: their rows in that order. Called by the loader, from any
thread.
"""

from __future__ import annotations

from torch import Tensor

from graphweft._errors import DtypeError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft._trace import span
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.int8_features import Int8Features

_gather = declare("gw_gather_rows")


def gather_rows(table: Tensor | SparseFeatures, ids: Tensor) -> Tensor | SparseFeatures:
    """``table[ids]``.

    Shape: table (N, ...) on the CPU, any dtype, or sparse; ids (n,) int64 -> (n, ...), of the same kind; of 8-bit
    features float32.

    Raises: IndexRangeError with the first bad id and its position; ShapeError for a table without rows.

    Example:
        >>> import torch
        >>> gather_rows(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0])).tolist()
        [[3.0], [1.0]]
    """
    if isinstance(table, Int8Features):
        with span("gather rows", "lookup", rows=ids.numel(), bytes=ids.numel() * table.width):
            return table.take_rows(ids)
    if isinstance(table, SparseFeatures):
        return table.take_rows(ids)
    if table.dim() == 0:
        raise ShapeError("gather_rows: expected a table with rows, got a scalar")
    return _gathered(table, ids, None)


def gather_rows_into(table: Tensor, ids: Tensor, out: Tensor) -> None:
    """``out[:] = table[ids]``; ``out`` is contiguous.

    Raises: IndexRangeError; ShapeError, DtypeError where ``out`` is of another kind.

    Example:
        >>> import torch
        >>> out = torch.zeros(2, 1)
        >>> gather_rows_into(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0]), out)
        >>> out.tolist()
        [[3.0], [1.0]]
    """
    expected = (ids.numel(), *table.shape[1:])
    if table.dim() == 0 or tuple(out.shape) != expected or not out.is_contiguous():
        raise ShapeError(f"gather_rows: expected out of shape {expected}, contiguous, got {tuple(out.shape)}")
    if out.dtype != table.dtype:
        raise DtypeError(f"gather_rows: expected out of dtype {table.dtype}, got {out.dtype}")
    _gathered(table, ids, out)


def _gathered(table: Tensor, ids: Tensor, out: Tensor | None) -> Tensor:
    table = table.detach()
    flat = table if table.dim() <= 2 and table[:1].is_contiguous() else table.contiguous()
    shape = tuple(table.shape[1:])
    row = flat[:1].numel() if flat.shape[0] else 0
    size = table.element_size()
    stride = flat.stride(0) if flat.shape[0] > 1 else row
    if stride < row:  # rows that overlap, as in an expanded tensor
        flat = flat.contiguous()
        stride = row
    ids = ids.contiguous()
    out = empty((ids.numel(), *shape), table.dtype, roomy=True) if out is None else out
    with span("gather rows", "lookup", rows=ids.numel(), bytes=out.numel() * size):
        _gather(flat.data_ptr(), flat.shape[0], stride * size, row * size, ids.data_ptr(), ids.numel(), out.data_ptr())
    return out
