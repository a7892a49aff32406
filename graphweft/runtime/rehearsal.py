"""The memory that plans take while they run, found without running them.

Comes in: plans and sizes. Goes out: bytes. Tensors come and go as the calls make and free them, in a pool of imagined
addresses, so that intervals which fit nothing are counted as well; small tensors lie on torch's heap. Called where
the memory of a run is predicted.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from graphweft._memory import LEAN, SMALL, Pool, heap_is_lean
from graphweft.ir.elementwise import PIECED
from graphweft.ir.ops import LEAVES, Op
from graphweft.ir.program import Value
from graphweft.ir.residency import StructType
from graphweft.passes.work import Sizes
from graphweft.runtime.footprint import covered, footprint, value_bytes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.plan import Plan
from graphweft.runtime.tape import arena_sizes

_TILES = 2  # of a layer: with the first one come the rows of all nodes, which the second one lies beside
# Kernels whose result is another look at the memory of their last operand.
_VIEWS = frozenset({"reshape", "own_rows", "detach"})
_BY_EDGE = {Op.REDUCE, Op.BROADCAST_SRC, Op.BROADCAST_DST}
_ENDS = 3 * (8,)  # bytes of an edge in each of the arrays that the interpreter finds edges by: both ends and the id
_TOP, _HEAP_TOP = 1 << 47, 1 << 46  # above all imagined mappings, and above those of an imagined heap
# Times what lies on it: what the heap of the C library takes for small tensors, as they come and go and the next ones
# do not fit their gaps; and for those that come and go in the same order in every step.
_GAPS, _ALIKE = 1.6, 1.0
# The C library maps its first blocks from 128 KiB up one by one. Freeing one raises that bound to its size, at most to
# 32 MiB, and it keeps free memory at the end of its heap up to twice the bound (mallopt(3), M_MMAP_THRESHOLD).
_MAPPED_FROM, _MAPPED_MOST, _KEPT_FREE = 1 << 17, 32 << 20, 2


class _Addresses(Pool):
    """A pool that maps nothing."""

    def _map(self, size: int) -> int:
        self._last -= size  # as Linux does it: below the mapping before, so that both merge
        self._mapped += size
        return self._last

    def trim(self) -> None:
        """What is free is no longer mapped."""
        self._unmap_free()

    def _unmap_free(self) -> None:  # nor was it ever: nothing goes back to the system
        self._mapped -= sum(self._sizes.values())
        self._starts.clear()
        self._sizes.clear()


class _Heap(_Addresses):
    """The heap of the C library: it takes the best fitting gap as well, and grows by less."""

    page = 1 << 17


class _Imagined(_Addresses):
    """A pool and a heap that map nothing.

    Attributes:
        is_taped: Tensors lie in an arena, and small ones stay, as a tape's calls know addresses.
        turned: What is to come of sparse rows that are turned around.
        most: The most that both take together.
        returned: Bytes of blocks so far that the system took back as soon as they were free.
    """

    def __init__(self) -> None:
        super().__init__(_TOP)
        self.returned = 0
        self.is_taped, self.is_lean, self.heap = False, heap_is_lean(), _Heap(_HEAP_TOP)
        self._small = self._most_small = self._given_back = self._buffers = self.most = 0
        self._gaps, self._bound = _GAPS, 0
        self.turned: tuple[float, ...] = ()

    def record(self, is_taped: bool) -> None:
        """From now on tensors lie in an arena, or as usual again."""
        self.is_taped = is_taped
        self._gaps = _ALIKE if is_taped else self._gaps

    def lend(self, nbytes: float, by_torch: bool = False, keeps: bool = True) -> tuple[int, int]:
        """A region of at least so many bytes; without an address where it is small or the system takes it back.

        ``keeps``: the heap keeps more free memory for it, as it does once it was free.
        """
        size = int(nbytes)
        if size < SMALL:
            self._small += size
            self._most_small = max(self._most_small, self._small)
            region = 0, size
        elif by_torch and self.is_lean and size >= LEAN:
            self._given_back += size
            self.returned += size
            region = -1, size
        elif by_torch:
            region = self.heap._take(size), size
            if keeps and not self.is_lean and size >= _MAPPED_FROM:
                self._bound = max(self._bound, min(size, _MAPPED_MOST))
        else:
            size = self.rounded(size)
            region = self._take(size), size
        self._looked_at()
        return region

    def _looked_at(self) -> None:
        """The most so far."""
        kept = self.mapped + self._buffers + _KEPT_FREE * self._bound + int(self._gaps * self._most_small)
        self.most = max(self.most, kept + self._given_back)

    def keep(self, nbytes: int) -> None:
        """Kernels have a buffer of so many bytes from now on, in place of a smaller one."""
        self._buffers = max(self._buffers, nbytes)
        self._looked_at()

    @property
    def mapped(self) -> int:
        """Bytes that both have mapped."""
        return self._mapped + self.heap._mapped

    def take_back(self, region: tuple[int, int]) -> None:
        """The region is free."""
        if region[0] > _HEAP_TOP:
            self._give_back(*region)
        elif region[0] > 0:
            self.heap._give_back(*region)
        elif region[0] < 0:
            self._given_back -= region[1]
        elif not self.is_taped:
            self._small -= region[1]


@dataclass(frozen=True)
class Run:
    """Something that takes memory and gives it back.

    Attributes:
        plan: What is run; None: nothing but what is beside it.
        sizes: The numbers behind its symbols.
        loss: Bytes of the loss's gradient.
        beside: Regions of the pool that are held while it runs.
        by_torch: Bytes of torch's own allocator that are held while it runs, as they were measured.
        stays: Regions of the pool that it makes the first time and that stay between others. They do not count.
        hoists: It computes the plan's hoisted values the first time. They stay, and do not count.
        is_taped: It is recorded in an arena, and its small tensors stay.
        noted: Regions that it was seen to take and to give back, as :meth:`Pool.noting` tells them. Those of the
            gradients stay.
        turned: Regions of sparse rows turned around, which the first product by their columns makes and which stay.
    """

    plan: Plan | None = None
    sizes: Sizes = field(default_factory=lambda: Sizes({}))
    loss: float = 0.0
    beside: tuple[float, ...] = ()
    by_torch: float = 0.0
    stays: tuple[float, ...] = ()
    hoists: bool = False
    is_taped: bool = False
    noted: tuple[tuple[int, int], ...] = ()
    turned: tuple[float, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A batch and the step that is made on it.

    Attributes:
        held: Bytes of the parts of the batch once it is ready.
        making: Bytes of what passes while it is made.
        step: The step.
    """

    held: tuple[float, ...]
    making: tuple[float, ...]
    step: Run


