"""From a recorded run to programs: the longest stretches that one program can hold, and what is between.

Comes in: a :class:`Tape`. Goes out: parts in the order of their run: a :class:`Region`, a program with its inputs and
outputs, or a :class:`Step` that runs as it stands. Every step is raised by the rule of its operation; a step without
one runs as it stands, and what depends on it begins a new region. A program may have several sets of edges over the
same nodes, such as those of relations; a step along edges between other nodes begins a new region. Called by
``nn/recorded.py``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import IRError
from graphweft.frontend.layout import Known, N, Raised, Size, UnraisableError
from graphweft.frontend.moves import EdgeSet, EdgeSets, Move, moves_of
from graphweft.frontend.operands import mapped
from graphweft.frontend.region import Given, Planned, Region, Taken
from graphweft.frontend.relations import join_relations
from graphweft.frontend.row_algebra import RowAlgebra
from graphweft.frontend.row_rules import rule_of
from graphweft.frontend.rules import Out
from graphweft.frontend.tape import TRIMMED, Step, Tape, Var
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import OTHER, IndexType, Residency, StructType, TensorType, edges_of

aten = torch.ops.aten
_DRAWS = (aten.native_dropout.default,)
_FLOATS = (torch.float32, torch.float64)
_SHORT = 64  # numbers of a constant that rules may read
_MOST_GRAPHS = 32  # of one program
PLAIN_TORCH = "no edges are known there"
AHEAD = "rows of edges joined, picked or written by position"
_STRETCHES = (aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default)
_LAID = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)  # operands are laid over each other
_INDEXED = (aten.index.Tensor, aten.index_select.default, aten.gather.default)


def plan(tape: Tape, by_content: bool = True) -> Planned:
    """The parts of ``tape``; ``by_content``: they serve no other content of its structure."""
    return _Planner(tape, by_content).plan()


class _Writer:
    """Writes the program of one region. ``read``: values that a step or the caller reads."""

    def __init__(
        self, region: Region, tables: frozenset[Var], sets: EdgeSets, by_content: bool, read: Container[Var]
    ) -> None:
        self.region, self._tables, self._sets, self._by_content = region, tables, sets, by_content
        self._read = read
        self.b = Builder()
        edges = region.edges
        src, dst = ("V", "V") if edges.square else ("S", "D")
        counts = {src: edges.num_src, dst: edges.num_dst, "E": edges.count}
        self.graph = self.b.add(Op.GRAPH, name="graph", type=StructType(src, dst, "E"))
        self.seed = self.b.add(Op.INPUT, name="seed", type=IndexType(None, None))
        self.inputs: dict[str, Value] = {"graph": self.graph, "seed": self.seed}
        self.algebra = RowAlgebra(self.b, self.graph, counts, self.seed)
        self._graphs = {id(edges): self.graph}
        self._grouped_by: dict[Any, EdgeSet] = {}  # edges from nodes into their groups
        self.env: dict[Var, Raised] = {}
        self._structure: dict[Any, Raised] = {}
        self.made: set[Var] = set()
        self.along = False  # whether a step moved rows along edges

    # graphs

    def reaches(self, edges: EdgeSet) -> bool:
        """Whether the program has these edges, or can have them: they join the same nodes, and their number tells their
        rows from those of nodes.
        """
        own = self.region.edges
        nodes = own.num_src, own.num_dst
        fits = (edges.num_src, edges.num_dst) == nodes and edges.count not in nodes
        return id(edges) in self._graphs or (fits and len(self._graphs) < _MOST_GRAPHS)

    def _graph_of(self, edges: EdgeSet) -> Value:
        """The graph of a set of edges."""
        if id(edges) not in self._graphs:
            name = OTHER.format(len(self._graphs))
            struct = self.graph.struct
            made = self.b.add(Op.GRAPH, name=name, type=StructType(struct.src, struct.dst, edges_of(name)))
            self._graphs[id(edges)] = self.inputs[name] = made
            self.region.others[name] = edges
            self.algebra.know(made, edges.count)
        return self._graphs[id(edges)]

    # operands

    def value(self, var: Var) -> Raised:
        """A value, as an input where it is made elsewhere."""
        if var not in self.env:
            self.env[var] = self._input(var, var.shape, var.dtype, self._kind(var))
        return self.env[var]

    def _kind(self, var: Var) -> tuple[str, int] | None:
        """The rows of an input, by its sizes, and where; parameters have rows where they are tables of nodes."""
        if var.source is not None and var.source[0] != "arg" and var not in self._tables:
            return None
        near = self._sets.near(var)
        for axis, size in enumerate(var.shape):
            if near is not None and size == near.count and self.reaches(near):
                return self._graph_of(near).struct.edge, axis
            kind = self.algebra.kind_of(size)
            if kind is not None:
                return kind, axis
        return None

    def _input(self, source: Var | Tensor, shape: Any, dtype: torch.dtype, kind: tuple[str, int] | None) -> Raised:
        name = f"in:{len(self.region.given)}"
        if kind is None:
            self.region.given[name] = Given(source, Residency.SHARED)
            type_ = TensorType(Residency.SHARED, None, tuple(shape), dtype)
            self.inputs[name] = made = self.b.add(Op.INPUT, name=name, type=type_)
            return self.algebra.axes.of(made)
        rows, axis = kind
        struct = self.graph.struct
        graph = next((name for name in self.region.others if edges_of(name) == rows), "")
        on_edges = bool(graph) or rows == struct.edge
        residency = Residency.EDGE if on_edges else Residency.SRC if rows == struct.src else Residency.DST
        self.region.given[name] = Given(source, residency, axis, graph)
        dims = tuple(size for at, size in enumerate(shape) if at != axis)
        made = self.b.add(Op.INPUT, name=name, type=TensorType(residency, rows, dims, dtype))
        self.inputs[name] = made
        raised = self.algebra.axes.of(made, (N,))
        axes = list(raised.axes[1:])
        axes.insert(axis, raised.axes[0])
        return Raised(raised.value, tuple(axes))

    def constant(self, tensor: Tensor, partners: Sequence[Raised]) -> Raised:
        """Structure, with the rows that it is laid over."""
        if tensor.numel() == 1 and tensor.dim() == 0:
            return self.algebra.number(tensor.item(), tensor.dtype)
        kind = self._laid_over(tensor, partners)
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, kind)
        if key not in self._structure:
            made = self._input(tensor, tensor.shape, tensor.dtype, kind)
            short = kind is None and tensor.numel() <= _SHORT
            self._structure[key] = Known(made.value, made.axes, tensor) if short else made
        return self._structure[key]

    def _laid_over(self, tensor: Tensor, partners: Sequence[Raised]) -> tuple[str, int] | None:
        for x in partners:
            place = next((at for at, axis in enumerate(x.axes) if axis == (N,)), None)
            if place is None:
                continue
            axis = tensor.dim() - (len(x.axes) - place)
            if axis >= 0 and tensor.shape[axis] == self.algebra.count_rows(x):
                return str(x.value.tensor.rows), axis
            return None
        kind = self.algebra.kind_of(tensor.shape[0]) if tensor.dim() else None
        return None if kind is None else (kind, 0)

    # steps

    def add(self, step: Step, move: Move | None, edges: EdgeSet | None) -> None:
        """Raises a step. Raises: UnraisableError, IRError."""
        if move is None:
            results: list[Any] = self._computed(step)
        else:
            results = [self._grouped(move)] if edges is None else self._moved(move, edges)
            self.along = self.along or edges is not None
        for result, var in zip(results, step.outs, strict=False):
            if isinstance(result, Raised) and var is not None:
                self._check(result, var)
        for result, var in zip(results, step.outs, strict=False):
            if var is not None and isinstance(result, Raised):
                stopped = step.stops and var.dtype.is_floating_point
                self.env[var] = self.algebra.map(result, Op.DETACH) if stopped else result
                self.made.add(var)
        self.region.steps.append(step)

    def _check(self, result: Raised, var: Var) -> None:
        """The result is what torch gave: shape and dtype."""
        if self.algebra.axes.sizes(result) != var.shape or result.value.tensor.dtype != var.dtype:
            raise UnraisableError("it gives another shape or dtype here")

    def _moved(self, move: Move, edges: EdgeSet) -> list[Raised]:
        source, graph = edges.side(move), self._graph_of(edges)
        x = self.value(move.rows)
        if move.kind is None:
            return [self.algebra.gather(graph, x, move.dim, source)]
        if edges is self._grouped_by.get(edges.keys[1]):
            x = self.algebra.gather(graph, x, move.dim, True)
        if not x.has_rows:
            raise UnraisableError("a sum over edges of a shared value")
        made = self.algebra.scatter(graph, x, move.dim, move.kind, source)
        if move.fill:
            return [self._filled(made, move)]
        return [made if move.base is None else self.algebra.ewise("add", made, self.value(move.base))]

    def _grouped(self, move: Move) -> Raised:
        """Rows of nodes added up by group, or rows of groups brought to their nodes."""
        x, algebra = self.value(move.rows), self.algebra
        if move.kind is None:
            return algebra.from_table(x, move.dim, self._ids_of(move))
        if move.kind in ("max", "min"):
            return self._extrema(move)
        if move.kind != "sum":
            raise UnraisableError("a mean of every group")
        made = algebra.into_table(x, move.dim, self._ids_of(move), move.nodes)
        return made if move.base is None else algebra.ewise("add", made, self.value(move.base))

    def _extrema(self, move: Move) -> Raised:
        """Extrema of every group: of edges from all nodes into the first ones, whose rows become a table."""
        count, own = move.index.shape[0], self.region.edges
        if not own.square or count != own.num_dst or len(self._graphs) >= _MOST_GRAPHS:
            raise UnraisableError("an extremum of every group")
        if move.key not in self._grouped_by:
            ids = torch.arange(count)
            self._grouped_by[move.key] = EdgeSet(
                count, ids, move.index.long(), count, count, (("all", count), move.key)
            )
        rows = self._moved(replace(move, nodes=count), self._grouped_by[move.key])[0]
        first = torch.arange(count).clamp(max=move.nodes)
        table = replace(move, index=first, key=("first", move.nodes, count))
        return self.algebra.into_table(rows, move.dim, self._ids_of(table), move.nodes + 1, move.nodes)

    def _ids_of(self, move: Move) -> Value:
        """The groups of nodes as rows."""
        kind = self.algebra.kind_of(move.index.shape[0])
        key = (move.key, kind)
        if kind is None:
            raise UnraisableError("an index of other rows than those of nodes")
        if key not in self._structure:
            self._structure[key] = self._input(move.index, move.index.shape, move.index.dtype, (kind, 0))
        return self._structure[key].value

    def _filled(self, extrema: Raised, move: Move) -> Raised:
        """Extrema with another number than 0 where there are no edges."""
        there = torch.zeros(move.nodes, dtype=torch.bool).index_fill_(0, move.index.long(), True)
        there = there.view([-1 if at == move.dim else 1 for at in range(len(extrema.axes))])
        algebra = self.algebra
        fill = algebra.number(move.fill, extrema.value.tensor.dtype)
        made = algebra.ewise("where", self.constant(there, [extrema]), extrema, fill)
        algebra.filled[made.value] = extrema.value
        return made

    def _computed(self, step: Step) -> list[Any]:
        rule = rule_of(step.target)
        if rule is None:
            raise UnraisableError("it is no operation on edges and nodes that can be compiled")
        if step.target in _INDEXED and _is_given(step.args[0]):
            raise UnraisableError("rows of an argument picked by position")
        partners = [self.value(var) for var in step.reads]
        rowed = [x for x in partners if x.has_rows] or partners

        def read(leaf: Any) -> Any:
            if isinstance(leaf, Var):
                return self.value(leaf)
            return (
                self.constant(_unlaid(leaf, self._by_content) if laid else leaf, rowed)
                if isinstance(leaf, Tensor)
                else leaf
            )

        first = step.outs[0]
        laid = step.target in _LAID and first is not None and any(var.shape == first.shape for var in step.reads)
        args, kwargs = mapped(read, (step.args, step.kwargs))
        out = None
        if len(step.outs) == 1 and first is not None:
            out = Out(tuple(Size(size) for size in first.shape), first.dtype)
        made = rule(self.algebra, out, *args, **kwargs)
        results = list(made) if isinstance(made, tuple) else [made]
        if any(result is None and var in self._read for var, result in zip(step.outs, results, strict=False)):
            raise UnraisableError("positions of extrema or other results that have no counterpart")
        return results

    # outputs

    def close(self, wanted: Sequence[Var]) -> None:
        """Writes the program that gives ``wanted``."""
        outputs: list[tuple[str, Value]] = []
        for var in wanted:
            x = self.env[var]
            order = _order(x)
            name = f"out:{len(outputs)}"
            self.region.taken[name] = Taken(var, order)
            outputs.append((name, x.value))
        read = set(Program((), tuple(outputs)).values)
        program = self._over_one_graph(Program(tuple(v for v in self.inputs.values() if v in read), tuple(outputs)))
        names = {value["name"] for value in program.inputs}
        self.region.given = {name: given for name, given in self.region.given.items() if name in names}
        self.region.others = {name: edges for name, edges in self.region.others.items() if name in names}
        self.region.program, self.region.draws = program, self.seed in read

    def _over_one_graph(self, program: Program) -> Program:
        """``program``, where it is over relations with those in one graph."""
        region, given = self.region, self.region.given
        numbers = {name: x.source for name, x in given.items() if isinstance(x.source, Tensor)}
        joined = join_relations(program, {"graph": region.edges, **region.others}, numbers, len(given))
        if joined is None:
            return program
        given |= {name: Given(given[table].source, Residency.ETYPE) for name, table in joined.tables.items()}
        given |= {name: Given(weights, Residency.EDGE) for name, weights in joined.weights.items()}
        region.edges, region.others = joined.edges, {}
        return joined.program


def _is_given(table: Any) -> bool:
    """Whether a table is an argument: its rows are nodes or edges, not a table of parameters."""
    return isinstance(table, Var) and table.source is not None and table.source[0] == "arg"


def _unlaid(tensor: Tensor, by_content: bool) -> Tensor:
    """One number in place of each that is repeated along a dimension, as a node's degree along its features, and,
    ``by_content``, of numbers that are all alike, as zeros that something is added to.
    """
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    if by_content and tensor.numel() > 1 and bool((tensor == tensor[(0,) * tensor.dim()]).all()):
        return tensor[(0,) * tensor.dim()]
    return tensor


def _order(x: Raised) -> tuple[int, ...]:
    """The dimensions of the value, rows first where it has some, in the order of the axes."""
    shift = 1 if x.has_rows else 0
    return tuple(0 if token == N else int(token) + shift for token in x.tokens)


class _Planner:
    """Cuts one tape."""

    def __init__(self, tape: Tape, by_content: bool) -> None:
        self.tape, self.by_content = tape, by_content
        self.moves = moves_of(tape)
        self.sets = EdgeSets(tape, self.moves)
        self.parts: list[Region | Step | _Writer] = []
        self.apart: list[tuple[Step, str]] = []
        self.current: _Writer | None = None
        self.late: set[Var] = set()  # what the current region cannot read: it follows from its own results
        self.drawn_late = False  # whether a step after the current region draws random numbers
        self.early: set[Var] = set()  # what follows from arguments alone, by steps that run as they stand
        self.wanted = self._readers()
        self.free = self._of_parameters()
        self.ahead = self._ahead_of_all()
        self.tables = self._tables()

    def _readers(self) -> dict[Var, list[Any]]:
        """Who reads each value; None for the caller."""
        readers: dict[Var, list[Any]] = {}
        for step in self.tape.steps:
            for var in step.reads:
                readers.setdefault(var, []).append(step)
        for item in (*self.tape.outputs, *self.tape.buffers.values()):
            if isinstance(item, Var):
                readers.setdefault(item, []).append(None)
        return readers

    def _of_parameters(self) -> dict[Var, Step]:
        """Steps that follow from parameters alone, such as transposes; regions and others may both run them."""
        found: dict[Var, Step] = {}
        for step in self.tape.steps:
            move = self.moves.get(step)
            if move is not None and move.index.shape[0] in self.sets.counts:
                continue  # along edges, which is what programs are for
            own = all(var in found or (var.source is not None and var.source[0] == "parameter") for var in step.reads)
            if own and step.reads and len(step.outs) == 1 and step.target not in _DRAWS:
                found |= {var: step for var in step.outs if var is not None}
        return found

    def _tables(self) -> frozenset[Var]:
        """Tables of nodes, of which rows are moved along edges, and parameters that they follow from row by row. Tables
        that are put together of several are made ahead of all.
        """
        found = {move.rows for move in self.moves.values() if move.index.shape[0] in self.sets.counts}
        open_ = [*found]
        while open_:
            var = open_.pop()
            step = self.free.get(var)
            if step is None:
                continue
            if step.target is aten.cat.default and not any(step.args[1:]):
                self.ahead.add(step)
                continue
            fresh = [read for read in step.reads if read not in found and read.shape[:1] == var.shape[:1]]
            found.update(fresh)
            open_.extend(fresh)
        return frozenset(found)

    def _ahead_of_all(self) -> set[Step]:
        """Edge rows that are made of given ones before anything else, and what these follow from.

        These are rows put behind others, as for self-loops.
        """
        makers = {var: step for step in self.tape.steps for var in step.outs if var is not None}
        alone, early = self._following(("arg",)), self._following(("arg", "parameter"))
        found: set[Step] = set()
        for step in reversed(self.tape.steps):
            if self._is_by_position(step) and any(all(v in known for v in step.reads) for known in (alone, early)):
                found.add(step)
            if step in found:
                found.update(makers[var] for var in step.reads if var in makers and var not in self.free)
        return found

    def _following(self, sources: tuple[str, ...]) -> set[Var]:
        """Inputs of these sources and what follows from them; along edges only from arguments alone."""
        found = {var for var in self.tape.inputs if var.source is not None and var.source[0] in sources}
        for step in self.tape.steps:
            move = self.moves.get(step) if len(sources) > 1 else None
            if step.target in _DRAWS or (move is not None and move.index.shape[0] in self.sets.counts):
                continue
            if step.reads and all(var in found for var in step.reads):
                found.update(var for var in step.outs if var is not None)
        return found

    def _is_by_position(self, step: Step) -> bool:
        """Whether rows of edges are joined, picked or written by their positions, which no program does; or any rows
        written into zeros.
        """
        out = step.outs[0]
        if out is None or not out.shape or not step.reads:
            return False
        if step.target is aten.cat.default:
            return not any(step.args[1:]) and out.shape[0] in self.sets.counts
        if step.target is aten.index_put.default:
            on_zeros = isinstance(step.args[0], Tensor)
            return step not in self.moves and (on_zeros or out.shape[0] in self.sets.counts)
        picks = step.target in (aten.index.Tensor, aten.index_select.default)
        return picks and step.reads[0].shape[0] in self.sets.counts and out.shape[0] not in self.sets.counts

    def plan(self) -> Planned:
        """All parts."""
        for at, step in enumerate(self.tape.steps):
            self._place(at, step)
        self._close()
        return Planned(self._parts(), self.apart)

    def _place(self, at: int, step: Step) -> None:
        move = self.moves.get(step)
        edges = self.sets.of(move) if move is not None else None
        if step in self.ahead:
            return self._stand(step, AHEAD)
        if move is not None and self._by_group(step, move):
            return
        if edges is None:
            move = None
        elif move is not None and self.sets.is_of_table(move) and not edges.has(move):
            edges = move = None  # such as weights by type of edge
        reason = ""
        if self._fits(step, edges):
            assert self.current is not None
            reason = self._try(self.current, step, move, edges)
            if not reason:
                return
        if self.current is None or not self._fits(step, edges):
            ahead = edges or self._ahead(at)
            if ahead is not None:
                opened = _Writer(Region(ahead), self.tables, self.sets, self.by_content, self.wanted)
                reason = self._try(opened, step, move, edges)
                if not reason:
                    self._open(opened)
                    return
        self._stand(step, reason or PLAIN_TORCH)

    def _by_group(self, step: Step, move: Move) -> bool:
        """Whether the current region takes a move between nodes and groups of them, whose rows are a shared table."""
        if self.current is None or not self._fits(step, None) or not self.sets.groups(move):
            return False
        return not self._try(self.current, step, move, None)

    def _fits(self, step: Step, edges: EdgeSet | None) -> bool:
        """Whether the current region can take a step, as far as its operands and edges say."""
        if self.current is None or any(var in self.late for var in step.reads):
            return False
        return edges is None or self.current.reaches(edges)

    def _ahead(self, at: int) -> EdgeSet | None:
        """The edges of the next move."""
        for step in self.tape.steps[at:]:
            move = self.moves.get(step)
            if move is not None and move.index.shape[0] in self.sets.counts:
                return self.sets.of(move)
        return None

    def _try(self, writer: _Writer, step: Step, move: Move | None, edges: EdgeSet | None) -> str:
        """Raises a step; why not, else nothing."""
        if any(var.dtype.is_floating_point and var.dtype not in _FLOATS for var in step.reads):
            return "half precision"
        if any(var is not None and var.dtype.is_complex for var in (*step.reads, *step.outs)):
            return "complex numbers"
        if step.call == TRIMMED and not all(writer.value(var).has_rows for var in step.reads):
            return "rows of other nodes"
        try:
            writer.add(step, move, edges)
        except UnraisableError as failure:
            return failure.what
        except IRError as failure:
            return str(failure)
        return ""

    def _open(self, writer: _Writer) -> None:
        self._close()
        self.current = writer
        self.parts.append(writer)

    def _close(self) -> None:
        self.late.clear()
        self.drawn_late = False
        self.current = None

    def _stand(self, step: Step, reason: str) -> None:
        """A step that runs as it stands."""
        for var in step.reads:
            if var in self.free and var not in self.early:
                self._stand(self.free[var], reason)
        own = self.current.made if self.current is not None else set()
        depends = any((var in own and var not in self.early) or var in self.late for var in step.reads)
        draws = torch.Tag.nondeterministic_seeded in step.target.tags
        depends = depends or (draws and self.drawn_late)  # draws keep their order
        self.drawn_late = self.drawn_late or (draws and depends)
        if depends:
            self.late.update(var for var in step.outs if var is not None)
        early = all(var.source is not None or var in self.early for var in step.reads)
        if early:
            self.early.update(var for var in step.outs if var is not None)
        elif not self._is_ending(step):
            self.apart.append((step, reason))
        if depends or self.current is None:
            self.parts.append(step)
        else:  # before the region that may read it
            self.parts.insert(self.parts.index(self.current), step)

    def _is_ending(self, step: Step) -> bool:
        """Whether results are stretches of rows for the caller: views of what a program gives."""
        dims = step.args[1:2] if step.target is aten.slice.Tensor else step.args[2:3]
        readers = [reader for var in step.outs if var is not None for reader in self.wanted.get(var, [])]
        return step.target in _STRETCHES and not any(dims) and all(reader is None for reader in readers)

    def _parts(self) -> list[Region | Step]:
        """Regions closed; one without moves as its steps."""
        made: list[Region | Step] = []
        for part in self.parts:
            if not isinstance(part, _Writer):
                made.append(part)
                continue
            region = part.region
            if not part.along:
                made.extend(region.steps)
                continue
            own = set(region.steps)
            outs = [var for step in region.steps for var in step.outs if var in part.made]
            outs = [var for var in outs if var not in self.early]
            wanted = [v for v in outs if v is not None and any(r not in own for r in self.wanted.get(v, []))]
            part.close(wanted)
            made.append(region)
        return made


def renamed(program: Program) -> Any:
    """``program`` as a description that is written again into another builder."""

    def describe(builder: Builder, inputs: Mapping[str, Value], training: bool) -> dict[str, Value]:
        made: dict[Value, Value] = {}
        for value in program.values:
            if value.op in (Op.INPUT, Op.GRAPH):
                made[value] = inputs[value["name"]]
            else:
                made[value] = builder.like(value, tuple(made[operand] for operand in value.inputs))
        return {name: made[value] for name, value in program.outputs}

    return describe


__all__ = ["plan", "renamed"]
