"""Which operations of a recorded run move rows between nodes and edges, and along which edges.

Comes in: a :class:`Tape`. Goes out: a :class:`Move` for every gather and scatter whose index is structure, and an
:class:`EdgeSet` for every number of edges: which ids are destinations and which are sources. Called by ``regions.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.sum_forms import is_lowest
from graphweft.frontend.tape import Step, Tape, Var
from graphweft.storage.fingerprint import fingerprint

aten = torch.ops.aten
_REDUCES = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min"}
_BY_SLICE = (aten.index_add.default, aten.index_reduce.default)


@dataclass(frozen=True)
class Move:
    """Rows moved.

    Attributes:
        rows: What is moved.
        dim: Which dimension the index runs over.
        index: Ids of nodes, one an edge.
        key: Equal for indices of equal content.
        nodes: How many nodes there are on that side.
        kind: None for a gather; for a scatter how rows are combined.
        base: What a scatter adds to; None for zeros.
        fill: What an extremum is where there is none.
    """

    rows: Var
    dim: int
    index: Tensor
    key: Any
    nodes: int
    kind: str | None = None
    base: Var | None = None
    fill: float = 0.0


@dataclass
class EdgeSet:
    """Edges of one number: all ids that run over them.

    Attributes:
        count: How many edges.
        src, dst: Their ends.
        num_src, num_dst: How many nodes each end has.
        keys: Of source and destination.
    """

    count: int
    src: Tensor
    dst: Tensor
    num_src: int
    num_dst: int
    keys: tuple[Any, Any] = field(default=(None, None))

    @property
    def square(self) -> bool:
        """Whether both ends are nodes of one set, as far as numbers tell."""
        return self.num_src == self.num_dst

    def side(self, move: Move) -> bool:
        """Whether a move is at the source. Raises: UnraisableError for one along other edges."""
        if move.key == self.keys[1] and move.nodes == self.num_dst:
            return False
        if move.key == self.keys[0] and move.nodes == self.num_src:
            return True
        raise UnraisableError("an index into rows by other ids than those of the edges")


class Indices:
    """Marks of indices by content, each read once."""

    def __init__(self) -> None:
        self._marks: dict[Any, Any] = {}
        self._held: list[Tensor] = []

    def key(self, index: Tensor) -> Any:
        """Equal for equal ids."""
        place = (index.data_ptr(), index.shape, index.stride(), index.dtype)
        if place not in self._marks:
            self._marks[place] = fingerprint(index.long())
            self._held.append(index)
        return self._marks[place]


def moves_of(tape: Tape) -> dict[Step, Move]:
    """The moves of a tape, by step."""
    indices = Indices()
    found = {}
    for step in tape.steps:
        move = _move(step, indices)
        if move is not None:
            found[step] = move
    return found


def _move(step: Step, indices: Indices) -> Move | None:
    target, args = step.target, step.args
    if target is aten.index_select.default:
        return _gather(step, args[0], args[1], args[2], indices)
    if target is aten.index.Tensor:
        given = [at for at, index in enumerate(args[1]) if index is not None]
        return _gather(step, args[0], given[0], args[1][given[0]], indices) if len(given) == 1 else None
    if target is aten.gather.default:
        return _gather(step, args[0], args[1], _column(args[2], args[1], step.outs[0]), indices)
    if target is aten.embedding.default and len(args) == 2:
        return _gather(step, args[0], 0, args[1], indices)
    if target in (aten.scatter_add.default, aten.scatter_reduce.two, *_BY_SLICE):
        return _scatter(step, indices)
    if target is aten.index_put.default and len(args) == 4 and args[3] is True:
        given = [at for at, index in enumerate(args[1]) if index is not None]
        one = len(given) == 1 and isinstance(args[2], Var)
        return _combined(step, args[0], given[0], args[1][given[0]], args[2], "sum", indices) if one else None
    return None


def _gather(step: Step, rows: Any, dim: int, index: Any, indices: Indices) -> Move | None:
    out = step.outs[0]
    if not isinstance(rows, Var) or not _is_ids(index) or out is None or not rows.shape:
        return None
    dim %= len(rows.shape)
    return Move(rows, dim, index, indices.key(index), rows.shape[dim])


def _scatter(step: Step, indices: Indices) -> Move | None:
    base, dim, index, rows, *rest = step.args
    kind, options = "sum", dict(step.kwargs)
    if step.target in (aten.scatter_reduce.two, aten.index_reduce.default):
        named = rest[0]
        include = options.get("include_self", rest[1] if len(rest) > 1 else True)
        if named not in _REDUCES:
            return None
        if include and named != "sum" and not (isinstance(base, Tensor) and is_lowest(base, named)):
            return None
        kind = _REDUCES[named]
    elif step.target is aten.index_add.default and (rest or options.get("alpha", 1) != 1):
        return None
    if not isinstance(rows, Var):
        return None
    if step.target not in _BY_SLICE:
        index = _column(index, dim, rows)
    return _combined(step, base, dim, index, rows, kind, indices)


def _combined(step: Step, base: Any, dim: int, index: Any, rows: Any, kind: str, indices: Indices) -> Move | None:
    out = step.outs[0]
    if not isinstance(rows, Var) or not _is_ids(index) or out is None or len(rows.shape) != len(out.shape):
        return None
    dim %= len(rows.shape)
    others = [at for at in range(len(rows.shape)) if at != dim]
    if any(rows.shape[at] != out.shape[at] for at in others) or rows.shape[dim] != index.shape[0]:
        return None
    added = base
    fill = 0.0
    if isinstance(base, Tensor):
        if kind in ("max", "min"):
            if bool((base.reshape(-1)[:1] != base).any()):
                return None
            fill = float(base.reshape(-1)[0]) if base.numel() else 0.0
        elif bool(base.any()):
            return None
        added = None
    if added is not None and kind != "sum":
        return None
    return Move(rows, dim, index, indices.key(index), out.shape[dim], kind, added, fill)


def _is_ids(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dim() == 1 and index.dtype in (torch.int64, torch.int32)


def _column(index: Any, dim: int, like: Var | None) -> Tensor | None:
    """The ids of an index that is the same along all dimensions but ``dim``; it has the shape of ``like``."""
    if not isinstance(index, Tensor) or like is None or tuple(index.shape) != like.shape or not index.numel():
        return None
    dim %= index.dim()
    column = index.movedim(dim, 0).reshape(index.shape[dim], -1)[:, 0] if index.dim() > 1 else index
    strides = [stride for at, stride in enumerate(index.stride()) if at != dim and index.shape[at] > 1]
    if any(strides):
        wide = column.reshape([-1 if at == dim else 1 for at in range(index.dim())])
        if not bool((index == wide).all()):
            return None
    else:
        column = index[tuple(slice(None) if at == dim else 0 for at in range(index.dim()))]
    return column


def edge_sets(moves: Sequence[Move]) -> dict[int, EdgeSet]:
    """Edges by their number. Destinations are the ids that rows are combined by, sources the others."""
    found: dict[int, EdgeSet] = {}
    for count in dict.fromkeys(move.index.shape[0] for move in moves):
        own = [move for move in moves if move.index.shape[0] == count]
        scatters = [move for move in own if move.kind is not None]
        if count < 2 or not scatters:
            continue
        into = scatters[0]
        others = [move for move in own if move.key != into.key]
        likely = sorted(others, key=lambda move: (move.kind is None, move.nodes != into.nodes))  # others are types
        out_of = likely[0] if others else into
        if into.nodes < 2 or out_of.nodes < 2:
            continue
        ids = into.index, out_of.index
        if any(bool((index < 0).any()) for index in ids):
            continue
        found[count] = EdgeSet(count, ids[1], ids[0], out_of.nodes, into.nodes, (out_of.key, into.key))
    return found
