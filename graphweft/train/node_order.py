"""The nodes of a run in another order, in which neighbours stand together, with the graph and rows in that order.

Comes in: a graph. Goes out: :class:`NodeOrder`, which takes rows and places to the order and back. Made where an order
pays (:mod:`graphweft.train.order_choice`); full batches compute in it. Rows of a graph keep the order of their entries,
so a sum over in-edges adds the same terms in the same order.
"""

from __future__ import annotations

import time
from typing import TypeVar

import torch
from torch import Tensor

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.partitioning.multilevel import CELL
from graphweft.partitioning.partition import order_of
from graphweft.runtime.constants import Reference
from graphweft.storage.feature import SparseFeatures, is_dense
from graphweft.storage.gather import gather_rows

Rows = TypeVar("Rows", Tensor, SparseFeatures, Tensor | SparseFeatures)

_LOOKED_AT = 1 << 12  # nodes whose edges are looked at


class NodeOrder:
    """An order of the nodes of ``graph``, and the graph in it.

    Args:
        graph: Untyped, over one set of nodes.
        edge_ids: Whether edges keep their numbers, as values of edges need; else they are numbered anew.

    Attributes:
        nodes: int64 (N,), the node at each place.
        graph: In the order.
        near: Share of the edges whose ends are within :data:`CELL` places; ``near_before`` in the given order.
        seconds: What finding it and moving the edges took.
    """

    def __init__(self, graph: Graph, *, edge_ids: bool = True) -> None:
        begun = time.perf_counter()
        self.nodes = order_of(graph)
        self._place = torch.empty_like(self.nodes)
        self._place[self.nodes] = torch.arange(self.nodes.numel())
        self.graph = graph.renumbered(self.nodes, edge_ids=edge_ids)
        self.near_before, self.near = near_share(graph.csc), near_share(self.graph.csc)
        self._seen: Reference | None = None
        self.seconds = time.perf_counter() - begun

    @property
    def gained(self) -> float:
        """Share of the edges whose ends come near each other by it."""
        return max(self.near - self.near_before, 0.0)

    def rows(self, given: Rows) -> Rows:
        """Rows by node, in the order."""
        return gather_rows(given, self.nodes)  # type: ignore[return-value]

    def as_given(self, rows: Rows) -> Rows:
        """The inverse of :meth:`rows`."""
        return gather_rows(rows, self._place)  # type: ignore[return-value]

    def places(self, nodes: Tensor) -> Tensor:
        """Where nodes stand."""
        return self._place[nodes]

    def first(self, given: Tensor | SparseFeatures, x: Tensor | SparseFeatures) -> Tensor | SparseFeatures:
        """Rows of ``x``, which are those of ``given``."""
        self._seen = Reference(given)
        return self.rows(x)

    def again(self, given: Tensor | SparseFeatures, made: Tensor | SparseFeatures) -> Tensor | SparseFeatures:
        """``made``, the rows of ``given``, taken anew where these have changed; dense ones in their memory."""
        now = Reference(given)
        if self._seen == now:
            return made
        self._seen, rows = now, self.rows(given)
        return made.copy_(rows) if is_dense(made) and is_dense(rows) else rows


def order_bytes(graph: Graph, edge_ids: bool) -> int:
    """What an order of the nodes of ``graph`` takes beside rows: both ways between the orders, and the graph in it.

    Example:
        >>> order_bytes(Graph([0, 1], [1, 2]), edge_ids=False)
        88
    """
    ids, csc = torch.int64.itemsize * graph.num_nodes, graph.csc
    return 2 * ids + csc.indptr.nbytes + csc.indices.nbytes * (2 if edge_ids else 1)


def near_share(csc: Adjacency) -> float:
    """Share of the edges whose ends are within :data:`CELL` places, from some thousand destinations.

    Example:
        >>> near_share(Graph([0, 4000, 1], [1, 2, 2]).csc)
        0.6666666666666666
    """
    step = max(1, csc.num_rows // _LOOKED_AT)
    rows = torch.arange(0, csc.num_rows, step)
    taken = csc.take_rows(rows)
    if taken.num_edges == 0:
        return 1.0
    apart = taken.indices.long() - rows.repeat_interleave(taken.degrees())
    return int((apart.abs() < CELL).sum()) / taken.num_edges


__all__ = ["NodeOrder", "near_share", "order_bytes"]
