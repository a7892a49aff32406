"""The memory that a run takes, by account, before it takes it; and the choice of ways that fit a budget.

Comes in: data, models, plans and a budget. Goes out: bytes by account, settings under which a run fits, or an error
that names the least budget that would do. Called by the steps of :mod:`graphweft.train`, which the trainer runs inside
:meth:`RunBudget.within`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft._budget import Budget, Highest, in_force, own_bytes
from graphweft._errors import ConfigError, MemoryBudgetError
from graphweft._memory import POOL, heap_bytes, lean_heap
from graphweft.data.dataset import Dataset
from graphweft.data.part_dataset import PartDataset
from graphweft.data.stored import StoredDataset
from graphweft.dist.ranks import Ranks
from graphweft.ir.residency import TensorType
from graphweft.passes.work import Sizes
from graphweft.runtime.footprint import footprint, kept_bytes, whole_pages
from graphweft.runtime.plan import Plan
from graphweft.runtime.rehearsal import Prepared, Run, taken_bytes
from graphweft.storage.feature import SparseFeatures, is_dense
from graphweft.storage.int8_features import Int8Features
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.train.half_features import stores_half
from graphweft.train.macro import Macro
from graphweft.train.needs_by_running import grown_while

# Beside what the process has taken when a run is planned: kernels' libraries and threads, recorded calls, objects.
_TO_COME = 800 << 10
# What compiling takes before it is known what a run needs, with batches that are drawn; and what stays of recording and
# compiling a user's layers.
_PLANNING, _DRAWING, RECORDED = 4 << 20, 6 << 20, 5 << 20
_COPIES = 4  # of each parameter: two moments, the best and the last weights; its gradient is one of a step's values
_ROOM, _BESIDE = 1.03, 1 << 20  # times what is predicted, and bytes, that a budget has to leave room for
_AGAIN = 1.10  # times what was measured, for another measurement
# By how much what another process has taken by then may differ: the first one on a machine runs trials of rewrites, in
# code of torch's that others never touch, and with more room larger tiles are tried.
_OTHERWISE = 5 << 19
_AROUND, _UNASKED = 8 << 20, 6 << 20  # bytes for all else where figures are rough, and those that a run leaves room for
MARGIN = 1.02  # what rounding to pages and small tensors add
_LEAST_KEPT = 1  # bytes of kept values: none
UNLIMITED = 1 << 60  # bytes that everything keeps to


@dataclass(frozen=True)
class Needs:
    """Bytes of a run by account.

    Attributes:
        program: Modules that compile and train, the plans of the run, its kernels and threads.
        data: Features, labels and the graph as given.
        structure: Further forms of the graph.
        kept: Values computed once.
        parameters: Weights, gradients, the optimiser's moments, the best weights.
        batches: Batches that are prepared ahead.
        step: The most that a step takes at once: activations, gradients, room of kernels.
        evaluation: The most that an evaluation takes at once; where nothing is trimmed, beside what steps have freed.
        outputs: What whoever asks for outputs may hold beside later steps. No part of the peak, but budgets have room.
        planning: The most that the process took until the run was planned, which may be more than the run takes; 0:
            not known. A later run tries fewer rewrites, so no budget has to have room for it.
        begins: What there has to be before it is known what the run takes, which is over before it begins.
        trims: Whether what batches took is given back before an evaluation, and the other way round.
        measured: Whether some of it was measured by running, which differs from time to time.
        is_close: Whether all of it is known of the very plans and tensors of the run.
    """

    program: int = 0
    data: int = 0
    structure: int = 0
    kept: int = 0
    parameters: int = 0
    batches: int = 0
    step: int = 0
    evaluation: int = 0
    outputs: int = 0
    planning: int = 0
    begins: int = 0
    trims: bool = False
    measured: bool = False
    is_close: bool = False

    @property
    def total(self) -> int:
        """The peak."""
        return max(self.planning, self.running)

    @property
    def running(self) -> int:
        """The most that training and evaluating take."""
        always = self.program + self.data + self.structure + self.kept + self.parameters
        steps = self.batches + self.step
        return int(MARGIN * (always + (max(steps, self.evaluation) if self.trims else steps + self.evaluation)))

    @property
    def least(self) -> int:
        """The smallest budget that this fits into: with room for what nobody is asked about, as torch's small tensors.

        What was measured is measured again by the next run.
        """
        again = _AGAIN if self.measured else _ROOM
        around = _BESIDE + _OTHERWISE if self.is_close else _AROUND
        return max(int(again * self.running) + self.outputs + around, self.begins)

    @property
    def spare(self) -> int:
        """The part of :attr:`least` above :attr:`running`."""
        return self.least - self.running

    @property
    def unasked(self) -> int:
        """Bytes that a budget leaves for outputs and what nobody asks for, beside a share of what is predicted."""
        return self.outputs + (_BESIDE if self.is_close else _UNASKED)

    def beyond(self, reached: int) -> Needs:
        """The same, where finding out has shown that a run takes more than ``reached`` bytes."""
        missing = reached - self.running
        return self if missing < 0 else replace(self, program=self.program + missing + 1)

    def fits(self, limit: int) -> bool:
        """Whether a budget of ``limit`` bytes would do. One that is named as the least, too, where it is measured."""
        return int(_ROOM * self.running) + self.unasked <= limit

    def text(self) -> str:
        """``data 161 MB, step 240 MB``: accounts that are not empty."""
        return ", ".join(f"{name} {shown_bytes(count)}" for name, count in self.accounts.items() if count)

    @property
    def accounts(self) -> dict[str, int]:
        """Bytes by account; what planning took only where nothing takes more."""
        hidden = {"begins", "outputs"} if self.planning > self.running else {"begins", "outputs", "planning"}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type == "int" and f.name not in hidden}


class RunBudget:
    """The memory that a run may take, the settings by which it keeps to that, and its enforcement.

    Args:
        memory: Bytes, or a text such as "2GB": for the data and all that training takes from now on. Inside of another
            budget that is in force, as the command's, they are counted from where that began.
        ds: The data.

    Attributes:
        needs: What was predicted for the way that was chosen; None before.
        pooled: Bytes that the pool had mapped before, which may be others'.
        tile: Nodes that an evaluation computes at once; None: all.
        begins: Bytes that there have to be before it is known what the run takes.
    """

    def __init__(self, memory: int | str, ds: Dataset) -> None:
        lean_heap_within(memory)
        if memory_bytes(memory) < UNLIMITED:  # a look at all objects takes as long as planning does
            gc.collect()  # what others have left behind, freed on the way, would hide what this run takes
        POOL.trim()
        around = in_force()
        own, data = own_bytes(), data_bytes(ds)
        floor = max(0, own - data) if around is None else around.floor
        self._budget = Budget(memory_bytes(memory), floor)
        self.pooled = POOL.stats().mapped
        self._before = own - data - floor, own - self.pooled
        self._highest = Highest()
        self.needs: Needs | None = None
        self.tile: int | None = None
        self._kept: int | None = None
        self._planning = self.begins = 0

    @property
    def limit(self) -> int:
        """Bytes that may be taken."""
        return self._budget.limit

    def taken(self) -> int:
        """Bytes that the process has taken beside the data and what the pool lends."""
        POOL.trim()
        before, rest = self._before
        return max(0, before + own_bytes() - POOL.stats().mapped - rest)

    @property
    def trims(self) -> bool:
        """Whether an evaluation begins and ends with giving free memory back."""
        return self.needs is not None and self.needs.trims

    def fits(self, needs: Needs) -> bool:
        """Whether a run that needs so much keeps to the budget."""
        return needs.fits(self.limit)

    def room_for(self, needs: Needs) -> int:
        """Bytes of :attr:`Needs.running` that fit where they are known as ``needs`` are."""
        return int((self.limit - needs.unasked) / _ROOM)

    def keep_at_most(self, count: int | None) -> None:
        """Values computed once may take so many bytes; None: as many as usual."""
        self._kept = None if count is None else max(count, _LEAST_KEPT)

    def forget(self) -> None:
        """Nothing is chosen yet."""
        self.needs = self.tile = self._kept = None
        self._budget.expected = 0

    def settle(self, needs: Needs) -> None:
        """Training goes this way, without what finding it took. Raises: MemoryBudgetError where it does not fit."""
        POOL.trim()
        self.check_least(needs)
        self.needs, self._budget.accounts, self._budget.expected = needs, needs.text(), needs.running

    def planned(self) -> None:
        """The run is planned: what that took at most is a part of its peak."""
        if self.needs is not None:
            self.needs = replace(self.needs, planning=max(0, self._highest.nbytes - self._budget.floor))

    def check_least(self, needs: Needs) -> None:
        """A run takes so much. Raises: MemoryBudgetError."""
        if not self.fits(needs):
            raise refusal(needs, self.limit)

    @contextmanager
    def begun(self, data: int, sized: Callable[[], Needs], draws: bool, recording: int) -> Iterator[None]:
        """The block in which it is found out what a run takes, within the budget as the run itself.

        Where even that is more than there is, or turns out to be, the run is refused by what sizes alone tell. Where
        the data by themselves are more, it is found out as far as that takes no memory of the pool, unless it runs the
        model's own code: a better figure is worth the few bytes of compiling above a budget that is already exceeded.

        Args:
            data: Bytes of the data.
            sized: Tells what the run takes, from sizes alone.
            draws: Whether batches are drawn to find it out.
            recording: Bytes that recording and running the model's own code takes at first; 0: it has none.

        Raises: MemoryBudgetError.
        """
        self._planning = recording or (_DRAWING if draws else _PLANNING)
        more = data + self.taken() + self._planning
        self.begins = more + _OTHERWISE
        if more > self.limit and (recording or data <= self.limit):
            raise refusal(replace(sized(), begins=self.begins), self.limit)
        self._budget.reserve = self._to_come
        try:
            yield
        except MemoryBudgetError as failure:
            if not failure.reached:
                raise
            raise refusal(replace(sized(), begins=self.begins).beyond(failure.reached), self.limit) from None
        finally:
            self._budget.reserve = None

    def _to_come(self) -> int:
        """Bytes that compiling may still take beside the pool; a run that fits leaves as many."""
        before, rest = self._before
        return max(0, self._planning - (before + own_bytes() - POOL.stats().mapped - rest))

    @property
    def floor(self) -> int:
        """Own bytes of the process that do not count."""
        return self._budget.floor

    def check_room(self, more: int) -> None:
        """``more`` bytes may be taken now. Raises: MemoryBudgetError."""
        self._budget.admit(more, POOL.trim)

    def check(self) -> None:
        """The process keeps to the budget now. Raises: MemoryBudgetError."""
        self._budget.admit(0, POOL.trim)

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Plans in the block keep no more values than :meth:`keep_at_most` says."""
        if self._kept is None:
            yield
        else:
            with _config.config(memory=self._kept):
                yield

    @contextmanager
    def within(self) -> Iterator[None]:
        """Whatever runs in the block keeps to the budget."""
        with self._budget.enforced(), self.bounded():
            yield