def taken_bytes(*runs: Run) -> int:
    """What ``runs``, one after the other, take of the pool and of the heap. Hoisted values and inputs do not count.

    The gradients of a step stay until the next one begins.
    """
    pool, gradients, staying = _Imagined(), list[tuple[int, int]](), 0
    pool.turned = next((run.turned for run in runs if run.turned), ())
    for place, run in enumerate(runs):
        if run.plan is not None and run.plan.backward:
            _take_back(pool, gradients)
        if run not in runs[:place]:
            staying += _made_once(run, pool)
            if run.is_taped:
                pool.take_back(pool.lend(arena_bytes(run)))
        gradients += _run_beside(run, pool)
    return pool.most - staying


def buffer_bytes(run: Run) -> int:
    """What kernels keep once it has run, beside what comes next."""
    calls = () if run.plan is None else (*run.plan.forward, *run.plan.backward)
    return max((run.plan.target.buffers(call, run.sizes) for call in calls if run.plan is not None), default=0)


def arena_bytes(run: Run) -> int:
    """The interval that a recorded run lies in: the first of those that :meth:`Tape.record` tries which it fits."""
    assert run.plan is not None  # others are not recorded
    for size in arena_sizes(footprint(run.plan, run.sizes).peak):
        arena = _Imagined()
        arena.confine(size)
        arena.record(True)
        with contextlib.suppress(MemoryError):
            _run(run.plan, run.sizes, arena, run.loss)
            return arena.stats().mapped
    return 0


@dataclass(frozen=True)
class Tile:
    """A layer that is computed for some of its nodes at a time.

    Attributes:
        drawn: Regions that drawing the edges of the nodes takes and gives back, as :meth:`Pool.noting` tells them.
        step: What computes the rows of the nodes, with the rows that it reads beside it.
        made: Bytes of these rows.
        rows: Bytes of the rows of all nodes.
    """

    drawn: tuple[tuple[int, int], ...]
    step: Run
    made: float
    rows: float


def taken_by_tiles(layers: Sequence[Tile]) -> int:
    """What an evaluation takes, layer after layer: the rows of the layer before and its own lie beside each tile.

    Free memory is given back before each of them.
    """
    pool, before = _Imagined(), list[tuple[int, int]]()
    for layer in layers:
        rows: list[tuple[int, int]] = []
        for _ in range(_TILES):
            pool.trim()
            drawn = _again(layer.drawn, pool)
            _run_beside(layer.step, pool)
            made = pool.lend(layer.made)  # where the step ended with it
            rows = rows or [pool.lend(layer.rows)]
            _take_back(pool, [*drawn, made])
        _take_back(pool, before)
        before = rows
    return pool.most


