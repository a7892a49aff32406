"""The strategies that a plan is chosen from, with their prices.

Comes in: steps of mode "full" and "mini" before they have run, a budget, the machine's profile. Goes out: strategies
with seconds by what takes them and memory by account. Called where mode "auto" chooses and by ``gw.plan``. Programs are
compiled, and one batch is drawn for its sizes; no step is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from graphweft.cost import CostModel, Works, call_work, loss_work, moved_nearer, pages_work, update_work
from graphweft.data.dataset import Dataset
from graphweft.loader.fastest_choice import CoreSplit
from graphweft.passes.work import Sizes
from graphweft.runtime.kernel_call import KernelCall
from graphweft.runtime.machine import Machine
from graphweft.runtime.plan import Plan as KernelPlan
from graphweft.runtime.prediction import computed
from graphweft.runtime.staged import StagedPlan
from graphweft.storage.feature import SparseFeatures
from graphweft.train.full_batch import FullBatch, is_plain, is_recorded
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.mini_needs import needs_within
from graphweft.train.needs import UNLIMITED, RunBudget
from graphweft.train.plan import GraphStatistics, Strategy

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)
PAGES = "new memory"
_TERMS = {"rows": "elementwise", "plain": "elementwise", "draw": "sampling", "call": "calls", "pages": PAGES}
_WALKS = "edge values"


def unlimited(ds: Dataset) -> RunBudget:
    """A budget that everything keeps to."""
    return RunBudget(UNLIMITED, ds)


def full_strategy(full: FullBatch, budget: RunBudget, machine: Machine) -> Strategy:
    """All nodes in every step."""
    needs = full.needs_within(budget)
    with budget.bounded():
        seconds = {} if not is_plain(full.model) else seconds_of_full(full, machine)
    return Strategy("full", "1 step", seconds, needs)


def seconds_of_full(full: FullBatch, machine: Machine) -> Mapping[str, float]:
    """Seconds of an epoch on all nodes by what takes them."""
    return _priced(*full_works(full), machine)


def mini_strategy(mini: MiniBatch, budget: RunBudget, machine: Machine) -> Strategy:
    """Sampled neighbourhoods of some training nodes in every step."""
    needs, prepared, mapped = needs_within(mini, budget)
    count, size = len(mini.loader), mini.loader.batch_size
    drawn = f", fan-outs {','.join(map(str, mini.fanouts))}" if mini.fanouts else ""
    if mini.drawn.macro is not None:
        told = mini.drawn.macro.stages
        drawn += f", macro-batches {told}" if isinstance(told, str) else ", macro-batches"
    seconds: Mapping[str, float] = {}
    if mini.staged_plan() is not None:
        works, walks = mini_works(mini, prepared or None)
        seconds = _priced([*works, *([(pages_work(mapped), 1.0)] if mapped else [])], walks, machine)
    return Strategy("mini", f"{count:,} of {size:,}{drawn}", seconds, needs)


def works_of(steps: FullBatch | MiniBatch) -> tuple[Works, float]:
    """What an epoch does, and the seconds on one thread of what walks compute for every edge."""
    return full_works(steps) if isinstance(steps, FullBatch) else mini_works(steps)


def full_works(full: FullBatch) -> tuple[Works, float]:
    """What an epoch does, and the seconds on one thread of what walks compute for every edge."""
    step, _, wanted, sizes = full.plans()
    calls = [*step.forward, *step.backward]
    rows = full.ds.num_nodes if wanted is None else wanted.numel()
    made = 0 if is_recorded(step) else len(calls)
    works = [*((work, 1.0) for call in calls for work in call.works), (call_work(), made), *_around(full, rows)]
    if full.order is not None:
        works = moved_nearer(works, full.order.gained)
    return works, _walks(calls, sizes)


def mini_works(mini: MiniBatch, prepared: Sequence[CoreSplit] | None = None) -> tuple[Works, float]:
    """As :func:`full_works`, of all batches of an epoch; they are as large as the first, but for the last.

    Neighbourhoods of fewer seeds overlap less, so a batch of few is much work for its seeds.

    ``prepared``: the ways of preparing that are tried; None: the loader's.
    """
    found = mini.staged_plan()
    assert found is not None  # the caller has looked
    staged, sizes = found
    in_turn = all(way.workers == 0 for way in prepared or mini.loader.tried)
    count = max(len(mini.loader), 1)
    last = mini.loader.num_items - (count - 1) * mini.loader.batch_size
    if count == 1 or last == mini.loader.batch_size:
        return _batch_works(mini, staged, sizes, in_turn, count)
    works, walks = _batch_works(mini, staged, sizes, in_turn, count - 1)
    more, others = _batch_works(mini, staged, mini.sizes_of(staged, count, last), in_turn, 1)
    return [*works, *more], walks + others


def _batch_works(mini: MiniBatch, staged: StagedPlan, sizes: Sizes, in_turn: bool, batches: int) -> tuple[Works, float]:
    """What so many batches of these sizes do."""
    plan: KernelPlan = staged.plan
    calls, found = [*plan.forward, *plan.backward], plan.compiled.works_at(sizes)
    batch = [staged.draw_work(sizes, in_turn), *staged.preparation_works(sizes)]
    for call in calls:
        batch += next(found[slot.value] for slot in call.writes if slot.value in found)
    works = [*((work, 1.0) for work in batch), (call_work(), len(calls)), *_around(mini, int(sizes.rows["B"]))]
    return [(work, batches * count) for work, count in works], batches * _walks(calls, sizes)


def _around(steps: FullBatch | MiniBatch, rows: int) -> Works:
    """The loss and the update of a step."""
    weights = sum(p.numel() for p in steps.model.parameters() if p.requires_grad)
    return [(loss_work(rows, steps.ds.num_classes), 1.0), (update_work(weights), 1.0)]


def _walks(calls: Sequence[KernelCall], sizes: Sizes) -> float:
    return sum(computed(call, sizes) for call in calls)


def _priced(works: Works, walks: float, machine: Machine) -> Mapping[str, float]:
    """Seconds by what takes them."""
    threads = torch.get_num_threads()
    return seconds_of(works, walks / threads, machine.costs, machine.scale(threads))


def seconds_of(works: Works, walks: float, costs: CostModel, scale: float = 1.0) -> dict[str, float]:
    """Seconds by what takes them; ``walks`` are seconds that are known."""
    found: defaultdict[str, float] = defaultdict(float)
    for work, count in works:
        kind = work.kind.split()[0]
        found[_TERMS.get(kind, kind)] += scale * count * costs.seconds(work)
    return {**found, **({_WALKS: walks} if walks else {})}


def statistics_of(ds: Dataset) -> GraphStatistics:
    """What a plan tells of a dataset in memory."""
    degrees, x = ds.graph.in_degrees().sort().values, ds.x
    last = max(degrees.numel() - 1, 0)
    chosen = [int(degrees[round(share * last)]) if degrees.numel() else 0 for share in _QUANTILES]
    density = 1.0
    if isinstance(x, SparseFeatures):
        density = x.nnz / max(x.num_rows * x.width, 1)
    split = (ds.train_idx.numel(), ds.val_idx.numel(), ds.test_idx.numel())
    counts = (ds.num_nodes, ds.num_edges)
    return GraphStatistics(ds.name, *counts, tuple(chosen), ds.num_features, density, ds.num_classes, split)


__all__ = [
    "PAGES",
    "full_strategy",
    "full_works",
    "mini_strategy",
    "mini_works",
    "seconds_of",
    "seconds_of_full",
    "statistics_of",
    "unlimited",
    "works_of",
]
