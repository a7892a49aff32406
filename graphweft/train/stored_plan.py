"""The plan for a store on disk: groups of parts, or the batches of memory with rows from disk.

Comes in: a model, a store, a budget, a machine's profile. Goes out: a :class:`Plan`. Called by ``gw.plan`` and by the
trainer in mode "auto", which therefore take the same way. With a budget the memory of a way is found as a run of that
mode finds it. Seconds are those of a machine's profile: no clock is read, so that the same budget gives the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from graphweft._budget import lifted
from graphweft._errors import ConfigError, MemoryBudgetError
from graphweft._memory import POOL
from graphweft.data.stored import StoredDataset
from graphweft.dist.ranks import Ranks
from graphweft.loader.disk import AHEAD
from graphweft.runtime.machine import Machine
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.row_cache import epoch_reads, table_room
from graphweft.storage.store import Store
from graphweft.train.chosen import Chosen, Loop
from graphweft.train.disk_batches import DiskBatches
from graphweft.train.edge_data import edge_data_of
from graphweft.train.grouped import Grouped
from graphweft.train.macro import as_macro
from graphweft.train.model_input import as_read, opened
from graphweft.train.needs import RunBudget
from graphweft.train.optimizer import make_optimizer
from graphweft.train.options import GROUPS, USUAL_BATCH, USUAL_RATE, MacroText, split_macro
from graphweft.train.plan import GraphStatistics, Plan, Strategy, choose
from graphweft.train.setup import Drawn, Given
from graphweft.train.steps import sampled
from graphweft.train.stored_needs import RowRooms, groups_within, rows_within
from graphweft.train.stored_strategies import StoredGroups, group_strategies, priced_group, reading_beside, unmeasured
from graphweft.train.strategies import seconds_of_epoch

_MOST_READ = 4  # times the bytes of the store: what rows read an epoch at most where no seconds are known to compare


class StoredRun(NamedTuple):
    """What a run over a store is planned from.

    Attributes:
        model: The model.
        ds: The store, as a dataset.
        memory: The budget of the run.
        fanouts: As for :class:`gw.Trainer`.
        batch_size: Likewise.
        macro: Likewise; None leaves open how groups are made.
        edge_data: Likewise.
    """

    model: nn.Module
    ds: StoredDataset
    memory: int | str | None = None
    fanouts: Sequence[int] | None = None
    batch_size: int = USUAL_BATCH
    macro: str | None = None
    edge_data: str = "use"

    @property
    def drawn(self) -> Drawn:
        """How batches are made."""
        return Drawn(self.fanouts, self.batch_size, None, 1, "neighbor", "whole")

    def given(self, mode: str, macro: str | None) -> Given:
        """What steps of ``mode`` are made of. Raises: ConfigError, DataError."""
        _, ds = opened(mode, self.ds.store)
        ds = as_read(self.model, ds, "nodes", self.memory)
        loop = Loop(Chosen(), ds, "nodes", "accuracy", None)
        update = loop.update(self.model, make_optimizer(self.model, "adam", USUAL_RATE, 0.0, "all"))
        edges, drawn = edge_data_of(self.model, ds, self.edge_data), self.drawn._replace(macro=as_macro(macro))
        return Given(self.model, ds, update, loop, edges, "nodes", mode, Ranks(), drawn, memory=self.memory)


def stored_plan(
    run: StoredRun, machine: Machine, mode: str = "auto", ranks: int = 1, always_priced: bool = True
) -> Plan:
    """The way that is taken: with ``mode`` "auto" the faster of those that keep to the budget.

    ``always_priced``: seconds are wanted of groups where they decide nothing, too.

    Raises: ConfigError for a mode that reads no store, MemoryBudgetError for too small a budget.
    """
    _check(mode, ranks)
    budget = memory_bytes(run.memory)
    strategies = [Strategy("full", refused="holds the graph in memory; gw.load(path) reads a store into memory")]
    failures: list[ConfigError] = []
    groups: StoredGroups | None = None
    macro = GROUPS if run.macro is None and mode == "auto" else run.macro
    told = MacroText(None) if macro is None else split_macro(macro)
    for kind in ("mini", "macro"):
        refused = f"mode {mode} was asked for" if mode not in ("auto", kind) else ""
        if kind == "mini" and mode == "auto" and run.macro is not None:
            refused = f"macro={run.macro} was asked for"
        if refused:
            strategies.append(Strategy(kind, refused=refused))
            continue
        try:
            if kind == "mini":
                strategies.append(_rows(run, machine, mode))
            else:
                groups = _groups(run, told, macro)
                strategies += group_strategies(groups, run.ds.store, told)
        except ConfigError as failure:
            failures.append(failure.with_traceback(None))  # whose frames hold what was made
            strategies.append(Strategy(kind, refused=_why(failure, budget)))
        POOL.trim()
    possible = [way for way in strategies if not way.refused]
    if not possible:
        raise min(failures, key=_least)
    priced: Strategy | None = None
    at = next((i for i, way in enumerate(strategies) if way.mode == "macro" and not way.refused), None)
    if groups is not None and at is not None and (always_priced or _is_open(possible, run.memory, budget)):
        priced = priced_group(strategies[at], run.model, run.ds, run.drawn, told, groups, machine)
        if priced is not None:
            strategies[at] = replace(strategies[at], seconds=priced.seconds)
    try:
        plan = choose(strategies, _statistics(run.ds), budget, str(machine), "gw.explain(model, graph, x) on a part")
    except MemoryBudgetError as failure:
        raise min([failure, *failures], key=_least) from None
    # without a budget groups take as much as that of them is, and steps come on top
    return replace(plan, strategy=priced) if priced is not None and plan.mode == "macro" else plan


def _is_open(possible: Sequence[Strategy], memory: int | str | None, budget: int) -> bool:
    """Whether several ways keep to the budget."""
    return sum(memory is None or way.needs is None or way.needs.fits(budget) for way in possible) > 1


def _why(failure: ConfigError, budget: int) -> str:
    """Why a way is not possible."""
    least = failure.least if isinstance(failure, MemoryBudgetError) else 0
    return f"needs {shown_bytes(least)} of {shown_bytes(budget)}" if least else str(failure)


def _least(failure: ConfigError) -> float:
    """The least that an error names; those that name none come last."""
    return (isinstance(failure, MemoryBudgetError) and failure.least) or float("inf")


def _check(mode: str, ranks: int) -> None:
    """Raises: ConfigError for what reads no store."""
    if mode == "full":
        raise ConfigError(
            "mode: expected macro, mini or auto for a store, got full; gw.load(path) reads it into memory"
        )
    if ranks > 1:
        raise ConfigError(f"ranks={ranks} cannot be combined with a store; gw.load(path) reads it into memory")


def _statistics(ds: StoredDataset) -> GraphStatistics:
    """What is known of the graph before its structure is read."""
    store, edges = ds.store, ds.store.manifest.num_edges
    split = (ds.train_idx.numel(), ds.val_idx.numel(), ds.test_idx.numel())
    mean = round(edges / max(store.num_nodes, 1))
    return GraphStatistics(ds.name, store.num_nodes, edges, (mean,), store.num_features, 1.0, ds.num_classes, split)


def _groups(run: StoredRun, told: MacroText, macro: str | None) -> StoredGroups:
    """What groups of parts need. Raises: MemoryBudgetError."""
    if run.memory is None:
        return unmeasured(run.ds, run.model, run.fanouts, told)
    given = run.given("macro", macro)
    budget = RunBudget(run.memory, given.ds)
    with budget.within():
        steps = sampled(given)
        assert isinstance(steps, Grouped)  # by its mode
        needs, found = groups_within(steps, budget)[0], steps.neighbours
        share, brought = (0.0, 0) if found is None else (found.share, int(found.sizes.nbytes.sum()))
        return StoredGroups(needs, steps.group, share, brought, steps.ways, found)


def _rows(run: StoredRun, machine: Machine, mode: str) -> Strategy:
    """The batches of memory, with rows from disk. Raises: ConfigError, MemoryBudgetError."""
    given = run.given("mini", None)
    if run.memory is None:
        steps = sampled(given)
        assert isinstance(steps, DiskBatches)  # by data and mode
        steps.prepare()
        rooms = RowRooms(None, steps.row_memory, False, _rows_of_batch(steps))
    else:
        budget = RunBudget(run.memory, given.ds)
        with budget.within():
            steps = sampled(given)
            assert isinstance(steps, DiskBatches)  # by data and mode
            rooms = rows_within(steps, budget)
    store, batches = run.ds.store, len(steps.loader)
    disk = _read(store, batches, rooms)
    with lifted():  # what was compiled is looked at, and one batch drawn for its sizes
        seconds: Mapping[str, float] = seconds_of_epoch(steps, machine)
    words = f"{batches:,} of {steps.loader.batch_size:,}, structure in memory, rows of features {rooms.text()}"
    refused = ""
    if mode == "auto" and not seconds and disk > _MOST_READ * store.nbytes:
        refused = f"reads {shown_bytes(disk)} an epoch of a store of {shown_bytes(store.nbytes)}"
    return Strategy("mini", words, reading_beside(seconds, disk, machine), rooms.needs, disk, refused=refused)


def _rows_of_batch(steps: DiskBatches) -> int:
    """Rows that the first batch reads."""
    loader: Any = steps.loader
    made = loader.make(torch.arange(min(loader.batch_size, loader.num_items)), 0)
    return len(torch.unique(loader.nodes_read(made)))


def _read(store: Store, batches: int, rooms: RowRooms) -> int:
    """Bytes that an epoch reads once the table is full."""
    nodes, width = store.num_nodes, store.row_width * store.feature_dtype.itemsize
    if rooms.pieces:  # which are read for the product and for its gradient
        return 2 * batches * rooms.rows * width
    capacity = table_room(store, nodes, rooms.memory - rooms.memory // AHEAD).rows
    return epoch_reads(batches * rooms.rows, capacity, store.num_rows, width)


__all__ = ["StoredRun", "stored_plan"]
