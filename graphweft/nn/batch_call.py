"""Calls of a compiled module on batches: recorded once for batches of any size.

Comes in: the arguments of a call with an ``edge_index`` that a sampler drew, or that is one of many. Goes out: a
:class:`Recorded` for this batch, made of programs that were compiled for an earlier one. Structure is computed anew
from the batch's integers by the operations that the module itself applied to them; nothing of an earlier batch's
content is left in it. None where that cannot be: the call is then recorded for this batch alone. Called by
``compiled_call.py``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphweft._torch_private import pytree
from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.moves import EdgeSet, moves_of
from graphweft.frontend.regions import AHEAD, PLAIN_TORCH
from graphweft.frontend.sized_recorder import EDGES, NODES, Count, CrowdedError, Formula, Size, SizedRecorder
from graphweft.frontend.structure import Cut, Facts, Structure
from graphweft.frontend.tape import TRIMMED, Passed, Step, Tape, Var
from graphweft.frontend.trimming import DESTINATION, SOURCE, Trimmer, rows_of
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.hops import Hops, hops_of
from graphweft.graph.ids import summarize
from graphweft.nn.recorded import Recorded, RegionRun, StepRun
from graphweft.runtime.constants import is_declared

_KEPT = 16  # kinds of calls
_SHORT = 64  # numbers of a constant that a program may hold, as regions.py has it
_SHIFTS = 8  # batches of fewer seeds that are tried for sizes that can be told apart
_FEW, _MET = 4, 1024  # contents that are recorded before they count as many; that are remembered
_WAYS = 4  # recordings for calls of one kind, which differ in what code asks of sizes
RecordBy = Callable[[SizedRecorder], Tape]


@dataclass(frozen=True)
class Batch:
    """A call on a drawn batch: its arguments, which of them the edges are, and where hops end.

    ``found``: how many entries the masks have that code counts.
    """

    flat: Sequence[Any]
    edges: int
    hops: Hops
    found: tuple[int, ...] = ()

    @property
    def edge_index(self) -> Tensor:
        """The edges."""
        found: Tensor = self.flat[self.edges]
        return found

    @property
    def sizes(self) -> tuple[int, int]:
        """Nodes and edges."""
        return self.hops.nodes[-1], self.edge_index.shape[1]

    @property
    def counts(self) -> tuple[int, ...]:
        """All that sizes are computed from."""
        return (*self.sizes, *self.found)

    def with_fewer_seeds(self, fewer: int) -> Batch:
        """The same without the last seeds: a batch, too, with other sizes."""
        hops, seeds = self.hops, self.hops.seeds - fewer
        if not fewer or seeds < 2:
            return self
        if not hops.edges:
            return replace(self, hops=Hops(seeds, hops.nodes, ()))
        first = int(torch.searchsorted(self.edge_index[1], seeds))
        return replace(self, hops=Hops(seeds, (seeds, *hops.nodes[1:]), (first, *hops.edges[1:])))

    def rows_of_seeds(self, result: Any) -> Any:
        """Of a result with a row for every node those of the seeds; anything else as it is."""
        whole = isinstance(result, Tensor) and result.shape[:1] == self.sizes[:1]
        return result[: self.hops.seeds] if whole else result

    def shapes(self) -> list[tuple[Size, ...] | None]:
        """Shapes of the arguments that are tensors, with the numbers of nodes and edges told apart."""
        nodes, edges = self.sizes
        names: dict[int, Size] = {nodes: Count(NODES), edges: Count(EDGES)}
        return [tuple(names.get(n, n) for n in x.shape) if isinstance(x, Tensor) else None for x in self.flat]

    def value(self, size: Size) -> int:
        """A size of this batch."""
        if isinstance(size, Formula):
            return size.of(*self.counts)
        if not isinstance(size, Count):
            return size
        if size.found is not None:
            return self.found[size.found]
        if size.hop is None:
            return self.sizes[0 if size.kind == NODES else 1]
        if not self.hops.edges:
            return self.hops.seeds
        return (self.hops.nodes if size.kind == NODES else self.hops.edges)[size.hop]


def drawn_batch(flat: Sequence[Any]) -> Batch | None:
    """The batch whose edges are among the arguments; None without one."""
    for at, item in enumerate(flat):
        if type(item) is Tensor and item.dtype is torch.int64 and item.dim() == 2:
            hops = hops_of(item)
            if hops is not None:
                return Batch(flat, at, hops)
    return None


def one_of_many(flat: Sequence[Any]) -> Batch | None:
    """A call with edges of any origin as a batch; None where nodes and edges cannot be counted, or content is kept."""
    tensors = [(at, item) for at, item in enumerate(flat) if isinstance(item, Tensor)]
    edges = [at for at, item in tensors if item.dtype is torch.int64 and item.dim() == 2 and item.shape[0] == 2]
    if not edges or any(_is_of_its_own(item) for _, item in tensors):
        return None
    count = flat[edges[0]].shape[1]
    rows = [item for at, item in tensors if at != edges[0] and item.dim() and len(item) != count]
    rows.sort(key=lambda item: not item.is_floating_point())
    if len({len(item) for item in rows if item.is_floating_point()}) > 1:  # of two sets of nodes
        return None
    if not rows or min(count, len(rows[0])) < 2:
        return None
    nodes = len(rows[0])
    return Batch(flat, edges[0], Hops(nodes, (nodes,), ()))


def _is_of_its_own(item: Tensor) -> bool:
    """Whether no recording over symbolic sizes takes a tensor, or its content is said to stay."""
    if type(item) is not Tensor or item.layout != torch.strided or not item.is_contiguous():
        return True
    return not item.is_floating_point() and is_declared(item)


class Contents:
    """Tells calls whose structure differs from call to call, by the kinds and contents of their arguments."""

    def __init__(self) -> None:
        self.many = False  # whether there may be any
        self._recorded: Counter[Hashable] = Counter()
        self._met: OrderedDict[Hashable, None] = OrderedDict()
        self._last: tuple[Hashable, int] = (None, 0)  # and how many times in a row

    def recorded(self, kind: Hashable) -> None:
        """A recording was made for one content."""
        if len(self._recorded) == _MET:
            self._recorded.clear()
        self._recorded[kind] += 1
        self.many = self.many or self._recorded[kind] >= _FEW

    def change(self, kind: Hashable, content: Hashable) -> bool:
        """Whether a content without a recording gets none.

        So it is where many were before it, unless it comes for the fourth time in a row, or was met before by the
        first few dozen.
        """
        count, key, (last, times) = self._recorded[kind], (kind, content), self._last
        if count < _FEW:
            return False
        known = key in self._met
        self._met[key] = None
        self._last = key, times + 1 if last == key else 1
        while len(self._met) > _MET:
            self._met.popitem(last=False)
        return self._last[1] < _FEW if last == key else not (known and count < 2 * _KEPT)


class BatchCalls:
    """Recordings of one module for batches of any size, by the kinds of their arguments."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, list[BatchProgram] | None] = OrderedDict()
        self._crowded: Counter[Hashable] = Counter()

    def get(self, kind: Hashable, batch: Batch, seeds_only: bool, record: RecordBy) -> Recorded | None:
        """What runs ``batch``; None where it has to be recorded by itself."""
        hops = batch.hops
        if seeds_only and not hops.hold(batch.edge_index):
            batch = replace(batch, hops=Hops(hops.seeds, hops.nodes[-1:], ()))
        key = (kind, len(batch.hops.edges), seeds_only)
        programs = self._made.setdefault(key, [])
        self._made.move_to_end(key)
        while len(self._made) > _KEPT:
            self._made.popitem(last=False)
        if programs is None:
            return None
        try:
            for program in programs:
                found = program.bound(batch)
                if found is not None:
                    return found
            if len(programs) == _WAYS or self._crowded[key] == _SHIFTS:
                return None
            programs.append(BatchProgram(batch, seeds_only, record))
            return programs[-1].bound(batch)
        except Exception as failure:  # recorded with its content it tells what is wrong
            self._crowded[key] += 1
            if not programs and not isinstance(failure, CrowdedError):  # of these another batch may do
                self._made[key] = None
        return None

    def forget(self, kind: Hashable) -> None:
        """Calls of this kind are recorded batch by batch from now on."""
        for key in [key for key in self._made if key[0] == kind]:  # type: ignore[index]
            self._made[key] = None


