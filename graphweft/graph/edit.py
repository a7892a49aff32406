"""Edits of a compressed structure: new structures from old ones.

Comes in: one or two :class:`Adjacency` of the same shape. Goes out: a new one; nothing is changed in place. Called by
Graph for self-loops, graph algebra and undirected forms.
"""

from __future__ import annotations

import ctypes

import torch

from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft._torch_private import plainly
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.ids import index_dtype

_clear_loops = declare("gw_csr_clear_loops")
_filter = declare("gw_csr_filter")
_unite = declare("gw_csr_unite")
_clear_common = declare("gw_csr_clear_common")
_concat = declare("gw_csr_concat")
_renumber = declare("gw_csr_renumber")
_thin = declare("gw_csr_thin")


def _offsets(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets to be, zero in front, and the view that takes the counts per row first."""
    indptr = empty((num_rows + 1,), torch.int64)
    indptr[0] = 0
    return indptr, indptr[1:]


@plainly
def no_loops_mask(a: Adjacency) -> torch.Tensor:
    """uint8 per edge id: 0 for self-loops."""
    member = empty((a.num_edges,), torch.uint8).fill_(1)
    _clear_loops(ctypes.byref(a.native), member.data_ptr())
    return member


@plainly
def filter_edges(a: Adjacency, member: torch.Tensor) -> Adjacency:
    """The edges whose ``member`` (uint8 by edge id) is not 0, renumbered without gaps in their order."""
    indptr, counts = _offsets(a.num_rows)
    _filter(ctypes.byref(a.native), member.data_ptr(), counts.data_ptr(), None, None)
    counts.cumsum_(0)
    indices = empty((int(indptr[-1]),), a.indices.dtype)
    ids = empty((indices.numel(),), indices.dtype) if a.edge_ids is not None else None
    if indices.numel() > 0:
        arrays = (indptr.data_ptr(), indices.data_ptr(), pointer(ids))
        _filter(ctypes.byref(a.native), member.data_ptr(), *arrays)
    return Adjacency(indptr, indices, ids, a.num_cols)


@plainly
def unite(a: Adjacency, b: Adjacency) -> Adjacency:
    """Every (row, column) that occurs in ``a`` or ``b``, once, by row and column. Columns ascend in both."""
    indptr, counts = _offsets(a.num_rows)
    _unite(ctypes.byref(a.native), ctypes.byref(b.native), counts.data_ptr(), None)
    counts.cumsum_(0)
    indices = empty((int(indptr[-1]),), a.indices.dtype)
    if indices.numel() > 0:
        _unite(ctypes.byref(a.native), ctypes.byref(b.native), indptr.data_ptr(), indices.data_ptr())
    return Adjacency(indptr, indices, None, a.num_cols)


@plainly
def renumbered(a: Adjacency, nodes: torch.Tensor, *, edge_ids: bool = True) -> Adjacency:
    """Row i is row ``nodes[i]``, its entries in their order, columns under their new numbers; edges keep theirs.

    ``nodes``: int64, a permutation of rows that are columns as well. Without ``edge_ids`` the result has none although
    its entries are in another order: for sums over rows only.
    """
    dtype = index_dtype(a.num_rows, a.num_cols, a.num_edges, edge_ids)
    source = a if a.is_wide or dtype == torch.int32 else a.widened()
    nodes = nodes.contiguous()
    place = empty((nodes.numel(),), source.indices.dtype)
    place[nodes] = torch.arange(nodes.numel(), dtype=place.dtype)
    indptr, counts = _offsets(a.num_rows)
    torch.cumsum(a.degrees()[nodes], 0, out=counts)
    indices = empty((a.num_edges,), place.dtype)
    ids = empty((a.num_edges,), place.dtype) if edge_ids else None
    arrays = (place.data_ptr(), indptr.data_ptr(), indices.data_ptr(), pointer(ids))
    _renumber(ctypes.byref(source.native), nodes.numel(), nodes.data_ptr(), *arrays)
    return Adjacency(indptr, indices, ids, a.num_cols)


@plainly
def thinned(a: Adjacency, most: int) -> Adjacency:
    """At most ``most`` entries of every row, evenly spaced among them; itself where no row has more. No edge ids."""
    degrees = a.degrees()
    if a.num_rows == 0 or int(degrees.max()) <= most:
        return a
    indptr, counts = _offsets(a.num_rows)
    torch.cumsum(degrees.clamp(max=most), 0, out=counts)
    indices = empty((int(indptr[-1]),), a.indices.dtype)
    _thin(ctypes.byref(a.native), most, indptr.data_ptr(), indices.data_ptr())
    return Adjacency(indptr, indices, None, a.num_cols)


@plainly
def without_parallel(a: Adjacency) -> Adjacency:
    """Every (row, column) once, by row and column."""
    plain = a if a.columns_ascend() else a.transpose(edge_ids=False).transpose(edge_ids=False)
    return unite(plain, plain)


@plainly
def both_directions(a: Adjacency) -> Adjacency:
    """Every (row, column) that occurs in ``a`` or in its transpose, once, by row and column."""
    turned = a.transpose(edge_ids=False)
    plain = a if a.columns_ascend() else turned.transpose(edge_ids=False)
    return unite(plain, turned)


def _alike(a: Adjacency, b: Adjacency, num_edges: int, with_ids: bool) -> tuple[Adjacency, Adjacency]:
    """Both with the same width of ids, wide enough for ``num_edges``."""
    wide = a.is_wide or b.is_wide or index_dtype(a.num_rows, a.num_cols, num_edges, with_ids) == torch.int64
    return (a if a.is_wide == wide else a.widened()), (b if b.is_wide == wide else b.widened())


@plainly
def concat(a: Adjacency, b: Adjacency) -> Adjacency:
    """Row by row the entries of ``a``, then those of ``b``, whose edge ids follow those of ``a``."""
    num_edges = a.num_edges + b.num_edges
    if b.num_edges == 0:
        return a
    a, b = _alike(a, b, num_edges, True)
    indptr = torch.add(a.indptr, b.indptr, out=empty((a.num_rows + 1,), torch.int64))
    indices, ids = empty((num_edges,), a.indices.dtype), empty((num_edges,), a.indices.dtype)
    arrays = (indptr.data_ptr(), indices.data_ptr(), ids.data_ptr())
    _concat(ctypes.byref(a.native), ctypes.byref(b.native), *arrays)
    return Adjacency(indptr, indices, ids, a.num_cols)


@plainly
def less(a: Adjacency, b: Adjacency) -> torch.Tensor:
    """uint8 by edge id of ``a``: 0 for one edge per edge of ``b`` with the same ends, the youngest of parallel ones."""
    member = empty((a.num_edges,), torch.uint8).fill_(1)
    if a.num_edges > 0 and b.num_edges > 0:
        mine, theirs = _alike(a.with_sorted_columns(), b.with_sorted_columns(), 0, False)
        _clear_common(ctypes.byref(mine.native), ctypes.byref(theirs.native), member.data_ptr())
    return member


@plainly
def loops(rows: torch.Tensor, num_rows: int) -> Adjacency:
    """One entry (r, r) for every r of ``rows``, which ascend without repeats."""
    indptr, counts = _offsets(num_rows)
    counts.zero_()
    counts[rows] = 1
    counts.cumsum_(0)
    dtype = index_dtype(num_rows, num_rows, num_rows, False)
    return Adjacency(indptr, rows.to(dtype), None, num_rows)


def without_loop(a: Adjacency) -> torch.Tensor:
    """int64 rows r without an entry (r, r), ascending."""
    rows, cols = a.to_coo()
    lacking = torch.ones(a.num_rows, dtype=torch.bool)
    lacking[rows[rows == cols]] = False
    return lacking.nonzero().reshape(-1)


def rows_with_loops(a: Adjacency, rows: torch.Tensor) -> Adjacency:
    """Some rows, each with one more entry from itself after its others; no edge ids."""
    taken = a.take_rows(rows)
    own = Adjacency(torch.arange(rows.numel() + 1), rows.to(taken.indices.dtype), None, a.num_cols)
    both = concat(taken, own)
    return Adjacency(both.indptr, both.indices, None, a.num_cols)
