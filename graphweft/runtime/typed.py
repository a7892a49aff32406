"""Launchers of the products with a matrix per type: node rows by type, edges by relation.

Comes in: pairs or rows by type, float32 rows and matrices. Goes out: new rows, numbers per edge, or matrices. Nothing
of edges x columns is made: the largest scratch is a row per pair. Called by compiled programs, whose type rules have
checked shapes against each other; rows are checked here against the graph.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from graphweft._abi import TypedWeight
from graphweft._errors import ShapeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.typed_pairs import TypedPairs, TypedRows

_matmul = declare("gw_typed_matmul_f32")
_row_sums = declare("gw_typed_row_sums_f32")
_outer_rows = declare("gw_typed_outer_rows_f32")
_spmm = declare("gw_typed_spmm_f32")
_outer = declare("gw_typed_outer_f32")
_dots = declare("gw_typed_dots_f32")


def spmm(pairs: TypedPairs, turned: bool, x: Tensor, w: Tensor, transposed: bool, weight: Tensor | None) -> Tensor:
    """``y[dst] = sum over in-edges e of weight[e] x[src e] W[relation e]``, head by head; ``turned``: from dst to src.

    Shape: x (nodes, H, I), w (relations, H, I, O), or (relations, H, O, I) where ``transposed``, weight (edges,) or
    (edges, H); all float32 and contiguous -> (nodes, H, O).

    Raises: ShapeError.
    """
    _check(pairs, pairs.rows, x, w)
    heads = w.shape[1]
    native = _weight(w, transposed)
    out = empty((pairs.num_nodes, heads, native.out), torch.float32)
    rows = empty((pairs.num_pairs, heads * native.out), torch.float32)
    packed = _packed_room(w.shape, transposed)
    per_edge = 1 if weight is None or weight.dim() == 1 else heads
    room = (packed.data_ptr(), rows.data_ptr(), out.data_ptr())
    _spmm(pairs.native, turned, x.data_ptr(), native, pointer(weight), per_edge, *room)
    return out


def outer(pairs: TypedPairs, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    """``dW[r] = sum over edges e of r of weight[e] x[src e]^T y[dst e]``, head by head.

    Shape: x (nodes, H, I), y (nodes, H, O), weight (edges,) or (edges, H) -> (relations, H, I, O).

    Raises: ShapeError.
    """
    if x.shape[0] != pairs.num_nodes or y.shape[0] != pairs.num_nodes:
        raise ShapeError(f"typed_outer: expected {pairs.num_nodes} rows, got {x.shape[0]} and {y.shape[0]}")
    heads, sizes = x.shape[1], (x.shape[1], x.shape[2], y.shape[2])
    out = torch.empty((pairs.rows.num_types, *sizes), dtype=torch.float32)
    room = empty((_outer_room(pairs.rows, *sizes),), torch.float32)
    per_edge = 1 if weight is None or weight.dim() == 1 else heads
    ends = (x.data_ptr(), y.data_ptr(), pointer(weight), per_edge)
    _outer(pairs.native, *sizes, *ends, room.data_ptr(), out.data_ptr())
    return out


def sddmm(pairs: TypedPairs, x: Tensor, w: Tensor, transposed: bool, y: Tensor, by_head: bool) -> Tensor:
    """``out[e] = <x[src e] W[relation e], y[dst e]>`` by head, or their sum.

    Shape: x (nodes, H, I), w as for :func:`spmm`, y (nodes, H, O) -> (edges, H) or (edges,).

    Raises: ShapeError.
    """
    _check(pairs, pairs.rows, x, w)
    heads = w.shape[1]
    out = empty((pairs.num_edges, heads) if by_head else (pairs.num_edges,), torch.float32)
    packed = _packed_room(w.shape, transposed)
    native = _weight(w, transposed)
    ends = (x.data_ptr(), y.data_ptr(), native, heads if by_head else 1)
    _dots(pairs.native, *ends, packed.data_ptr(), out.data_ptr())
    return out


def matmul(rows: TypedRows, x: Tensor, w: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
    """``y[i] = x[i] W[type of i]``, plus ``bias[type of i]``.

    Shape: x (nodes, I), w (types, I, O), or (types, O, I) where ``transposed``, bias (types, O) -> (nodes, O).

    Raises: ShapeError.
    """
    if x.shape[0] != rows.num_rows or w.shape[0] != rows.num_types:
        sizes = f"{rows.num_rows} rows and {rows.num_types} matrices"
        raise ShapeError(f"type_matmul: expected {sizes}, got {x.shape[0]} and {w.shape[0]}")
    shape = (w.shape[0], 1, *w.shape[1:])
    native = _weight(w.view(shape), transposed)
    out = empty((rows.num_rows, native.out), torch.float32)
    room = _packed_room(torch.Size(shape), transposed)
    _matmul(rows.native, native, pointer(bias), x.data_ptr(), room.data_ptr(), out.data_ptr())
    return out


def row_sums(rows: TypedRows, x: Tensor) -> Tensor:
    """The rows of each type added up.

    Shape: x (nodes, C) -> (types, C).

    Raises: ShapeError.
    """
    if x.shape[0] != rows.num_rows:
        raise ShapeError(f"reduce_ntype: expected {rows.num_rows} rows, got {x.shape[0]}")
    out = torch.empty((rows.num_types, x.shape[1]), dtype=torch.float32)
    room = empty((rows.unit_chunk.numel(), x.shape[1]), torch.float32)
    _row_sums(rows.native, x.shape[1], x.data_ptr(), room.data_ptr(), out.data_ptr())
    return out


def outer_rows(rows: TypedRows, x: Tensor, y: Tensor) -> Tensor:
    """``dW[t] = sum over its rows of x[i]^T y[i]``.

    Shape: x (nodes, I), y (nodes, O) -> (types, I, O).

    Raises: ShapeError.
    """
    if x.shape[0] != rows.num_rows or y.shape[0] != rows.num_rows:
        raise ShapeError(f"type_outer: expected {rows.num_rows} rows, got {x.shape[0]} and {y.shape[0]}")
    sizes = (1, x.shape[1], y.shape[1])
    out = torch.empty((rows.num_types, *sizes[1:]), dtype=torch.float32)
    room = empty((_outer_room(rows, *sizes),), torch.float32)
    _outer_rows(rows.native, *sizes, x.data_ptr(), y.data_ptr(), room.data_ptr(), out.data_ptr())
    return out


def _check(pairs: TypedPairs, rows: TypedRows, x: Tensor, w: Tensor) -> None:
    if x.shape[0] != pairs.num_nodes or w.shape[0] != rows.num_types:
        sizes = f"{pairs.num_nodes} rows and {rows.num_types} matrices"
        raise ShapeError(f"typed_spmm: expected {sizes}, got {x.shape[0]} and {w.shape[0]}")


def _weight(w: Tensor, transposed: bool) -> TypedWeight:
    _, heads, inner, outer = w.shape
    inner, outer = (outer, inner) if transposed else (inner, outer)
    return TypedWeight(w.data_ptr(), heads, inner, outer, int(transposed))


_weight_room = declare("gw_typed_weight_room", recorded=False)
_unit_room = declare("gw_typed_outer_room", recorded=False)


@lru_cache(maxsize=1024)
def _packed_floats(shape: tuple[int, ...], transposed: bool) -> int:
    floats = ctypes.c_int64()
    inner, outer = shape[:1:-1] if transposed else shape[2:]
    _weight_room(TypedWeight(None, shape[1], inner, outer, int(transposed)), shape[0], ctypes.byref(floats))
    return floats.value


def _packed_room(shape: torch.Size, transposed: bool) -> Tensor:
    """Room for the matrices as the kernels read them."""
    return empty((_packed_floats(tuple(shape), transposed),), torch.float32)


def _outer_room(rows: TypedRows, heads: int, inner: int, outer: int) -> int:
    floats = ctypes.c_int64()
    _unit_room(rows.native, heads, inner, outer, ctypes.byref(floats))
    return floats.value