@dataclass(frozen=True)
class _Place:
    """How a tensor lies over structure that a step reads: its first entries along some dimensions.

    ``dropped``: these dimensions are gone.
    """

    cut: Cut
    first: tuple[int, ...] = ()
    dropped: bool = False

    def of(self, tensor: Tensor) -> Tensor:
        """The same of another batch."""
        for dim in reversed(self.first):
            tensor = tensor.select(dim, 0) if self.dropped else tensor.narrow(dim, 0, 1)
        return tensor


class BatchProgram:
    """A recording for all batches of a kind.

    Args:
        batch: The batch that it is made with.
        seeds_only: Whether results with a row a node have those of the seeds alone.
        record: Records the module.

    Raises: UnraisableError for a module that is not recorded without the content of integers.
    """

    def __init__(self, batch: Batch, seeds_only: bool, record: RecordBy) -> None:
        nodes, edges = batch.sizes
        recorder = SizedRecorder(nodes, edges)
        tape, self._conditions = recorder.finished(record(recorder))
        self._shapes = batch.shapes()
        self._structure = Structure(tape)
        batch = self._counted(batch)[0]
        self._tape = self._structure.tape
        if seeds_only:
            self._tape = Trimmer(self._structure, len(batch.hops.edges), self._side_of(batch)).trimmed()
        batch = self._told_apart(batch, seeds_only)
        facts = self._facts(batch)
        self._new: dict[Var, Var] = {}  # value of the tape -> of this batch
        self._steps: dict[Step, Step] = {}  # step of this batch -> of the tape
        concrete = self._concrete(batch, facts)
        self._places = dict(self._all_places(facts))
        self._check_moves(concrete)
        self._recorded = Recorded(concrete, by_content=False)
        self._check_parts()
        self._regions = {run: self._read_region(run) for run in self._recorded.regions}
        self._baked = self._short(facts)

    def _counted(self, batch: Batch) -> tuple[Batch, Facts]:
        """A batch with the entries of its masks counted.

        Raises: UnraisableError where there are not as many as this recording assumes.
        """
        found: list[int] = []

        def value(size: Size) -> int:
            return replace(batch, found=tuple(found)).value(size)

        facts = Facts(self._structure, batch.flat, value)
        for cut, size in self._structure.counted:
            rows = facts.tensor(cut).shape[0]
            if isinstance(size, Count) and size.found == len(found):
                found.append(rows)
            elif value(size) != rows:
                raise UnraisableError("a mask with another number of entries")
        return replace(batch, found=tuple(found)), facts

    def _facts(self, batch: Batch) -> Facts:
        return Facts(self._structure, batch.flat, batch.value)

    def _side_of(self, batch: Batch) -> Callable[[Var], int | None]:
        """Which end of the edges an index is, by its memory."""
        facts, edges = self._facts(batch), batch.edge_index

        def side(var: Var) -> int | None:
            found = facts.tensor(Cut(var))
            steps = [stride for size, stride in zip(found.shape[1:], found.stride()[1:], strict=True) if size > 1]
            if found.dtype is not torch.int64 or found.stride(0) != 1 or any(steps):
                return None
            starts = {edges[row].data_ptr(): row for row in (SOURCE, DESTINATION)}
            return starts.get(found.data_ptr())

        return side

    def _told_apart(self, batch: Batch, seeds_only: bool) -> Batch:
        """A batch whose sizes differ where those of any may: programs tell rows by their number while they are made.

        Raises: CrowdedError without one.
        """
        found = {size for var in _values(self._tape) for size in var.shape} | set(self._conditions.distinct)
        found |= {cut.size for cut in self._cuts() if cut.size is not None}
        for fewer in range(_SHIFTS if seeds_only else 1):
            some = batch.with_fewer_seeds(fewer)
            values = [some.value(size) for size in found if size not in (0, 1)]
            self._size_of = {some.value(size): size for size in found}
            if len(set(values)) == len(values) and min(values, default=2) >= 2:
                return some
        raise CrowdedError("sizes of a batch that cannot be told apart")

    def _concrete(self, batch: Batch, facts: Facts) -> Tape:
        """The tape with the sizes and the structure of this batch."""
        for var in _values(self._tape):
            self._new[var] = Var(tuple(map(batch.value, var.shape)), var.dtype, var.source, var.grad)
        steps = []
        for step in self._tape.steps:
            args, kwargs = pytree.tree_map(lambda leaf: facts.put(leaf, self._new), (step.args, step.kwargs))
            outs = tuple(None if var is None else self._new[var] for var in step.outs)
            made = Step(step.target, args, kwargs, outs, step.line, step.call, step.stops)
            self._steps[made] = step
            steps.append(made)
        inputs = [self._new[var] for var in self._tape.inputs]
        buffers = {name: self._new[var] for name, var in self._tape.buffers.items()}
        outputs = [self._given(item, facts) for item in self._tape.outputs]
        return replace(self._tape, inputs=inputs, steps=steps, outputs=outputs, buffers=buffers)

    def _given(self, item: Any, facts: Facts) -> Any:
        """A result: a value, structure, an argument, or a thing of Python's."""
        if isinstance(item, Cut) and item.axis is None and item.var.source is not None:
            return Passed(item.var.source[1])
        return facts.put(item, self._new)

    # what of the plan is of this batch

    def _cuts(self) -> Iterator[Cut]:
        for step in self._tape.steps:
            yield from (leaf for leaf in step.leaves if isinstance(leaf, Cut))

    def _all_places(self, facts: Facts) -> Iterator[tuple[Hashable, _Place]]:
        """How tensors that the plan may make of structure lie in memory."""
        for cut in self._cuts():
            tensor = facts.tensor(cut)
            still = [at for at, size in enumerate(tensor.shape) if size > 1 and tensor.stride(at) == 0]
            lone = tuple(at for at in range(tensor.dim()) if at in still or tensor.shape[at] == 1)
            for first, dropped in (((), False), (tuple(still), False), (tuple(still), True), (lone, True)):
                place = _Place(cut, first, dropped)
                yield _where(place.of(tensor)), place

    def _place(self, tensor: Tensor) -> _Place:
        found = self._places.get(_where(tensor))
        if found is None:
            raise UnraisableError("structure that the plan makes of content")
        return found

    def _check_moves(self, tape: Tape) -> None:
        """Ids are known by their memory, and sums start from one number: of another batch both are as of this one."""
        places: dict[Any, set[Hashable]] = {}
        for step, move in moves_of(tape).items():
            places.setdefault(move.key, set()).add(_where(move.index))
            self._place(move.index)
            base = self._steps[step].args[0]
            if isinstance(base, Cut) and not self._structure.is_filled(base.var):
                raise UnraisableError("a sum over edges that starts from structure")
        if any(len(found) > 1 for found in places.values()):
            raise UnraisableError("several ids of equal content")

    def _check_parts(self) -> None:
        """Raises: UnraisableError where a recording for one batch is compiled better, or tells the user of steps."""
        if not self._recorded.regions:
            raise UnraisableError("no sums over edges")
        for step, reason in self._recorded.planned.apart:
            if reason not in (PLAIN_TORCH, AHEAD) and step.call != TRIMMED:
                raise UnraisableError(reason)
        if any(run.others or run.edges.parts for run in self._recorded.regions):
            raise UnraisableError("several sets of edges in one program")

    def _read_region(self, run: RegionRun) -> tuple[tuple[_Place, _Place, Any, Any, bool], dict[str, _Place]]:
        edges: EdgeSet = run.edges
        ends = self._place(edges.src), self._place(edges.dst)
        nodes = self._size_of[edges.num_src], self._size_of[edges.num_dst]
        return (*ends, *nodes, edges.square), {name: self._place(tensor) for name, tensor in run.structure.items()}

    def _short(self, facts: Facts) -> list[tuple[Cut, Tensor]]:
        """Structure of a few numbers, which programs may hold."""
        found = {cut: facts.tensor(cut) for cut in self._cuts() if rows_of(cut.var) is None}
        return [(cut, tensor.clone()) for cut, tensor in found.items() if tensor.numel() <= _SHORT]

    # another batch

    def bound(self, batch: Batch) -> Recorded | None:
        """The recording for ``batch``; None where code would do something else with it."""
        for item, shape in zip(batch.flat, self._shapes, strict=True):
            if shape is not None and item.shape != tuple(map(batch.value, shape)):
                return None
        try:
            batch, facts = self._counted(batch)
        except UnraisableError:
            return None
        values = {batch.value(size) for size in self._size_of.values() if isinstance(size, Count)}
        if not self._conditions.fit(batch.counts) or min(values, default=2) < 2:
            return None
        if any(not torch.equal(facts.tensor(cut), before) for cut, before in self._baked):
            return None
        shapes = {new: tuple(map(batch.value, var.shape)) for var, new in self._new.items()}
        graphs, known = dict[Hashable, Graph](), dict[Hashable, Adjacency]()
        runs: list[RegionRun | StepRun] = []
        for run in self._recorded.runs:
            if isinstance(run, RegionRun):
                ends, fields = self._regions[run]
                if ends not in graphs:
                    graphs[ends] = _graph(facts, batch, known, *ends)
                kept = {name: _rows(place, facts, run, name) for name, place in fields.items()}
                runs.append(run.again(graphs[ends], kept, shapes))
            else:
                step = self._steps.get(run.step, run.step)
                args, kwargs = pytree.tree_map(lambda leaf: facts.put(leaf, self._new), (step.args, step.kwargs))
                runs.append(run.again(args, kwargs))
        outputs = [self._given(item, facts) for item in self._tape.outputs]
        return self._recorded.again(runs, outputs, shapes)


