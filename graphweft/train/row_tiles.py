"""Tiles of an inference: consecutive nodes with all of their in-edges, as many as there is room for the rows they read.

Comes in: parts of a graph, the nodes whose rows are wanted, bytes. Goes out: tiles, each with the distinct nodes that
its edges lead to, numbered. A row that several edges of a tile lead to is counted, read and held once. Called by
inference over parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._distinct import Ids, distinct
from graphweft.loader.parts import PartSource
from graphweft.sample.in_edges import entries_of
from graphweft.storage.block_io import aligned_empty
from graphweft.train.tiles import TileCost

_PIECES = 8  # of a tile: edges that are looked at together lead to so much of it at most


@dataclass(frozen=True)
class RowTile:
    """Some nodes with their in-edges.

    Attributes:
        own: int64 ids of the nodes, ascending.
        others: int64 ids of the other sources of their in-edges, ascending.
        indptr: int64 (own + 1,).
        sources: Ids of the sources, row after row.
        columns: int32 numbers of the sources: nodes of ``own`` first, then ``others``.
        relations: Of the edges, or None.
        weights: Of the edges, or None.
        cost: Bytes, as they were counted.
        is_over: Whether it is one node whose in-edges alone have no room.
    """

    own: Ids
    others: Ids
    indptr: Ids
    sources: NDArray[np.integer[Any]]
    columns: NDArray[np.int32]
    relations: NDArray[np.integer[Any]] | None
    weights: NDArray[np.float32] | None
    cost: int
    is_over: bool

    @property
    def ids(self) -> Ids:
        """Ids of all sources by their numbers."""
        found: Ids = np.concatenate([self.own, self.others])
        return found


class _Open:
    """The tile that rows are added to."""

    def __init__(self) -> None:
        self.own: list[Ids] = []
        self.degrees: list[Ids] = []
        self.sources: list[NDArray[np.integer[Any]]] = []
        self.relations: list[NDArray[np.integer[Any]]] = []
        self.weights: list[NDArray[np.float32]] = []
        self.reached: list[Ids] = []
        self.rows = self.nodes = self.edges = 0


class RowTiles:
    """Cuts nodes into tiles.

    Args:
        source: The parts.
        wanted: Ids of the wanted nodes of a range of ids, ascending.
        most: Bytes of a tile.
        cost: What they are counted by.
        weighted: Whether weights of edges are read.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> part = torch.tensor([0, 0, 1, 1])
        >>> source = MemoryParts(Graph([0, 3, 2], [1, 1, 0]), torch.eye(4), torch.zeros(4), part, 2)
        >>> tiles = RowTiles(source, lambda first, end: np.arange(first, end), 3, TileCost(1, 0, 0)).tiles()
        >>> [(tile.own.tolist(), tile.others.tolist()) for tile in tiles]
        [([0], [2]), ([1], [0, 3]), ([2, 3], [])]
    """

    def __init__(
        self, source: PartSource, wanted: Callable[[int, int], Ids], most: int, cost: TileCost, weighted: bool = False
    ) -> None:
        self._source, self._wanted, self._most, self._cost, self._weighted = source, wanted, most, cost, weighted
        nodes = int(source.bounds[-1])
        # where a node lies among those of the open tile: -1 for none of them
        self._number = aligned_empty((nodes,), torch.int32).numpy()
        self._number.fill(-1)

    def tiles(self, first: int = 0) -> Iterator[RowTile]:
        """The tiles of all wanted nodes from part ``first`` on; those of a typed graph end with their part."""
        bounds, held = self._source.bounds, _Open()
        for number in range(first, len(bounds) - 1):
            start = int(bounds[number])
            nodes = self._wanted(start, int(bounds[number + 1]))
            if not len(nodes):
                continue
            offsets, sources = self._source.structure(number)
            relations, weights = self._source.edge_columns(number)
            weights = weights if self._weighted else None
            for some in self._pieces(nodes - start, offsets):
                degrees, places = entries_of(offsets, some)
                own, taken = some + start, sources[places]
                fresh = self._fresh(own, taken)
                cost = self._cost.of(held.rows + len(fresh), held.nodes + len(own), held.edges + len(taken))
                if held.nodes and cost > self._most:
                    tile, held = self._closed(held), _Open()
                    yield tile
                    del tile  # as its user does, before there is another
                    fresh = self._fresh(own, taken)
                self._number[fresh] = 0
                held.own.append(own)
                held.degrees.append(degrees)
                held.sources.append(taken)
                held.reached.append(fresh)
                if relations is not None:
                    held.relations.append(relations[places])
                if weights is not None:
                    held.weights.append(weights[places])
                held.rows += len(fresh)
                held.nodes += len(own)
                held.edges += len(taken)
            if self._source.types is not None and held.nodes:
                tile, held = self._closed(held), _Open()
                yield tile
                del tile
        if held.nodes:
            yield self._closed(held)

    def _pieces(self, nodes: Ids, offsets: Ids) -> Iterator[Ids]:
        """Nodes of a part, as many together as have room for certain."""
        ends = np.cumsum(offsets[nodes + 1] - offsets[nodes])
        edge = max(self._cost.row + self._cost.edge, 1)
        costs = ends * edge + np.arange(1, len(nodes) + 1) * (self._cost.row + self._cost.own)
        step, row = max(self._most // _PIECES, 1), 0
        while row < len(nodes):
            done = int(costs[row - 1]) if row else 0
            stop = max(int(np.searchsorted(costs, done + step, "right")), row + 1)
            yield nodes[row:stop]
            row = stop

    def _fresh(self, own: Ids, taken: NDArray[np.integer[Any]]) -> Ids:
        """Nodes of a piece that the open tile does not have, ascending."""
        new = np.concatenate([own[self._number[own] < 0], taken[self._number[taken] < 0].astype(np.int64)])
        return distinct(new)

    def _closed(self, held: _Open) -> RowTile:
        """A tile of what was added."""
        own, reached = np.concatenate(held.own), np.sort(np.concatenate(held.reached))
        self._number[own] = -1
        others = reached[self._number[reached] == 0]
        self._number[own] = np.arange(len(own))
        self._number[others] = np.arange(len(own), len(reached))
        sources = np.concatenate(held.sources)
        columns = self._number[sources]
        self._number[reached] = -1
        cost = self._cost.of(len(reached), len(own), len(sources))
        return RowTile(
            *(own, others, np.concatenate([[0], np.cumsum(np.concatenate(held.degrees))]), sources, columns),
            np.concatenate(held.relations) if held.relations else None,
            np.concatenate(held.weights) if held.weights else None,
            cost,
            len(own) == 1 and cost > self._most,
        )


__all__ = ["RowTile", "RowTiles"]
