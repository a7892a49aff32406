"""Launchers of the attention kernels: softmax-weighted sums over in-edges, head by head, and their gradients.

Comes in: an adjacency (rows are destinations) and float32 rows. Goes out: new rows. Nothing of edge size is made but
by the caller. Called by compiled programs. Shapes are compared in one expression, diagnosed after that failed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweft import _abi
from graphweft._errors import DtypeError, GraphWeftError, ShapeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.runtime.sparse import Adjacency

_U64 = (1 << 64) - 1


class Score(enum.IntEnum):
    """How an edge j -> i is scored; the numbers are those of ``attention.h``."""

    ADD = 0  # leaky(src[j] + dst[i])
    ADD2 = 1  # <vector, leaky(value[j] + dst[i])>
    DOT = 2  # scale <src[j], dst[i]>


_attend = declare("gw_attend_f32")
_attend_grad = declare("gw_attend_grad_f32")

_head_dots = declare("gw_head_dots_f32")
_head_products = declare("gw_head_products_f32")
_head_sums = declare("gw_head_sums_f32")


@dataclass(frozen=True, slots=True)
class Attention:
    """What is fixed when a program is compiled.

    Attributes:
        score: The kind of score.
        heads: How many heads; rows of values have ``heads * channels`` columns, head by head.
        shared: All heads read the same values, rows of ``channels`` columns; for ADD only.
        slope: Of the leaky unit, in [0, 1].
        scale: Factor of a dot product.
        drop: Probability to drop an edge's softmax, per head; what is kept is scaled by ``1 / (1 - drop)``.
        stream: Which stream of random numbers it draws from.
    """

    score: Score
    heads: int
    slope: float = 0.2
    scale: float = 1.0
    drop: float = 0.0
    stream: int = 0
    shared: bool = False

    def width(self, value: Tensor) -> int:
        """Columns of a row of the result."""
        return value.size(-1) * self.heads if self.shared else value.size(-1)

    def stats_width(self, width: int) -> int:
        """Numbers per destination that the forward pass keeps for the backward pass."""
        return width + 3 * self.heads if self.score is Score.ADD else 2 * self.heads

    @property
    def room_width(self) -> int:
        """Numbers per destination that a backward pass computes with."""
        return 4 * self.heads

    def kept_slopes(self, edges: int, rows: int, width: int) -> int:
        """Numbers that a backward pass of two walks keeps in between: none where they are more than the rows have."""
        count = edges * self.heads
        return 0 if self.score is Score.ADD or count > rows * width else count


def attend(
    adj: Adjacency, kind: Attention, value: Tensor, other: tuple[Tensor, ...], seed: int = 0, stats: bool = False
) -> tuple[Tensor, Tensor | None]:
    """``out[i] = sum over e = (j -> i) of softmax_e(score[e]) value[j]`` for every head; a row without edges gives 0.

    Shape: value (num_cols, H C), (num_cols, C) when shared. ``other`` by score: ADD (src (num_cols, H), dst (num_rows,
    H)); ADD2 (dst (num_rows, H C), vector (H C,)); DOT (src (num_cols, H C), dst (num_rows, H C)). All float32. Returns
    out (num_rows, H C) and, with ``stats``, what :func:`attend_grad` reads.

    Raises: ShapeError, DtypeError.
    """
    operands = _operands(adj, kind, value, other, seed)
    width = kind.width(value)
    out = empty((adj.num_rows, width), torch.float32)
    kept = empty((adj.num_rows, kind.stats_width(width)), torch.float32) if stats else None
    _attend(adj.native, operands, out.data_ptr(), pointer(kept))
    return out, kept


def attend_grad(
    adj: Adjacency,
    transposed: Adjacency,
    kind: Attention,
    value: Tensor,
    other: tuple[Tensor, ...],
    kept: tuple[Tensor, Tensor],
    dout: Tensor,
    seed: int = 0,
) -> tuple[Tensor, ...]:
    """Gradients of value and of each of ``other``; ``kept`` is what :func:`attend` returned with ``stats``.

    ``transposed`` has the sources as rows and, where it has edge ids or something is dropped, the same as ``adj``: then
    the gradients of the scores are kept from one pass to the next where :meth:`Attention.kept_slopes` says so.

    Raises: ShapeError, DtypeError.
    """
    operands = _operands(adj, kind, value, other, seed)
    out, stats = kept
    if dout.shape != out.shape or dout.dtype != torch.float32:
        raise ShapeError(f"attention: expected a gradient of shape {tuple(out.shape)}, got {tuple(dout.shape)}")
    dout = dout if dout.is_contiguous() else dout.contiguous()
    made = tuple(empty(tuple(tensor.shape), torch.float32) for tensor in (value, *other))
    dvalue, first, second = made[0], made[1], made[2]
    parts = (None, first, second) if kind.score is Score.ADD2 else (first, second, None)
    count = 0 if transposed.edge_ids is None else kind.kept_slopes(adj.num_edges, adj.num_rows, out.size(-1))
    slopes = empty((count,), torch.float32) if count else None
    gradients = _abi.AttentionGrad(dvalue.data_ptr(), *(pointer(part) for part in parts), pointer(slopes))
    room = empty((adj.num_rows, kind.room_width), torch.float32)
    kept_rows = (stats.data_ptr(), out.data_ptr(), dout.data_ptr())
    _attend_grad(adj.native, transposed.native, operands, *kept_rows, gradients, room.data_ptr())
    return made


def head_dots(x: Tensor, a: Tensor) -> Tensor:
    """``einsum("nhc,hc->nh", x, a)``.

    Shape: x (n, H, C), a (H, C), float32, contiguous -> (n, H).
    """
    out = empty((x.shape[0], x.shape[1]), torch.float32)
    _head_dots(*x.shape, x.data_ptr(), a.data_ptr(), out.data_ptr())
    return out


def head_products(s: Tensor, a: Tensor, addend: Tensor | None = None) -> Tensor:
    """``einsum("nh,hc->nhc", s, a)``, plus ``addend``.

    Shape: s (n, H), a (H, C), addend (n, H, C), float32, contiguous -> (n, H, C).
    """
    out = empty((*s.shape, a.shape[1]), torch.float32)
    _head_products(*out.shape, s.data_ptr(), a.data_ptr(), pointer(addend), out.data_ptr())
    return out


def head_sums(s: Tensor, x: Tensor) -> Tensor:
    """``einsum("nh,nhc->hc", s, x)``, added up in a fixed order.

    Shape: s (n, H), x (n, H, C), float32, contiguous -> (H, C).
    """
    out = torch.empty(x.shape[1:], dtype=torch.float32)
    _head_sums(*x.shape, s.data_ptr(), x.data_ptr(), out.data_ptr())
    return out


def _operands(adj: Adjacency, kind: Attention, value: Tensor, other: tuple[Tensor, ...], seed: int) -> _abi.Attention:
    heads, width = kind.heads, kind.width(value)
    expected = _shapes(adj, kind, width)
    given = (value, *other)
    if (
        width % heads
        or tuple(t.shape for t in given) != expected
        or any(t.dtype != torch.float32 or not t.is_contiguous() for t in given)
    ):
        raise _failure(kind, expected, given)
    first, second = (t.data_ptr() for t in other)
    places = (None, first, second) if kind.score is Score.ADD2 else (first, second, None)
    draws = (kind.drop, seed & _U64, kind.stream & _U64)
    sizes = (heads, width // heads, kind.slope, kind.scale)
    return _abi.Attention(kind.score, kind.shared, *sizes, *draws, value.data_ptr(), *places)


def _shapes(adj: Adjacency, kind: Attention, width: int) -> tuple[tuple[int, ...], ...]:
    rows = (adj.num_cols, width)
    if kind.score is Score.ADD:
        rows = (adj.num_cols, width // kind.heads) if kind.shared else rows
        return rows, (adj.num_cols, kind.heads), (adj.num_rows, kind.heads)
    if kind.score is Score.ADD2:
        return rows, (adj.num_rows, width), (width,)
    return rows, rows, (adj.num_rows, width)


def _failure(kind: Attention, expected: tuple[tuple[int, ...], ...], given: tuple[Tensor, ...]) -> GraphWeftError:
    for shape, tensor in zip(expected, given, strict=True):
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            return ShapeError(f"attention: expected contiguous rows of shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != torch.float32:
            return DtypeError(f"attention: expected rows of dtype torch.float32, got {tensor.dtype}")
    return ShapeError(f"attention: expected a width that {kind.heads} heads divide, got {given[0].size(-1)}")
