"""A rank's part of a graph: the nodes that it owns, and the ghosts whose rows it borrows.

Comes in: a graph and who owns each node. Goes out: :class:`LocalPart`: in-edges of the rank's nodes as blocks over its
own rows, then its ghosts. Nodes whose in-edges all come from own nodes are the interior: their rows can be computed
before any ghost is there. Source: Morphling, section IV-D (local layout).
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft.dist.ranks import Ranks
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.graph import Graph

_WORTH = 4  # the interior is computed apart where at least one in so many edges ends there


class LocalPart:
    """What one rank has of a graph.

    Attributes:
        own: int64 ids of its nodes: the interior ascending, then the boundary ascending.
        interior: How many of them have in-edges from own nodes alone.
        ghosts: int64 ids of other ranks' nodes with an edge into them, rank by rank, ascending within one.
        block: In-edges of ``own``; sources are ``own``, then ``ghosts``.
        inner: In-edges of the interior; sources are ``own``. None where it is not computed apart.
        outer: In-edges of the boundary; sources are ``own[read]``, then ``ghosts``. None as above.
        read: int64 places in ``own`` of what the boundary reads, itself first.
        borrowed: Ghosts of each owner.
        lent: For each rank, the places in ``own`` of the rows that it borrows.

    Args:
        ranks: All ranks, which call this together.
        graph: The whole graph.
        owner: (num_nodes,) the rank of every node.
    """

    def __init__(self, ranks: Ranks, graph: Graph, owner: Tensor) -> None:
        self.ranks, self._graph = ranks, graph
        mine = (owner == ranks.rank).nonzero().reshape(-1)
        indptr, _, sources = self._in_edges(mine)
        outside = torch.cat([torch.zeros(1, dtype=torch.int64), (owner[sources] != ranks.rank).cumsum(0)])
        bound = outside[indptr[1:]] > outside[indptr[:-1]]
        self.own, self.interior = torch.cat([mine[~bound], mine[bound]]), int((~bound).sum())
        ghosts = torch.unique(sources[owner[sources] != ranks.rank])
        self.ghosts = ghosts[torch.argsort(owner[ghosts], stable=True)]
        self.borrowed = torch.bincount(owner[ghosts].long(), minlength=ranks.size).tolist()
        number = torch.empty(graph.num_nodes, dtype=torch.int32)
        self.block = self._block(number, self.own, torch.cat([self.own, self.ghosts]))
        self.lent = [number[ids].long() for ids in self._asked_for()]
        self.inner: Block | None = None
        self.outer: Block | None = None
        self.read = torch.arange(self.own.numel())
        if 0 < self.interior and self.ghosts.numel():
            self._split(number)

    @property
    def n_id(self) -> Tensor:
        """int64 ids of all rows of ``block``: own, then ghosts."""
        return self.block.src_ids

    def _split(self, number: Tensor) -> None:
        """Blocks of interior and boundary, where the interior is worth it."""
        interior = int(self.block.csc.indptr[self.interior])
        if interior * _WORTH < self.block.num_edges:
            return
        boundary = self.own[self.interior :]
        near = self.block.csc.indices[interior:].long()
        marked = torch.zeros(self.own.numel(), dtype=torch.bool)
        marked[near[near < self.own.numel()]] = True
        marked[self.interior :] = False
        self.read = torch.cat([torch.arange(self.interior, self.own.numel()), marked.nonzero().reshape(-1)])
        self.inner = self._block(number, self.own[: self.interior], self.own)
        self.outer = self._block(number, boundary, torch.cat([self.own[self.read], self.ghosts]))

    def _in_edges(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In-edges of some nodes: where each node's begin, their places in its row, the ids of their sources."""
        csc = self._graph.csc
        counts = csc.indptr[ids + 1] - csc.indptr[ids]
        indptr = torch.zeros(ids.numel() + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=indptr[1:])
        offsets = torch.arange(int(indptr[-1])) - torch.repeat_interleave(indptr[:-1], counts)
        return indptr, offsets, csc.indices[offsets + torch.repeat_interleave(csc.indptr[ids], counts)].long()

    def _block(self, number: Tensor, ids: Tensor, n_id: Tensor) -> Block:
        """In-edges of ``ids``, the first of ``n_id``; ``number`` of each of these is written."""
        number[n_id] = torch.arange(n_id.numel(), dtype=torch.int32)
        indptr, offsets, sources = self._in_edges(ids)
        return Block.of(DrawnEdges(self._graph, n_id, indptr, number[sources], offsets.int()), n_id.numel())

    def _asked_for(self) -> list[Tensor]:
        """Ids of own nodes that each rank borrows."""
        asked = list(torch.split(self.ghosts, self.borrowed))
        sizes = [torch.empty(1, dtype=torch.int64) for _ in asked]
        self.ranks.exchange([torch.tensor([ids.numel()]) for ids in asked], sizes)
        wanted = [torch.empty(int(size), dtype=torch.int64) for size in sizes]
        self.ranks.exchange(asked, wanted)
        return wanted
