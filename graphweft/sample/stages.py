"""Stages of nested sampling: how seeds are dealt into groups, and what part of the graph a group takes with it.

Comes in: a :class:`Level`, the graph that a stage draws from. Goes out: groups of its seeds, and for each a smaller
level. Called by :mod:`graphweft.sample.multistage`. Sources: multistage sampling (thesis, section 3.1), Joestar's
large-batch and partition-based sampling (section 5.2).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from graphweft._draws import mixed
from graphweft._errors import ConfigError, DtypeError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.graph import Graph
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample, check_fanouts
from graphweft.sample.segment import SegmentSampler

_compose = declare("gw_sample_compose")
_permutation = declare("gw_permutation")


@dataclass(frozen=True)
class Key:
    """What the random draws of a stage follow from.

    Draws of a node follow from its id in the whole graph besides, whatever its number in a group.

    Attributes:
        seed: Of the run; inside a group of an earlier stage, mixed with that group's number.
        epoch: Counts from 0.
        stage: Stages before this one, those that take everything left out.
        shuffle: Seeds are dealt in random order, and no stage before has done it.
        drawn: What draws of nodes go by in place of ``seed``; None: by ``seed``.
    """

    seed: int
    epoch: int
    stage: int = 0
    shuffle: bool = True
    drawn: int | None = None

    def sample(self, sampler: NeighborSampler | SegmentSampler, seeds: Tensor) -> Sample:
        """What the sampler draws around the seeds."""
        seed = self.seed if self.drawn is None else self.drawn
        return sampler.sample(seeds, seed=seed, epoch=self.epoch, stage=self.stage)

    def within(self, group: int, disjoint: bool = False) -> Key:
        """The key of the next stage inside a group; nodes of ``disjoint`` groups draw as they would without groups.

        Example:
            >>> Key(1, 0).within(2) == Key(1, 0).within(2), Key(1, 0).within(2).seed == Key(1, 0).within(3).seed
            (True, False)
        """
        drawn = None if not disjoint else self.seed if self.drawn is None else self.drawn
        return Key(mixed(self.seed, group), self.epoch, self.stage + 1, False, drawn)


class Level:
    """A graph on one tier of memory, with seeds to train on.

    Attributes:
        graph: Its structure; nodes have numbers of their own.
        seeds: int64 numbers of the seeds.
        n_id: int64 (nodes,) ids in the whole graph; None: this is the whole graph.
        halo: (nodes,) bool: nodes whose in-edges were left out because sampling stops there; None: no node.
        above: int64 (nodes,) numbers in the level this one was drawn from; None: this is the whole graph.
        whole: The whole graph.
    """

    def __init__(self, whole: Graph, seeds: Tensor) -> None:
        self.whole = self.graph = whole
        self.seeds = seeds
        self.n_id: Tensor | None = None
        self.halo: Tensor | None = None
        self.above: Tensor | None = None
        self._places: Tensor | None = None
        self._samplers: dict[tuple[int, ...], NeighborSampler] = {}

    def drawn(self, sample: Sample, seeds: int, halo: Tensor | None = None) -> Level:
        """The level of what was sampled from this one; its first ``seeds`` nodes are its seeds."""
        indptr, indices, places = _one_structure(sample)
        lower = Level(self.whole, torch.arange(seeds))
        lower.graph = Graph.from_adjacency(Adjacency(indptr, indices, None, sample.num_nodes))
        lower.above, lower.n_id = sample.n_id, self.ids(sample.n_id)
        inherited = None if self.halo is None else self.halo[sample.n_id]
        lower.halo = halo if inherited is None else inherited if halo is None else inherited | halo
        lower._places = self._in_whole(sample.n_id, indptr, places, None)
        return lower

    def ids(self, nodes: Tensor) -> Tensor:
        """Ids in the whole graph."""
        return nodes if self.n_id is None else self.n_id[nodes]

    def sampler(self, fanouts: tuple[int, ...]) -> NeighborSampler:
        """A sampler of this level, made once."""
        if fanouts not in self._samplers:
            self._samplers[fanouts] = NeighborSampler(self.graph, fanouts, names=self.n_id)
        return self._samplers[fanouts]

    def in_whole(self, sample: Sample, touched: Tensor | None = None) -> Sample:
        """``sample`` of this level with ids and edges of the whole graph; rows and numbers of the batch stay.

        ``touched``, a byte per edge of this level, becomes 1 where the sample has the edge.
        """
        if self.n_id is None:
            return sample
        n_id = self.ids(sample.n_id)
        known: dict[int, Tensor] = {}  # blocks are beginnings of what was drawn

        def moved(part: DrawnEdges) -> DrawnEdges:
            places = known.get(part.offsets.data_ptr())
            if places is None or places.numel() < part.offsets.numel():
                places = self._in_whole(sample.n_id, part.indptr, part.offsets, touched)
                known[part.offsets.data_ptr()] = places
            return DrawnEdges(self.whole, n_id, part.indptr, part.indices, places[: part.offsets.numel()], part.first)

        drawn = tuple(moved(part) for part in sample._drawn)
        blocks = tuple(Block.of(moved(block._drawn), block.num_src) for block in sample.blocks)
        return Sample(n_id, sample.batch_size, blocks, drawn)

    def _in_whole(self, nodes: Tensor, indptr: Tensor, places: Tensor, touched: Tensor | None) -> Tensor:
        """Places within rows of the whole graph for places within rows of this level."""
        if self._places is None or places.numel() == 0:
            return places
        out = empty((places.numel(),), torch.int32)
        rows = (indptr.numel() - 1, nodes.data_ptr(), indptr.data_ptr(), places.data_ptr())
        outer = (self.graph.csc.indptr.data_ptr(), self._places.data_ptr())
        _compose(*rows, *outer, out.data_ptr(), pointer(touched))
        return out


class Stage(Protocol):
    """One stage of nested sampling."""

    def split(self, ids: Tensor, key: Key) -> list[Tensor]:
        """Deals seeds, given by their ids in the whole graph, into groups of places in ``ids``; each seed once."""

    def draw(self, level: Level, seeds: Tensor, group: int, key: Key) -> Level:
        """What a group of the level's seeds takes with it; its seeds come first, in order."""

    def identity(self) -> dict[str, Any]:
        """What decides the groups and draws, for checkpoints."""


