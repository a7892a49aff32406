"""What groups of parts with neighbours would take, and how many edges they would keep, before any group is made.

Comes in: a :class:`PartSource`, training nodes. Goes out: sizes of what parts bring, and the share of edges that groups
have, by the parts of a group and the neighbours of each. Called by the choice of neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphweft.loader.neighbours import BroughtSizes, ranked
from graphweft.loader.parts import PartSource

_ID = 8


class Prospect:
    """Groups that could be made of some parts.

    Args:
        source: The parts.
        seeds: int64 training nodes, ascending.
        steps: Steps of the walks that find neighbours, one for each layer.
        most: The most that is asked about: how many times its nodes a part brings. 0: nothing is looked for.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> graph, part = Graph([1, 2, 3, 4], [0, 0, 0, 0], num_nodes=6), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> found = Prospect(MemoryParts(graph, None, torch.zeros(6), part, 3), torch.tensor([0]), 1, most=0.5)
        >>> found.kept([(1, 0.0), (2, 0.0), (1, 0.5), (3, 0.0)]), found.sizes(0.5).nodes.tolist()
        ([0.25, 0.625, 0.5, 1.0], [1, 0, 0])
    """

    def __init__(self, source: PartSource, seeds: Tensor, steps: int, most: float) -> None:
        self._source, self._sizes = source, np.diff(source.bounds)
        self._brought: list[NDArray[Any]] = [np.empty(0, np.int64)] * len(self._sizes)
        if not most:
            return
        degrees, self._brought = np.empty(int(source.bounds[-1]), np.int64), []
        for walk, ids in ranked(source, seeds, steps, most):
            degrees[walk.first : walk.end] = np.diff(walk.offsets)
            self._brought.append(ids)
        self._entries = [np.cumsum(degrees[ids]) for ids in self._brought]

    def sizes(self, share: float) -> BroughtSizes:
        """How much each part brings; nodes of a typed graph as if all had features."""
        counts = [min(int(share * size), len(ids)) for ids, size in zip(self._brought, self._sizes, strict=True)]
        entries = [int(sums[count - 1]) if count else 0 for sums, count in zip(self._entries, counts, strict=True)]
        nodes = np.array(counts, np.int64)
        found = BroughtSizes.of(self._source, nodes, np.array(entries, np.int64), nodes, nodes)
        return replace(found, nbytes=found.group_bytes(_ID))

    def kept(self, ways: Sequence[tuple[int, float]]) -> list[float]:
        """The share of the edges that groups keep, the mean over all choices of the parts of a group.

        Edges into the nodes of parts count, as in ``edges_kept`` of a run's history. ``ways``: parts of a group, and
        how many times its nodes a part brings, of each way that is asked about.
        """
        source, parts = self._source, len(self._sizes)
        bringing = {share: self._bringing(share) for share in {share for _, share in ways}}
        absent = [_absent(parts, count) for count, _ in ways]
        kept = np.zeros(len(ways))
        for number, (first, end) in enumerate(zip(source.bounds[:-1], source.bounds[1:], strict=True)):
            sources = source.structure(number)[1]
            outside = sources[(sources < first) | (sources >= end)]
            ids, edges = np.unique(outside, return_counts=True)
            for at, (_, share) in enumerate(ways):
                is_own = np.isin(ids, self._brought[number][: int(share * self._sizes[number])])
                # else it comes with its own part, or one of those that bring it
                chance = np.where(is_own, 1.0, 1.0 - absent[at][1 + bringing[share][ids] - is_own])
                kept[at] += len(sources) - len(outside) + float(edges @ chance)
        total = int(source.edge_counts.sum())
        found: list[float] = (kept / total if total else np.ones(len(ways))).tolist()
        return found

    def _bringing(self, share: float) -> NDArray[np.int32]:
        """How many parts bring each node."""
        found = np.zeros(int(self._source.bounds[-1]), np.int32)
        for ids, size in zip(self._brought, self._sizes, strict=True):
            found[ids[: int(share * size)]] += 1
        return found


def _absent(parts: int, count: int) -> NDArray[np.float64]:
    """The chance that a group of ``count`` parts, one of them given, has none of k others, for k from 0 on."""
    others = np.arange(parts - 1)
    return np.concatenate([[1.0], np.cumprod(np.maximum(parts - count - others, 0) / (parts - 1 - others))])


__all__ = ["Prospect"]
