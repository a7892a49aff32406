"""One sampled bipartite layer of a batch.

Comes in: a compressed structure in batch numbering, drawn by a sampler. Goes out: :class:`Block`, a graph whose
destinations are the first of its sources, which knows the nodes and edges of the whole graph behind it. Called by
samplers; run by models.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch

from graphweft._errors import GraphError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.graph import edit
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.derived import derived, keep
from graphweft.graph.far_adjacency import FarAdjacency
from graphweft.graph.graph import Graph

_edges = declare("gw_sample_edges")


class Runs(NamedTuple):
    """Edges of drawn rows by relation: those of a row follow each other in the order of the relations.

    Attributes:
        begin: int64 (rows + 1,): the first run of every row.
        runs: int32 (runs, 2): relation, and number of edges drawn.
        limits: int64 (relations,): how many of a run are here at most, -1 for all; None: all of every run.
    """

    begin: torch.Tensor
    runs: torch.Tensor
    limits: torch.Tensor | None = None


class DrawnEdges:
    """Edges that a sampler drew: rows and columns are numbers of the batch, offsets places in the graph's rows.

    Shape: indptr (rows + 1,) int64, indices and offsets (edges,) int32; rows from ``first`` on count. Without offsets
    every row has all edges of the graph's row in their order, and offsets are made whenever they are asked for.

    Attributes:
        runs: Where the edges of each relation are, if the sampler says so.
    """

    __slots__ = ("_offsets", "first", "graph", "indices", "indptr", "n_id", "runs")

    runs: Runs | None

    def __init__(
        self,
        graph: Graph,
        n_id: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor | None = None,
        first: int = 0,
    ) -> None:
        self.graph, self.n_id, self.runs = graph, n_id, None
        self.indptr, self.indices, self._offsets, self.first = indptr, indices, offsets, first

    @property
    def offsets(self) -> torch.Tensor:
        """Places of the edges in the graph's rows."""
        if self._offsets is not None:
            return self._offsets
        counts = self.indptr.diff()
        return (torch.arange(self.indices.numel()) - torch.repeat_interleave(self.indptr[:-1], counts)).int()

    @property
    def start(self) -> int:
        """Entries of rows before the first that counts."""
        return int(self.indptr[self.first])

    @property
    def num_edges(self) -> int:
        """Edges of the rows that count."""
        return int(self.indptr[-1]) - self.start

    def write(self, src: torch.Tensor | None, dst: torch.Tensor | None, ids: torch.Tensor | None) -> None:
        """Writes ends in batch numbering and ids of the graph's edges, int64 (num_edges,) each, where wanted."""
        start, offsets = self.start, self.offsets
        entries = (self.indices.data_ptr() + 4 * start, offsets.data_ptr() + 4 * start)
        rows = (self.n_id.data_ptr(), self.first, self.indptr.numel() - 1 - self.first, self.indptr.data_ptr())
        shifted = tuple(pointer - 4 * start for pointer in entries)
        _edges(self.graph.csc.native, *rows, *shifted, *(None if t is None else t.data_ptr() for t in (src, dst, ids)))

    def adjacency(self, num_src: int) -> Adjacency:
        """Rows and columns, from the first ``num_src`` nodes."""
        return Adjacency(self.indptr, self.indices, None, num_src)

    def ids(self) -> torch.Tensor:
        """Ids of the block's edges in the whole graph, int64 (edges,)."""
        ids = empty((self.num_edges,), torch.int64)
        self.write(None, None, ids)
        return ids


class FarIds:
    """Ids of nodes that lie on a device, with a copy in host memory where somebody asks for it.

    Attributes:
        far: int64 (nodes,), on the device.
    """

    def __init__(self, far: torch.Tensor) -> None:
        self.far = far

    @cached_property
    def host(self) -> torch.Tensor:
        """In host memory."""
        return self.far.cpu()


class FarEdges(DrawnEdges):
    """The same, drawn on a device; copies in host memory are made where they are asked for.

    Attributes:
        nodes: ``n_id``.
    """

    __slots__ = ("_far", "_places", "nodes")

    def __init__(self, graph: Graph, nodes: FarIds, far: Adjacency, places: torch.Tensor) -> None:
        self.graph, self.nodes, self._places, self.first = graph, nodes, places, 0
        self.runs = None
        self._far = FarAdjacency(far)

    @property
    def n_id(self) -> torch.Tensor:  # type: ignore[override]
        """Nodes of the batch, in host memory."""
        return self.nodes.host

    @property
    def indptr(self) -> torch.Tensor:  # type: ignore[override]
        """In host memory."""
        return self._far.indptr

    @property
    def indices(self) -> torch.Tensor:  # type: ignore[override]
        """In host memory."""
        return self._far.indices

    @property
    def offsets(self) -> torch.Tensor:
        """In host memory."""
        return self._places.cpu()

    @property
    def num_edges(self) -> int:
        """Edges of the rows that count."""
        return self._far.num_edges

    def adjacency(self, num_src: int) -> Adjacency:
        """Rows and columns, on the device as well."""
        return self._far


