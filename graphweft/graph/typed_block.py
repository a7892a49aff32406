"""A part of a typed graph as a typed graph of its own.

Comes in: edges between some nodes of a typed graph, by ids there: a sampled block, or a whole batch. Goes out:
:class:`TypedPart`, laid out flat as every typed graph: nodes type after type, edges relation after relation. Called by
typed models and typed batches.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.ids import index_dtype
from graphweft.graph.typed import TypedLayout

_sort = declare("gw_typed_sort")
_ends = declare("gw_typed_ends")
_rows = declare("gw_typed_rows")
_run_rows = declare("gw_typed_run_rows")


class TypedPart:
    """Nodes and edges of a typed graph, sorted by type; within a type their order is kept.

    Attributes:
        graph: The typed graph over the nodes, with all node types and relations of the whole one.
        order: int64 (num_nodes,): node i of ``graph`` is node ``order[i]`` of the part.
        place: int64 (num_nodes,): its inverse.
    """

    def __init__(self, graph: Graph, order: Tensor, place: Tensor, edges: Tensor | DrawnEdges) -> None:
        self.graph, self.order, self.place, self._edges = graph, order, place, edges

    @cached_property
    def edge_order(self) -> Tensor:
        """int64 (num_edges,): edge i of ``graph`` is edge ``edge_order[i]`` of the part."""
        if isinstance(self._edges, Tensor):
            return self._edges
        return _sorted(self._edges.ids(), self._edges.graph.layout.edge_offsets)[0]

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
        order, place, node_offsets = _sorted(n_id, whole.node_offsets)
        edge_order, _, edge_offsets = _sorted(e_id, whole.edge_offsets)
        layout, nodes = TypedLayout(whole.node_types, node_offsets, whole.relations, edge_offsets), n_id.numel()
        ends = [empty((e_id.numel(),), index_dtype(nodes, nodes, e_id.numel(), with_edge_ids=True)) for _ in range(2)]
        given = (edge_order, place, src.contiguous(), dst.contiguous())
        wide = ends[0].dtype == torch.int64
        _ends(e_id.numel(), *(t.data_ptr() for t in given), wide, *(t.data_ptr() for t in ends))
        graph = Graph.typed(Adjacency.from_coo(ends[1], ends[0], nodes, nodes), layout)
        return cls(graph.as_drawn(), order, place, edge_order)

    @classmethod
    def of_block(cls, block: Block) -> TypedPart:
        """The sources of a block, and its edges."""
        whole, nodes, count = block.source.layout, block.num_src, block.num_edges
        order, place, node_offsets = _sorted(block.src_ids, whole.node_offsets)
        kind = index_dtype(nodes, nodes, count, with_edge_ids=True)
        made = empty((nodes + 1,), torch.int64), empty((count,), kind), empty((count,), kind)
        edges: Tensor | DrawnEdges = block.drawn
        if block.drawn.runs is not None:
            edge_offsets = _rows_of_runs(block, order, place, made)
        else:
            edges, edge_place, edge_offsets = _sorted(block.e_id, whole.edge_offsets)
            given = (t.data_ptr() for t in (order, place, edges, edge_place))
            _rows(block.csc.native, nodes, *given, kind == torch.int64, *(t.data_ptr() for t in made))
        layout = TypedLayout(whole.node_types, node_offsets, whole.relations, edge_offsets)
        return cls(Graph.typed(Adjacency(*made, nodes), layout).as_drawn(), order, place, edges)


def typed_block(block: Block) -> TypedPart:
    """A sampled block as a typed graph over its sources, made once; destinations are the nodes ``place[:num_dst]``."""
    return derived(block, TypedPart.of_block)


def _rows_of_runs(block: Block, order: Tensor, place: Tensor, made: tuple[Tensor, Tensor, Tensor]) -> tuple[int, ...]:
    """Fills offsets, columns and edge ids of a block whose relations are known; where relations begin."""
    runs, relations = block.drawn.runs, len(block.source.layout.relations)
    assert runs is not None
    counts = torch.empty(relations, dtype=torch.int64)
    cut = (runs.begin.data_ptr(), runs.runs.data_ptr(), pointer(runs.limits))
    sizes = (block.num_src, relations, order.data_ptr(), place.data_ptr(), made[1].dtype == torch.int64)
    _run_rows(block.csc.native, *cut, *sizes, *(t.data_ptr() for t in (counts, *made)))
    return (0, *accumulate(counts.tolist()))


def _sorted(ids: Tensor, offsets: tuple[int, ...]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The stable order of ids by the stretch they lie in, its inverse, and where stretches begin in it."""
    types, count, kind = len(offsets) - 1, ids.numel(), torch.int64
    order, place, counts = empty((count,), kind), empty((count,), kind), torch.empty(types, dtype=kind)
    given = ids.contiguous(), torch.tensor(offsets)
    results = (t.data_ptr() for t in (order, place, counts))
    _sort(count, given[0].data_ptr(), types, given[1].data_ptr(), *results)
    return order, place, (0, *accumulate(counts.tolist()))
