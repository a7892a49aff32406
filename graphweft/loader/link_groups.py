"""Link prediction in groups of parts: pairs inside of a group, and the graph without pairs that are held out.

Comes in: a :class:`PartSource` and a seed. Goes out: :class:`LinkBatch` after batch; the source without edges that are
held out. Called by link prediction in mode "macro". Whether a pair is held out follows from a hash of its two nodes, so
both directions are, and no list of pairs is needed.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft._draws import mixed
from graphweft._torch_private import hosted
from graphweft.loader.group_loader import GroupLoader, PlannedGroup, ReadAhead
from graphweft.loader.groups import Group
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import LinkBatch
from graphweft.loader.parts import PartSource
from graphweft.sample.hashed import hashed
from graphweft.sample.permutation import permutation
from graphweft.sample.stages import Key
from graphweft.storage.store import Store

VAL, TEST = 0.05, 0.1


def share_of(src: NDArray[np.integer[Any]], dst: NDArray[np.integer[Any]], nodes: int, seed: int) -> NDArray[np.uint8]:
    """0 for pairs to train on and loops, 1 for validation, 2 for the test; alike for both directions.

    Example:
        >>> one, back = share_of(np.array([3]), np.array([5]), 9, 0), share_of(np.array([5]), np.array([3]), 9, 0)
        >>> bool(one == back)
        True
    """
    low, high = np.minimum(src, dst).astype(np.int64), np.maximum(src, dst).astype(np.int64)
    draw = hashed(low * nodes + high, seed) / 2**64
    found = np.where(draw < VAL, 1, np.where(draw < VAL + TEST, 2, 0)).astype(np.uint8)
    return np.where(low == high, 0, found).astype(np.uint8)


class TrainingParts:
    """A source without the edges that are held out.

    Args:
        source: Without types and weights.
        seed: Says which pairs are held out.
    """

    def __init__(self, source: PartSource, seed: int) -> None:
        self._source, self._seed = source, seed
        self.bounds, self.regions, self.edge_counts = source.bounds, source.regions, source.edge_counts
        self.num_features, self.feature_dtype = source.num_features, source.feature_dtype
        self.feature_bytes, self.types, self.has_weights = source.feature_bytes, None, False
        self.features_into, self.labels, self.read_ahead = source.features_into, source.labels, source.read_ahead
        self.feature_rows, self.feature_rows_into = source.feature_rows, source.feature_rows_into
        self.stored = source if isinstance(source, Store) else None

    def structure(self, number: int) -> tuple[Ids, NDArray[np.integer[Any]]]:
        """Offsets, and sources of in-edges, ascending in every row."""
        offsets, sources = self._source.structure(number)
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        kept = share_of(sources, rows + self.bounds[number], int(self.bounds[-1]), self._seed) == 0
        counts = np.bincount(rows[kept], minlength=len(offsets) - 1)
        return np.concatenate([[0], np.cumsum(counts)]), sources[kept]

    def edge_columns(self, number: int) -> tuple[None, None]:
        """Neither relations nor weights."""
        return None, None


def pairs_by_parts(source: TrainingParts) -> Ids:
    """(parts, parts) edges to train on from each part (columns) into each (rows), loops left out."""
    parts = len(source.bounds) - 1
    found = np.zeros((parts, parts), np.int64)
    for number in range(parts):
        offsets, sources = source.structure(number)
        own = np.repeat(np.arange(source.bounds[number], source.bounds[number + 1]), np.diff(offsets))
        of = np.searchsorted(source.bounds[1:], sources[sources != own], "right")
        found[number] = np.bincount(of, minlength=parts)
    return found


class LinkGroupLoader(GroupLoader):
    """Edges inside of groups of parts with negatives of the same group, and the neighbourhoods of their ends.

    An epoch takes every edge inside of one of its groups once, with its reverse where that is an edge; messages pass
    over neither. Negatives are pairs of the group that are no edges, held out or not.

    ``batch.group`` is the group; ids of nodes are those of it.

    Args: as for :class:`GroupLoader`, without seeds, hubs and ``reuse``; ``seed`` also says what is held out.
    """

    who = "LinkGroupLoader"

    @hosted
    def __init__(
        self,
        source: PartSource,
        fanouts: Any,
        batch_size: int,
        shuffle: bool,
        seed: int,
        *,
        count: int,
        keep: int = 0,
    ) -> None:
        self.pairs = pairs_by_parts(TrainingParts(source, seed))
        self._drawing: tuple[Group, LinkLoader, Tensor] | None = None  # of the group that ready() was called for
        seeds = torch.empty(0, dtype=torch.int64)
        super().__init__(source, seeds, fanouts, batch_size, shuffle, seed, count=count, keep=keep)

    def _planned(self, key: Key) -> list[PlannedGroup]:
        shared = self._order(key)
        turn = shared.order.numpy()
        found: list[PlannedGroup] = []
        first = 0
        for number, begin in enumerate(range(0, len(turn), self.count)):
            chosen = np.sort(turn[begin : begin + self.count])
            count = int(self.pairs[np.ix_(chosen, chosen)].sum())
            if count:
                places = torch.zeros((), dtype=torch.int64).expand(count)  # of which the number alone is read
                drawn = replace(key, seed=mixed(self.seed, number))
                parts, kept = tuple(chosen.tolist()), shared.held_after(begin + self.count)
                found.append(PlannedGroup(parts, places, places, drawn, first, len(found), kept))
                first += -(-count // self.batch_size)
        return found

    def most_batches(self) -> int:
        """Batches of a group at the most; those of an epoch, as edges inside of a group differ with its parts."""
        return self._length(0)

    def _preparer(self, epoch: int) -> Callable[[int], Any]:
        plan = self.plan(epoch)
        firsts = [group.first for group in plan]
        ahead = self._ahead = ReadAhead(self.source, plan, None, self.times)
        links: dict[int, tuple[Group, LinkLoader, Tensor]] = {}

        def prepare(position: int) -> LinkBatch:
            planned = plan[bisect.bisect_right(firsts, position) - 1]
            group = ahead.get(planned.number)
            with self._turned:
                if planned.number not in links:
                    links.clear()
                    links[planned.number] = (group, *self._links(group, planned, epoch))
            return self._batch(*links[planned.number], position - planned.first, epoch)

        return prepare

    def _batch(self, group: Group, loader: LinkLoader, order: Tensor, number: int, epoch: int) -> LinkBatch:
        """A batch of a group, by its number in it."""
        begin = number * self.batch_size
        batch = loader.make(order[begin : begin + self.batch_size], epoch)
        batch.x = group.rows(batch.n_id)
        batch.group = group
        return batch

    def ready(self, planned: PlannedGroup, group: Group) -> object:
        """As for nodes; it stays until :meth:`forget`."""
        self._drawing = (group, *self._links(group, planned, 0))
        return None

    def forget(self) -> None:
        """Lets go of what :meth:`ready` made."""
        self._drawing = None

    def batch_of(self, planned: PlannedGroup, group: Group, number: int) -> LinkBatch:
        """A batch of the first epoch, of the group that is ready."""
        if self._drawing is None or self._drawing[0] is not group:
            self.ready(planned, group)
        assert self._drawing is not None  # made above
        return self._batch(*self._drawing, number, 0)

    def _links(self, group: Group, planned: PlannedGroup, epoch: int) -> tuple[LinkLoader, Tensor]:
        """What draws the batches of a group, and the order of its edges."""
        src, dst = (ends.long() for ends in group.graph.edges())
        names, nodes = group.n_id.numpy(), int(self.source.bounds[-1])
        trained = torch.from_numpy(share_of(names[src.numpy()], names[dst.numpy()], nodes, self.seed) == 0)
        graph = group.graph.edge_subgraph(trained.nonzero().reshape(-1))
        wanted = trained & (src != dst)
        ends = torch.stack([src[wanted], dst[wanted]])
        seed = planned.key.seed
        given: dict[str, Any] = {"seed": seed, "known": group.graph, "exclude": "both", "prefetch": 0}
        order = permutation(ends.shape[1], seed, epoch) if self.shuffle else torch.arange(ends.shape[1])
        return LinkLoader(graph, ends, None, self.fanouts, self.batch_size, **given), order


__all__ = ["LinkGroupLoader", "TrainingParts", "pairs_by_parts", "share_of"]
