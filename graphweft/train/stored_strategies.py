"""Groups of parts of a store as strategies of a plan: how they are made, what they read, the seconds of an epoch.

Comes in: what groups need of memory, and what of them was asked for. Goes out: a :class:`Strategy` for those that are
taken and for each other way to make some. Called by ``stored_plan.py``. One group is read, and its batches are priced
as those of a graph in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphweft._errors import MemoryBudgetError
from graphweft.cost import join_work
from graphweft.data.dataset import Dataset
from graphweft.data.stored import StoredDataset
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.groups import group_bytes, parts_within, read_group
from graphweft.loader.neighbours import BroughtSizes, Neighbours
from graphweft.runtime.machine import Machine
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.store import Store
from graphweft.train.grouped import label_bytes
from graphweft.train.needs import Needs
from graphweft.train.neighbour_choice import Way, reason_against, taken_of, ways_of
from graphweft.train.options import FIRST, MacroText, check_macro
from graphweft.train.plan import Strategy
from graphweft.train.plan_in_memory import plan_in_memory
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Drawn
from graphweft.train.tiles import TILE_SHARE

_REAL = 4


class StoredGroups(NamedTuple):
    """What groups of parts need of memory and of the disk.

    Attributes:
        needs: Memory of the run; without a budget that of the groups and the model.
        group: Parts of a group.
        share: How many times its nodes a part brings at most of others.
        brought: Bytes that an epoch reads of neighbours of parts.
        ways: Those to make groups that neighbours were chosen from.
        extra: What each part brings, where it was found.
    """

    needs: Needs
    group: int
    share: float = 0.0
    brought: int = 0
    ways: tuple[Way, ...] = ()
    extra: Neighbours | None = None


def unmeasured(ds: StoredDataset, model: nn.Module, fanouts: Sequence[int] | None, told: MacroText) -> StoredGroups:
    """What groups are made of, from sizes and edges alone: as if neighbours had as many in-edges as others.

    Raises: MemoryBudgetError.
    """
    store, item, hubs = ds.store, label_bytes(ds), _hub_bytes(told)
    fitting = partial(parts_within, store, memory_bytes(None), item, hubs, told.keep)
    share, ways = told.neighbours, list[Way]()
    if isinstance(share, str):
        steps = len(fitting_fanouts(model, fanouts))
        ways = ways_of(store, _seeds(ds), steps, lambda brought: fitting(brought=brought))
        share = taken_of(ways).share
    sizes = BroughtSizes.estimated(store, share) if share else None
    count = fitting(brought=sizes) if told.stages is None else check_macro(told.stages)[1]
    needs = Needs(
        batches=group_bytes(store, count, item, hubs, told.keep, sizes),
        parameters=6 * sum(p.nbytes for p in model.parameters()),
    )
    return StoredGroups(needs, count, share, int(share * store.nbytes), tuple(ways))


def _hub_bytes(told: MacroText) -> int:
    return 0 if told.hubs is None else memory_bytes(told.hubs, "hubs")


def _seeds(ds: StoredDataset) -> Tensor:
    """Training nodes in the numbers of the store, ascending."""
    found: Tensor = torch.unique(ds.row_ids[ds.train_idx], sorted=True)
    return found


def group_strategies(found: StoredGroups, store: Store, told: MacroText) -> list[Strategy]:
    """The groups that are taken, and other ways to make some, with the edges that each keeps."""
    taken, hubs = next((way for way in found.ways if way.share == found.share), None), _hub_bytes(told)
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


def priced_group(
    strategy: Strategy,
    model: nn.Module,
    ds: StoredDataset,
    drawn: Drawn,
    told: MacroText,
    found: StoredGroups,
    machine: Machine,
) -> Strategy | None:
    """Groups with the seconds of an epoch, and where it is not known the memory of their steps.

    None where seconds are not predicted: of types, without features, and where a group that is read to see has no room.
    """
    store = ds.store
    if store.types is not None or not store.num_features or not ds.train_idx.numel():
        return None
    extra = found.extra if told.first == FIRST[0] else None  # whose rows are twice as wide
    given: dict[str, Any] = {"count": found.group, "keep": told.keep, "reuse": told.reuse, "neighbours": extra}
    loader = GroupLoader(
        store, _seeds(ds), fitting_fanouts(model, drawn.fanouts), drawn.batch_size, True, 0, prefetch=0, **given
    )
    plan = loader.plan(0)
    try:
        group = read_group(store, plan[0].parts, loader.extra)
        rows = group.rows(torch.arange(group.graph.num_nodes))
        inside = {"x": rows, "y": group.y, "train_idx": plan[0].nodes.sort().values}
        one = Dataset(ds.name, group.graph, num_classes=ds.num_classes, **inside)
        priced = plan_in_memory(model, one, None, machine, drawn, ("mini",), True).strategy
    except MemoryBudgetError:
        return None
    share = sum(len(planned.nodes) for planned in plan) / len(plan[0].nodes)
    seconds = {name: share * value for name, value in priced.seconds.items()}
    times = 1 - told.keep / len(store)
    join = join_work(int(times * store.num_edges * strategy.disk / store.nbytes), times * strategy.disk)
    if seconds:
        joining = machine.scale(torch.get_num_threads()) * machine.costs.seconds(join)
        seconds = _read_ahead(seconds, joining + times * strategy.disk / machine.disk_bytes_per_second, plan[-1].number)
    if found.needs.step or priced.needs is None:
        return replace(strategy, seconds=seconds)
    own: dict[str, Any] = {"data": 4 * store.num_nodes + 17 * len(ds.y), "structure": 0, "kept": 0, "trims": True}
    own["batches"] = found.needs.batches + priced.needs.batches
    own["evaluation"] = min(memory_bytes(None) // TILE_SHARE, _whole_part(model, ds))
    return replace(strategy, seconds=seconds, needs=replace(priced.needs, **own))


def _read_ahead(seconds: Mapping[str, float], reading: float, last: int) -> dict[str, float]:
    """With groups up to number ``last``: the first is waited for, others where training ends before they are there.

    Example:
        >>> _read_ahead({"product": 3.0}, 2.0, 3), _read_ahead({"product": 1.0}, 2.0, 3)
        ({'product': 3.0, 'reading': 0.5}, {'product': 1.0, 'reading': 1.0})
    """
    first = reading / (last + 1)
    return {**seconds, "reading": first + max(0.0, reading - first - sum(seconds.values()))}


def reading_beside(seconds: Mapping[str, float], nbytes: int, machine: Machine) -> dict[str, float]:
    """With rows that are read beside the steps: seconds of reading as far as these are over before."""
    waits = nbytes / machine.disk_bytes_per_second - sum(seconds.values())
    return {**seconds, "reading": waits} if seconds and waits > 0 else dict(seconds)


def _whole_part(model: nn.Module, ds: StoredDataset) -> int:
    """Bytes of an evaluation that computes a layer for all nodes of the largest part at once."""
    width = max([ds.store.num_features, *(p.shape[-1] for p in model.parameters() if p.dim() > 1)])
    edges = int((ds.store.edge_counts + [part.nodes for part in ds.store.manifest.parts]).max())
    return 3 * 4 * width * edges


__all__ = ["StoredGroups", "group_strategies", "priced_group", "reading_beside", "unmeasured"]