def _values(tape: Tape) -> list[Var]:
    return [*tape.inputs, *(var for step in tape.steps for var in step.outs if var is not None)]


def _where(tensor: Tensor) -> Hashable:
    """Where a tensor lies in memory, and how."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _rows(place: _Place, facts: Facts, run: RegionRun, name: str) -> Tensor:
    return run.rows_of(name, place.of(facts.tensor(place.cut)))


def _graph(
    facts: Facts,
    batch: Batch,
    known: dict[Hashable, Adjacency],
    src: _Place,
    dst: _Place,
    num_src: Any,
    num_dst: Any,
    square: bool,
) -> Graph:
    """The edges of one program.

    Those of a drawn batch lie in the order of the rows: nothing is sorted, and edges up to a hop are the beginning of
    those up to the next, which are among ``known``.
    """
    into, out_of = (place.of(facts.tensor(place.cut)).contiguous() for place in (dst, src))
    rows, columns, count = batch.value(num_dst), batch.value(num_src), into.numel()
    key = into.data_ptr(), out_of.data_ptr()
    more = known.get(key)
    if more is not None and more.edge_ids is None and more.num_rows >= rows and int(more.indptr[rows]) == count:
        made = Adjacency(more.indptr[: rows + 1], more.indices[:count], None, columns)
        made = made if more.num_cols == columns else _checked(made, out_of)
    else:
        made = known[key] = Adjacency.from_coo(into, out_of, rows, columns)
    return Graph.from_adjacency(made, bipartite=not square).as_drawn()


def _checked(made: Adjacency, columns: Tensor) -> Adjacency:
    """An adjacency whose columns were checked against more."""
    if summarize(columns).high >= made.num_cols:
        raise UnraisableError("edges that do not lie in the order of the hops")
    return made


__all__ = ["Batch", "BatchCalls", "Contents", "drawn_batch", "one_of_many"]