@dataclass(frozen=True)
class Whole:
    """A stage that takes the whole graph in one group."""

    def split(self, ids: Tensor, key: Key) -> list[Tensor]:
        """One group."""
        return [torch.arange(ids.numel())]

    def draw(self, level: Level, seeds: Tensor, group: int, key: Key) -> Level:
        """The level itself."""
        return level

    def identity(self) -> dict[str, Any]:
        """No settings."""
        return {"stage": "whole"}


@dataclass(frozen=True)
class LargeBatch:
    """A stage that draws the neighbourhood of ``size`` seeds (large-batch sampling).

    Attributes:
        size: Seeds of a macro-batch: a number, or a share of all seeds below 1.
        fanouts: In-edges that a node draws in each hop; None: the loader's for the first stage that samples neighbours,
            and all for later stages.

    Raises: ConfigError.

    Example:
        >>> [group.tolist() for group in LargeBatch(2, (1,)).split(torch.arange(5), Key(0, 0, shuffle=False))]
        [[0, 1], [2, 3], [4]]
    """

    size: int | float
    fanouts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        share = isinstance(self.size, float) and 0 < self.size < 1
        if not share and (isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1):
            raise ConfigError(f"LargeBatch: expected size >= 1, or a share between 0 and 1, got {self.size!r}")
        if self.fanouts is not None:
            object.__setattr__(self, "fanouts", check_fanouts("LargeBatch", self.fanouts))

    def split(self, ids: Tensor, key: Key) -> list[Tensor]:
        """Consecutive seeds of a random order."""
        return list(torch.split(permutation(ids.numel(), key), int(self.size))) if ids.numel() else []

    def draw(self, level: Level, seeds: Tensor, group: int, key: Key) -> Level:
        """Their sampled neighbourhood."""
        return level.drawn(self.sample(level, seeds, key), seeds.numel())

    def sample(self, level: Level, seeds: Tensor, key: Key) -> Sample:
        """The neighbourhood in the level's numbers."""
        fanouts = self.fanouts or (-1,)
        return key.sample(level.sampler(fanouts), seeds)

    def identity(self) -> dict[str, Any]:
        """Size and fan-outs."""
        return {"stage": "large", "size": self.size, "fanouts": list(self.fanouts or ())}


