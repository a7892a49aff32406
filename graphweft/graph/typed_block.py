"""A part of a typed graph as a typed graph of its own.

Comes in: edges between some nodes of a typed graph, by ids there: a sampled block, or a whole batch. Goes out:
:class:`TypedPart`, laid out flat as every typed graph: nodes type after type, edges relation after relation. Called by
typed models and typed batches.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.typed import TypedLayout


@dataclass(frozen=True, eq=False)
class TypedPart:
    """Nodes and edges of a typed graph, sorted by type; within a type their order is kept.

    Attributes:
        graph: The typed graph over the nodes, with all node types and relations of the whole one.
        order: int64 (num_nodes,): node i of ``graph`` is node ``order[i]`` of the part.
        place: int64 (num_nodes,): its inverse.
        edge_order: int64 (num_edges,): the same for edges.
    """

    graph: Graph
    order: Tensor
    place: Tensor
    edge_order: Tensor

    @classmethod
    def of(cls, whole: TypedLayout, n_id: Tensor, e_id: Tensor, src: Tensor, dst: Tensor) -> TypedPart:
        """Nodes ``n_id`` and edges ``e_id`` of a graph of this layout, the edges' ends by place in ``n_id``.

        Example:
            >>> layout = Graph.hetero({("a", "to", "b"): ([0, 1], [0, 0])}, {"a": 2, "b": 1}).layout
            >>> ids = torch.tensor([2, 0])
            >>> part = TypedPart.of(layout, ids, torch.tensor([0]), torch.tensor([1]), torch.tensor([0]))
            >>> part.order.tolist(), part.graph
            ([1, 0], Graph(num_nodes={'a': 1, 'b': 1}, num_edges={('a', 'to', 'b'): 1}))
        """
        node_type = torch.bucketize(n_id, torch.tensor(whole.node_offsets[1:-1], dtype=torch.int64), right=True)
        relation = torch.bucketize(e_id, torch.tensor(whole.edge_offsets[1:-1], dtype=torch.int64), right=True)
        order, edge_order = torch.argsort(node_type, stable=True), torch.argsort(relation, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel())
        layout = TypedLayout(
            whole.node_types,
            _offsets(node_type, len(whole.node_types)),
            whole.relations,
            _offsets(relation, len(whole.relations)),
        )
        graph = Graph.typed(place[src[edge_order]], place[dst[edge_order]], layout).as_drawn()
        return cls(graph, order, place, edge_order)


_PARTS: weakref.WeakKeyDictionary[Block, TypedPart] = weakref.WeakKeyDictionary()


def typed_block(block: Block) -> TypedPart:
    """A sampled block as a typed graph over its sources, made once; destinations are the nodes ``place[:num_dst]``."""
    known = _PARTS.get(block)
    if known is None:
        src, dst = block.edges()
        known = _PARTS[block] = TypedPart.of(block.source.layout, block.src_ids, block.e_id, src, dst)
    return known


def _offsets(kinds: Tensor, count: int) -> tuple[int, ...]:
    return (0, *accumulate(torch.bincount(kinds, minlength=count).tolist()))