class Taken(NamedTuple):
    """What epochs of batches take.

    Attributes:
        most: Bytes at once, as :func:`taken_bytes`.
        mapped: Bytes that the last epoch maps anew.
        returned: Bytes of its blocks that the system takes back as soon as they are free.
    """

    most: int
    mapped: int
    returned: int


def taken_by_epochs(
    batches: Sequence[Prepared],
    ahead: int,
    workers: int,
    between: Run | None = None,
    epochs: int = 1,
    lets_go: bool = False,
) -> Taken:
    """What ``epochs`` of batches take, with ``between`` after each of them.

    Batches differ in size, and are ready in the midst of others' steps: what one gives back fits the next one badly.

    Args:
        batches: Those of an epoch in order.
        ahead: How many are prepared beside a step; 0: each is made when it is due.
        workers: Threads that prepare them.
        between: An evaluation.
        epochs: How many.
        lets_go: Whether an evaluation has no gradients beside it.
    """
    pool, gradients, staying, before = _Imagined(), list[tuple[int, int]](), 0, (0, 0)
    for epoch in range(epochs):
        before = pool.mapped, pool.returned
        ready: deque[list[tuple[int, int]]] = deque()
        for place, batch in enumerate(batches):
            making: deque[list[tuple[int, int]]] = deque()
            for due in batches[place + len(ready) : place + 1 + (ahead if workers else 0)]:
                making.append([pool.lend(size) for size in due.making])
                ready.append([pool.lend(size) for size in due.held])
                while len(making) > workers:  # the others are ready
                    _take_back(pool, making.popleft())
            _take_back(pool, gradients)
            gradients += _run_beside(batch.step, pool)
            for regions in (*making, ready.popleft()):
                _take_back(pool, regions)
        if between is not None:
            if lets_go:
                _take_back(pool, gradients)
            if not epoch:
                staying = _made_once(between, pool)
            _take_back(pool, _run_beside(between, pool))
    return Taken(pool.most - staying, pool.mapped - before[0], pool.returned - before[1])


def _made_once(run: Run, pool: _Imagined) -> int:
    """Makes what stays; bytes of it. What passes meanwhile is mapped, and free for what comes next."""
    staying = sum(pool.lend(size)[1] for size in run.stays)
    if not run.hoists or run.plan is None:
        return staying
    for item in run.plan.hoisted:
        if isinstance(item.value.type, StructType):
            continue
        part, calls = run.plan.preparation(item)
        size = [value_bytes(value, run.sizes) for value in part.values]
        last, held = part.values.index(item.value), dict[int, tuple[int, int]]()
        size[last] /= 2 if item.is_half else 1
        free = {at for at, value in enumerate(part.values) if value.op in LEAVES or isinstance(value.type, StructType)}
        kept = [replace(call, frees=()) for call in calls]  # all of them are held until the value is there
        _calls(run.plan, kept, size, run.sizes, pool, held, free)
        stays = held.get(last)
        staying += 0 if stays is None else stays[1]
        _take_back(pool, [region for region in _regions(held) if region is not stays])
    return staying


def _run_beside(run: Run, pool: _Imagined) -> list[tuple[int, int]]:
    """Runs it beside what it holds; the regions of its gradients."""
    held = [*map(pool.lend, run.beside), pool.lend(run.by_torch, by_torch=True, keeps=False)]  # as measured
    pool.record(run.is_taped)
    gradients = _again(run.noted, pool) if run.plan is None else _run(run.plan, run.sizes, pool, run.loss)
    pool.record(False)
    _take_back(pool, held)
    return gradients


def _again(noted: Sequence[tuple[int, int]], pool: _Imagined) -> list[tuple[int, int]]:
    """Regions come and go as they were seen to; those that stay."""
    held: dict[int, tuple[int, int]] = {}
    for address, size in noted:
        if size:
            held[address] = pool.lend(size)
        elif address in held:  # others were there before
            pool.take_back(held.pop(address))
    return [*held.values()]


def larger_regions(noted: Sequence[tuple[int, int]], times: float) -> tuple[tuple[int, int], ...]:
    """Regions as :meth:`Pool.noting` tells them, so many times as large."""
    return tuple((address, int(times * size)) for address, size in noted)


def _take_back(pool: _Imagined, regions: list[tuple[int, int]]) -> None:
    while regions:
        pool.take_back(regions.pop())


