"""The plan for a store on disk: how many parts make a group, the memory of the run, the seconds of an epoch.

Comes in: a model, a store as a dataset, a budget, and what prices a graph in memory. Goes out: a :class:`Plan`. Called
by ``gw.plan``. With a budget the memory is found as the trainer finds it. One group is read, twice, since the first
time checksums are compared: how long it takes is that of the others, and its batches are priced as those of a graph in
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.data.stored import StoredDataset
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import group_bytes, parts_within, read_group
from graphweft.loader.neighbours import BroughtSizes, Neighbours
from graphweft.runtime.machine import Machine
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.store import Store
from graphweft.train.needs import Needs
from graphweft.train.neighbour_choice import Way, reason_against, taken_of, ways_of
from graphweft.train.options import FIRST, USUAL_BATCH, MacroText, check_macro, split_macro
from graphweft.train.plan import GraphStatistics, Plan, Strategy, choose
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.tiles import TILE_SHARE

_REAL = 4


class StoredNeeds(NamedTuple):
    """What a mode needs of memory and of the disk.

    Attributes:
        needs: Memory of the run; None where it is not known.
        group: Parts of a group; 0 in mode "mini".
        rows: How rows of features come.
        share: How many times its nodes a part brings at most of others.
        brought: Bytes that an epoch reads of neighbours of parts.
        ways: Those to make groups that neighbours were chosen from.
        extra: What each part brings, where it was found.
    """

    needs: Needs | None
    group: int
    rows: str
    share: float = 0.0
    brought: int = 0
    ways: tuple[Way, ...] = ()
    extra: Neighbours | None = None


def stored_plan(
    model: nn.Module,
    ds: StoredDataset,
    memory: int | str | None,
    machine: Machine,
    macro: str | None,
    mode: str,
    ranks: int,
    price: Callable[[Dataset], Strategy] | None = None,
    fanouts: Sequence[int] | None = None,
    batch_size: int = USUAL_BATCH,
    measured: Callable[[str], StoredNeeds] | None = None,
) -> Plan:
    """Groups of parts, as mode "auto" takes them, or another mode that was asked for.

    ``measured``: tells what a mode needs within the budget; None without a budget.

    Raises: ConfigError for a mode that reads no store, MemoryBudgetError for too small a budget.
    """
    _check(mode, ranks)
    store, budget = ds.store, memory_bytes(memory)
    item = ds.y.element_size() * (ds.y.shape[1] if ds.y.dim() == 2 else 1)
    told = MacroText(None) if macro is None else split_macro(macro)
    stages, pinned, _, keep, *_ = told
    hubs = 0 if pinned is None else memory_bytes(pinned, "hubs")
    fitting = partial(parts_within, store, budget, item, hubs, keep)
    if measured is not None:
        found = measured("mini" if mode == "mini" else "macro")
    else:
        found = _unmeasured(ds, model, fanouts, told, fitting)
    needs, count, rows, share, brought = found[:5]
    sizes = BroughtSizes.estimated(store, share) if share else None
    if mode == "mini":
        count = 1 if stages is None else check_macro(stages)[1]
    elif measured is None:
        count = fitting(brought=sizes) if stages is None else check_macro(stages)[1]
    groups = Needs(
        batches=group_bytes(store, count, item, hubs, keep, sizes),
        parameters=6 * sum(p.nbytes for p in model.parameters()),
    )
    taken = found._replace(needs=groups if needs is None or mode == "mini" else needs, group=count)
    strategies = [
        Strategy("full", refused="holds the graph in memory; gw.load(path) reads a store into memory"),
        *_groups(taken, store, told, hubs),
        Strategy("mini", f"structure in memory, rows of features {rows}", needs=needs if mode == "mini" else None),
    ]
    priced: Strategy | None = None
    if price is not None and mode != "mini" and store.types is None and store.num_features and ds.train_idx.numel():
        most = min(budget // TILE_SHARE, _whole_part(model, ds))
        extra = found.extra if told.first == FIRST[0] else None  # whose rows are twice as wide
        given = {"count": count, "keep": keep, "reuse": told.reuse, "neighbours": extra}
        slower = 1.0 if extra is not None else 1 + brought / max(store.nbytes, 1)
        drawn = (fitting_fanouts(model, fanouts), batch_size, given, most, slower)
        priced = _priced(strategies[1], ds, price, *drawn)
        priced = replace(priced, needs=needs or priced.needs)
        strategies[1] = replace(strategies[1], seconds=priced.seconds)
    if mode == "mini":
        strategies[1] = Strategy("macro", strategies[1].batches, refused="mode mini was asked for")
    edges = store.manifest.num_edges
    split = (ds.train_idx.numel(), ds.val_idx.numel(), ds.test_idx.numel())
    mean = round(edges / max(store.num_nodes, 1))
    known = GraphStatistics(ds.name, store.num_nodes, edges, (mean,), store.num_features, 1.0, ds.num_classes, split)
    plan = choose(strategies, known, budget, str(machine), "gw.explain(model, graph, x) on a part")
    # without a budget groups take as much as that of them is, and steps come on top
    return replace(plan, strategy=priced) if priced is not None and plan.mode == "macro" else plan


def _unmeasured(
    ds: StoredDataset,
    model: nn.Module,
    fanouts: Sequence[int] | None,
    told: MacroText,
    fitting: Callable[..., int],
) -> StoredNeeds:
    """What groups are made of, from sizes and edges alone: as if neighbours had as many in-edges as others."""
    share, ways = told.neighbours, list[Way]()
    if isinstance(share, str):
        steps = len(fitting_fanouts(model, fanouts))
        ways = ways_of(ds.store, _seeds(ds), steps, lambda brought: fitting(brought=brought))
        share = taken_of(ways).share
    return StoredNeeds(None, 0, "from disk", share, int(share * ds.store.nbytes), tuple(ways))


def _seeds(ds: StoredDataset) -> Tensor:
    """Training nodes in the numbers of the store, ascending."""
    found: Tensor = torch.unique(ds.row_ids[ds.train_idx], sorted=True)
    return found


def _groups(found: StoredNeeds, store: Store, told: MacroText, hubs: int) -> list[Strategy]:
    """The groups that are taken, and other ways to make some, with the edges that each keeps."""
    taken = next((way for way in found.ways if way.share == found.share), None)
    kept = taken.kept if taken is not None and taken.group == found.group else None  # of other groups it is not known
    words = _words(Way(found.group, found.share, 1.0).text(len(store)), told, hubs, found.brought, kept)
    read = store.nbytes + (_REAL * store.num_nodes * store.num_features if told.first == "whole" else 0)
    made = [Strategy("macro", words, needs=found.needs, disk=read + found.brought)]
    for way in found.ways:
        if taken is None or way is taken:
            continue
        more = int(way.share * store.nbytes)  # as if neighbours had as many in-edges as others
        words = _words(way.text(len(store)), told, hubs, more, way.kept)
        made.append(Strategy("macro", words, disk=read + more, refused=reason_against(way, taken, len(store))))
    return made


def _check(mode: str, ranks: int) -> None:
    """Raises: ConfigError for what reads no store."""
    if mode == "full":
        raise ConfigError(
            "mode: expected macro, mini or auto for a store, got full; gw.load(path) reads it into memory"
        )
    if ranks > 1:
        raise ConfigError(f"ranks={ranks} cannot be combined with a store; gw.load(path) reads it into memory")


def _words(groups: str, told: MacroText, hubs: int, brought: int, kept: float | None) -> str:
    """How groups are made."""
    return (
        groups
        + (f" and hubs of {shown_bytes(hubs)}" if hubs else "")
        + (f", with neighbours of {shown_bytes(brought)}" if brought else "")
        + (", the first layer on all edges" if told.first == "whole" else "")
        + (f", each gone through {told.reuse} times" if told.reuse > 1 else "")
        + (f", {told.keep} parts kept between epochs" if told.keep else "")
        + ("" if kept is None or kept == 1 else f", {kept:.0%} of the edges")
    )


def _priced(
    strategy: Strategy,
    ds: StoredDataset,
    price: Callable[[Dataset], Strategy],
    fanouts: Sequence[int],
    batch_size: int,
    given: dict[str, Any],
    evaluation: int,
    slower: float,
) -> Strategy:
    """A strategy with the seconds of an epoch, and the memory of its steps beside the groups.

    ``slower``: times what such a group takes to read, where neighbours are not found yet.
    """
    store, needs = ds.store, strategy.needs
    assert needs is not None  # groups have been counted
    loader = GroupLoader(store, _seeds(ds), fanouts, batch_size, True, 0, prefetch=0, **given)
    plan = loader.plan(0)
    read_group(store, plan[0].parts, loader.extra)
    begun = time.perf_counter()
    group = read_group(store, plan[0].parts, loader.extra)
    reading = slower * (time.perf_counter() - begun)
    rows = group.rows(torch.arange(group.graph.num_nodes))
    one = Dataset(
        ds.name, group.graph, x=rows, y=group.y, train_idx=plan[0].nodes.sort().values, num_classes=ds.num_classes
    )
    found = price(one)
    share = sum(len(planned.nodes) for planned in plan) / len(plan[0].nodes)
    seconds = {name: share * value for name, value in found.seconds.items()}
    groups = (plan[-1].number + 1) * (1 - given["keep"] / len(store))
    if seconds:  # the first group is waited for, the others only where training is done before they are there
        seconds["reading"] = reading + max(0.0, (groups - 1) * reading - sum(seconds.values()))
    if found.needs is not None:
        kept = 4 * store.num_nodes + 17 * len(ds.y)
        needs = replace(
            found.needs,
            data=kept,
            structure=0,
            kept=0,
            batches=needs.batches + found.needs.batches,
            evaluation=evaluation,
            trims=True,
        )
    return replace(strategy, seconds=seconds, needs=needs)


def _whole_part(model: nn.Module, ds: StoredDataset) -> int:
    """Bytes of an evaluation that computes a layer for all nodes of the largest part at once."""
    width = max([ds.store.num_features, *(p.shape[-1] for p in model.parameters() if p.dim() > 1)])
    edges = int((ds.store.edge_counts + [part.nodes for part in ds.store.manifest.parts]).max())
    return 3 * 4 * width * edges


__all__ = ["StoredNeeds", "stored_plan"]
