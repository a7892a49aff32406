"""Edges by their ends, and edits by ids: what scripts ask of a graph beside its structure.

Comes in: a graph, ends or ids. Goes out: ids of edges, or a new graph with the rows of all named tensors. The methods
are those of Graph, which inherits from :class:`EdgesByEnds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from graphweft._errors import GraphError, ShapeError
from graphweft.graph import edit
from graphweft.graph.carried import carry
from graphweft.graph.derived import derived
from graphweft.graph.ids import Ids, as_ids, require_ids
from graphweft.graph.select import as_selection

_HOST = torch.device("cpu")
PLACES: list[Callable[[Any, Any], Any]] = []  # who sends graphs to devices: the module of placed graphs, above this one


class EdgesByEnds:
    """Look-ups and edits of a graph; the graph itself never changes."""

    __slots__ = ()

    def _whole(self) -> Any:
        """Itself as the graph that it is part of."""
        return self

    @property
    def device(self) -> torch.device:
        """Where its arrays lie."""
        return _HOST

    def to(self, device: Any) -> Any:
        """The graph with its named tensors on ``device``; the structure is sent once and kept there.

        What changes structure, or measures it, is still done in host memory, where a copy stays.

        Raises: ConfigError for a device that this machine has not.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> graph = Graph([0, 1], [1, 2])
            >>> graph.to("cpu") is graph, graph.device
            (True, device(type='cpu'))
        """
        return PLACES[-1](self._whole(), device)

    def has_edges(self, src: Ids, dst: Ids) -> Tensor:
        """Whether ``src[i] -> dst[i]`` is an edge, bool (n,).

        Raises: IndexRangeError, ShapeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> Graph([0, 1], [1, 2]).has_edges([0, 0], [1, 2]).tolist()
            [True, False]
        """
        first, last, _ = _stretches(self._whole(), "Graph.has_edges", src, dst)
        return first < last

    def edge_ids(self, src: Ids, dst: Ids, missing: int | None = None) -> Tensor:
        """int64 (n,) ids of the edges ``src[i] -> dst[i]``, of parallel ones the smallest.

        Args:
            src: (n,) sources.
            dst: (n,) destinations.
            missing: What stands for a pair without an edge; None: such a pair is an error.

        Raises: GraphError for a pair without an edge; IndexRangeError, ShapeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> Graph([0, 1, 0], [1, 2, 2]).edge_ids([0, 2], [2, 0], missing=-1).tolist()
            [2, -1]
        """
        graph = self._whole()
        first, last, ids = _stretches(graph, "Graph.edge_ids", src, dst)
        found = first < last
        if missing is None and not bool(found.all()):
            at = int((~found).nonzero()[0])
            pair = f"{int(torch.as_tensor(src)[at])} -> {int(torch.as_tensor(dst)[at])}"
            raise GraphError(
                f"Graph.edge_ids: expected an edge {pair}, got none at position {at}; missing=-1 marks such pairs"
            )
        out = torch.full_like(first, -1 if missing is None else missing)
        out[found] = ids[first[found]]
        return out

    def all_edge_ids(self, src: Ids, dst: Ids) -> tuple[Tensor, Tensor]:
        """All edges between pairs: the pair's place and the edge's id, int64 (m,) each, pair by pair, ids ascending.

        Raises: IndexRangeError, ShapeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> [t.tolist() for t in Graph([0, 1, 0], [1, 2, 1]).all_edge_ids([1, 0], [0, 1])]
            [[1, 1], [0, 2]]
        """
        first, last, ids = _stretches(self._whole(), "Graph.all_edge_ids", src, dst)
        counts = last - first
        places = torch.repeat_interleave(torch.arange(first.numel()), counts)
        before = torch.cumsum(counts, 0) - counts
        return places, ids[torch.arange(places.numel()) + (first - before)[places]]

    def find_edges(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """int64 (n,) sources and destinations of the edges with these ids (or where a mask holds).

        Raises: IndexRangeError, ShapeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> [t.tolist() for t in Graph([0, 1, 0], [1, 2, 2]).find_edges([2])]
            [[0], [2]]
        """
        graph = self._whole()
        chosen = as_selection("Graph.find_edges", "edge", ids, graph.num_edges)
        src, dst = graph.edges()
        return src[chosen], dst[chosen]

    def subgraph(self, nodes: Ids) -> Self:
        """The edges between some nodes; node i of the result is ``nodes[i]``.

        Edges keep their order; rows of ``ndata`` and ``edata`` come along, so that an ``edata["id"]`` set before says
        which edges stayed.

        Raises: GraphError for a typed or bipartite graph, or a node that comes twice; IndexRangeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> [t.tolist() for t in Graph([0, 1, 2], [1, 2, 0]).subgraph([2, 1]).edges()]
            [[1], [0]]
        """
        graph = _untyped(self, "subgraph")
        chosen = as_selection("Graph.subgraph", "node", nodes, graph.num_nodes)
        number = torch.full((graph.num_nodes,), -1)
        number[chosen] = torch.arange(chosen.numel())
        again = number[chosen] != torch.arange(chosen.numel())
        if bool(again.any()):
            raise GraphError(f"Graph.subgraph: expected distinct nodes, got {int(chosen[again][0])} twice")
        if chosen.numel() == graph.num_nodes:  # nothing goes
            moved = graph.renumbered(chosen)
            carry(graph, moved, slice(None), None, chosen)
            same: Self = moved
            return same
        src, dst = graph.edges()
        kept = ((number[src] >= 0) & (number[dst] >= 0)).nonzero().reshape(-1)
        made = type(graph)(number[src[kept]], number[dst[kept]], num_nodes=chosen.numel())
        carry(graph, made, kept, None, chosen)
        done: Self = made
        return done

    def renumbered(self, nodes: Tensor, *, edge_ids: bool = True) -> Self:
        """The structure of :meth:`subgraph` for a permutation of all nodes, int64 (N,), that is known to be one.

        Rows move as they are; no edge is looked up by its number. Without ``edge_ids`` edges are numbered anew.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> [t.tolist() for t in Graph([0, 1, 2], [1, 2, 0]).renumbered(torch.tensor([2, 0, 1])).edges()]
            [[1, 2, 0], [2, 0, 1]]
        """
        graph = self._whole()
        made = graph.from_adjacency(edit.renumbered(graph.csc, nodes, edge_ids=edge_ids))
        made._forms.share_facts(graph._forms)
        done: Self = made
        return done

    def remove_nodes(self, nodes: Ids) -> Self:
        """The graph without some nodes and their edges; the others keep their order and are numbered without gaps.

        Raises: as :meth:`subgraph`.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> Graph([0, 1, 2], [1, 2, 0]).remove_nodes([1])
            Graph(num_nodes=2, num_edges=1)
        """
        graph = _untyped(self, "remove_nodes")
        keep = torch.ones(graph.num_nodes, dtype=torch.bool)
        keep[as_selection("Graph.remove_nodes", "node", nodes, graph.num_nodes)] = False
        kept: Self = graph.subgraph(keep)
        return kept

    def remove_edges(self, ids: Ids) -> Self:
        """The graph without the edges with these ids (or where a mask holds); the others keep their order.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> [t.tolist() for t in Graph([0, 1, 2], [1, 2, 0]).remove_edges([1]).edges()]
            [[0, 2], [1, 0]]
        """
        graph = self._whole()
        keep = torch.ones(graph.num_edges, dtype=torch.bool)
        keep[as_selection("Graph.remove_edges", "edge", ids, graph.num_edges)] = False
        kept: Self = graph.edge_subgraph(keep)
        return kept

    def add_edges(self, src: Ids, dst: Ids, edata: Mapping[str, Any] | None = None) -> Self:
        """The graph with further edges, numbered after its own.

        Args:
            src: (n,) sources.
            dst: (n,) destinations; nodes of the graph, :meth:`add_nodes` makes more.
            edata: Rows of the new edges for every tensor in the graph's ``edata``.

        Raises: GraphError for a typed graph, or without rows for some ``edata``; IndexRangeError, ShapeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> [t.tolist() for t in Graph([0], [1]).add_edges([1], [0]).edges()]
            [[0, 1], [1, 0]]
        """
        graph = _untyped(self, "add_edges", square=False)
        more = _ends(graph, "Graph.add_edges", src, dst)
        sizes = graph.num_nodes if graph.is_square else (graph.num_src, graph.num_dst)
        ends = [torch.cat([mine, new]) for mine, new in zip(graph.edges(), more, strict=True)]
        made = type(graph)(ends[0], ends[1], num_nodes=sizes)
        carry(graph, made, None)
        _append("add_edges", "edata", graph.edata, made.edata, edata, more[0].numel())
        done: Self = made
        return done

    def add_nodes(self, count: int, ndata: Mapping[str, Any] | None = None) -> Self:
        """The graph with further nodes without edges, numbered after its own.

        Args:
            count: How many.
            ndata: Rows of the new nodes for every tensor in the graph's ``ndata``.

        Raises: GraphError for a typed or bipartite graph, or without rows for some ``ndata``; ShapeError.

        Example:
            >>> from graphweft.graph.graph import Graph
            >>> Graph([0], [1]).add_nodes(3)
            Graph(num_nodes=5, num_edges=1)
        """
        graph = _untyped(self, "add_nodes")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise GraphError(f"Graph.add_nodes: expected count as an integer >= 0, got {count!r}")
        src, dst = graph.edges()
        made = type(graph)(src, dst, num_nodes=graph.num_nodes + count)
        for name, rows in graph.edata.items():
            made.edata[name] = rows
        _append("add_nodes", "ndata", graph.ndata, made.ndata, ndata, count)
        done: Self = made
        return done


def _untyped(graph: Any, who: str, square: bool = True) -> Any:
    """The graph. Raises: GraphError for one of another kind."""
    if graph.is_typed:
        remedy = "take one relation by relation_graph(relation), or edges by edge_subgraph"
        raise GraphError(f"Graph.{who}: expected an untyped graph, got {len(graph.relations)} relations; {remedy}")
    if square and not graph.is_square:
        raise GraphError(f"Graph.{who}: expected a graph over one set of nodes, got {graph!r}")
    return graph


def _ends(graph: Any, who: str, src: Ids, dst: Ids) -> tuple[Tensor, Tensor]:
    """Checked ends of pairs. Raises: IndexRangeError, ShapeError."""
    sources, destinations = as_ids(who, "src", src).long(), as_ids(who, "dst", dst).long()
    if sources.numel() != destinations.numel():
        got = f"{sources.numel()} and {destinations.numel()}"
        raise ShapeError(f"{who}: expected src and dst of one length, got {got}")
    require_ids(who, "source", sources, graph.num_src)
    require_ids(who, "destination", destinations, graph.num_dst)
    return sources, destinations


def _by_code(graph: Any) -> tuple[Tensor, Tensor]:
    """Codes of all edges' ends, ascending, and the ids in that order, of equal ends ascending."""
    src, dst = graph.edges()
    ordered = torch.sort(dst * max(graph.num_src, 1) + src, stable=True)
    return ordered.values, ordered.indices


