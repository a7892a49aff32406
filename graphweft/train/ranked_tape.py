"""A step over ranks without torch's engine: all layers' plans, with exchanges of rows between them.

Comes in: a stack of layers, the parts of its layers, features, and the loss. Goes out: :class:`RankedStep`, which runs,
or is recorded as a :class:`Tape`; None for what takes another way. Layers write own rows where the next one reads them,
before those of ghosts, and gradients that come home are added, masked and summed by column in one pass. The messages
are those of torch's engine, in the same order, so a rank may take either way; where all ranks can, rows travel as the
next layer multiplies them. On several hosts nothing is recorded: sums over edges are made in two parts, that of own
rows while rows of ghosts travel, and gradients of ghosts are made first, those of own rows while they travel. Called by
:mod:`graphweft.train.ranked_full`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft import _native
from graphweft._memory import POOL, empty
from graphweft._trace import span
from graphweft.dist.halo import fetched
from graphweft.dist.local_part import LocalPart
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.stack import Stack
from graphweft.runtime.constants import once, owning
from graphweft.runtime.dense import rows_apply
from graphweft.runtime.epilogue import Epilogue
from graphweft.runtime.late_rows import InTwo, Late
from graphweft.runtime.piece import Piece
from graphweft.runtime.sparse import spmm
from graphweft.runtime.tape import Tape, borrowed
from graphweft.storage.gather import gather_rows_into
from graphweft.train.target import Cells, Recorded

_Home = tuple[Tensor, Callable[[], None]]

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
        self._factors: list[Tensor | None] = [None] * len(parts)
        here = parts[0].ranks.is_on_one_host
        self._cuts = None if here else [InTwo(part.near.numel()) for part in parts]

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

    @property
    def wishes(self) -> str:
        """Numbers of the layers whose rows the layer before can multiply, so that no pass over the table does."""
        return " ".join(map(str, self._wished()))

    def _wished(self) -> list[int]:
        layers = range(1, len(self._parts))
        can = (self._parts[i].reads_all and self._pieces[i - 1].can_multiply() for i in layers)
        return [i for i, so in zip(layers, can, strict=True) if so and self._pieces[i].factors is not None]

    def multiply_early(self) -> None:
        """Rows are multiplied where they are made, and travel so; all ranks call it, with the same :attr:`wishes`."""
        for index in self._wished():
            part, factors = self._parts[index], self._pieces[index].factors
            assert factors is not None  # as it is wished
            near = part.near.numel()
            theirs = fetched(part, factors[:near].unsqueeze(1)).squeeze(1)[near:]
            if part.ranks.agreed(int(not torch.equal(theirs, factors[near:]))):
                continue  # owners and readers have others
            self._pieces[index - 1].multiply(factors[:near])
            self._pieces[index].take_multiplied()
            self._factors[index] = factors

    def factors(self, layer: int) -> Tensor | None:
        """What rows that a layer reads are multiplied by while they travel, own rows', then ghosts'; None: they are
        not.
        """
        return self._factors[layer]

    def record(self) -> Tape | None:
        """The step as a tape; None where it cannot be one. Nothing travels meanwhile."""
        POOL.trim()
        homes = [(part.all_lent, part.home) for part in self._parts[1:]]
        widths = (piece.width for piece in self._pieces[:-1])
        rows = [4 * part.block.num_src * width for part, width in zip(self._parts[1:], widths, strict=True)]
        return Tape.record(self._tried, [self, self._read, homes], _LEAST * max(rows) + _SMALL)

    def run(
        self,
        told: Callable[[Cells], None] = lambda cells: None,
        arrived: Callable[[dict[str, Tensor]], None] = lambda gradients: None,
    ) -> tuple[Cells, dict[str, Tensor]]:
        """The loss of own rows and the gradients that it gives, by the name of the parameter.

        ``told`` and ``arrived`` have the loss, and each layer's gradients, as soon as they are known.
        """
        self._travels = True
        try:
            return self._run(told, arrived)
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
    def _run(
        self,
        told: Callable[[Cells], None] = lambda cells: None,
        arrived: Callable[[dict[str, Tensor]], None] = lambda gradients: None,
    ) -> tuple[Cells, dict[str, Tensor]]:
        with span("forward", "forward"):
            rows = self._forward()
        with span("loss", "loss"):
            cells, gradient = self._loss(rows, self._pieces[-1].plan.forgets("out"))
        told(cells)
        with span("backward", "backward"):
            return cells, self._backward(gradient, arrived)

    def _forward(self) -> Tensor:
        """The last layer's rows."""
        given: list[Tensor] = []  # rows of the next layer's sources, for it to take
        late: Late | None = None  # where some of them travel
        for index, later in enumerate(self._parts[1:]):
            piece, reader = self._pieces[index : index + 2]
            if _joins(later) and not reader.scales:  # else own rows, which are a mask later, would be written over
                table, near = empty((later.block.num_src, piece.width)), later.near.numel()
                own = piece.forward(given, table[:near], late)
                if own.data_ptr() != table.data_ptr():  # it lies where its kernel wants it
                    table[:near].copy_(own)
            else:
                own = piece.forward(given, None, late)
                table, near = empty((later.block.num_src, piece.width)), later.near.numel()
                gather_rows_into(own, later.near, table[:near])
            end = self._fetch(later, own, table[near:])
            late = None if self._cuts is None else Late(self._cuts[index + 1], lambda rows, end=end: end())  # type: ignore[misc]
            given = [table]
            del own, table
        return self._pieces[-1].forward(given, None, late)

    def _backward(self, gradient: Tensor, arrived: Callable[[dict[str, Tensor]], None]) -> dict[str, Tensor]:
        """Gradients of all parameters."""
        found: dict[str, Tensor] = {}

        def given(stages: Epilogue | None) -> Tensor:
            return gradient if stages is None else rows_apply(gradient, stages)

        make: Callable[[Epilogue | None], Tensor] = given
        for index in reversed(range(len(self._pieces))):
            part, piece, homes = self._parts[index], self._pieces[index], list[_Home]()
            begin = functools.partial(self._send_home, part, homes)
            late = None if self._cuts is None or index == 0 else Late(self._cuts[index], begin)
            made = piece.backward(make, late)
            rows = made.pop("x", None)
            gradients = {name: tensor for name, tensor in made.items() if tensor is not None}
            found |= gradients
            if index:
                assert rows is not None  # as its rows have been computed
                if not homes:
                    begin(rows)
                make = self._home(part, rows, homes.pop())
            arrived(gradients)
            del rows
        return found

    def _fetch(self, part: LocalPart, own: Tensor, ghosts: Tensor) -> Callable[[], None]:
        """Rows of ghosts from those of own nodes; what waits for them."""
        lent = empty((part.all_lent.numel(), own.shape[1]))
        gather_rows_into(own, part.all_lent, lent)
        sizes = [places.numel() for places in part.lent]
        return self._exchange(part, _cut(lent, sizes), _cut(ghosts, part.borrowed))

    def _send_home(self, part: LocalPart, homes: list[_Home], rows: Tensor) -> None:
        """Gradients of ghosts, the last of ``rows``, travel; adds to ``homes`` what comes, and what waits for it."""
        received = empty((part.all_lent.numel(), rows.shape[1]))
        sizes = [places.numel() for places in part.lent]
        end = self._exchange(part, _cut(rows[part.near.numel() :], part.borrowed), _cut(received, sizes))
        homes.append((received, end))

    def _home(self, part: LocalPart, rows: Tensor, home: _Home) -> Callable[[Epilogue | None], Tensor]:
        """What makes the gradients of own rows, with what others have for them."""
        near, received = rows[: part.near.numel()], home[0]
        if not part.reads_all:
            near = empty((part.own.numel(), rows.shape[1])).zero_().index_copy_(0, part.near, near)
        terms, end = [received, near], home[1]

        def added(stages: Epilogue | None) -> Tensor:
            end()
            near, received = terms.pop(), terms.pop()  # once; their memory is free after it
            return spmm(part.home, received, epilogue=replace(stages or Epilogue(), addend=near), out=near)

        return added

    def _exchange(self, part: LocalPart, sent: list[Tensor], received: list[Tensor]) -> Callable[[], None]:
        """Now, or, while a tape is recorded, in its replays; what waits for the end on several hosts.

        A replay ends an exchange when all others have read what it sent, for its memory is soon another call's.
        """
        calls = _native.recorder.calls
        if self._travels:
            end = part.ranks.begin_exchange(sent, received, kept=True)
            if self._cuts is not None:
                return end
            end()
        elif calls is not None:
            given, filled = [borrowed(rows) for rows in sent], [borrowed(rows) for rows in received]

            def call() -> int:
                part.ranks.begin_exchange(given, filled)()
                return 0

            calls.append((call, ()))
        return lambda: None


def _joins(part: LocalPart) -> bool:
    """Whether own rows are written where the next layer reads them; more ghosts would be kept as long as these."""
    return part.reads_all and part.ghosts.numel() <= part.own.numel()


def _cut(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    ends = [0, *itertools.accumulate(sizes)]
    return [rows[a:b] for a, b in itertools.pairwise(ends)]
