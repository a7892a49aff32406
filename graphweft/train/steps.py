"""The way to take a step that task and mode ask for.

Comes in: what a trainer was given. Goes out: a :class:`FullBatch`, or one of the kinds of :class:`MiniBatch`. Called by
the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphweft._errors import ConfigError, MemoryBudgetError
from graphweft._memory import POOL
from graphweft.data.part_dataset import PartDataset
from graphweft.data.stored import StoredDataset
from graphweft.data.stored_graph import StoredGraph
from graphweft.interop.pyg_model import adapted
from graphweft.runtime.machine import Machine
from graphweft.runtime.targets import target_of
from graphweft.schedule.known_places import as_schedule, holds_model
from graphweft.schedule.places import Schedule
from graphweft.train import spec
from graphweft.train.device import device_of
from graphweft.train.device_batches import DeviceMiniBatch, check_apart, check_drawn_there, draws_on_device
from graphweft.train.device_full import DeviceFullBatch
from graphweft.train.device_link import DeviceLinkTask
from graphweft.train.disk_batches import DiskBatches
from graphweft.train.disk_link import DiskLinkTask
from graphweft.train.edge_task import EdgeTask, WholeEdgeTask
from graphweft.train.embedding_task import EmbeddingTask
from graphweft.train.epoch_steps import Steps
from graphweft.train.full_batch import FullBatch, features_of, is_plain
from graphweft.train.graph_task import GraphTask
from graphweft.train.grouped import Grouped, check_macro_run
from graphweft.train.grouped_links import GroupedLinks
from graphweft.train.int8_rules import mode_for_int8
from graphweft.train.link_task import LinkTask, check_link
from graphweft.train.macro import as_macro
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.needs import Needs, RunBudget, base_needs
from graphweft.train.needs_by_running import recording_bytes
from graphweft.train.needs_by_sizes import sized_needs
from graphweft.train.option_table import check_drawn, check_given
from graphweft.train.options import EDGE_TASKS, GRAPH_TASKS, check_fanouts
from graphweft.train.order_choice import order_planned
from graphweft.train.plan import Plan, Strategy, choose
from graphweft.train.promise import Promise
from graphweft.train.ranked_full import RankedFullBatch
from graphweft.train.ranked_mini import RankedLinkTask, RankedMiniBatch
from graphweft.train.replayed import Replays
from graphweft.train.scheduled import ScheduledMiniBatch
from graphweft.train.setup import Drawn, Given, Setup
from graphweft.train.shared_batches import SharedMiniBatch
from graphweft.train.strategies import full_strategy, mini_strategy, statistics_of, unlimited

_KINDS: dict[str, type[MiniBatch]] = {**dict.fromkeys(GRAPH_TASKS, GraphTask), **dict.fromkeys(EDGE_TASKS, EdgeTask)}


PLANNED = ("full", "mini")  # simpler ones first


USUALLY_DRAWN = Drawn(**spec.USUALLY_DRAWN)


def drawn_of(
    mode: str, device: Any, schedule: Any, graphs: Any, fanouts: Any, batch_size: int, macro: Any, *more: Any
) -> Drawn:
    """How batches are made, from what the user gave. Raises: ConfigError where ``mode`` makes none."""
    check_given(spec.TrainSpec, {"cuda_graphs": graphs})
    drawn = Drawn(check_fanouts(fanouts), batch_size, as_macro(macro), *more)
    drawn = drawn._replace(schedule=as_schedule(schedule, device, mode) or "auto", cuda_graphs=graphs)
    check_drawn(spec.TrainSpec, mode, drawn._asdict())
    return drawn


def make_steps(given: Given, budget: RunBudget | None) -> tuple[str, Steps, Promise]:
    """The mode, "full" or "mini" for "auto", its steps within ``budget``, and what is predicted of them.

    ``budget``: the memory of a run in memory.

    Raises: ConfigError for options that do not fit the task or each other, MemoryBudgetError.
    """
    given = given._replace(mode=mode_for_int8(given))
    with finding_out(given, budget):
        return _fitted(given, budget)


def finding_out(given: Given, budget: RunBudget | None) -> AbstractContextManager[None]:
    """The block in which it is found out what a run takes: within its budget, where it has one and is in memory."""
    if budget is None or isinstance(given.ds, StoredDataset):
        return nullcontext()
    base = base_needs(given.ds, given.model, budget)
    sized = partial(_sized, given, base, given.mode)
    recording = 0 if is_plain(given.model) else recording_bytes(given.model, given.ds)
    return budget.begun(base.data, sized, given.mode != "full", recording)


def _sized(given: Given, base: Needs, mode: str) -> Needs:
    """What a run takes, from sizes alone."""
    return sized_needs(base, given.model, given.ds, mode, given.drawn)


def _fitted(given: Given, budget: RunBudget | None) -> tuple[str, Steps, Promise]:
    """As :func:`make_steps`."""
    promise = Promise(budget=budget)
    mode = given.mode
    if mode == "auto" and (given.task in EDGE_TASKS or (budget is None and not is_plain(given.model))):
        mode = "full"  # nothing can be priced, and nothing has to fit
    if mode == "auto" or budget is not None:
        promise.begin(given.ds)
    batch: Steps
    if mode == "auto":
        promise.plan, batch = planned(given, budget, Machine.here())
        mode = promise.plan.mode
        promise.works = batch.works if promise.plan.epoch_seconds else None
    elif mode == "full" and given.task not in EDGE_TASKS:
        batch = full_batch(given)
    else:
        batch = sampled(given._replace(mode=mode))
    _replay(batch, given, budget)
    if budget is not None:
        batch.fit_into(budget)
        budget.planned()
    return mode, batch, promise


def _replay(batch: Steps, given: Given, budget: RunBudget | None) -> None:
    """Mini-batches are replayed where that was asked for. Raises: ConfigError where none of their kind are."""
    drawn = given.drawn
    if batch.is_single or drawn.cuda_graphs == "off":
        return
    others = {
        f"mode={given.mode}": given.mode not in ("mini", "auto"),
        f"task={given.task}": given.task != "nodes",
        "ranks": given.ranks.is_shared,
        "macro": drawn.macro is not None,
        "accumulate": drawn.accumulate > 1,
        "prepare": drawn.prepare != "whole",
        "a schedule": isinstance(drawn.schedule, Schedule) and not holds_model(drawn.schedule.place),
        "memory": budget is not None,
        "a store": isinstance(given.ds, StoredGraph),
    }
    refused = [name for name, is_given in others.items() if is_given]
    if refused and drawn.cuda_graphs == "on":
        raise ConfigError(f"cuda_graphs='on' cannot be combined with {refused[0]}")
    if not refused:
        batch.replays = Replays(drawn.cuda_graphs)


def planned(
    given: Given, budget: RunBudget | None, machine: Machine, modes: Sequence[str] = PLANNED
) -> tuple[Plan, Steps]:
    """The plan for a graph in memory, and its steps, which have not run yet.

    ``modes``: those that may be taken.

    Raises: MemoryBudgetError where no mode fits into ``budget``; ConfigError for options that do not fit.
    """
    if budget is not None and isinstance(given.drawn.schedule, Schedule):
        raise ConfigError(f"memory cannot be combined with {_named(given.drawn.schedule)}")
    room = budget or unlimited(given.ds)
    made: dict[str, Steps] = {}
    strategies = []
    with torch.random.fork_rng(devices=[]):
        for mode in PLANNED:
            if mode not in modes:
                strategies.append(Strategy(mode, refused=f"mode {' or '.join(modes)} was asked for"))
                continue
            room.forget()
            try:
                strategies.append(_priced(mode, given, room, machine, made))
            except MemoryBudgetError as failure:
                if not failure.reached:
                    raise
                made.pop(mode, None)
                base = base_needs(given.ds, given.model, room)
                strategies.append(Strategy(mode, needs=_sized(given, base, mode).beyond(failure.reached)))
            except ConfigError as failure:
                if mode == "full" or given.drawn != USUALLY_DRAWN or len(modes) == 1:
                    raise  # the user's options, or nothing else that could be taken
                strategies.append(Strategy(mode, refused=str(failure)))
    base = base_needs(given.ds, given.model, room)
    strategies = [_as_of_now(strategy, base) for strategy in strategies]
    strategies.append(Strategy("macro", refused="holds the graph in memory as mini does; a store on disk needs less"))
    room.forget()
    plan = choose(strategies, statistics_of(given.ds), None if budget is None else budget.limit, str(machine))
    batch = made.pop(plan.mode)
    made.clear()
    POOL.trim()
    told, needs = order_planned(given, batch, budget, plan.strategy.needs)
    plan = replace(plan, strategy=replace(plan.strategy, needs=needs))
    return replace(plan, schedule=batch.where(), order=told), batch


def _as_of_now(strategy: Strategy, base: Needs) -> Strategy:
    """``strategy`` with what the process has taken for programs by now: those of modes that were priced later, too."""
    needs = strategy.needs
    if needs is None or needs.program >= base.program:
        return strategy
    return replace(strategy, needs=replace(needs, program=base.program))


def _priced(mode: str, given: Given, room: RunBudget, machine: Machine, made: dict[str, Steps]) -> Strategy:
    """A mode with its price; its steps go into ``made``."""
    if mode == "full":
        made[mode] = full = full_batch(given)
        return full_strategy(full, room, machine)
    made[mode] = mini = sampled(given._replace(mode="mini", memory=None, scratch=None))
    return mini_strategy(mini, room, machine)


def full_batch(given: Given) -> FullBatch:
    """Steps over all nodes. Raises: ConfigError where replays were asked for, and there are none."""
    graphs = given.drawn.cuda_graphs
    data = (given.ds, features_of(given.ds), given.update)
    labels = (given.loop.target, given.loop.metrics)
    shared = given.ranks.is_shared or isinstance(given.ds, PartDataset)
    made: Callable[..., FullBatch] = (
        partial(RankedFullBatch, given.ranks, together=given.order != "given") if shared else FullBatch
    )
    place = device_of(given.model)
    make = None if shared else target_of(place).recorder
    if graphs != "off" and make is not None and (recorder := make(place)) is not None:
        made = partial(DeviceFullBatch, asked=graphs, recorder=recorder)
    elif graphs == "on":
        what = "ranks" if shared else f"mode={given.mode!r} where it takes all nodes at once on {place}"
        raise ConfigError(f"cuda_graphs='on' cannot be combined with {what}")
    return made(adapted(given.model), *data, given.keep_features, given.edges, *labels)


def sampled(given: Given) -> MiniBatch:
    """Steps over some rows. Raises: ConfigError for options that do not fit the task or each other."""
    drawn, loop = given.drawn, given.loop
    check_given(spec.TrainSpec, {"batch_size": drawn.batch_size, "accumulate": drawn.accumulate})
    given = given._replace(model=given.model if given.task == "unsupervised" else adapted(given.model))
    kind = _kind_of(given)
    setup = Setup(
        given.model,
        given.ds,
        features_of(given.ds),
        given.update,
        drawn,
        given.seed,
        given.key,
        target=loop.target,
        loss=loop.chosen.loss,
        metrics=loop.metrics,
        memory=given.memory,
        scratch=given.scratch,
        ranks=given.ranks if given.ranks.is_shared else None,
    )
    batch = kind(setup)
    batch.use(given.edges)
    return batch


def _kind_of(given: Given) -> type[MiniBatch]:
    """What takes the steps: by place, then by where the data are, then by task and mode.

    Raises: ConfigError for tasks, data and options that it does not have.
    """
    drawn, linked = given.drawn, given.task == "link"
    if isinstance(drawn.schedule, Schedule) and not holds_model(drawn.schedule.place):
        check_apart(given, _named(drawn.schedule), ("nodes",))
        return ScheduledMiniBatch
    if draws_on_device(given.model):
        return _kind_on_device(given)
    if isinstance(drawn.schedule, Schedule):
        raise ConfigError(f"{_named(drawn.schedule)} cannot be combined with a model on {device_of(given.model)}")
    if given.task == "unsupervised":
        _check_without_labels(drawn)
        return EmbeddingTask
    if isinstance(given.ds, StoredGraph):
        _check_stored(given)
        return DiskLinkTask if linked else DiskBatches
    if given.mode == "macro":
        if linked:
            return GroupedLinks
        check_macro_run(given.ds, given.task, drawn.sampler, drawn.prepare, given.edges.inputs is not None)
        return Grouped
    if linked:
        return RankedLinkTask if given.ranks.is_shared else LinkTask
    if given.ranks.is_shared:
        return RankedMiniBatch
    return WholeEdgeTask if given.mode == "full" else _KINDS.get(given.task, MiniBatch)


def _check_without_labels(drawn: Drawn) -> None:
    """Raises: ConfigError for options that a model without labels does not take."""
    usual = Drawn(None, drawn.batch_size, None, 1, "neighbor", "whole")
    for name, value, wanted in zip(Drawn._fields, drawn, usual, strict=True):
        if value != wanted:
            raise ConfigError(f"{name} cannot be combined with a model that learns without labels; leave it out")


def _check_stored(given: Given) -> None:
    """Raises: ConfigError for what does not train on a store."""
    if given.task not in ("nodes", "link") or given.ranks.is_shared:
        what = "ranks" if given.ranks.is_shared else f"task={given.task}"
        raise ConfigError(f"{what} cannot be combined with a store; gw.load(path) reads it into memory")


def _kind_on_device(given: Given) -> type[MiniBatch]:
    """What takes steps where the model is. Raises: ConfigError for tasks, data and options that only the CPU has."""
    check_drawn_there(given)
    schedule = given.drawn.schedule if isinstance(given.drawn.schedule, Schedule) else None
    if given.task == "link":
        check_link(given.drawn)
        if schedule is not None and schedule.share not in ("auto", "cpu"):
            raise ConfigError(f"task='link' cannot be combined with schedule={schedule.share}")
        return DeviceLinkTask
    shared = schedule is not None and _is_shared_out(schedule, given.drawn, given.memory)
    return SharedMiniBatch if shared else DeviceMiniBatch


def _is_shared_out(schedule: Schedule, drawn: Drawn, memory: Any) -> bool:
    """Whether the CPU may prepare batches of the model's device; "auto" does not where options exclude it.

    Raises: ConfigError for a side that was asked for with options that exclude it.
    """
    refused = {"accumulate": drawn.accumulate > 1, "memory": memory is not None}
    for name, is_given in refused.items():
        if is_given and schedule.share not in ("auto", "device"):
            raise ConfigError(f"{name} cannot be combined with schedule={schedule.share}")
    return schedule.share != "device" and not any(refused.values())


def _named(schedule: Any) -> str:
    """The place of a schedule, as messages call it."""
    return f"device={schedule.place.name}"
