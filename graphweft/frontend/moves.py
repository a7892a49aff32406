"""Which operations of a recorded run move rows between nodes and edges, and along which edges.

Comes in: a :class:`Tape`. Goes out: a :class:`Move` for every gather and scatter whose index is structure, and an
:class:`EdgeSet` for all edges of one kind: which ids are destinations and which are sources. Called by ``regions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_MOST_GROUPS = 4096  # of nodes, whose rows a program holds as one shared table
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
        parts: How many edges each relation has, one relation after the other; empty for edges of one kind.
    """

    count: int
    src: Tensor
    dst: Tensor
    num_src: int
    num_dst: int
    keys: tuple[Any, Any] = field(default=(None, None))
    parts: tuple[int, ...] = ()

    @property
    def nodes(self) -> tuple[int, int]:
        """How many nodes each end has."""
        return self.num_src, self.num_dst

    @property
    def square(self) -> bool:
        """Whether both ends are nodes of one set, as far as numbers tell."""
        return self.num_src == self.num_dst

    def has(self, move: Move) -> bool:
        """Whether a move is along these edges."""
        ends = (self.keys[0], self.num_src), (self.keys[1], self.num_dst)
        return move.index.shape[0] == self.count and (move.key, move.nodes) in ends

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
        if not include and named == "sum" and (isinstance(base, Var) or bool(base.any())):
            return None  # what is there stays only where no row goes
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