def _stretches(graph: Any, who: str, src: Ids, dst: Ids) -> tuple[Tensor, Tensor, Tensor]:
    """Where the edges of every pair begin and end among the ids in order of their ends, and these ids."""
    sources, destinations = _ends(graph, who, src, dst)
    codes, ids = derived(graph, _by_code)
    wanted = destinations * max(graph.num_src, 1) + sources
    return torch.searchsorted(codes, wanted), torch.searchsorted(codes, wanted, right=True), ids


def _append(who: str, kind: str, own: Any, made: Any, given: Mapping[str, Any] | None, count: int) -> None:
    """The graph's rows, then those of what is new. Raises: GraphError, ShapeError."""
    given = {} if given is None else given
    for name in given:
        if name not in own:
            raise GraphError(f"Graph.{who}: expected {kind} that the graph has, got {name!r}; set it on the result")
    for name, rows in own.items():
        if name not in given:
            remedy = f"{kind}={{{name!r}: rows}}, or delete it before"
            raise GraphError(f"Graph.{who}: expected rows of {kind} {name!r} for the new ones, got none; give {remedy}")
        more = torch.as_tensor(given[name]).to(rows.dtype)
        if tuple(more.shape) != (count, *rows.shape[1:]):
            shape = (count, *rows.shape[1:])
            raise ShapeError(f"Graph.{who}: expected {kind} {name!r} of shape {shape}, got {tuple(more.shape)}")
        made[name] = torch.cat([rows, more])
