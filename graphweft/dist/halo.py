"""Rows of ghosts, fetched from their owners while others are computed; their gradients go home the same way.

Comes in: a rank's part, own rows, and a layer. Goes out: the layer's rows of own nodes. The exchange is begun, rows of
the interior are computed, the exchange is waited for, rows of the boundary are computed. In the backward pass ghosts'
gradients travel while the interior's are computed. Source: Morphling, section IV-D (halo exchange in two phases).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft.dist.halo_forms import Leftovers, exchanged
from graphweft.dist.local_part import LocalPart
from graphweft.graph.block import Block
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.sparse import spmm
from graphweft.storage.gather import gather_rows_into

T = TypeVar("T")


def over_ranks(
    part: LocalPart, rows: Tensor, run: Callable[[Block, Tensor], Tensor], left: Leftovers | None = None
) -> Tensor:
    """``run(block, rows of its sources)`` for the part's targets, shape (targets, width'), from own rows (own, width).

    All ranks call it, and all or none go backward through it. ``left``: what is left of the last call, where the form
    in which rows travel needs it; None: every row travels, and at once.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.dist.ranks import Ranks
        >>> part = LocalPart(Ranks(), Graph([0, 1], [1, 2]), torch.zeros(3, dtype=torch.int64))
        >>> over_ranks(part, torch.ones(3, 2), lambda block, rows: rows[: block.num_dst]).shape
        torch.Size([3, 2])
    """
    pieces = pieces_over_ranks(part, rows, run, left)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def pieces_over_ranks(
    part: LocalPart,
    rows: Tensor,
    run: Callable[[Block, Tensor], T],
    left: Leftovers | None = None,
    splits: bool = True,
    factors: Tensor | None = None,
) -> list[T]:
    """As :func:`over_ranks`, in one piece for all targets, or, with ``splits``, one each for interior and boundary.

    ``factors``: (own + ghosts,) what rows are multiplied by while they travel, where other ranks read them so.
    """
    trip = _Trip(part, rows, left, splits, factors)
    begun: Tensor = _Begin.apply(rows, trip)  # type: ignore[no-untyped-call]
    if not trip.splits or part.inner is None or part.outer is None:
        del rows  # the table has them; where the caller has let go of them their memory is the next rows'
        return [_tied(run, part.block, _End.apply(begun, trip))]  # type: ignore[no-untyped-call]
    first = run(part.inner, rows if part.inner_read is None else _Picked.apply(rows, part.inner_read))  # type: ignore[no-untyped-call]
    return [first, _tied(run, part.outer, _End.apply(begun, trip))]  # type: ignore[no-untyped-call]


def _tied(run: Callable[[Block, Tensor], T], block: Block, table: Tensor) -> T:
    """``run(block, table)``, from which torch finds ``table`` also where no row needs it: all go back alike."""
    out = run(block, table)
    if isinstance(out, Tensor) and table.requires_grad and (block.num_dst == 0 or block.num_edges == 0):
        return out + table[:0].sum()  # type: ignore[return-value]  # T is a tensor here
    return out


def fetched(part: LocalPart, rows: Tensor) -> Tensor:
    """Rows of all sources of the part's block, own ones, then ghosts', from own rows (own, width)."""
    return pieces_over_ranks(part, rows, lambda block, table: table, splits=False)[0]


class _Trip:
    """One exchange and, in the backward pass, its reverse."""

    def __init__(
        self,
        part: LocalPart,
        rows: Tensor,
        left: Leftovers | None,
        splits: bool = True,
        factors: Tensor | None = None,
    ) -> None:
        self._part, self._left, self._factors = part, left, factors
        # Without a backward pass there is no other use of what was sent than that others read it.
        self._kept = torch.is_grad_enabled()
        self._rows: Tensor | None = rows.detach()
        self.splits = splits and part.outer is not None
        self._read = part.read if self.splits else part.near
        self._finish: Callable[[], None] | None = None  # holds what is sent and received
        self._table: Tensor | None = None
        self._near: Tensor | None = None  # gradients of own rows that the boundary reads
        self._received: Tensor | None = None

    def begin(self) -> None:
        """Sends what others borrow, and makes room for the ghosts."""
        part, rows, self._rows = self._part, self._rows, None
        assert rows is not None  # begins once
        near = self._read.numel()
        self._table = table = empty((near + part.ghosts.numel(), rows.shape[1]), rows.dtype)
        picked = _picked(rows, part.all_lent)
        if self._factors is not None:
            picked.mul_(self._factors[part.all_lent].unsqueeze(1))
        lent = torch.split(picked, [places.numel() for places in part.lent])
        received = torch.split(table[near:], part.borrowed)
        self._finish = exchanged(part.ranks, lent, received, self._left, "there", self._kept)
        if self._read is part.near and part.reads_all:
            table[:near] = rows
        else:
            _picked(rows, self._read, table[:near])

    def end(self) -> Tensor:
        """Rows that the boundary reads: own ones, then ghosts'."""
        table, self._table = self._table, None
        assert table is not None  # begun
        self._wait()
        if self._factors is not None:
            near = self._read.numel()
            factors = self._factors[near:].unsqueeze(1)
            table[near:].div_(factors.where(factors != 0, 1.0))  # rows times 0 are 0
        return table

    def begin_home(self, gradient: Tensor) -> None:
        """Sends the ghosts' gradients to their owners."""
        part, near = self._part, self._read.numel()
        self._near = gradient[:near]
        lent = [places.numel() for places in part.lent]
        self._received = empty((sum(lent), gradient.shape[1]), gradient.dtype)
        sent = torch.split(gradient[near:], part.borrowed)
        received = torch.split(self._received, lent)
        self._finish = exchanged(part.ranks, sent, received, self._left, "home")

    def end_home(self) -> Tensor:
        """The gradient of own rows, (own, width), with what other ranks have for them, added up rank by rank."""
        part, near, received = self._part, self._near, self._received
        assert near is not None and received is not None  # begun
        if self._read is not part.near or not part.reads_all:
            whole = empty((part.own.numel(), near.shape[1]), near.dtype)
            near = whole.zero_().index_copy_(0, self._read, near)
        self._wait()
        self._near = self._received = None
        if near.dtype == torch.float32:  # one pass that reads, adds and writes
            return spmm(part.home, received, epilogue=Epilogue(addend=near))
        return near.index_add(0, part.all_lent, received)

    def _wait(self) -> None:
        finish, self._finish = self._finish, None
        assert finish is not None  # begun
        finish()