class EdgeSets:
    """The edges of a tape.

    Attributes:
        counts: How many edges there are in each.
    """

    def __init__(self, tape: Tape, moves: Mapping[Step, Move]) -> None:
        self._sets: dict[int, list[EdgeSet]] = {}
        self._near: dict[Var, EdgeSet] = {}
        for count in dict.fromkeys(move.index.shape[0] for move in moves.values()):
            own = {step: move for step, move in moves.items() if move.index.shape[0] == count}
            if count > 1:
                self._find(tape, own, count)
        self._parameters = _of_parameters(tape, moves)
        self._leave_groups(list(moves.values()))
        self._nodes = {n for sets in self._sets.values() for e in sets if e.keys[0] != e.keys[1] for n in e.nodes}
        self._find_pairs(list(moves.values()))
        self.counts = frozenset(self._sets)

    def of(self, move: Move) -> EdgeSet | None:
        """The edges that a move is along; others of the same number where it is along none."""
        near = self._near.get(move.rows)
        if near is not None and near.has(move):
            return near
        own = self._sets.get(move.index.shape[0], [])
        return next((edges for edges in own if edges.has(move)), own[0] if own else None)

    def groups(self, move: Move) -> bool:
        """Whether a move is between nodes and groups of them, such as the graphs of a batch: not along edges."""
        count = move.index.shape[0]
        if count not in self._nodes or not self._is_grouped(move):
            return False
        return all(edges.keys[0] == edges.keys[1] for edges in self._sets.get(count, []))

    def is_of_table(self, move: Move) -> bool:
        """Whether a move picks rows of a table of parameters."""
        return move.kind is None and move.rows in self._parameters

    def _is_grouped(self, move: Move) -> bool:
        """Whether a move may be between rows and few groups of them, or picks rows of a table of parameters."""
        return self.is_of_table(move) or 0 < move.nodes <= min(move.index.shape[0] // 2, _MOST_GROUPS)

    def near(self, var: Var) -> EdgeSet | None:
        """The edges along which rows of edges are summed later, where their number leaves a choice."""
        return self._near.get(var)

    def _find(self, tape: Tape, moves: Mapping[Step, Move], count: int) -> None:
        scatters = {step: move for step, move in moves.items() if move.kind is not None}
        if len({move.key for move in scatters.values()}) < 2:
            self._take(count, _ends(list(moves.values())))
            return
        cones = {step: _cone(tape, step, moves, count) for step in scatters}
        for step, into in scatters.items():
            others = [move for move in cones[step].values() if move is not None and move.key != into.key]
            others.sort(key=lambda move: move.nodes != into.nodes)  # others are types
            known = self._sets.get(count, [])
            if others and not any(edges.has(into) and edges.has(others[0]) for edges in known):
                self._take(count, (into, others[0]))
        for into in scatters.values():
            if not any(edges.has(into) for edges in self._sets.get(count, [])):
                self._take(count, (into, into))
        if len(self._sets.get(count, [])) > 1:
            for step, cone in cones.items():
                fitting = [edges for edges in self._sets[count] if edges.has(scatters[step])]
                along = [e for e in fitting if all(move is None or e.has(move) for move in cone.values())]
                for var in cone:
                    self._near.setdefault(var, (along or fitting)[0])

    def _leave_groups(self, moves: Sequence[Move]) -> None:
        """Leaves out what looks like edges but is nodes: rows of tables picked for them, and sums over few groups."""
        for count in [*self._sets]:
            others = [edges for other, sets in self._sets.items() if other != count for edges in sets]
            nodes = {n for edges in others if edges.keys[0] != edges.keys[1] for n in edges.nodes}
            own = [move for move in moves if move.index.shape[0] == count]
            if count in nodes and all(self._is_grouped(move) for move in own):
                self._near = {var: edges for var, edges in self._near.items() if edges.count != count}
                del self._sets[count]

    def _find_pairs(self, moves: Sequence[Move]) -> None:
        """Rows of nodes that are picked, and pairs of them, such as those whose scores are asked for: nothing is added
        up over these. Rows of tables may be picked for them as well.
        """
        for count in {move.index.shape[0] for move in moves} - self._nodes - {0, 1}:
            sets = self._sets.get(count, [])
            own = [move for move in moves if move.index.shape[0] == count and not any(e.has(move) for e in sets)]
            own = [move for move in own if move.nodes in self._nodes or not self.is_of_table(move)]
            ends = list({move.key: move for move in own}.values())
            if len(ends) == 1 and all(move.rows.source is not None for move in own):
                continue  # rows of an argument, as for layers by type of node
            if 0 < len(ends) < 3 and all(move.kind is None and move.nodes in self._nodes for move in own):
                self._take(count, (ends[-1], ends[0]))

    def _take(self, count: int, ends: tuple[Move, Move] | None) -> None:
        """Edges into the ids of one move out of those of another."""
        if ends is None or any(end.nodes < 2 or bool((end.index < 0).any()) for end in ends):
            return
        into, out_of = ends
        keys = out_of.key, into.key
        made = EdgeSet(count, out_of.index, into.index, out_of.nodes, into.nodes, keys)
        self._sets.setdefault(count, []).append(made)


def _of_parameters(tape: Tape, moves: Mapping[Step, Move]) -> set[Var]:
    """Parameters, and what follows from them alone without moving rows."""
    found = {var for var in tape.inputs if var.source is not None and var.source[0] == "parameter"}
    for step in tape.steps:
        if step not in moves and step.reads and all(var in found for var in step.reads):
            found.update(var for var in step.outs if var is not None)
    return found


def _ends(moves: Sequence[Move]) -> tuple[Move, Move] | None:
    """The one that rows are combined by, and the most likely one that they come from."""
    into = next((move for move in moves if move.kind is not None), None)
    if into is None:
        return None
    others = [move for move in moves if move.key != into.key]
    likely = sorted(others, key=lambda move: (move.kind is None, move.nodes != into.nodes))  # others are types
    return into, (likely[0] if others else into)


def _cone(tape: Tape, step: Step, moves: Mapping[Step, Move], count: int) -> dict[Var, Move | None]:
    """Rows of edges that a scatter follows from, back to the gathers that made some of them."""
    makers = {var: made for made in tape.steps for var in made.outs if var is not None}
    found: dict[Var, Move | None] = {}
    open_ = [moves[step].rows]
    while open_:
        var = open_.pop()
        if var in found or count not in var.shape:
            continue
        maker = makers.get(var)
        move = moves.get(maker) if maker is not None else None
        found[var] = move if move is not None and move.kind is None else None
        if maker is not None and move is None:
            open_.extend(reversed(maker.reads))
    return found
