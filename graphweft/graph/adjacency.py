"""Compressed adjacency: for every row, the columns of its entries.

Comes in: edges as (row, column) pairs, or offsets and columns. Goes out: an immutable :class:`Adjacency` that kernels
take as ``.native``. Called by Graph (rows = destinations, or sources when turned) and by SparseFeatures (rows = nodes).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from graphweft import _native
from graphweft._errors import GraphError, IndexRangeError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft._torch_private import plainly
from graphweft.graph.derived import derived, keep
from graphweft.graph.ids import index_dtype, is_wide, summarize

_compress = declare("gw_coo_to_csr")
_transpose = declare("gw_csr_transpose")
_check = declare("gw_csr_check")
_to_coo = declare("gw_csr_to_coo")
_take_rows = declare("gw_csr_take_rows")
_count_columns = declare("gw_csr_count_columns")
_row_degrees = declare("gw_csr_row_degrees")
_has_loops = declare("gw_csr_has_loops")
_is_symmetric = declare("gw_csr_is_symmetric")
_columns_ascend = declare("gw_csr_columns_ascend")
_ids_ascend = declare("gw_csr_ids_ascend")


@dataclass(frozen=True, eq=False, repr=False)
class Adjacency:
    """Row r holds the entries ``indptr[r] .. indptr[r + 1]``; entry p has column ``indices[p]``, edge ``edge_ids[p]``.

    Shape: indptr (num_rows + 1,) int64; indices (num_edges,) int32, or int64 where ids do not fit; edge_ids like
    indices, or None: entry p is edge p. The arrays must not be changed.

    Example:
        >>> a = Adjacency.from_coo(torch.tensor([1, 0, 1]), torch.tensor([2, 0, 1]), 2, 3)
        >>> a.indptr.tolist(), a.indices.tolist(), a.edge_ids.tolist()
        ([0, 1, 3], [0, 2, 1], [1, 0, 2])
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    edge_ids: torch.Tensor | None
    num_cols: int

    @classmethod
    @plainly
    def from_coo(cls, rows: torch.Tensor, cols: torch.Tensor, num_rows: int, num_cols: int) -> Adjacency:
        """Entries (rows[e], cols[e]) by row; inside a row by ascending e. Edge ids are left out if the rows ascend.

        Shape: rows, cols (E,), both int32 or both int64, contiguous.
        Raises: IndexRangeError for an id out of range; ShapeError for unequal lengths.
        """
        if rows.shape != cols.shape or rows.dtype != cols.dtype:
            raise ShapeError(f"Adjacency: expected rows and columns of one shape, got {rows.shape} and {cols.shape}")
        with_ids = not summarize(rows).ascending
        num_edges = rows.numel()
        dtype = index_dtype(num_rows, num_cols, num_edges, with_ids)
        indptr, indices = empty((num_rows + 1,), torch.int64), empty((num_edges,), dtype)
        edge_ids = empty((num_edges,), dtype) if with_ids else None
        ends = (num_edges, rows.data_ptr(), cols.data_ptr(), num_rows, num_cols)
        _compress(is_wide(rows), *ends, is_wide(indices), indptr.data_ptr(), indices.data_ptr(), pointer(edge_ids))
        return cls(indptr, indices, edge_ids, num_cols)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of entries."""
        return self.indices.numel()

    @property
    def is_wide(self) -> bool:
        """Whether indices are int64."""
        return self.indices.dtype == torch.int64

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.indptr, self.indices, self.edge_ids)
        return sum(a.numel() * a.element_size() for a in arrays if a is not None)

    @cached_property
    def native(self) -> _native.Adjacency:
        """The structure that native entry points take by reference; valid while this object lives."""
        if self.indptr.device.type != "cpu":
            raise GraphError(f"Adjacency: expected arrays in host memory, got {self.indptr.device}")
        sizes = (self.num_rows, self.num_cols, self.num_edges)
        arrays = (self.indptr.data_ptr(), self.indices.data_ptr(), pointer(self.edge_ids))
        return _native.Adjacency(*sizes, *arrays, int(self.is_wide))

    def to(self, device: torch.device) -> Adjacency:
        """The same arrays on ``device``, sent once and kept as long as these live; itself where they are there."""
        return self if self.indptr.device == device else derived(self, _sent, device)

    def keep_twin(self, twin: Adjacency) -> None:
        """:meth:`to` gives ``twin``, the same arrays on a device, from now on where they are wanted there."""
        if twin.indptr.device != self.indptr.device:
            keep(self, _sent, twin, twin.indptr.device)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "native"}

    def __repr__(self) -> str:
        return f"Adjacency({self.num_rows} x {self.num_cols}, {self.num_edges} entries)"

    def check(self, who: str) -> None:
        """Offsets, columns and edge ids are consistent.

        Raises: GraphError, IndexRangeError with the position of the first fault.
        """
        try:
            _check(ctypes.byref(self.native))
        except IndexRangeError as failure:
            raise IndexRangeError(f"{who}: {failure}") from None
        except ShapeError as failure:
            raise GraphError(f"{who}: {failure}") from None

    @plainly
    def transpose(self, *, edge_ids: bool = True) -> Adjacency:
        """Columns become rows; inside a new row, entries ascend by the old row. O(entries), parallel, stable.

        Without ``edge_ids`` the result has none although its entries are in another order: for sums over rows only.
        """
        num_edges = self.num_edges
        with_ids = edge_ids and num_edges > 0
        dtype = index_dtype(self.num_rows, self.num_cols, num_edges, with_ids)
        source = self if self.is_wide or dtype == torch.int32 else self.widened()
        indptr = empty((self.num_cols + 1,), torch.int64)
        indices = empty((num_edges,), source.indices.dtype)
        ids = empty((num_edges,), source.indices.dtype) if with_ids else None
        _transpose(ctypes.byref(source.native), 0, None, indptr.data_ptr(), indices.data_ptr(), pointer(ids))
        return Adjacency(indptr, indices, ids, self.num_rows)

    def transpose_values(self, values: torch.Tensor) -> tuple[Adjacency, torch.Tensor]:
        """The transposed structure without edge ids, and ``values`` (one per entry, in entry order) in its order."""
        indptr = empty((self.num_cols + 1,), torch.int64)
        indices, moved = empty((self.num_edges,), self.indices.dtype), empty((self.num_edges,), values.dtype)
        arrays = (indptr.data_ptr(), indices.data_ptr(), moved.data_ptr())
        _transpose(ctypes.byref(self.native), values.element_size(), values.data_ptr(), *arrays)
        return Adjacency(indptr, indices, None, self.num_rows), moved

    def take_rows(self, rows: torch.Tensor) -> Adjacency:
        """Rows ``rows[i]`` one after the other, entries numbered anew. ``rows``: int64 in range, repeats allowed."""
        return self._take(rows, None, None)[0]

    def take_rows_with_ids(self, rows: torch.Tensor) -> tuple[Adjacency, torch.Tensor]:
        """As :meth:`take_rows`, with the edge id that every entry had, as wide as indices."""
        return self._take(rows, None, self.indices.dtype)

    def take_rows_with_values(self, rows: torch.Tensor, values: torch.Tensor) -> tuple[Adjacency, torch.Tensor]:
        """As :meth:`take_rows`, with ``values`` (one per entry, in entry order) of the taken entries."""
        return self._take(rows, values, values.dtype)

    @plainly
    def _take(
        self, rows: torch.Tensor, values: torch.Tensor | None, dtype: torch.dtype | None
    ) -> tuple[Adjacency, torch.Tensor]:
        rows = rows.contiguous()
        indptr = empty((rows.numel() + 1,), torch.int64)
        indptr[0] = 0
        torch.cumsum(self.indptr[1:][rows] - self.indptr[:-1][rows], 0, out=indptr[1:])
        indices = empty((int(indptr[-1]),), self.indices.dtype)
        payload = empty((0 if dtype is None else indices.numel(),), dtype or torch.uint8)
        if indices.numel() > 0:
            size = 0 if values is None else values.element_size()
            source = (rows.numel(), rows.data_ptr(), indptr.data_ptr(), size, pointer(values))
            moved = None if dtype is None else payload.data_ptr()
            _take_rows(ctypes.byref(self.native), *source, indices.data_ptr(), moved)
        return Adjacency(indptr, indices, None, self.num_cols), payload

    @plainly
    def to_coo(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 (rows, columns) by edge id."""
        rows, cols = empty((self.num_edges,), torch.int64), empty((self.num_edges,), torch.int64)
        _to_coo(ctypes.byref(self.native), rows.data_ptr(), cols.data_ptr())
        return rows, cols

    @plainly
    def degrees(self) -> torch.Tensor:
        """Entries per row, int64."""
        return self.indptr[1:] - self.indptr[:-1]

    def float_degrees(self, inverse: bool = False) -> torch.Tensor:
        """Entries per row, float32; with ``inverse`` 1 over them, and 0 for a row without any.

        Example:
            >>> Adjacency(torch.tensor([0, 2, 2]), torch.tensor([0, 1]), None, 2).float_degrees(inverse=True).tolist()
            [0.5, 0.0]
        """
        out = empty((self.num_rows,), torch.float32)
        _row_degrees(ctypes.byref(self.native), inverse, out.data_ptr())
        return out

    @plainly
    def column_counts(self) -> torch.Tensor:
        """Entries per column, int64."""
        counts = empty((self.num_cols,), torch.int64)
        _count_columns(ctypes.byref(self.native), counts.data_ptr())
        return counts

    def has_loops(self) -> bool:
        """Some row holds its own number as a column."""
        return self._ask(_has_loops)

    def is_symmetric(self) -> bool:
        """Every entry (r, c) occurs as often as (c, r).

        One streaming pass over 64-bit fingerprints: an asymmetric structure passes with a chance of 2^-64.
        """
        return self._ask(_is_symmetric)

    def columns_ascend(self, *, strictly: bool = False) -> bool:
        """Inside every row the columns ascend (``strictly``: and none occurs twice)."""
        return self._ask(_columns_ascend, int(strictly))

    def edge_ids_ascend(self) -> bool:
        """Inside every row the edge ids ascend, as mailboxes want them."""
        return self._ask(_ids_ascend)

    def _ask(self, question: Callable[..., None], *args: int) -> bool:
        answer = ctypes.c_int32()
        question(ctypes.byref(self.native), *args, ctypes.byref(answer))
        return bool(answer.value)

    def with_sorted_columns(self) -> Adjacency:
        """The same entries with ascending columns in every row; equal columns keep their order."""
        return self if self.columns_ascend() else self.transpose().transpose()

    def fitted(self) -> Adjacency:
        """The same structure with int32 indices where ids fit, else int64."""
        with_ids = self.edge_ids is not None
        dtype = index_dtype(self.num_rows, self.num_cols, self.num_edges, with_ids)
        if dtype == self.indices.dtype:
            return self
        indices = empty((self.num_edges,), dtype).copy_(self.indices)
        ids = None if self.edge_ids is None else empty((self.num_edges,), dtype).copy_(self.edge_ids)
        return Adjacency(self.indptr, indices, ids, self.num_cols)

    def widened(self) -> Adjacency:
        """The same structure with int64 indices."""
        ids = None if self.edge_ids is None else self.edge_ids.long()
        return Adjacency(self.indptr, self.indices.long(), ids, self.num_cols)


def _sent(adjacency: Adjacency, device: torch.device) -> Adjacency:
    """Not a part of it: whoever keeps it for an adjacency must not keep that alive."""
    ids = adjacency.edge_ids
    arrays = (adjacency.indptr.to(device), adjacency.indices.to(device), None if ids is None else ids.to(device))
    return Adjacency(*arrays, adjacency.num_cols)
