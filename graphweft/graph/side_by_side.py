"""Many graphs side by side in one: which nodes and edges are whose, and some of them taken out, again side by side.

Comes in: a block-diagonal graph and the offsets of its graphs. Goes out: a :class:`Taken`, made by shifted copies, as
the rows of a graph lie together in the compressed form; nothing is sorted. Called by sets of graphs and their loader.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphweft._errors import GraphError
from graphweft._memory import empty
from graphweft._native import declare, pointer
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.forms import Forms
from graphweft.graph.graph import Graph
from graphweft.graph.ids import index_dtype

_offsets = declare("gw_parts_offsets")
_places = declare("gw_parts_places")
_rows = declare("gw_parts_rows")
_take = declare("gw_parts_take")


@dataclass(frozen=True)
class Taken:
    """Some graphs side by side.

    Attributes:
        graph: All of them, block-diagonal, edges graph after graph.
        ptr: int64 (graphs + 1,): graph i has nodes ``ptr[i]`` to ``ptr[i + 1]``.
        owners: int64: the graph that each node is of, among those taken.
        edge_ptr: int64 (graphs + 1,): graph i has edges ``edge_ptr[i]`` to ``edge_ptr[i + 1]``.
    """

    graph: Graph
    ptr: Tensor
    owners: Tensor
    edge_ptr: Tensor
    _ids: Tensor
    _whole: SideBySide

    @cached_property
    def nodes(self) -> Tensor:
        """int64: where each node is in the whole."""
        return self._places(self._whole.ptr, self.ptr)

    @cached_property
    def edges(self) -> Tensor:
        """int64: where each edge is in the whole."""
        return self._places(self._whole.edge_ptr, self.edge_ptr)

    def rows(self, table: Tensor) -> Tensor:
        """``table[nodes]``, of a contiguous table with a row for every node of the whole."""
        out = empty((self.owners.numel(), *table.shape[1:]), table.dtype)
        size = table[:1].numel() * table.element_size()
        made = (self.ptr.data_ptr(), table.data_ptr(), size, out.data_ptr())
        _rows(self._ids.numel(), self._ids.data_ptr(), self._whole.ptr.data_ptr(), *made)
        return out

    def _places(self, whole: Tensor, ptr: Tensor) -> Tensor:
        places = empty((int(ptr[-1]),), torch.int64)
        chosen = (self._ids.numel(), self._ids.data_ptr())
        _places(*chosen, whole.data_ptr(), ptr.data_ptr(), places.data_ptr(), None)
        return places


class SideBySide:
    """A block-diagonal graph whose edges are numbered graph after graph.

    Args:
        graph: Square, untyped.
        ptr: int64 (graphs + 1,): graph i has nodes ``ptr[i]`` to ``ptr[i + 1]``.

    Raises: GraphError for an edge between two graphs, or edges in another order (:func:`edge_order` tells a fitting
        one).

    Example:
        >>> whole = SideBySide(Graph([0, 1, 2], [1, 0, 3], num_nodes=4), torch.tensor([0, 2, 4]))
        >>> taken = whole.take(torch.tensor([1, 0]))
        >>> [ends.tolist() for ends in taken.graph.edges()], taken.ptr.tolist(), taken.nodes.tolist()
        ([[0, 2, 3], [1, 3, 2]], [0, 2, 4], [2, 3, 0, 1])
    """

    def __init__(self, graph: Graph, ptr: Tensor) -> None:
        if edge_order(graph, ptr) is not None:
            raise GraphError("SideBySide: expected edges numbered graph after graph, got another order")
        self.graph, self.ptr = graph, ptr.contiguous()
        self.edge_ptr = graph.csc.indptr[self.ptr]

    @cached_property
    def _facts(self) -> tuple[bool, bool]:
        """Whether the whole, and with it every part, is symmetric; whether it has self-loops."""
        return self.graph.is_symmetric, self.graph.has_self_loops

    def take(self, ids: Tensor) -> Taken:
        """The graphs ``ids``, in that order; repeats are allowed. ``ids``: int64, contiguous, in range."""
        csc, count = self.graph.csc, ids.numel()
        ptr, edge_ptr = empty((count + 1,), torch.int64), empty((count + 1,), torch.int64)
        chosen, whole = (count, ids.data_ptr()), self.ptr.data_ptr()
        _offsets(*chosen, whole, self.edge_ptr.data_ptr(), ptr.data_ptr(), edge_ptr.data_ptr())
        rows, entries = int(ptr[-1]), int(edge_ptr[-1])
        owners = empty((rows,), torch.int64)
        _places(*chosen, whole, ptr.data_ptr(), None, owners.data_ptr())
        indptr, indices = empty((rows + 1,), torch.int64), empty((entries,), csc.indices.dtype)
        numbers = None if csc.edge_ids is None else empty((entries,), csc.indices.dtype)
        made = (indptr.data_ptr(), indices.data_ptr(), pointer(numbers))
        _take(ctypes.byref(csc.native), *chosen, whole, ptr.data_ptr(), edge_ptr.data_ptr(), *made)
        forms = Forms(Adjacency(indptr, indices, numbers, rows).fitted(), None)
        symmetric, loops = self._facts
        forms.symmetric, forms.loops = (True if symmetric else None), (None if loops else False)
        return Taken(Graph._make(forms, rows, rows, True), ptr, owners, edge_ptr, ids, self)


def edge_order(graph: Graph, ptr: Tensor) -> Tensor | None:
    """int64: edges in an order that goes graph after graph, stable; None where they have one.

    Raises: GraphError for an edge between two graphs.
    """
    src, dst = graph.edges()
    owner = owners(ptr)
    of_src, of_dst = owner[src], owner[dst]
    if not torch.equal(of_src, of_dst):
        at = int((of_src != of_dst).nonzero()[0])
        pair = f"edge {at} from graph {int(of_src[at])} to graph {int(of_dst[at])}"
        raise GraphError(f"graph_ptr: expected edges within graphs, got {pair}")
    return torch.argsort(of_src, stable=True) if bool((of_src[1:] < of_src[:-1]).any()) else None


def owners(ptr: Tensor) -> Tensor:
    """int64 (nodes,): the graph of every node.

    Example:
        >>> owners(torch.tensor([0, 2, 3])).tolist()
        [0, 0, 1]
    """
    return torch.arange(ptr.numel() - 1, device=ptr.device).repeat_interleave(ptr.diff())


def members(ptr: Tensor, owner: Tensor | None = None) -> Graph:
    """The bipartite graph that leads from every node to its graph; both forms are there without sorting.

    ``owner``: :func:`owners` of ``ptr``, where they are at hand.

    Example:
        >>> [ends.tolist() for ends in members(torch.tensor([0, 2, 3])).edges()]
        [[0, 1, 2], [0, 0, 1]]
    """
    graphs, nodes = ptr.numel() - 1, int(ptr[-1])
    dtype = index_dtype(graphs, nodes, nodes, True)
    every = torch.arange(nodes + 1)
    by_graph = Adjacency(ptr.contiguous(), every[:-1].to(dtype), None, nodes)
    by_node = Adjacency(every, (owners(ptr) if owner is None else owner).to(dtype), None, graphs)
    return Graph._make(Forms(by_graph, by_node), nodes, graphs, False).as_drawn()