@dataclass(frozen=True, eq=False)
class Parts:
    """A stage that takes ``count`` parts of a partition with all in-edges, and the sources of these: the halo.

    Sampling stops at the halo. Halo nodes have no in-edges, and their hidden rows come from earlier steps.

    Attributes:
        part: (N,) part of every node of the whole graph, int32 or int64.
        count: Parts of a macro-batch.
        k: Number of parts.

    Raises: ConfigError, DtypeError.

    Example:
        >>> stage = Parts(torch.tensor([0, 0, 1, 1]), 1)
        >>> level = Level(Graph([1, 2, 3], [0, 1, 2], num_nodes=4), torch.arange(2))
        >>> key = Key(0, 0, shuffle=False)
        >>> part = stage.draw(level, stage.split(level.seeds, key)[0], 0, key)
        >>> part.n_id.tolist(), part.halo.tolist()
        ([0, 1, 2], [False, False, True])
    """

    part: Tensor
    count: int
    k: int = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.part, Tensor) or self.part.dtype not in (torch.int32, torch.int64):
            raise DtypeError(f"Parts: expected part as a tensor of integers, got {type(self.part).__name__}")
        if self.part.dim() != 1:
            raise ConfigError(f"Parts: expected one part a node, got a tensor of shape {tuple(self.part.shape)}")
        if bool((self.part < 0).any()):
            at = int((self.part < 0).nonzero()[0])
            raise ConfigError(f"Parts: expected parts >= 0, got {int(self.part[at])} at position {at}")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ConfigError(f"Parts: expected count >= 1, got {self.count!r}")
        object.__setattr__(self, "k", int(self.part.max()) + 1 if self.part.numel() else 1)

    def chosen(self, group: int, key: Key) -> Tensor:
        """int64 parts of a group."""
        return permutation(self.k, key)[group * self.count : (group + 1) * self.count]

    def split(self, ids: Tensor, key: Key) -> list[Tensor]:
        """Seeds in some parts of a random order of the parts, each group shuffled."""
        turn = torch.empty(self.k, dtype=torch.int64)
        turn[permutation(self.k, key)] = torch.arange(self.k) // self.count
        order = permutation(ids.numel(), key)
        group = turn[self.part[ids[order]].long()]
        counts = torch.bincount(group, minlength=-(-self.k // self.count)).tolist()
        return list(torch.split(order[torch.sort(group, stable=True).indices], counts))

    def draw(self, level: Level, seeds: Tensor, group: int, key: Key) -> Level:
        """All nodes of the parts, seeds first, with all of their in-edges."""
        wanted = torch.zeros(self.k, dtype=torch.bool)
        wanted[self.chosen(group, key)] = True
        part = self.part if level.n_id is None else self.part[level.n_id]
        member = wanted[part.long()]
        member[seeds] = False
        inner = torch.cat([seeds, member.nonzero().reshape(-1)])
        sample = key.sample(level.sampler((-1,)), inner)
        halo = torch.ones(sample.num_nodes, dtype=torch.bool)
        halo[: inner.numel()] = False
        return level.drawn(sample, seeds.numel(), halo)

    def identity(self) -> dict[str, Any]:
        """Parts taken, and a checksum of the partition."""
        return {"stage": "parts", "count": self.count, "k": self.k, "checksum": self._checksum}

    @functools.cached_property
    def _checksum(self) -> int:
        weights = torch.arange(1, self.part.numel() + 1) % 65521
        return int((weights * self.part).sum())


def permutation(count: int, key: Key) -> Tensor:
    """int64 order of ``count`` places under the key: theirs, or a random one."""
    if not key.shuffle:
        return torch.arange(count)
    places = torch.empty(count, dtype=torch.int64)
    _permutation(count, key.seed, key.epoch, places.data_ptr())
    return places


def _one_structure(sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets, columns and places of all edges of a sample, a row a node; nodes that drew nothing have empty rows."""
    inner, outer = sample._drawn
    start, between = outer.start, inner.num_edges
    tail = outer.indptr[outer.first :] - start + between
    indptr = empty((sample.num_nodes + 1,), torch.int64)
    rows = inner.indptr.numel() - 1
    indptr[:rows] = inner.indptr[:rows]
    indptr[rows : rows + tail.numel()] = tail
    indptr[rows + tail.numel() :] = int(tail[-1])
    indices = torch.cat([inner.indices[:between], outer.indices[start:]])
    places = torch.cat([inner.offsets[:between], outer.offsets[start:]])
    return indptr, indices, places
