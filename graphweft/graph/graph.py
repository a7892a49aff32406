"""The graph: directed edges src -> dst, stored by destination, immutable.

Comes in: edges as tensors, arrays or lists, or offsets and indices. Goes out: :class:`Graph`, whose compressed forms,
statistics and derived graphs are made on demand once. Called by users, readers, samplers, layers and the compiler.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch

from graphweft._errors import GraphError
from graphweft.graph import edit
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.carried import as_reduce, carry, fill_loops, joined, merge
from graphweft.graph.edges_by_ends import EdgesByEnds
from graphweft.graph.ends import edge_ends
from graphweft.graph.fields import Fields
from graphweft.graph.forms import Forms, given_csc
from graphweft.graph.ids import Ids
from graphweft.graph.node_ids import NodeIds, number_ids
from graphweft.graph.select import as_selection
from graphweft.graph.stats import GraphStats, measure
from graphweft.graph.text import ShownAsTable, describe
from graphweft.graph.typed import Relation, TypedLayout, flatten, invert, stretches


class Graph(EdgesByEnds, ShownAsTable):
    """Directed edges src -> dst over one set of nodes, or from source nodes to other destination nodes (bipartite).

    Edges are numbered in constructor order; ``edata`` rows follow that order. Parallel edges and self-loops are kept.
    A graph cannot be changed; edits return new graphs.

    Args:
        src: Sources of the edges: integer tensor, array or list, shape (num_edges,). Without ``dst``: an edge index of
            shape (2, num_edges), or a sparse matrix of SciPy or torch. Entry (i, j) of a matrix is the edge i -> j, and
            values other than 1 are kept as ``edata["weight"]``.
        dst: Destinations of the edges, in the same forms, shape (num_edges,).
        num_nodes: Number of nodes; None: one more than the largest id; a pair (num_src, num_dst) for a bipartite graph.
            Without it, ids with large gaps raise an error; :meth:`from_ids` renumbers them.

    Raises: DtypeError, ShapeError, IndexRangeError or GraphError for arguments that do not fit.

    Example:
        >>> g = Graph([0, 1, 2], [1, 2, 2], num_nodes=4)
        >>> g
        Graph(num_nodes=4, num_edges=3)
        >>> g.in_degrees().tolist(), g.reverse().in_degrees().tolist()
        ([0, 1, 2, 0], [1, 1, 1, 0])
    """

    __slots__ = (
        "__weakref__",
        "_fields",
        "_forms",
        "_is_drawn",
        "_is_square",
        "_layout",
        "_looped",
        "_no_loops",
        "_num_dst",
        "_num_src",
        "_placed",
        "_reversed",
        "_side",
        "_stats",
        "_taken",
    )

    def __init__(self, src: Any, dst: Ids | None = None, num_nodes: int | tuple[int, int] | None = None) -> None:
        ends = edge_ends(src, dst, num_nodes)
        csc = Adjacency.from_coo(ends.dst, ends.src, ends.num_dst, ends.num_src)
        self._adopt(Forms(csc, None), ends.num_src, ends.num_dst, ends.is_square)
        if ends.values is not None:
            self.edata["weight"] = ends.values

    def _adopt(self, forms: Forms, num_src: int, num_dst: int, square: bool, layout: TypedLayout | None = None) -> None:
        self._forms, self._side, self._layout = forms, 0, layout
        self._num_src, self._num_dst, self._is_square = num_src, num_dst, square
        self._is_drawn = False
        self._reversed: Graph | weakref.ref[Graph] | None = None
        self._no_loops: Graph | None = None
        self._taken: tuple[torch.Tensor, Graph] | None = None
        self._looped: tuple[torch.Tensor, Graph] | None = None
        self._stats: GraphStats | None = None
        self._placed: dict[torch.device, Graph] | None = None
        self._fields: dict[str, Fields] = {}

    @classmethod
    def _make(cls, forms: Forms, num_src: int, num_dst: int, square: bool, layout: TypedLayout | None = None) -> Graph:
        graph = cls.__new__(cls)
        graph._adopt(forms, num_src, num_dst, square, layout)
        return graph

    @classmethod
    def from_adjacency(cls, csc: Adjacency, *, bipartite: bool | None = None) -> Graph:
        """A graph over a checked structure, whose rows are destinations. Bipartite if the sides differ."""
        square = csc.num_rows == csc.num_cols if bipartite is None else not bipartite
        return cls._make(Forms(csc, None), csc.num_cols, csc.num_rows, square)

    @classmethod
    def from_csc(cls, indptr: Ids, indices: Ids, num_src: int | None = None, edge_ids: Ids | None = None) -> Graph:
        """A graph from in-edges: destination i has the sources ``indices[indptr[i] : indptr[i + 1]]``.

        Arrays of fitting types are kept, not copied, and must not be changed. Without ``num_src`` the graph is square.
        ``edge_ids[p]`` is the number of the edge at position p; without it, edges follow ``indices``.

        Raises: GraphError, IndexRangeError, DtypeError or ShapeError with the first fault and its position.

        Example:
            >>> g = Graph.from_csc([0, 0, 2], [0, 1])
            >>> [t.tolist() for t in g.edges()]
            [[0, 1], [1, 1]]
        """
        return cls.from_adjacency(given_csc("Graph.from_csc", indptr, indices, num_src, edge_ids))

    @classmethod
    def from_ids(cls, src: Any, dst: Any, nodes: Any = None) -> tuple[Graph, NodeIds]:
        """A graph from ids that are any integers or texts, and the :class:`NodeIds` to map ids and node numbers.

        Nodes are numbered in the order of ``nodes``; without it in ascending order of the ids. ``ids[v]`` is the id of
        node v, and ``ids.nodes(id)`` is the number of an id.

        Raises: DtypeError, ShapeError; IndexRangeError for an edge with an id that is not in ``nodes``.

        Example:
            >>> graph, ids = Graph.from_ids(["ann", "bob"], ["bob", "eve"])
            >>> graph, ids[2], int(ids.nodes("bob"))
            (Graph(num_nodes=3, num_edges=2), 'eve', 1)
        """
        sources, destinations, ids = number_ids(src, dst, nodes)
        return cls(sources, destinations, num_nodes=len(ids)), ids

    @classmethod
    def hetero(cls, edges: Mapping[Relation, Any], num_nodes: Mapping[str, int] | None = None) -> Graph:
        """A typed graph: ``edges[(src_type, name, dst_type)] = (src, dst)`` with ids local to each type.

        Nodes are numbered type after type in the order of ``num_nodes``, edges relation after relation.

        Example:
            >>> Graph.hetero({("author", "writes", "paper"): ([0, 1], [0, 0])}, {"author": 2, "paper": 3})
            Graph(num_nodes={'author': 2, 'paper': 3}, num_edges={('author', 'writes', 'paper'): 2})
        """
        src, dst, layout = flatten(edges, num_nodes)
        total = layout.node_offsets[-1]
        return cls.typed(Adjacency.from_coo(dst, src, total, total), layout)

    @classmethod
    def typed(cls, csc: Adjacency, layout: TypedLayout) -> Graph:
        """A typed graph over in-edges that were checked against ``layout``: nodes by type, edge ids by relation."""
        return cls._make(Forms(csc, None), csc.num_rows, csc.num_rows, True, layout)

    # Sizes

    @property
    def num_src(self) -> int:
        """Number of source nodes."""
        return self._num_src

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self._num_dst

    @property
    def num_nodes(self) -> int:
        """Number of nodes; for a bipartite graph the number of sources plus destinations."""
        return self._num_dst if self._is_square else self._num_src + self._num_dst

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self._forms.known().num_edges

    @property
    def is_drawn(self) -> bool:
        """Whether a sampler drew it. Compiled plans then depend on its size class, not on its exact sizes."""
        return self._is_drawn

    def as_drawn(self) -> Self:
        """The same graph, marked as drawn by a sampler."""
        self._is_drawn = True
        return self

    @property
    def is_square(self) -> bool:
        """Whether sources and destinations are the same nodes."""
        return self._is_square

    @property
    def stats(self) -> GraphStats:
        """Sizes and degrees, measured once."""
        if self._stats is None:
            self._stats = measure(self.csc, has_loops=self.has_self_loops, square=self._is_square)
        return self._stats

    # Forms

    @property
    def csc(self) -> Adjacency:
        """In-edges: rows are destinations, columns sources."""
        return self._forms.full(self._side)

    @property
    def csr(self) -> Adjacency:
        """Out-edges with edge ids: rows are sources; made on first use."""
        return self._forms.full(1 - self._side)

    @property
    def any_form(self) -> tuple[Adjacency, bool]:
        """The stored adjacency, in-edges or out-edges, and whether its rows are destinations."""
        form = self._forms.known()
        return form, self._forms.by[self._side] is form

    @property
    def csc_structure(self) -> Adjacency:
        """In-edges for sums that need no edge ids: the arrays of ``csr`` if symmetric. Ignore ``edge_ids``."""
        return self._forms.unlabelled(self._side, self._is_square)

    @property
    def csr_structure(self) -> Adjacency:
        """Out-edges for sums that need no edge ids: the arrays of ``csc`` if symmetric. Ignore ``edge_ids``."""
        return self._forms.unlabelled(1 - self._side, self._is_square)

    @property
    def is_symmetric(self) -> bool:
        """Whether every edge has its reverse, equally often. Determined once, without a second adjacency."""
        return self._forms.is_symmetric(self._is_square)

    @property
    def has_self_loops(self) -> bool:
        """Whether some node has an edge to itself. Determined once."""
        if self._forms.loops is None:
            self._forms.loops = self._is_square and self._forms.known().has_loops()
        return self._forms.loops

    def in_degrees(self) -> torch.Tensor:
        """int64 (num_dst,): edges into each destination."""
        return self._degrees(self._side)

    def out_degrees(self) -> torch.Tensor:
        """int64 (num_src,): edges out of each source."""
        return self._degrees(1 - self._side)

    def _degrees(self, side: int) -> torch.Tensor:
        form = self._forms.by[side]
        return form.degrees() if form is not None else self._forms.full(1 - side).column_counts()

    # Ids

    def nodes(self) -> torch.Tensor:
        """int64 ids of the nodes of a square graph."""
        self._require_square("nodes")
        return torch.arange(self._num_dst, device="cpu")

    def srcs(self) -> torch.Tensor:
        """int64 ids of the source nodes."""
        return torch.arange(self._num_src, device="cpu")

    def dsts(self) -> torch.Tensor:
        """int64 ids of the destination nodes."""
        return torch.arange(self._num_dst, device="cpu")

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 (src, dst) in constructor order, shape (num_edges,) each."""
        form, by_dst = self.any_form
        rows, cols = form.to_coo()
        return (cols, rows) if by_dst else (rows, cols)

    # Derived graphs

    def reverse(self) -> Graph:
        """The reversed graph. Edges keep their numbers, and arrays are shared. ``g.reverse().reverse() is g``."""
        kept = self._reversed() if isinstance(self._reversed, weakref.ref) else self._reversed
        if kept is not None:
            return kept
        layout = None if self._layout is None else self._layout.reversed()
        turned = self._make(self._forms, self._num_dst, self._num_src, self._is_square, layout)
        turned._side = 1 - self._side
        turned._reversed = self
        self._reversed = weakref.ref(turned)
        swap = {"srcdata": "dstdata", "dstdata": "srcdata"}
        turned._fields = {swap.get(name, name): fields for name, fields in self._all_fields().items()}
        return turned

    def without_self_loops(self) -> Graph:
        """The graph without self-loops, other edges renumbered in order. Returns the graph itself if it has none.

        The structure is computed once. ``ndata`` and the rows of ``edata`` are kept.
        """
        loopless = self.loopless
        return self if loopless is self else self._named(loopless, lambda: edit.no_loops_mask(self.csc).bool())

    @property
    def loopless(self) -> Graph:
        """As :meth:`without_self_loops`, without named tensors. Computed once, for layers."""
        if not self.has_self_loops:
            return self
        if self._no_loops is None:
            self._no_loops = self._keep(edit.no_loops_mask(self.csc))
            self._no_loops._forms.loops = False
        return self._no_loops

    def with_one_loop(self) -> Graph:
        """The graph with exactly one self-loop at every node, after the other edges; renumbered, without ``edata``."""
        self._require_square("with_one_loop")
        return self._over(edit.concat(self.loopless.csc, edit.loops(self.nodes(), self._num_dst)))

    def edge_subgraph(self, keep: Ids) -> Graph:
        """The graph of the edges with these ids, or of a boolean mask, in their order, over the same nodes.

        ``ndata`` and the rows of ``edata`` are kept. An ``edata["id"]`` that was set before shows which edges remain.
        """
        ids = as_selection("Graph.edge_subgraph", "edge", keep, self.num_edges)
        member = torch.zeros(self.num_edges, dtype=torch.uint8, device="cpu")
        member[ids] = 1
        return self._named(self._keep(member), member.bool)

    def _named(self, bare: Graph, edges: Callable[[], torch.Tensor], src: Any = None, dst: Any = None) -> Graph:
        """The structure of ``bare`` with rows of these named tensors; ``bare`` itself where there are none."""
        if not any(map(len, self._fields.values())):
            return bare
        made = self._make(bare._forms, bare._num_src, bare._num_dst, bare._is_square, bare._layout)
        made._side = bare._side
        carry(self, made, edges() if self.edata else None, src, dst)
        return made

    def _keep(self, member: torch.Tensor) -> Graph:
        """The edges whose ``member`` is not 0, without named tensors; typed graphs stay typed."""
        layout = None if self._layout is None else self._layout.filtered(member)
        forms = Forms(edit.filter_edges(self.csc, member), None)
        return self._make(forms, self._num_src, self._num_dst, self._is_square, layout)

    def add_self_loops(self, *, missing_only: bool = False, fill_value: Any = 1.0) -> Graph:
        """Adds an edge v -> v for every node v, after the others; with ``missing_only`` only to nodes without one.

        ``ndata`` is kept. ``fill_value`` gives the rows of ``edata`` of the new edges: a number, a row, the "sum",
        "mean", "min" or "max" of the node's in-edges, or a dict of these by name.

        Raises: GraphError; DtypeError for a value that does not fit the dtype of a field.

        Example:
            >>> [t.tolist() for t in Graph([0], [1]).add_self_loops().edges()]
            [[0, 0, 1], [1, 0, 1]]
        """
        self._require_square("add_self_loops")
        self._require_untyped("add_self_loops")
        rows = edit.without_loop(self.csc) if missing_only and self.has_self_loops else self.nodes()
        made = self._over(edit.concat(self.csc, edit.loops(rows, self._num_dst)))
        carry(self, made, None)
        fill_loops(self, made, rows, fill_value)
        return made

    def to_bidirected(self, reduce: str | None = None) -> Graph:
        """The graph with an edge u -> v if u -> v or v -> u is an edge, each once, by destination, then source.

        ``ndata`` is kept. ``reduce`` merges the rows of ``edata``: "sum", "mean", "min" or "max" over all edges u -> v
        and v -> u (a self-loop counts twice, as in ``A + A.T``), or "drop".

        Raises: GraphError for ``edata`` without ``reduce``; DtypeError for a field of another dtype.
        """
        self._require_square("to_bidirected")
        self._require_untyped("to_bidirected")
        reduce = as_reduce("Graph.to_bidirected", reduce, self.edata)
        return merge(self, self._over(edit.both_directions(self.csc)), reduce, both=True)

    def to_simple(self, reduce: str | None = None) -> Graph:
        """The graph with parallel edges merged, numbered by destination, then source.

        ``ndata`` is kept. ``reduce``, over parallel edges, and errors are as for :meth:`to_bidirected`.
        """
        self._require_untyped("to_simple")
        reduce = as_reduce("Graph.to_simple", reduce, self.edata)
        return merge(self, self._over(edit.without_parallel(self.csc)), reduce)

    def take_dst(self, rows: Ids) -> Graph:
        """Bipartite graph of the edges into ``rows``: destination i is ``rows[i]``, and sources stay the same.

        The structure for the last ``rows`` is kept. Edges are numbered destination by destination; :meth:`in_edge_ids`
        returns their numbers in this graph. Rows of named tensors are kept.
        """
        ids = as_selection("Graph.take_dst", "dst", rows, self._num_dst)
        return self._named(self.edges_into(ids), lambda: self.in_edge_ids(ids), None, ids)

    def edges_into(self, rows: Ids) -> Graph:
        """As :meth:`take_dst`, without named tensors, for layers."""
        ids = as_selection("Graph.take_dst", "dst", rows, self._num_dst)
        if self._taken is None or not torch.equal(self._taken[0], ids):
            forms = Forms(self.csc.take_rows(ids), None)
            self._taken = (ids.clone(), self._make(forms, self._num_src, ids.numel(), False))
        return self._taken[1]

    def take_dst_with_loops(self, rows: torch.Tensor) -> Graph:
        """As :meth:`take_dst`, with one more edge from every destination to itself, after its others; without edge ids.

        The graph for the last ``rows`` is kept.
        """
        if self._looped is None or not torch.equal(self._looped[0], rows):
            forms = Forms(edit.rows_with_loops(self.csc, rows), None)
            self._looped = (rows.clone(), self._make(forms, self._num_src, rows.numel(), False))
        return self._looped[1]

    def take_src(self, rows: Ids) -> Graph:
        """Bipartite graph of the edges out of ``rows``: source i is ``rows[i]``, and destinations stay the same.

        Edges are numbered source by source; :meth:`out_edge_ids` returns their numbers in this graph. Rows of named
        tensors are kept.
        """
        ids = as_selection("Graph.take_src", "src", rows, self._num_src)
        bare = self._make(Forms(None, self.csr.take_rows(ids)), ids.numel(), self._num_dst, False)
        return self._named(bare, lambda: self.out_edge_ids(ids), ids)

    def in_edge_ids(self, rows: Ids) -> torch.Tensor:
        """int64 ids of the edges into ``rows``, in the order of ``take_dst(rows)``."""
        ids = as_selection("Graph.in_edge_ids", "dst", rows, self._num_dst)
        return self.csc.take_rows_with_ids(ids)[1].long()

    def out_edge_ids(self, rows: Ids) -> torch.Tensor:
        """int64 ids of the edges out of ``rows``, in the order of ``take_src(rows)``."""
        ids = as_selection("Graph.out_edge_ids", "src", rows, self._num_src)
        return self.csr.take_rows_with_ids(ids)[1].long()

    def __getitem__(self, key: tuple[Any, Any]) -> Graph:
        """``g[srcs, :]``, ``g[:, dsts]``, ``g[srcs, dsts]``: bipartite subgraphs by ids, boolean masks or slices."""
        if not (isinstance(key, tuple) and len(key) == 2):
            raise GraphError("Graph[...]: expected two selections, sources and destinations, as in g[srcs, :]")
        (srcs, dsts), graph = key, self
        if not (isinstance(dsts, slice) and dsts == slice(None)):
            graph = graph.take_dst(dsts)
        if not (isinstance(srcs, slice) and srcs == slice(None)):
            graph = graph.take_src(srcs)
        return graph

    def __add__(self, other: Graph) -> Graph:
        """The edges of both: those of ``other`` are numbered after these. Parallel edges add up, as matrices do.

        Node tensors are those of the left graph; both must have the same ``edata``.
        """
        if not isinstance(other, Graph):
            return NotImplemented
        self._require_alike("+", other)
        made = self._over(edit.concat(self.csc, other.csc))
        carry(self, made, None)
        joined("Graph + Graph", made.edata, self.edata, other.edata)
        return made

    def __sub__(self, other: Graph) -> Graph:
        """These edges less one per edge of ``other`` with the same ends; ``(g + h) - h`` has the edges of ``g``."""
        if not isinstance(other, Graph):
            return NotImplemented
        self._require_alike("-", other)
        member = edit.less(self.csc, other.csc)
        return self._named(self._keep(member), member.bool)

    def _over(self, csc: Adjacency) -> Graph:
        """An untyped graph over the same nodes."""
        return self._make(Forms(csc, None), self._num_src, self._num_dst, self._is_square)

    # Types

    @property
    def is_typed(self) -> bool:
        """Whether the graph was made by ``Graph.hetero``."""
        return self._layout is not None

    @property
    def layout(self) -> TypedLayout:
        """Types with their ranges of nodes and edges. An untyped square graph has one type of each, named as in DGL."""
        if self._layout is None:
            self._require_square("layout")
            return TypedLayout(("_N",), (0, self._num_dst), (("_N", "_E", "_N"),), (0, self.num_edges))
        return self._layout

    @property
    def node_types(self) -> tuple[str, ...]:
        """Names of the node types."""
        return self.layout.node_types

    @property
    def relations(self) -> tuple[Relation, ...]:
        """(source type, name, destination type) of the edge types."""
        return self.layout.relations

    def node_type(self) -> torch.Tensor:
        """int64 number of every node's type."""
        return stretches(self.layout.node_offsets)

    def edge_type(self) -> torch.Tensor:
        """int64 number of every edge's relation, by edge id."""
        return stretches(self.layout.edge_offsets)

    def relation_graph(self, relation: Relation) -> Graph:
        """Bipartite graph of one relation, with ids local to its types and named tensors. Edges keep their order."""
        layout = self.layout
        ids, src, dst = layout.edge_range(relation), layout.node_range(relation[0]), layout.node_range(relation[2])
        here = slice(ids.start, ids.stop)
        sources, targets = self.edges()
        made = Graph(sources[here] - src.start, targets[here] - dst.start, num_nodes=(len(src), len(dst)))
        carry(self, made, here, slice(src.start, src.stop), slice(dst.start, dst.stop))
        return made

    def add_inverse_relations(self) -> Graph:
        """The graph with an inverse relation for every relation: ``inverse <name>``, after all others.

        An inverse edge has the ``edata`` of its edge.
        """
        counts = {name: len(self.layout.node_range(name)) for name in self.node_types}
        made = Graph.hetero(invert(*self.edges(), self.layout), counts)
        carry(self, made, None)
        joined("Graph.add_inverse_relations", made.edata, self.edata, self.edata)
        return made

    # Named tensors

    @property
    def ndata(self) -> Fields:
        """Named node tensors of a square graph, shared with its reverse; derived graphs keep them."""
        self._require_square("ndata")
        return self._all_fields()["ndata"]

    @property
    def srcdata(self) -> Fields:
        """Named tensors of the source nodes."""
        return self._all_fields()["ndata" if self._is_square else "srcdata"]

    @property
    def dstdata(self) -> Fields:
        """Named tensors of the destination nodes."""
        return self._all_fields()["ndata" if self._is_square else "dstdata"]

    @property
    def edata(self) -> Fields:
        """Named edge tensors; row i belongs to edge i."""
        return self._all_fields()["edata"]

    def stored(self, name: str) -> Mapping[str, torch.Tensor]:
        """The tensors of ``ndata``, ``srcdata``, ``dstdata`` or ``edata``; empty if none were set."""
        fields = self._fields.get(name)
        return {} if fields is None else fields.tensors

    def _all_fields(self) -> dict[str, Fields]:
        if not self._fields:
            if self._is_square:
                self._fields["ndata"] = Fields("ndata", "node", self._num_dst)
            else:
                self._fields["srcdata"] = Fields("srcdata", "source node", self._num_src)
                self._fields["dstdata"] = Fields("dstdata", "destination node", self._num_dst)
            self._fields["edata"] = Fields("edata", "edge", self.num_edges)
        return self._fields

    # Checks, copies, print

    def _require_square(self, who: str) -> None:
        if not self._is_square:
            raise GraphError(f"Graph.{who}: expected one set of nodes, got {self!r}")

    def _require_untyped(self, who: str) -> None:
        if self._layout is not None:
            count = len(self._layout.relations)
            raise GraphError(
                f"Graph.{who}: expected an untyped graph, got {count} relations, which gw.nn.RGCN and HGT take"
            )

    def _require_alike(self, sign: str, other: Graph) -> None:
        mine, theirs = (self._num_src, self._num_dst), (other._num_src, other._num_dst)
        if mine != theirs or self._is_square != other._is_square:
            raise GraphError(f"Graph {sign} Graph: expected the same nodes, got {self!r} and {other!r}")
        self._require_untyped(sign)
        other._require_untyped(sign)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("_num_src", "_num_dst", "_is_square", "_layout")}
        drawn = {"_is_drawn": True} if self.is_drawn else {}
        return state | drawn | {"csc": self.csc, "fields": {k: f for k, f in self._fields.items() if len(f)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sizes = (state["_num_src"], state["_num_dst"], state["_is_square"], state["_layout"])
        self._adopt(Forms(state["csc"], None), *sizes)
        if state["fields"]:
            self._fields = self._all_fields() | state["fields"]
        if state.get("_is_drawn"):
            self.as_drawn()

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """A graph with its own copies of the named tensors; the structure, which nobody changes, is shared."""
        copy = self._make(self._forms, self._num_src, self._num_dst, self._is_square, self._layout)
        copy._side = self._side
        for name, fields in self._fields.items():
            for key, tensor in fields.items():
                copy._all_fields()[name][key] = tensor.clone()
        memo[id(self)] = copy
        return copy

    def __repr__(self) -> str:
        return describe(self._num_src, self._num_dst, self.num_edges, self._is_square, self._layout)
