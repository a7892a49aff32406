"""The strategies that a plan is chosen from, with their prices.

Comes in: steps of mode "full" and "mini" before they have run, a budget, the machine's profile. Goes out: strategies
with seconds by what takes them and memory by account. Called where mode "auto" chooses and by ``gw.plan``. Programs are
compiled, and one batch is drawn for its sizes; no step is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

from graphweft.cost import CostModel, Works, pages_work
from graphweft.data.dataset import Dataset
from graphweft.runtime.machine import Machine
from graphweft.storage.feature import SparseFeatures
from graphweft.train.batch_steps import BatchSteps
from graphweft.train.epoch_steps import Steps
from graphweft.train.full_batch import FullBatch, is_plain
from graphweft.train.mini_needs import needs_within
from graphweft.train.needs import UNLIMITED, RunBudget
from graphweft.train.plan import GraphStatistics, Strategy

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)
PAGES = "new memory"
_TERMS = {
    "rows": "elementwise",
    "plain": "elementwise",
    "sparse": "gather",
    "draw": "sampling",
    "call": "calls",
    "epoch": "calls",
    "pages": PAGES,
}
_WALKS = "edge values"


def unlimited(ds: Dataset) -> RunBudget:
    """A budget that everything keeps to."""
    return RunBudget(UNLIMITED, ds)


def full_strategy(full: FullBatch, budget: RunBudget, machine: Machine) -> Strategy:
    """All nodes in every step."""
    needs = full.needs_within(budget)
    with budget.bounded():
        seconds = {} if not is_plain(full.model) else seconds_of_epoch(full, machine)
    return Strategy("full", "1 step", seconds, needs)


def seconds_of_epoch(steps: Steps, machine: Machine) -> Mapping[str, float]:
    """Seconds of an epoch by what takes them; none where they are not known."""
    found = steps.works()
    return {} if found is None else _priced(*found, machine)


def mini_strategy(mini: BatchSteps, budget: RunBudget, machine: Machine) -> Strategy:
    """Sampled neighbourhoods of some training nodes in every step."""
    needs, prepared, mapped = needs_within(mini, budget)
    count, size = len(mini.loader), mini.loader.batch_size
    drawn = f", fan-outs {','.join(map(str, mini.fanouts))}" if mini.fanouts else ""
    if mini.drawn.macro is not None:
        told = mini.drawn.macro.stages
        drawn += f", macro-batches {told}" if isinstance(told, str) else ", macro-batches"
    seconds: Mapping[str, float] = {}
    found = mini.works_in(prepared or mini.loader.tried)
    if found is not None:
        works, walks = found
        seconds = _priced([*works, *([(pages_work(mapped), 1.0)] if mapped else [])], walks, machine)
    return Strategy("mini", f"{count:,} of {size:,}{drawn}", seconds, needs)


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
    reached, x = torch.bincount(ds.graph.in_degrees()).cumsum(0), ds.x  # nodes of at most so many in-edges
    last = max(ds.num_nodes - 1, 0)
    places = torch.tensor([round(share * last) for share in _QUANTILES])
    chosen = torch.searchsorted(reached, places, right=True).tolist()
    density = 1.0
    if isinstance(x, SparseFeatures):
        density = x.nnz / max(x.num_rows * x.width, 1)
    split = (ds.train_idx.numel(), ds.val_idx.numel(), ds.test_idx.numel())
    counts = (ds.num_nodes, ds.num_edges)
    return GraphStatistics(ds.name, *counts, tuple(chosen), ds.num_features, density, ds.num_classes, split)


__all__ = [
    "PAGES",
    "full_strategy",
    "mini_strategy",
    "seconds_of",
    "seconds_of_epoch",
    "statistics_of",
    "unlimited",
]