@contextmanager
def trimmed(budget: RunBudget | None) -> Iterator[None]:
    """Free memory is given back before the block and after it, where there is a budget."""
    if budget is not None:
        POOL.trim()
    yield
    if budget is not None:
        POOL.trim()


def refusal(needs: Needs, limit: int) -> MemoryBudgetError:
    """The error of a run that does not fit."""
    terms = f"{needs.text()}, spare {shown_bytes(needs.spare)}"
    text = f"expected at least {shown_bytes(needs.least)} for this run ({terms}), got {shown_bytes(limit)}"
    return MemoryBudgetError(f"memory: {text}", needs.least)


def lean_heap_within(memory: int | str) -> None:
    """The C library keeps little of what is freed, where memory has a bound."""
    if memory_bytes(memory) < UNLIMITED:
        lean_heap()


def budget_of(
    memory: int | str | None, ds: Dataset, mode: str, task: str, macro: Macro | None, ranks: Ranks
) -> RunBudget | None:
    """The budget of a run; None without one, or where groups of parts keep to it by themselves.

    Raises: ConfigError for a text that is no size, and for options whose memory is not known.
    """
    if memory is None:
        return None
    if task in ("nodes", "link") and isinstance(ds, StoredDataset) and not ranks.is_shared:
        return RunBudget(memory, ds)
    if mode == "macro" or isinstance(ds, StoredDataset):
        lean_heap_within(memory)
        return None
    given = {
        "task": task if task != "nodes" else None,
        "quality": macro and macro.quality,
        "ranks": ranks.size if ranks.is_shared else None,
        "parts": 1 if isinstance(ds, PartDataset) else None,
    }
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"memory={memory} cannot be combined with {name}={value}")
    return RunBudget(memory, ds)


