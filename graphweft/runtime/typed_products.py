"""Products of sparse rows of a typed graph that are kept as dense ones, with the bits of those of compressed rows.

Comes in: :class:`UncompressedRows` and a matrix. Goes out: ``x @ w`` or ``x.t() @ g``. Called by the launcher of sparse
products. A compressed product cuts long rows where the numbers of entries say so; the same cuts are made here.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from graphweft import _native
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.runtime.sparse import summed_width
from graphweft.storage.typed_rows import UncompressedRows

_cuts_of = declare("gw_flat_cuts_of")
_matmul = declare("gw_flat_matmul_f32")
_contract = declare("gw_flat_contract_f32")

_LEAST_PIECES, _PIECE = 256, 1 << 17  # of a compressed matrix, and work of one beyond


class _Cuts(NamedTuple):
    """What a kernel reads, and what holds that in memory."""

    native: _native.FlatCuts
    row: Tensor
    at: Tensor


def multiplies(x: object, right: Tensor) -> TypeGuard[UncompressedRows]:
    """Whether a product runs on the dense rows."""
    return isinstance(x, UncompressedRows) and right.dtype == torch.float32 and right.dim() == 2


def matmul(x: UncompressedRows, w: Tensor) -> Tensor:
    """``x @ w``, (n, F) and (F, k) -> (n, k).

    Example:
        >>> from graphweft.storage.flat_rows import FlatRows
        >>> from graphweft.storage.typed_rows import TableSource
        >>> rows, ids = torch.tensor([[5.0, 0.0, 6.0]]), torch.tensor([3, 1])
        >>> x = UncompressedRows.of(FlatRows((0, 2, 4), (0, 3)), ids, TableSource(rows, torch.zeros(4)))
        >>> matmul(x, torch.arange(5.0).unsqueeze(1)).tolist(), contract(x, torch.ones(2, 1)).tolist()
        ([[34.0], [1.0]], [[0.0], [1.0], [5.0], [0.0], [6.0]])
    """
    w, width = _by_rows(w), w.shape[1]
    out = empty((x.num_rows, width), torch.float32)
    if out.numel():
        cuts = _cuts(x.row_offsets, width, x.width)
        for first, native, _held in x.pieces():
            target = (out[first:].data_ptr(), out.stride(0))
            _matmul(native, cuts.native, first, x.width, w.data_ptr(), w.stride(0), width, *target)
    return out


def contract(x: UncompressedRows, g: Tensor) -> Tensor:
    """``x.t() @ g``, (n, F) and (n, k) -> (F, k)."""
    g, width = _by_rows(g), g.shape[1]
    out = empty((x.width, width), torch.float32).zero_()
    if out.numel():
        cuts = _cuts(x.entries.columns, width, x.num_rows)
        seen = torch.zeros(x.width, dtype=torch.int64)
        ended = torch.zeros(len(torch.unique_consecutive(cuts.row)), width)
        into = (out.data_ptr(), seen.data_ptr(), ended.data_ptr())
        for first, native, _held in x.pieces():
            last = first + native.nodes == x.num_rows
            given = (g[first:].data_ptr(), g.stride(0), width)
            _contract(native, cuts.native, x.width, *given, *into, last)
    return out


def _by_rows(x: Tensor) -> Tensor:
    return x.detach() if x.stride(-1) == 1 else x.detach().contiguous()


def _cuts(offsets: Tensor, width: int, columns: int) -> _Cuts:
    """The rows that a product of a compressed matrix of these offsets cuts."""
    rows, entries = len(offsets) - 1, int(offsets[-1])
    most = max(_LEAST_PIECES, (rows + entries) // _PIECE) + 1
    row, at, count = (torch.empty(size, dtype=torch.int64) for size in (most, most, 1))
    summed = summed_width(columns, entries, width)
    _cuts_of(offsets.data_ptr(), rows, summed, most, row.data_ptr(), at.data_ptr(), count.data_ptr())
    row, at = row[: int(count)].clone(), at[: int(count)].clone()
    return _Cuts(_native.FlatCuts(len(row), row.data_ptr(), at.data_ptr()), row, at)


__all__ = ["contract", "matmul", "multiplies"]
