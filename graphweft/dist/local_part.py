"""A rank's part of a graph: the nodes that it owns, and the ghosts whose rows it borrows.

Comes in: a graph and who owns each node. Goes out: :class:`LocalPart`: in-edges of the rank's nodes as blocks over its
own rows, then its ghosts. Nodes whose in-edges all come from own nodes are the interior: their rows can be computed
before any ghost is there. Source: Morphling, section IV-D (local layout).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from graphweft.dist.ranks import Ranks
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.graph import Graph
from graphweft.partitioning import multilevel
from graphweft.partitioning.partition import undirected

_WORTH = 4  # the interior is computed apart where at least one in so many edges ends there


class LocalPart:
    """What one rank has of a graph, and what the computation of its rows reads.

    Attributes:
        own: int64 ids of its nodes: the interior, then the boundary; without ``splits`` those of ``first``, then the
            others. Among these they ascend, or, in a large part of a graph that all ranks have, neighbours stand
            together.
        targets: int64 ids of the own nodes that rows are computed for, in the same order; ``own`` where all are.
        interior: How many of the targets, in front, have in-edges from own nodes alone; 0 without ``splits``.
        ghosts: int64 ids of other ranks' nodes with an edge into a target, rank by rank; within one they ascend, or
            stand in the order of the targets that read them.
        block: In-edges of the targets; sources are ``own[near]``, then ``ghosts``.
        near: int64 places in ``own`` of what the targets read, the targets first.
        reads_all: Whether ``near`` is every place in order.
        is_together: Whether neighbours among own nodes stand together.
        inner: In-edges of the interior; sources are ``own[inner_read]``. None where it is not computed apart.
        inner_read: int64 places in ``own`` of what the interior reads, itself first. None: all, in order.
        outer: In-edges of the boundary; sources are ``own[read]``, then ``ghosts``. None as ``inner``.
        read: int64 places in ``own`` of what the boundary reads, itself first; ``near`` where ``outer`` is None.
        borrowed: Ghosts of each owner.
        lent: For each rank, the places in ``own`` of the rows that it borrows.

    Args:
        ranks: All ranks, which call this together.
        graph: The whole graph, or a piece of it that has all edges into the rank's nodes.
        owner: (num_nodes,) the rank of every node.
        home: (num_nodes,) int64 id of every node in its owner's graph; None: all ranks have the same graph.
        base: The part whose ``own`` this one has; None: a part of its own, for all nodes of the rank.
        rows: With ``base``: int64 ids of the targets, on any rank.
        splits: Whether interior and boundary may be computed apart.
        first: int64 ids of nodes that come first in ``own``, where nothing is computed apart: a restricted part whose
            targets they are reads own rows as they lie.
        together: Whether neighbours among own nodes may stand together.
    """

    def __init__(
        self,
        ranks: Ranks,
        graph: Graph,
        owner: Tensor,
        home: Tensor | None = None,
        base: LocalPart | None = None,
        rows: Tensor | None = None,
        splits: bool = True,
        first: Tensor | None = None,
        together: bool = True,
    ) -> None:
        self.ranks, self._graph, self._owner, self._home, self._splits = ranks, graph, owner, home, splits
        self._mine = owner == ranks.rank
        chosen = self._mine
        if rows is not None:
            chosen = torch.zeros_like(chosen)
            chosen[rows] = True
            chosen &= self._mine
        ids = chosen.nonzero().reshape(-1)
        ascending = ids
        if base is None and home is None and together:
            ids = self._together(ids)
        self.is_together = ids is not ascending
        if not splits:  # in the order of the base
            ids = _in_front(ids, first) if base is None else base.own[chosen[base.own]]
        indptr, sources = self._in_edges(ids)
        foreign = self._are_foreign(sources)
        self.targets, self.interior = self._with_interior_first(ids, indptr, foreign) if splits else (ids, 0)
        self.own: Tensor = self.targets if base is None else base.own
        seen = torch.zeros_like(self._mine)
        seen[sources[foreign].long()] = True
        ghosts = seen.nonzero().reshape(-1)
        if not _ascend(ids):
            ghosts = ghosts[torch.argsort(multilevel.first_places(sources[foreign], graph.num_nodes)[ghosts])]
        self.ghosts = ghosts[torch.argsort(owner[ghosts], stable=True)]
        self.borrowed = torch.bincount(owner[ghosts].long(), minlength=ranks.size).tolist()
        place = torch.empty(graph.num_nodes, dtype=torch.int64)
        place[self.own] = torch.arange(self.own.numel())
        self.lent = [place[ids] for ids in self._asked_for()]
        whole = base is None
        self.near = torch.arange(self.own.numel()) if whole else self._near(place, sources[~foreign])
        del sources, foreign, seen
        self.reads_all = whole or (not splits and self.near.numel() == self.own.numel())
        number = torch.empty(graph.num_nodes, dtype=torch.int32)
        self.block = self._block(number, self.targets, torch.cat([self.own[self.near], self.ghosts]))
        self.inner: Block | None = None
        self.outer: Block | None = None
        self.inner_read: Tensor | None = None
        self.read = self.near
        if splits and self.interior > 0 and self.ghosts.numel():
            self._split(number, place, whole)

    @property
    def n_id(self) -> Tensor:
        """int64 ids of all rows of ``block``: own, then ghosts."""
        return self.block.src_ids

    def restricted(self, rows: Tensor) -> LocalPart:
        """The same part where only some rows are computed: those of the nodes ``rows`` (int64 ids), wherever they are.

        All ranks call it with rows that are the same, or those of their own.
        """
        return LocalPart(self.ranks, self._graph, self._owner, self._home, self, rows, self._splits)

    @cached_property
    def all_lent(self) -> Tensor:
        """``lent``, rank by rank, in one."""
        return torch.cat(self.lent)

    @cached_property
    def home(self) -> Adjacency:
        """For every own node the places of its rows among those that were lent, rank by rank."""
        rows = self.all_lent.int()
        places = torch.arange(rows.numel(), dtype=torch.int32)
        return Adjacency.from_coo(rows, places, self.own.numel(), rows.numel())

    def _together(self, ids: Tensor) -> Tensor:
        """``ids``, ascending, so that neighbours among them stand together, where that saves reading."""
        indptr, sources = self._in_edges(ids)
        if sources.numel() < multilevel.WORTH_ORDERING:
            return ids
        inside = self._mine.index_select(0, sources)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), inside.cumsum(0)])[indptr]
        place = torch.empty(self._graph.num_nodes, dtype=sources.dtype)
        place[ids] = torch.arange(ids.numel(), dtype=sources.dtype)
        own = Graph.from_adjacency(Adjacency(ends, place[sources[inside]], None, ids.numel()))
        del inside, place, sources
        return ids[multilevel.neighbours_together(undirected(own).csc, multilevel.CELL)]

    def _with_interior_first(self, ids: Tensor, indptr: Tensor, foreign: Tensor) -> tuple[Tensor, int]:
        """Nodes with own sources alone, then the others; how many the first are. ``foreign``: by in-edge of ``ids``."""
        kind = torch.int32 if foreign.numel() < 2**31 else torch.int64
        outside = torch.cat([torch.zeros(1, dtype=kind), foreign.cumsum(0, dtype=kind)])
        bound = outside[indptr[1:]] > outside[indptr[:-1]]
        return torch.cat([ids[~bound], ids[bound]]), int((~bound).sum())

    def _near(self, place: Tensor, sources: Tensor) -> Tensor:
        """Places of what the targets read of own nodes, ``sources`` among them; all in order, where that costs less."""
        every = torch.arange(self.own.numel())
        near = self._reads(place, self.targets, sources)
        is_in_front = not self._splits and torch.equal(self.own[: self.targets.numel()], self.targets)
        return every if is_in_front and near.numel() * 4 > every.numel() * 3 else near

    def _split(self, number: Tensor, place: Tensor, whole: bool) -> None:
        """Blocks of interior and boundary, where the interior is worth it."""
        interior = int(self.block.csc.indptr[self.interior])
        if interior * _WORTH < self.block.num_edges:
            return
        inside, boundary = self.targets[: self.interior], self.targets[self.interior :]
        self.read = self._reads(place, boundary, self._own_sources(boundary))
        if not whole:
            self.inner_read = self._reads(place, inside, self._own_sources(inside))
        first = self.own if self.inner_read is None else self.own[self.inner_read]
        self.inner = self._block(number, inside, first)
        self.outer = self._block(number, boundary, torch.cat([self.own[self.read], self.ghosts]))

    def _own_sources(self, ids: Tensor) -> Tensor:
        """Own nodes with an edge into ``ids``, several times over."""
        sources = self._in_edges(ids)[1]
        return sources[~self._are_foreign(sources)].long()

    def _reads(self, place: Tensor, ids: Tensor, sources: Tensor) -> Tensor:
        """Places of the own nodes ``ids``, then ascending those of further ``sources``."""
        marked = torch.zeros(self.own.numel(), dtype=torch.bool)
        marked[place[sources]] = True
        first = place[ids]
        marked[first] = False
        return torch.cat([first, marked.nonzero().reshape(-1)])

    def _in_edges(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """In-edges of some nodes: where each node's begin, the ids of their sources; the graph's own for a run of ids.

        Numbers per edge are as narrow as the graph's: they are the most memory that a part takes to make.
        """
        csc, count = self._graph.csc, ids.numel()
        if count and torch.equal(ids, torch.arange(int(ids[0]), int(ids[0]) + count)):
            indptr = csc.indptr[int(ids[0]) : int(ids[0]) + count + 1]
            first, last = int(indptr[0]), int(indptr[-1])
            return indptr if first == 0 else indptr - first, csc.indices[first:last]
        taken = csc.take_rows(ids)
        return taken.indptr, taken.indices

    def _are_foreign(self, sources: Tensor) -> Tensor:
        """Which of ``sources`` other ranks own."""
        return self._mine.index_select(0, sources).logical_not_()

    def _block(self, number: Tensor, ids: Tensor, n_id: Tensor) -> Block:
        """In-edges of ``ids``, the first of ``n_id``; ``number`` of each of these is written."""
        count = n_id.numel()
        indptr, sources = self._in_edges(ids)
        if sources.dtype != torch.int32 or not torch.equal(n_id, torch.arange(count)):
            number[n_id] = torch.arange(count, dtype=torch.int32)
            sources = number.index_select(0, sources)
        return Block.of(DrawnEdges(self._graph, n_id, indptr, sources), count, stays=True)

    def _asked_for(self) -> list[Tensor]:
        """Ids of own nodes that each rank borrows."""
        ids = self.ghosts if self._home is None else self._home[self.ghosts]
        asked = list(torch.split(ids, self.borrowed))
        sizes = [torch.empty(1, dtype=torch.int64) for _ in asked]
        self.ranks.exchange([torch.tensor([ids.numel()]) for ids in asked], sizes)
        wanted = [torch.empty(int(size), dtype=torch.int64) for size in sizes]
        self.ranks.exchange(asked, wanted)
        return wanted


def _ascend(ids: Tensor) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def _in_front(ids: Tensor, first: Tensor | None) -> Tensor:
    """``ids`` with those that are in ``first`` in front."""
    if first is None:
        return ids
    named = torch.isin(ids, first)
    return torch.cat([ids[named], ids[~named]])