def base_needs(ds: Dataset, model: nn.Module, budget: RunBudget) -> Needs:
    """The accounts that every run in memory has."""
    weights = sum(p.nbytes for p in model.parameters())
    needs = Needs(program=budget.taken() + _TO_COME, data=data_bytes(ds), parameters=_COPIES * weights)
    return replace(needs, begins=budget.begins, is_close=True)


def full_needs(
    base: Needs,
    ds: Dataset,
    plans: tuple[Plan, Plan],
    sizes: Sizes,
    loss: int,
    released: bool,
    records: bool,
    measures: bool,
    ordered: bool,
) -> Needs:
    """Accounts of mode "full".

    Args:
        base: Those of every run.
        ds: The data.
        plans: Of a step and of an evaluation.
        sizes: The numbers behind the symbols of both.
        loss: Bytes of the loss's gradient by the outputs.
        released: Whether dense features are given up once they are aggregated.
        records: Whether the step is recorded.
        measures: Whether costs are measured before, whatever that takes.
        ordered: Whether nodes have another order inside, so that outputs are copied to be handed out.
    """
    step, evaluation = (footprint(plan, sizes, ds.graph.is_symmetric) for plan in plans)
    kept, structure = kept_bytes(plans, sizes, ds.graph.is_symmetric)
    data = base.data
    reads = any("x" in (*plan.tensors, *plan.fixed) for plan in plans)
    halves = any(item.is_half for plan in plans for item in plan.hoisted)
    if reads and isinstance(ds.x, Tensor) and stores_half(ds.x, plans):
        data += ds.x.nbytes // 2  # beside those of the dataset, from which it is made
    if released and kept and not (reads or halves) and is_dense(ds.x):
        data -= min(ds.x.nbytes, kept)
    structure += dense_bytes(ds.x, *plans)
    turned = _turned(ds, plans[0])
    if records:  # a recorded step finds them there
        structure, turned = structure + sum(turned), ()
    first = Run(plans[0], sizes, loss, is_taped=records, turned=turned)
    last = Run(plans[1], sizes)
    steps, both = taken_bytes(first, first), taken_bytes(first, last, first, last)
    outputs = handed_bytes(ds) if records else 0
    if records:  # outputs that are handed out lie beside the recording, which gives pages up for them
        inside = taken_bytes(last) - (0 if ordered else loss_bytes(ds.num_nodes, ds.num_classes))
        both = max(both, max(steps - outputs // POOL.page * POOL.page, inside) + outputs)
    if measures:  # by a step that is not recorded
        steps = max(steps, taken_bytes(replace(first, is_taped=False)))
    steps = max(steps, step.making, evaluation.making)  # which is over before the first step
    found = replace(base, data=data, structure=structure, kept=kept, step=steps, evaluation=max(both - steps, 0))
    return replace(found, outputs=outputs)


def _turned(ds: Dataset, step: Plan) -> tuple[int, ...]:
    """Bytes of sparse features turned around, which the gradient of their weight makes."""
    if not isinstance(ds.x, SparseFeatures) or not any(call.kernel == "sparse_matmul" for call in step.backward):
        return ()
    return ds.x.values.nbytes, ds.x.indices.nbytes, ds.x.indptr.element_size() * ds.x.width


def dense_bytes(x: Tensor | None, *plans: Plan) -> int:
    """Bytes of the dense rows that ``plans`` read of sparse features, which are made once and kept beside them."""
    if not isinstance(x, SparseFeatures) or not any(map(_reads_dense, plans)):
        return 0
    return x.num_rows * x.width * x.values.element_size()


def _reads_dense(plan: Plan) -> bool:
    """Whether sparse features are made dense: the program takes no others, or torch computes with them."""
    given = (value.type for value in plan.compiled.program.inputs if value["name"] == "x")
    if any(isinstance(kind, TensorType) and not kind.sparse for kind in given):
        return True
    calls = (call for call in (*plan.forward, *plan.backward) if plan.interprets(call))
    kinds = (slot.value.type for call in calls for slot in call.reads)
    return any(isinstance(kind, TensorType) and kind.sparse for kind in kinds)


def data_bytes(ds: Dataset) -> int:
    """Bytes of the tensors of ``ds`` and of the forms of its graph that are there, each counted once."""
    seen: dict[int, int] = {}
    for tensor in _tensors(ds):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def _tensors(ds: Dataset) -> Iterator[Tensor]:
    held = list(vars(ds).values())
    for item in [*held, *(value for group in held if isinstance(group, Mapping) for value in group.values())]:
        if isinstance(item, SparseFeatures):
            yield from (item.indptr, item.indices, item.values)
        elif isinstance(item, Int8Features):
            yield from (item.levels, item.scale, item.offset)
        elif isinstance(item, Tensor):
            yield item
    if isinstance(ds, StoredDataset):  # whose graph is on disk, or is read later
        return
    csc = ds.graph.csc
    yield from (csc.indptr, csc.indices)
    if csc.edge_ids is not None:
        yield csc.edge_ids


def rehearse(make: Callable[[], Any], train: Callable[[Any], object]) -> tuple[int, int, int]:
    """Bytes of a batch once it is made, the most while it is made, and the most beside it while it is trained on.

    Small tensors, which torch's own allocator serves, count twice while a batch is made: threads have own heaps.
    """
    small, before = heap_bytes(), POOL.begin_peak()
    batch = make()
    stats, small = POOL.stats(), max(heap_bytes() - small, 0)
    held, making = stats.lent - before, stats.peak_lent - before
    POOL.begin_peak()
    train(batch)
    step = POOL.stats().peak_lent - before - held
    return held + small, making + 2 * small, step + small


def rehearsed(make: Callable[[], Any], train: Callable[[Any], object]) -> Prepared:
    """As :func:`rehearse`, region by region: batches and steps leave gaps that others of other sizes do not fit.

    What torch takes in a step beside the pool is what the process had at its most above what it has afterwards.
    """
    made, trained, by_torch = list[tuple[int, int]](), list[tuple[int, int]](), 0

    def noted_batch() -> Any:
        with POOL.noting(made):
            return make()

    def noted_step(batch: Any) -> None:
        nonlocal by_torch
        before = own_bytes()
        with POOL.noting(trained):
            most, _ = grown_while(lambda: train(batch))
        by_torch = max(0, before + most - own_bytes())

    ready, making, _ = rehearse(noted_batch, noted_step)
    held = dict(made)  # the last note of an address counts; 0 where it is free again
    small = max(0, ready - sum(map(POOL.rounded, held.values())))
    regions = (*filter(None, held.values()), small)
    return Prepared(regions, (making - ready,), Run(beside=(small,), by_torch=by_torch, noted=tuple(trained)))


def handed_bytes(ds: Dataset) -> int:
    """The outputs of all nodes, in pages of their own; torch's own memory where they would not fill one."""
    size = loss_bytes(ds.num_nodes, ds.num_classes)
    return size if size < POOL.page else whole_pages(size)


def loss_bytes(rows: int, columns: int) -> int:
    """A float32 gradient of the loss."""
    return torch.float32.itemsize * rows * columns


__all__ = [
    "MARGIN",
    "RECORDED",
    "UNLIMITED",
    "Needs",
    "RunBudget",
    "base_needs",
    "budget_of",
    "data_bytes",
    "dense_bytes",
    "full_needs",
    "handed_bytes",
    "loss_bytes",
    "refusal",
    "rehearse",
    "rehearsed",
    "trimmed",
]