def _run(plan: Plan, sizes: Sizes, pool: _Imagined, loss: float) -> list[tuple[int, int]]:
    """The forward calls, and the backward calls where there are some; the regions of their gradients."""
    values = plan.compiled.program.values
    size = [value_bytes(value, sizes) for value in values]
    for slot in plan.halves:
        size[slot] /= 2
    inputs = {i for i, v in enumerate(values) if v.op in LEAVES and not str(v["name"]).startswith("d:")}
    free = inputs | {item.slot for item in plan.hoisted}
    held: dict[int, tuple[int, int]] = {}
    _calls(plan, plan.forward, size, sizes, pool, held, free)
    if plan.backward:
        kept = {*plan.saved} - plan.saved_shapes | {slot for _, slot in plan.outputs}
        for slot in [slot for slot in held if slot not in kept]:
            _let_go(slot, held, pool)
        for name, slot in plan.seeds:  # recorded, the loss's gradient takes the memory of an output that nobody reads
            over = dict(plan.outputs).get(name) if pool.is_taped and plan.forgets(name) else None
            held[slot] = held.pop(over) if over in held else pool.lend(max(loss, size[slot]))
        stays = {slot for _, slot in (*plan.outputs, *plan.seeds)}  # the caller holds both
        _calls(plan, plan.backward, size, sizes, pool, held, free, stays)
    wanted = {slot: held[slot] for slot in {*plan.gradients} if slot in held}
    gradients = _regions(wanted)
    for slot in [*held]:
        _let_go(slot, held, pool, gradients)
    return gradients


def _regions(held: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of all slots, each once."""
    return [*{id(region): region for region in held.values()}.values()]


def _let_go(
    slot: int, held: dict[int, tuple[int, int]], pool: _Imagined, others: Sequence[tuple[int, int]] = ()
) -> None:
    """Empties a slot; its region is free where no other slot looks at it, and it is none of ``others``."""
    region = held.pop(slot)
    if not any(other is region for other in (*held.values(), *others)):
        pool.take_back(region)


def _calls(
    plan: Plan,
    calls: Sequence[KernelCall],
    size: list[float],
    sizes: Sizes,
    pool: _Imagined,
    held: dict[int, tuple[int, int]],
    free: set[int],
    stays: Collection[int] = (),
) -> None:
    """Regions come and go as ``calls`` run; ``held`` are those of slots."""
    for call in calls:
        over = covered(call, size) if call.over else set()
        by_torch = plan.interprets(call)
        if by_torch:
            _interpreted(call, sizes, pool)
        if pool.turned and call.kernel == "sparse_matmul" and call.get("by_column"):
            while pool.turned:  # what is lent stays
                pool.lend(pool.turned[0])
                pool.turned = pool.turned[1:]
        for slot in call.writes:
            at = slot.at
            if call.kernel in _VIEWS:
                if call.reads[-1].at in held:
                    held[at] = held[call.reads[-1].at]
                continue
            taken = next((held.pop(i) for i in over if i in held), None)
            if at not in free and size[at]:
                held[at] = taken or pool.lend(size[at], by_torch and not pool.is_taped)
        room = plan.target.scratch(call, sizes)
        if room:
            pool.take_back(pool.lend(room))
        pool.keep(plan.target.buffers(call, sizes))
        for at in call.frees:
            if at in held and at not in stays:
                _let_go(at, held, pool)


def _interpreted(call: KernelCall, sizes: Sizes, pool: _Imagined) -> None:
    """The values of a call's body come and go in torch's own memory, each until its last reader in the body."""
    last = {operand: value for value in call.body for operand in value.inputs}
    held: dict[Value, tuple[int, int]] = {}
    for value in call.body:
        beside = [pool.lend(size, by_torch=True) for size in _beside(value, sizes)]
        if pool.is_taped:  # a replay computes it into memory of the arena, to which the first result is copied
            beside.append(pool.lend(value_bytes(value, sizes), by_torch=True))
        held[value] = pool.lend(value_bytes(value, sizes), by_torch=not pool.is_taped)
        _take_back(pool, beside)
        for operand in dict.fromkeys(value.inputs):
            if operand in held and last[operand] is value:
                pool.take_back(held.pop(operand))
    for region in held.values():
        pool.take_back(region)


def _beside(value: Value, sizes: Sizes) -> tuple[float, ...]:
    """What the interpreter takes for a value beside its operands and its result: pieces, or rows in another order.

    Edges of a draw lie in the order of its rows, but where it is turned around; which ends they have it finds out for
    every value anew.
    """
    if value.op is Op.EWISE and value["fn"] in PIECED:
        return (value_bytes(value, sizes),)
    if value.op not in _BY_EDGE:
        return ()
    graph = value.inputs[0]
    ends = tuple(size * sizes.rows.get(graph.struct.edge, 0) for size in _ENDS)
    if graph.op is Op.SAMPLE and not graph.get("turned"):
        return ends
    return *ends, value_bytes(value.inputs[1] if value.op is Op.REDUCE else value, sizes)


__all__ = [
    "Prepared",
    "Run",
    "Taken",
    "Tile",
    "arena_bytes",
    "buffer_bytes",
    "larger_regions",
    "taken_by_epochs",
    "taken_by_tiles",
    "taken_bytes",
]
