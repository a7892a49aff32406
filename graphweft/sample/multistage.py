"""Nested stages of sampling: batches drawn from macro-batches drawn from the graph.

Comes in: a graph, seeds and stages. Goes out: for every epoch an :class:`EpochPlan`, its batches by position, each a
:class:`NestedSample` in the ids of the whole graph. Called by the multistage loader. Source: thesis, algorithm 1: any
number of stages, any of them any sampler. A plan follows from seeds and key alone, so a run goes on at any position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweft._checks import check_rows
from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.sample.sampler import Sample
from graphweft.sample.stages import Key, LargeBatch, Level, Parts, Stage, Whole

Path = tuple[int, ...]  # numbers of the groups, from the outermost stage inwards


@dataclass(frozen=True)
class Planned:
    """One batch of an epoch.

    Attributes:
        path: The group of every stage before the last.
        group: Its number within the last of those groups.
        places: int64 places of its seeds among all seeds.
        within: int64 places of its seeds among those of the last group.
    """

    path: Path
    group: int
    places: Tensor
    within: Tensor


class EpochPlan:
    """Which seeds are where in an epoch.

    Attributes:
        batches: All batches in order.
        groups: For every path, its seeds' places among those of the group around it.
    """

    def __init__(self, seeds: Tensor, stages: Sequence[Stage], key: Key) -> None:
        self.batches: list[Planned] = []
        self.groups: dict[Path, Tensor] = {}
        self.keys: dict[Path, Key] = {(): key}
        self._spread(seeds, stages, (), torch.arange(seeds.numel()))

    def _spread(self, seeds: Tensor, stages: Sequence[Stage], path: Path, places: Tensor) -> None:
        stage, key = stages[len(path)], self.keys[path]
        last = len(path) == len(stages) - 1
        for group, within in enumerate(stage.split(seeds[places], key)):
            if within.numel() == 0:
                continue
            if last:
                self.batches.append(Planned(path, group, places[within], within))
                continue
            inner = (*path, group)
            self.groups[inner] = within
            self.keys[inner] = key if isinstance(stage, Whole) else key.within(group, isinstance(stage, Parts))
            self._spread(seeds, stages, inner, places[within])


@dataclass(frozen=True)
class NestedSample:
    """One batch.

    Attributes:
        sample: Its structure in ids of the whole graph.
        nodes: int64 (nodes,): the same nodes in the numbers of the level they were drawn from.
        halo: (nodes,) bool: nodes whose in-edges are missing by design; None: no node.
    """

    sample: Sample
    nodes: Tensor
    halo: Tensor | None


class Nest:
    """Nested stages over a graph.

    Args:
        graph: The whole graph.
        seeds: int64 distinct ids.
        stages: From the outermost inwards; the last one makes the batches.

    Raises: ConfigError without a last stage that samples neighbours, ShapeError for a partition of another graph.

    Example:
        >>> graph = Graph([1, 2, 3, 0], [0, 1, 2, 3])
        >>> nest = Nest(graph, torch.arange(4), [LargeBatch(2, (2, 2)), LargeBatch(1, (-1, -1))])
        >>> plan = nest.plan(Key(0, 0, shuffle=False))
        >>> [(batch.path, nest.batch(plan, i).sample.n_id.tolist()) for i, batch in enumerate(plan.batches)]
        [((0,), [0, 1, 2]), ((0,), [1, 2, 3]), ((1,), [2, 3, 0]), ((1,), [3, 0, 1])]
    """

    def __init__(self, graph: Graph, seeds: Tensor, stages: Sequence[Stage]) -> None:
        if not stages or not isinstance(stages[-1], LargeBatch) or isinstance(stages[-1].size, float):
            raise ConfigError("Nest: expected a last stage that makes batches of a number of seeds")
        for stage in stages:
            if isinstance(stage, Parts):
                check_rows("Parts part", stage.part, graph.num_nodes, "node")
        self.stages: tuple[Stage, ...] = tuple(stages)
        self.last: LargeBatch = stages[-1]
        self.seeds = seeds
        self.root = Level(graph, seeds)

    def plan(self, key: Key) -> EpochPlan:
        """The batches of an epoch."""
        return EpochPlan(self.seeds, self.stages, key)

    def level(self, plan: EpochPlan, path: Path, around: Level) -> Level:
        """What the group ``path`` takes with it from the level around it."""
        seeds = around.seeds[plan.groups[path]]
        stage = self.stages[len(path) - 1]
        if isinstance(stage, Whole) and seeds.numel() == around.seeds.numel():
            return around
        return stage.draw(around, seeds, path[-1], plan.keys[path[:-1]])

    def innermost(self, plan: EpochPlan, path: Path) -> Level:
        """The level of a path, all levels around it drawn anew."""
        level = self.root
        for depth in range(1, len(path) + 1):
            level = self.level(plan, path[:depth], level)
        return level

    def sample(self, plan: EpochPlan, planned: Planned, level: Level, touched: Tensor | None = None) -> NestedSample:
        """One batch from its level; ``touched`` as :meth:`Level.in_whole` takes it."""
        local = self.last.sample(level, level.seeds[planned.within], plan.keys[planned.path])
        halo = None if level.halo is None else level.halo[local.n_id]
        return NestedSample(level.in_whole(local, touched), local.n_id, halo)

    def batch(self, plan: EpochPlan, position: int) -> NestedSample:
        """The batch at a position, all of its levels drawn anew."""
        planned = plan.batches[position]
        return self.sample(plan, planned, self.innermost(plan, planned.path))
