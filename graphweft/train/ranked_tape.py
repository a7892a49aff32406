"""A step over ranks of one host without torch's engine: all layers' plans, with exchanges of rows between them.

Comes in: a stack of layers, the parts of its layers, features, and the loss. Goes out: :class:`RankedStep`, which runs,
or is recorded as a :class:`Tape`; None for what takes another way. Layers write own rows where the next one reads them,
before those of ghosts, and gradients that come home are added, masked and summed by column in one pass. The messages
are those of torch's engine, in the same order, so a rank may take either way. Called by
:mod:`graphweft.train.ranked_full`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft import _native
from graphweft._memory import POOL, empty
from graphweft._trace import span
from graphweft.dist.local_part import LocalPart
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.stack import Stack
from graphweft.runtime.constants import once, owning
from graphweft.runtime.dense import rows_apply
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.piece import Piece
from graphweft.runtime.sparse import spmm
from graphweft.runtime.tape import Tape, borrowed
from graphweft.storage.gather import gather_rows_into
from graphweft.train.target import Cells, Recorded

_SMALL = 4 << 20  # bytes of tensors that lie in an arena only
_LEAST = 1.9  # tables of rows and ghosts that a step holds at once, at least: a larger arena is tried after that


def _pieces(model: Stack, parts: Sequence[LocalPart], first: Any, edges: EdgeInputs | None) -> list[Piece] | None:
    """The layers on their parts; None where one is not run by a plan of its own."""
    found = []
    for index, part in enumerate(parts):
        given = first
        if index:
            width = int(model.layers[index].in_features)  # type: ignore[arg-type]
            given = torch.empty(part.block.num_src, width, requires_grad=True)  # stands for the rows of every step
        with once(), owning(*([first] if index == 0 else [])), torch.enable_grad():
            arguments = replace(model.layer_arguments(index, part.block, given, edges), training=True)
            piece = Piece.of(model.layer_function(index), arguments)
        if (
            index and arguments.x is not given
        ):  # as typed layers, which sort rows by type: a step's rows come as they lie
            return None
        if piece is None or (index and "x" not in piece.plan.tensors):
            return None
        found.append(piece)
    return found


class RankedStep:
    """One step: forward, loss and backward, with exchanges where rows of ghosts are read.

    Args:
        parts: That of every layer.
        pieces: The layers' plans.
        loss: As :meth:`graphweft.train.target.Target.recorded` gives it, with this rank's share of all rows.
    """

    def __init__(self, parts: Sequence[LocalPart], pieces: list[Piece], loss: tuple[Recorded, list[Any]]) -> None:
        self._parts, self._pieces = parts, pieces
        self._loss, self._read = loss
        self._travels = False

    @classmethod
    def of(
        cls,
        model: Stack,
        parts: Sequence[LocalPart],
        first: Any,
        edges: EdgeInputs | None,
        loss: tuple[Recorded, list[Any]],
    ) -> RankedStep | None:
        """None for layers that take another way. ``first``: features of the first part's rows."""
        pieces = _pieces(model.train(), parts, first, edges)
        return None if pieces is None else cls(parts, pieces, loss)

    def record(self) -> Tape | None:
        """The step as a tape; None where it cannot be one. Nothing travels meanwhile."""
        POOL.trim()
        homes = [(part.all_lent, part.home) for part in self._parts[1:]]
        widths = (piece.width for piece in self._pieces[:-1])
        rows = [4 * part.block.num_src * width for part, width in zip(self._parts[1:], widths, strict=True)]
        return Tape.record(self._tried, [self, self._read, homes], _LEAST * max(rows) + _SMALL)

    def run(self) -> tuple[Cells, dict[str, Tensor]]:
        """The loss of own rows and the gradients that it gives, by the name of the parameter."""
        self._travels = True
        try:
            return self._run()
        finally:
            self._travels = False

    def _tried(self) -> tuple[Cells, dict[str, Tensor]]:
        """As :meth:`_run`; where the memory is too small, nothing of it stays in use."""
        try:
            return self._run()
        except MemoryError:
            for piece in self._pieces:
                piece.forget()
            raise

    @torch.no_grad()
    def _run(self) -> tuple[Cells, dict[str, Tensor]]:
        with span("forward", "forward"):
            rows = self._forward()
        with span("loss", "loss"):
            cells, gradient = self._loss(rows, self._pieces[-1].plan.forgets("out"))
        with span("backward", "backward"):
            return cells, self._backward(gradient)

    def _forward(self) -> Tensor:
        """The last layer's rows."""
        given: list[Tensor] = []  # rows of the next layer's sources, for it to take
        for (piece, reader), later in zip(itertools.pairwise(self._pieces), self._parts[1:], strict=True):
            if _joins(later) and not reader.plan.scales:  # else own rows, which are a mask later, would be written over
                table, near = empty((later.block.num_src, piece.width)), later.near.numel()
                own = piece.forward(given, table[:near])
                if own.data_ptr() != table.data_ptr():  # it lies where its kernel wants it
                    table[:near].copy_(own)
            else:
                own = piece.forward(given)
                table, near = empty((later.block.num_src, piece.width)), later.near.numel()
                gather_rows_into(own, later.near, table[:near])
            self._fetch(later, own, table[near:])
            given = [table]
            del own, table
        return self._pieces[-1].forward(given)

    def _backward(self, gradient: Tensor) -> dict[str, Tensor]:
        """Gradients of all parameters."""
        found: dict[str, Tensor] = {}

        def given(stages: Epilogue | None) -> Tensor:
            return gradient if stages is None else rows_apply(gradient, stages)

        make: Callable[[Epilogue | None], Tensor] = given
        for part, piece in zip(reversed(self._parts), reversed(self._pieces), strict=True):
            made = piece.backward(make)
            rows = made.pop("x", None)
            found |= {name: tensor for name, tensor in made.items() if tensor is not None}
            if piece is not self._pieces[0]:
                assert rows is not None  # as its rows have been computed
                make = self._sent_home(part, rows)
            del rows
        return found

    def _fetch(self, part: LocalPart, own: Tensor, ghosts: Tensor) -> None:
        """Rows of ghosts from those of own nodes."""
        lent = empty((part.all_lent.numel(), own.shape[1]))
        gather_rows_into(own, part.all_lent, lent)
        sizes = [places.numel() for places in part.lent]
        self._exchange(part, _cut(lent, sizes), _cut(ghosts, part.borrowed))

    def _sent_home(self, part: LocalPart, rows: Tensor) -> Callable[[Epilogue | None], Tensor]:
        """Gradients of ghosts travel; what makes those of own rows, with what others have for them."""
        count = part.near.numel()
        received = empty((part.all_lent.numel(), rows.shape[1]))
        sizes = [places.numel() for places in part.lent]
        self._exchange(part, _cut(rows[count:], part.borrowed), _cut(received, sizes))
        near = rows[:count]
        if not part.reads_all:
            near = empty((part.own.numel(), rows.shape[1])).zero_().index_copy_(0, part.near, near)
        terms = [received, near]

        def added(stages: Epilogue | None) -> Tensor:
            near, received = terms.pop(), terms.pop()  # once; their memory is free after it
            return spmm(part.home, received, epilogue=replace(stages or Epilogue(), addend=near), out=near)

        return added

    def _exchange(self, part: LocalPart, sent: list[Tensor], received: list[Tensor]) -> None:
        """Now, or, while a tape is recorded, in its replays.

        A replay ends an exchange when all others have read what it sent, for its memory is soon another call's.
        """
        calls = _native.recorder.calls
        if self._travels:
            part.ranks.begin_exchange(sent, received, kept=True)()
        elif calls is not None:
            given, filled = [borrowed(rows) for rows in sent], [borrowed(rows) for rows in received]

            def call() -> int:
                part.ranks.begin_exchange(given, filled)()
                return 0

            calls.append((call, ()))


def _joins(part: LocalPart) -> bool:
    """Whether own rows are written where the next layer reads them; more ghosts would be kept as long as these."""
    return part.reads_all and part.ghosts.numel() <= part.own.numel()


def _cut(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    ends = [0, *itertools.accumulate(sizes)]
    return [rows[a:b] for a, b in itertools.pairwise(ends)]
