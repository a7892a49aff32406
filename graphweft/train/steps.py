"""The way to take a step that task and mode ask for.

Comes in: what a trainer was given. Goes out: a :class:`FullBatch`, or one of the kinds of :class:`MiniBatch`. Called by
the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from graphweft._errors import ConfigError, MemoryBudgetError
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.data.stored_graph import StoredGraph
from graphweft.dist.ranks import Ranks
from graphweft.interop.pyg_model import adapted
from graphweft.train.chosen import Loop
from graphweft.train.disk_batches import DiskBatches
from graphweft.train.edge_data import EdgeData
from graphweft.train.edge_task import EdgeTask, WholeEdgeTask
from graphweft.train.embedding_task import EmbeddingTask
from graphweft.train.full_batch import FullBatch, features_of
from graphweft.train.graph_task import GraphTask
from graphweft.train.grouped import Grouped, check_macro_run
from graphweft.train.link_task import LinkTask
from graphweft.train.macro import Macro
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.mini_needs import fit_into
from graphweft.train.needs import RunBudget, base_needs
from graphweft.train.options import EDGE_TASKS, GRAPH_TASKS, check_counts
from graphweft.train.ranked_full import RankedFullBatch
from graphweft.train.ranked_mini import RankedMiniBatch
from graphweft.train.samplers import AnySampler
from graphweft.train.update import Update

_KINDS: dict[str, type[MiniBatch]] = {**dict.fromkeys(GRAPH_TASKS, GraphTask), **dict.fromkeys(EDGE_TASKS, EdgeTask)}


class Drawn(NamedTuple):
    """How batches are made; see the keywords of :class:`gw.Trainer`."""

    fanouts: tuple[int, ...] | None
    batch_size: int
    macro: Macro | None
    accumulate: int
    sampler: str | AnySampler
    prepare: str


class Given(NamedTuple):
    """What a step is made of.

    Attributes:
        model: The model.
        ds: The data.
        update: Steps in the place of the optimiser.
        loop: What the user chose about the loop.
        edges: Weights and features of edges that the model reads.
        task: The task of the trainer.
        mode: "full", "mini" or "macro".
        ranks: The processes that train together.
    """

    model: nn.Module
    ds: Dataset
    update: Update
    loop: Loop
    edges: EdgeData
    task: str
    mode: str
    ranks: Ranks


def make_steps(
    given: Given,
    drawn: Drawn,
    keep_features: bool,
    keys: tuple[int, Callable[[int, int], int]],
    memory: Any,
    scratch: Path | None,
    budget: RunBudget | None,
) -> tuple[str, FullBatch | MiniBatch]:
    """The mode, "full" or "mini" for "auto", and its steps, within ``budget`` where there is one.

    Args:
        given: What a step is made of.
        drawn: How batches are made.
        keep_features: As for :class:`FullBatch`.
        keys: The seed, and (epoch, place of the batch) -> seed of torch's draws in that step.
        memory: For groups of parts.
        scratch: A folder for their files.
        budget: The memory of a run in memory.

    Raises: ConfigError for options that do not fit the task or each other, MemoryBudgetError.
    """
    if budget is not None:
        budget.check_least(base_needs(given.ds, given.model))
    if given.mode in ("full", "auto") and given.task not in EDGE_TASKS:
        batch = full_batch(given, keep_features)
        try:
            if budget is not None:
                batch.fit_into(budget)
        except MemoryBudgetError as too_small:
            if given.mode == "full":
                raise
            refused = too_small
        else:
            return "full", batch
        del batch
        POOL.trim()
        mini = sampled(given._replace(mode="mini"), drawn, *keys, memory, scratch)
        assert budget is not None  # it refused
        budget.keep_at_most(None)
        try:
            fit_into(mini, budget)
        except MemoryBudgetError as failure:
            raise (failure if failure.least < refused.least else refused) from None
        return "mini", mini
    mini = sampled(given, drawn, *keys, memory, scratch)
    if budget is not None:
        fit_into(mini, budget)
    return given.mode, mini


def full_batch(given: Given, keep_features: bool) -> FullBatch:
    """Steps over all nodes."""
    data = (given.ds, features_of(given.ds), given.update)
    labels = (given.loop.target, given.loop.metrics)
    made: Callable[..., FullBatch] = partial(RankedFullBatch, given.ranks) if given.ranks.is_shared else FullBatch
    return made(adapted(given.model), *data, keep_features, given.edges, *labels)


def sampled(
    given: Given, drawn: Drawn, seed: int, key: Callable[[int, int], int], memory: Any, scratch: Path | None
) -> MiniBatch:
    """Steps over some rows. ``memory`` and ``scratch`` are for groups of parts.

    Raises: ConfigError for options that do not fit the task or each other.
    """
    check_counts(batch_size=drawn.batch_size, accumulate=drawn.accumulate)
    loop = given.loop
    model = given.model if given.task == "unsupervised" else adapted(given.model)
    data = (given.ds, features_of(given.ds), given.update)
    keys = (seed, key)
    own: dict[str, Any] = {"target": loop.target, "metrics": loop.metrics}
    batch: MiniBatch
    if given.task == "unsupervised":
        usual = Drawn(None, drawn.batch_size, None, 1, "neighbor", "whole")
        for name, value, wanted in zip(Drawn._fields, drawn, usual, strict=True):
            if value != wanted:
                raise ConfigError(f"{name} cannot be combined with a model that learns without labels; leave it out")
        return EmbeddingTask(given.model, *data, drawn.batch_size, *keys, loop.metrics)
    if isinstance(given.ds, StoredGraph):
        if given.task != "nodes" or given.ranks.is_shared:
            what = "ranks" if given.ranks.is_shared else f"task={given.task}"
            raise ConfigError(f"{what} cannot be combined with a store; gw.load(path) reads it into memory")
        own |= {"memory": memory, "scratch": scratch}
        on_disk: Callable[..., MiniBatch] = DiskBatches
        batch = on_disk(model, *data, drawn.fanouts, drawn.batch_size, *keys, *drawn[2:], **own)
    elif given.task == "link":
        if drawn.macro is not None or drawn.accumulate > 1 or drawn.sampler != "neighbor" or drawn.prepare != "whole":
            raise ConfigError("task='link' cannot be combined with macro, accumulate, sampler or prepare")
        own = {"loss": loop.chosen.loss, "metrics": loop.metrics}
        batch = LinkTask(model, *data, drawn.fanouts, drawn.batch_size, *keys, **own)
    elif given.mode == "macro":
        check_macro_run(given.ds, given.task, drawn.sampler, drawn.prepare, given.edges.inputs is not None)
        own |= {"memory": memory, "scratch": scratch}
        drawing = (drawn.fanouts, drawn.batch_size)
        return Grouped(model, *data, *drawing, *keys, drawn.macro, drawn.accumulate, **own)
    else:
        kind = WholeEdgeTask if given.mode == "full" else _KINDS.get(given.task, MiniBatch)
        made: Callable[..., MiniBatch] = kind
        made = partial(RankedMiniBatch, given.ranks) if given.ranks.is_shared else made
        batch = made(model, *data, drawn.fanouts, drawn.batch_size, *keys, *drawn[2:], **own)
    batch.use(given.edges)
    return batch
