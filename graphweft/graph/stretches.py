"""The entries of a large adjacency by stretches of columns, for sums and extrema that read it many times.

Comes in: an adjacency whose columns ascend within every row, as those of most graphs do; a loop may stand behind them.
Goes out: the same entries in the order of ``csrc/.../stretches.h``, kept with the adjacency and found by the kernels;
the bits of a result do not depend on it. Made within :func:`reading_often`: a product of 32 columns then takes about
half its time, making the order takes as long as two such products, and its memory is two bytes an entry.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from graphweft import _native
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.derived import derived

_sizes = declare("gw_stretches_sizes")
_fill = declare("gw_stretches_fill")
_WIDTH = 1  # of the products by whose pieces entries are cut; those of a large adjacency are the same for every width
_OWN_CACHE = 5 << 17  # bytes of an operand that stay in a core's own cache, as csrc/.../stretches.h has them
_PART = 128  # bytes of its rows that one pass over the edges reads
_LARGE = 1 << 22  # edges and rows from which a pass over them is cut alike for every width
_IN_STRETCH = 8  # edges that a row has in a stretch, in the mean, from which the order pays
_OFTEN: ContextVar[bool] = ContextVar("reading_often", default=False)


@dataclass(frozen=True)
class _Entries:
    """The arrays behind a native structure."""

    native: _native.Stretches
    arrays: tuple[torch.Tensor, ...]


@contextlib.contextmanager
def reading_often(wanted: bool = True) -> Iterator[None]:
    """Adjacencies that are read in the block will be read many times: :func:`often_read` orders their entries."""
    before = _OFTEN.set(wanted)
    try:
        yield
    finally:
        _OFTEN.reset(before)


def often_read(adjacency: Adjacency) -> Adjacency:
    """``adjacency``, with its entries by stretches within :func:`reading_often` where those pay."""
    if _OFTEN.get() and not adjacency.native.stretches:
        made = derived(adjacency, _made)
        if made is not None:
            adjacency.native.stretches = ctypes.pointer(made.native)
    return adjacency


def stretches_of(rows: int, edges: int, source_rows: int) -> int:
    """Into how many stretches of sources the edges of an aggregation are ordered, where they may be; 0: into none.

    Rows of few edges have stretches that are twice as long.

    Example:
        >>> stretches_of(58_241, 28_653_972, 58_241), stretches_of(2_449_029, 123_718_280, 2_449_029)
        (12, 0)
    """
    if rows == 0 or edges + rows < _LARGE or edges >= 1 << 31:
        return 0
    sources = _OWN_CACHE // _PART
    count = -(-source_rows // sources)
    if edges < 2 * _IN_STRETCH * rows * count:
        count = -(-source_rows // (2 * sources))
    return count if count >= 2 and edges >= _IN_STRETCH * rows * count else 0


def ordered_bytes(num_rows: int, num_cols: int, num_edges: int) -> int:
    """Bytes of the ordered entries of an adjacency of such sizes; 0 where the order does not pay.

    Example:
        >>> ordered_bytes(1000, 1000, 5000)
        0
        >>> ordered_bytes(60_000, 60_000, 30_000_000) // 10**6
        61
    """
    count = stretches_of(num_rows, num_edges, num_cols)
    return 2 * (num_edges + (count + 2) * num_rows) if count else 0


def _made(adjacency: Adjacency) -> _Entries | None:
    """The ordered entries; None where they do not pay, or columns do not ascend."""
    native = adjacency.native
    count = stretches_of(adjacency.num_rows, adjacency.num_edges, adjacency.num_cols)
    if not count or adjacency.is_wide:
        return None
    columns, pieces, parts = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
    _sizes(ctypes.byref(native), _WIDTH, count, *map(ctypes.byref, (columns, pieces, parts)))
    rows, starts = empty((pieces.value + 1,), torch.int64), empty((count, pieces.value), torch.int64)
    lengths, behind = empty((count, parts.value), torch.int16), empty((parts.value,), torch.int32)
    inside = empty((adjacency.num_edges,), torch.int16)
    arrays = (rows, starts, lengths, behind, inside)
    places = tuple(a.data_ptr() for a in arrays)
    fits = ctypes.c_int32()
    _fill(ctypes.byref(native), _WIDTH, count, columns.value, *places, ctypes.byref(fits))
    if not fits.value:
        return None
    return _Entries(_native.Stretches(adjacency.indptr.data_ptr(), count, columns.value, pieces.value, *places), arrays)
