"""A rank's part of a graph, and the rows that it borrows from others.

Comes in: a graph and who owns each node. Goes out: :class:`LocalPart`: the in-edges of the nodes that a rank owns as a
block over its own rows, then its ghosts, and :func:`with_ghosts`, which fills the ghosts' rows and, in the backward
pass, brings their gradients home. Sources: Morphling, section IV-D (local layout, halo exchange).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.dist.ranks import Ranks
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.graph import Graph


class LocalPart:
    """What one rank has of a graph.

    Attributes:
        own: int64 ids of its nodes, ascending.
        ghosts: int64 ids of other ranks' nodes with an edge into them, rank by rank, ascending within one.
        block: In-edges of ``own``; sources are ``own``, then ``ghosts``.
        borrowed: Ghosts of each owner.
        lent: For each rank, the places in ``own`` of the rows that it borrows.

    Args:
        ranks: All ranks, which call this together.
        graph: The whole graph.
        owner: (num_nodes,) the rank of every node.
    """

    def __init__(self, ranks: Ranks, graph: Graph, owner: Tensor) -> None:
        self.ranks, csc = ranks, graph.csc
        self.own = (owner == ranks.rank).nonzero().reshape(-1)
        counts = csc.indptr[self.own + 1] - csc.indptr[self.own]
        indptr = torch.zeros(self.own.numel() + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=indptr[1:])
        offsets = torch.arange(int(indptr[-1])) - torch.repeat_interleave(indptr[:-1], counts)
        sources = csc.indices[offsets + torch.repeat_interleave(csc.indptr[self.own], counts)].long()
        ghosts = torch.unique(sources[owner[sources] != ranks.rank])
        self.ghosts = ghosts[torch.argsort(owner[ghosts], stable=True)]
        self.borrowed = torch.bincount(owner[ghosts].long(), minlength=ranks.size).tolist()
        n_id = torch.cat([self.own, self.ghosts])
        number = torch.empty(graph.num_nodes, dtype=torch.int32)
        number[n_id] = torch.arange(n_id.numel(), dtype=torch.int32)
        drawn = DrawnEdges(graph, n_id, indptr, number[sources], offsets.int())
        self.block = Block.of(drawn, n_id.numel())
        self.lent = [number[ids].long() for ids in self._asked_for()]

    @property
    def n_id(self) -> Tensor:
        """int64 ids of all rows: own, then ghosts."""
        return self.block.src_ids

    def _asked_for(self) -> list[Tensor]:
        """Ids of own nodes that each rank borrows."""
        asked = list(torch.split(self.ghosts, self.borrowed))
        sizes = [torch.empty(1, dtype=torch.int64) for _ in asked]
        self.ranks.exchange([torch.tensor([ids.numel()]) for ids in asked], sizes)
        wanted = [torch.empty(int(size), dtype=torch.int64) for size in sizes]
        self.ranks.exchange(asked, wanted)
        return wanted

    def fetch(self, rows: Tensor) -> Tensor:
        """Own rows (own, width), then the ghosts'."""
        out = rows.new_empty(self.n_id.numel(), rows.shape[1])
        out[: self.own.numel()] = rows
        received = torch.split(out[self.own.numel() :], self.borrowed)
        self.ranks.exchange([rows[places] for places in self.lent], received)
        return out

    def bring_home(self, rows: Tensor) -> Tensor:
        """The transpose of :meth:`fetch`: own rows, with what other ranks have for them added rank by rank."""
        own = rows[: self.own.numel()].clone()
        received = [rows.new_empty(places.numel(), rows.shape[1]) for places in self.lent]
        self.ranks.exchange([part.contiguous() for part in torch.split(rows[self.own.numel() :], self.borrowed)], received)
        for places, part in zip(self.lent, received, strict=True):
            own.index_add_(0, places, part)
        return own


def with_ghosts(part: LocalPart, rows: Tensor) -> Tensor:
    """Own rows, then the ghosts' from their owners, whose gradients go back to them.

    Shape: rows (own, width) -> (own + ghosts, width). All ranks call it, and all or none go backward through it.
    """
    result: Tensor = _Exchange.apply(rows, part)  # type: ignore[no-untyped-call]
    return result


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, part: LocalPart) -> Tensor:
        ctx.part = part
        return part.fetch(rows.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.part.bring_home(gradients[0].contiguous()), None