def _picked(rows: Tensor, places: Tensor, out: Tensor | None = None) -> Tensor:
    """Some rows, in memory of the pool, whose pages are there already."""
    made = empty((places.numel(), rows.shape[1]), rows.dtype) if out is None else out
    if rows.dtype == torch.float32:
        gather_rows_into(rows, places, made)
        return made
    return torch.index_select(rows, 0, places, out=made)


class _Picked(torch.autograd.Function):
    """Some rows, each at most once, so that their gradients are written, not added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.places, ctx.count = places, rows.shape[0]
        return _picked(rows, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = empty((ctx.count, gradients[0].shape[1]), gradients[0].dtype).zero_()
        return whole.index_copy_(0, ctx.places, gradients[0]), None


class _Begin(torch.autograd.Function):
    """Begins the exchange; its backward pass, the last of a layer's, ends the way home."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, trip: _Trip) -> Tensor:
        ctx.trip = trip
        trip.begin()
        return rows.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.trip.end_home(), None


class _End(torch.autograd.Function):
    """Waits for the ghosts; its backward pass, which comes before that of the interior, sends their gradients."""

    @staticmethod
    def forward(ctx: Any, begun: Tensor, trip: _Trip) -> Tensor:
        ctx.trip = trip
        return trip.end()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.trip.begin_home(gradients[0].contiguous())
        return gradients[0].new_empty(0), None