class Block(Graph):
    """A bipartite graph of one sampled hop. Destination i is also source i.

    Attributes:
        edge_norm: float32 (num_edges,) factors that make sums over a destination's edges unbiased estimates of the sums
            over all of its in-edges; None if the sampler has none.
        is_whole: Whether the block is known to have all in-edges of its destinations, such as the part of a rank.

    Nodes are numbered as in the batch: sources are the batch's nodes ``n_id[:num_src]``. Edges are numbered destination
    by destination; ``e_id`` has their ids in the graph they were drawn from.

    Example:
        >>> from graphweft.sample.neighbor import NeighborSampler
        >>> block = NeighborSampler(Graph([1, 2, 3], [0, 0, 0]), [2]).sample([0]).blocks[0]
        >>> block.num_dst, block.num_src, block.in_degrees().tolist()
        (1, 3, [2])
    """

    __slots__ = ("_drawn", "edge_norm", "is_whole")

    _drawn: DrawnEdges
    edge_norm: torch.Tensor | None
    is_whole: bool

    @classmethod
    def of(
        cls, drawn: DrawnEdges, num_src: int, edge_norm: torch.Tensor | None = None, *, stays: bool = False
    ) -> Block:
        """The block over drawn edges.

        ``stays``: whether the block is used repeatedly and has all in-edges of its destinations, such as the part of a
            rank.
        """
        block = cls.from_adjacency(drawn.adjacency(num_src), bipartite=True)
        assert isinstance(block, Block)
        block._drawn, block.edge_norm, block.is_whole = drawn, edge_norm, stays
        return block if stays else block.as_drawn()

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in Block.__slots__ if hasattr(self, name)}
        return {**super().__getstate__(), "block": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name, value in state["block"].items():
            setattr(self, name, value)

    @property
    def drawn(self) -> DrawnEdges:
        """The edges, with their places in the whole graph's rows."""
        return self._drawn

    @property
    def source(self) -> Graph:
        """The graph whose edges these are."""
        return self._drawn.graph

    @property
    def src_ids(self) -> torch.Tensor:
        """int64 (num_src,): ids of the sources in the whole graph."""
        return self._drawn.n_id[: self.num_src]

    @property
    def dst_ids(self) -> torch.Tensor:
        """int64 (num_dst,): ids of the destinations in the whole graph."""
        return self._drawn.n_id[: self.num_dst]

    @property
    def e_id(self) -> torch.Tensor:
        """Ids of the block's edges in the whole graph, int64 (edges,)."""
        return self._drawn.ids()

    def src_degrees(self, loops: bool = False) -> torch.Tensor:
        """float32 (num_src,): edges into each source in the whole graph; ``loops``: self-loops count.

        Raises: GraphError for a piece of a graph whose degrees are not known.
        """
        found = derived(self.source, _all_degrees if loops else _degrees)
        if found is None:
            raise GraphError("degrees: expected a piece of a graph without self-loops, got one with self-loops")
        return found[self.src_ids]

    def without_self_loops(self) -> Block:
        """The block without self-loops; itself if the whole graph has none."""
        if not self.source.has_self_loops:
            return self
        return derived(self, _without_loops) if self.is_whole and not self._fields else _without_loops(self)

    @property
    def loopless(self) -> Block:
        """As :meth:`without_self_loops`."""
        return self.without_self_loops()

    def with_one_loop(self) -> Graph:
        """The block with exactly one edge from every destination to itself, its last; edges are renumbered, without
        ``edata``.
        """
        csc = self.without_self_loops().csc
        if isinstance(csc, FarAdjacency):
            looped = csc.with_last(torch.arange(csc.num_rows, device=csc.far.indptr.device))
        else:
            looped = _with_last(csc, torch.arange(csc.num_rows, dtype=csc.indices.dtype))
        made = Graph.from_adjacency(looped, bipartite=True)
        return made.as_drawn() if self.is_drawn else made  # else what is computed from it would be kept

    def __repr__(self) -> str:
        return f"Block(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


class OpenBlock(Graph):
    """A sampled hop whose sources are all nodes of the whole graph, by their own ids; destinations as in a batch.

    Example:
        >>> from graphweft.sample.neighbor import NeighborSampler
        >>> block = NeighborSampler(Graph([1, 2, 3], [0, 0, 0]), [2]).sample_open([0]).blocks[0]
        >>> block.num_dst, block.num_src, block.dst_ids.tolist()
        (1, 4, [0])
    """

    __slots__ = ("_n_id", "_source")

    _n_id: torch.Tensor
    _source: Graph

    @classmethod
    def over(cls, source: Graph, n_id: torch.Tensor, indptr: torch.Tensor, columns: torch.Tensor) -> OpenBlock:
        """The block of destinations ``n_id`` whose columns are nodes of ``source``."""
        block = cls.from_adjacency(Adjacency(indptr, columns, None, source.num_nodes), bipartite=True)
        assert isinstance(block, OpenBlock)
        block._n_id, block._source = n_id, source
        return block

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_n_id": self._n_id, "_source": self._source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._n_id, self._source = state["_n_id"], state["_source"]

    @property
    def source(self) -> Graph:
        """The graph whose edges these are."""
        return self._source

    @property
    def dst_ids(self) -> torch.Tensor:
        """int64 (num_dst,): ids of the destinations in the whole graph."""
        return self._n_id[: self.num_dst]

    def without_self_loops(self) -> OpenBlock:
        """Less the edges from a node to itself; itself if the whole graph has none."""
        if not self._source.has_self_loops:
            return self
        csc = self.csc
        degrees = csc.indptr.diff()
        rows = torch.repeat_interleave(torch.arange(csc.num_rows), degrees)
        kept = csc.indices != self.dst_ids[rows]
        counts = torch.bincount(rows[kept], minlength=csc.num_rows)
        indptr = torch.zeros_like(csc.indptr)
        torch.cumsum(counts, 0, out=indptr[1:])
        return OpenBlock.over(self._source, self._n_id, indptr, csc.indices[kept])

    @property
    def loopless(self) -> OpenBlock:
        """As :meth:`without_self_loops`."""
        return self.without_self_loops()

    def with_one_loop(self) -> OpenBlock:
        """As :meth:`Block.with_one_loop`."""
        csc = self.without_self_loops().csc
        looped = _with_last(csc, self.dst_ids.to(csc.indices.dtype))
        return OpenBlock.over(self._source, self._n_id, looped.indptr, looped.indices)

    def moved(self, place: torch.Tensor, rows: int) -> Graph:
        """The same edges from rows of another table: source i is its row ``place[i]``, of ``rows``."""
        csc = self.csc
        columns = place[csc.indices].to(csc.indices.dtype)
        return Graph.from_adjacency(Adjacency(csc.indptr, columns, None, rows), bipartite=True)

    def __repr__(self) -> str:
        return f"OpenBlock(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


def _without_loops(block: Block) -> Block:
    """A block's edges but for those from a destination to itself."""
    member = edit.no_loops_mask(block.csc)
    kept = edit.filter_edges(block.csc, member)
    drawn = block.drawn
    offsets = drawn.offsets[member.bool()]
    norm = None if block.edge_norm is None else block.edge_norm[member.bool()]
    edges = DrawnEdges(drawn.graph, drawn.n_id, kept.indptr, kept.indices, offsets)
    made = Block.of(edges, block.num_src, norm, stays=block.is_whole)
    if block._fields:
        made._all_fields().update(srcdata=block.srcdata, dstdata=block.dstdata)
        made.edata.follow(block.edata, member.bool())
    return made


def _with_last(csc: Adjacency, columns: torch.Tensor) -> Adjacency:
    """One more entry at the end of every row, without edge ids."""
    indptr = csc.indptr + torch.arange(csc.num_rows + 1)
    return Adjacency(indptr, insert_last(csc, csc.indices, columns), None, csc.num_cols)


def insert_last(csc: Adjacency, values: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Values of the entries of ``csc``, with one more at the end of every row.

    Shape: values (entries, ...), last (rows, ...) -> (entries + rows, ...).
    """
    places = csc.indptr[1:] + torch.arange(csc.num_rows)
    others = torch.ones(csc.num_edges + csc.num_rows, dtype=torch.bool)
    others[places] = False
    out = empty((others.numel(), *values.shape[1:]), values.dtype)
    out[others] = values
    out[places] = last
    return out


def with_degrees(graph: Graph, degrees: torch.Tensor) -> None:
    """Blocks of ``graph``, a piece of a larger one, have the degrees of the whole.

    Shape: degrees float32 (num_nodes,): edges into each node of the whole graph, self-loops left out. Those with loops
    are known where the piece has none, or by :func:`with_all_degrees`.
    """
    keep(graph, _degrees, degrees)
    keep(graph, _all_degrees, None if graph.has_self_loops else degrees)


def with_all_degrees(graph: Graph, degrees: torch.Tensor | None) -> None:
    """As :func:`with_degrees`, after it: edges into each node of the whole graph, self-loops among them."""
    keep(graph, _all_degrees, degrees)


def _degrees(graph: Graph) -> torch.Tensor:
    """In-degrees without self-loops, float32."""
    return graph.loopless.in_degrees().float()


def _all_degrees(graph: Graph) -> torch.Tensor | None:
    """In-degrees, float32; None where the graph is a piece of another, and they are not known."""
    return graph.in_degrees().float()
