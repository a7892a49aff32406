"""The edges of a typed graph grouped for products with a matrix per relation, and nodes grouped by type.

Comes in: a square graph with types. Goes out: :class:`TypedPairs`, made once per graph and shared with its reverse,
and :class:`TypedRows`; kernels take both as ``.native``. In every relation edges are grouped by the end, destination or
source, that makes fewer pairs: one product per pair serves all its edges. Called by the runtime.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.typed import stretches

_CHUNK, _NARROW_CHUNK = 96, 24  # pairs multiplied at once; fewer where each has many edges
_CROWDED = 32  # edges per pair from which chunks are narrow
_UNIT = 2048  # rows whose share of a matrix's gradient is summed apart
_BLOCKS, _BLOCK_WORK = 256, 2048  # row sums are cut into at most so many blocks, of at least so much work
_INT32 = 2**31 - 1


class NativeRows(ctypes.Structure):
    """``gw_typed_rows`` of typed.h."""

    _fields_ = (
        ("num_types", ctypes.c_int64),
        ("num_chunks", ctypes.c_int64),
        ("num_units", ctypes.c_int64),
        ("chunk_begin", ctypes.c_void_p),
        ("chunk_type", ctypes.c_void_p),
        ("unit_chunk", ctypes.c_void_p),
        ("type_unit", ctypes.c_void_p),
    )


class _NativeSums(ctypes.Structure):
    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
        ("indptr", ctypes.c_void_p),
        ("pair", ctypes.c_void_p),
        ("edge", ctypes.c_void_p),
        ("block_row", ctypes.c_void_p),
    )


class NativePairs(ctypes.Structure):
    """``gw_typed_pairs`` of typed.h."""

    _fields_ = (
        ("rows", NativeRows),
        ("entries", ctypes.c_void_p),
        ("node", ctypes.c_void_p),
        ("other", ctypes.c_void_p),
        ("edge", ctypes.c_void_p),
        ("on_dst", ctypes.c_void_p),
        ("sums", _NativeSums * 2),
        ("wide", ctypes.c_int32),
    )


@dataclass(frozen=True, eq=False)
class TypedRows:
    """Rows type after type, cut into chunks of one type, and those into units.

    Attributes:
        offsets: int64 (types + 1,): the rows of each type.
        chunk_begin: int64 (chunks + 1,): first rows.
        chunk_type: int64 (chunks,).
        unit_chunk: int64 (units + 1,): first chunks.
        type_unit: int64 (types + 1,): first units.
    """

    offsets: Tensor
    chunk_begin: Tensor
    chunk_type: Tensor
    unit_chunk: Tensor
    type_unit: Tensor

    @classmethod
    def of(cls, offsets: Tensor, widths: Tensor) -> TypedRows:
        """Rows of the types between ``offsets``, in chunks of at most ``widths`` rows (int64, one a type)."""
        counts = offsets[1:] - offsets[:-1]
        chunks = (counts + widths - 1) // widths
        chunk_type = torch.repeat_interleave(torch.arange(counts.numel()), chunks)
        place = torch.arange(chunk_type.numel()) - _before(chunks)[:-1][chunk_type]
        begin = offsets[:-1][chunk_type] + place * widths[chunk_type]
        per_unit = _UNIT // widths
        units = (chunks + per_unit - 1) // per_unit
        unit_type = torch.repeat_interleave(torch.arange(counts.numel()), units)
        unit_place = torch.arange(unit_type.numel()) - _before(units)[:-1][unit_type]
        unit_chunk = _before(chunks)[:-1][unit_type] + unit_place * per_unit[unit_type]
        return cls(
            offsets,
            torch.cat([begin, offsets[-1:]]),
            chunk_type,
            torch.cat([unit_chunk, torch.tensor([chunk_type.numel()])]),
            _before(units),
        )

    @property
    def num_types(self) -> int:
        """Types, with rows or without."""
        return self.offsets.numel() - 1

    @property
    def num_rows(self) -> int:
        """All rows."""
        return int(self.offsets[-1])

    @cached_property
    def kinds(self) -> Tensor:
        """int64 (rows,): the type of every row."""
        return torch.repeat_interleave(torch.arange(self.num_types), self.offsets[1:] - self.offsets[:-1])

    @cached_property
    def native(self) -> NativeRows:
        """The structure that native entry points take by reference; valid while this object lives."""
        arrays = (self.chunk_begin, self.chunk_type, self.unit_chunk, self.type_unit)
        sizes = (self.num_types, self.chunk_type.numel(), self.unit_chunk.numel() - 1)
        return NativeRows(*sizes, *(array.data_ptr() for array in arrays))


@dataclass(frozen=True, eq=False)
class _Sums:
    """What each row of a result adds up: its own pairs (edge -1), and pairs at the other end of its edges."""

    indptr: Tensor
    pair: Tensor
    edge: Tensor
    block_row: Tensor

    @classmethod
    def of(
        cls, num_rows: int, own: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor, Tensor], kind: torch.dtype
    ) -> _Sums:
        """From (row, pair) of own pairs, and (row, pair, edge) of edges."""
        row = torch.cat([own[0], far[0]])
        order = torch.argsort(row, stable=True)
        pair = torch.cat([own[1], far[1]])[order].to(kind)
        edge = torch.cat([torch.full_like(own[0], -1), far[2]])[order].to(kind)
        indptr = _before(torch.bincount(row, minlength=num_rows))
        work = indptr + torch.arange(num_rows + 1)
        count = max(1, min(_BLOCKS, int(work[-1]) // _BLOCK_WORK))
        cuts = torch.arange(count + 1) * int(work[-1]) // count
        block_row = torch.unique_consecutive(torch.searchsorted(work, cuts))
        block_row = block_row if num_rows else torch.zeros(1, dtype=torch.int64)
        return cls(indptr, pair, edge, block_row)

    def native(self) -> _NativeSums:
        arrays = (self.indptr, self.pair, self.edge, self.block_row)
        sizes = (self.indptr.numel() - 1, self.block_row.numel() - 1)
        return _NativeSums(*sizes, *(array.data_ptr() for array in arrays))


@dataclass(frozen=True, eq=False)
class TypedPairs:
    """Pairs of a relation and a node at one end of its edges, relation after relation.

    Attributes:
        rows: The pairs by relation.
        entries: int64 (pairs + 1,): edges of each pair.
        node: (pairs,) the pair's end.
        other: (edges,) the other end of every edge, in the order of pairs.
        edge: (edges,) edge ids in that order.
        on_dst: uint8 (relations,): 1 where pairs are destinations, 0 where they are sources.
        by_dst, by_src: Row sums of results over destinations and over sources.
        num_nodes: Nodes of the graph.
    """

    rows: TypedRows
    entries: Tensor
    node: Tensor
    other: Tensor
    edge: Tensor
    on_dst: Tensor
    by_dst: _Sums
    by_src: _Sums
    num_nodes: int

    @classmethod
    def of(cls, graph: Graph, wide: bool = False) -> TypedPairs:
        """The pairs of a square graph; edge ids are relation after relation. ``wide``: int64 where int32 would do.

        Raises: GraphError where relations times nodes pass 63 bits.
        """
        src, dst = graph.edges()
        kind, count, nodes = graph.edge_type(), len(graph.relations), graph.num_nodes
        if count * max(nodes, 1) >= 2**62:
            raise GraphError(f"typed pairs: expected relations x nodes below 2**62, got {count} x {nodes}")
        ends = [_count_pairs(kind, end, nodes, count) for end in (dst, src)]
        on_dst = ends[0] <= ends[1]
        mine = on_dst[kind]
        node, other = torch.where(mine, dst, src), torch.where(mine, src, dst)
        key = kind * nodes + node
        order = torch.argsort(key, stable=True)
        found, sizes = torch.unique_consecutive(key[order], return_counts=True)
        pair_type, pair_node = found // max(nodes, 1), found % max(nodes, 1)
        pair = torch.empty_like(order).index_copy_(
            0, order, torch.repeat_interleave(torch.arange(found.numel()), sizes)
        )
        narrow = torch.int32 if max(nodes, graph.num_edges) <= _INT32 and not wide else torch.int64
        counts = torch.bincount(pair_type, minlength=count)
        crowded = torch.bincount(kind, minlength=count) > counts * _CROWDED
        widths = torch.where(crowded, _NARROW_CHUNK, _CHUNK)

        def sums(own: Tensor, far: Tensor, row: Tensor) -> _Sums:
            pairs, edges = own[pair_type].nonzero()[:, 0], far[kind].nonzero()[:, 0]
            return _Sums.of(nodes, (pair_node[pairs], pairs), (row[edges], pair[edges], edges), narrow)

        return cls(
            TypedRows.of(_before(counts), widths),
            _before(sizes),
            pair_node.to(narrow),
            other[order].to(narrow),
            order.to(narrow),
            on_dst.to(torch.uint8),
            sums(on_dst, ~on_dst, dst),
            sums(~on_dst, on_dst, src),
            nodes,
        )

    @property
    def num_pairs(self) -> int:
        """Products that one pass makes."""
        return self.node.numel()

    @property
    def num_edges(self) -> int:
        """Edges of the graph."""
        return self.other.numel()

    @cached_property
    def native(self) -> NativePairs:
        """The structure that native entry points take by reference; valid while this object lives."""
        arrays = (self.entries, self.node, self.other, self.edge, self.on_dst)
        sums = (_NativeSums * 2)(self.by_dst.native(), self.by_src.native())
        wide = int(self.node.dtype == torch.int64)
        return NativePairs(self.rows.native, *(array.data_ptr() for array in arrays), sums, wide)


def _count_pairs(kind: Tensor, end: Tensor, nodes: int, count: int) -> Tensor:
    """How many pairs of a relation and an end there are in each relation."""
    keys = torch.unique_consecutive((kind * nodes + end).sort().values)
    return torch.bincount(keys // max(nodes, 1), minlength=count)


def _before(counts: Tensor) -> Tensor:
    """Offsets: 0, then running sums."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


_PAIRS: weakref.WeakKeyDictionary[Graph, TypedPairs] = weakref.WeakKeyDictionary()
_NODES: weakref.WeakKeyDictionary[Graph, TypedRows] = weakref.WeakKeyDictionary()
_EDGES: weakref.WeakKeyDictionary[Graph, TypedRows] = weakref.WeakKeyDictionary()


def typed_pairs(graph: Graph) -> tuple[TypedPairs, bool]:
    """The pairs of a graph, made once, and whether they are those of its reverse."""
    known = _PAIRS.get(graph)
    if known is not None:
        return known, False
    turned = _PAIRS.get(graph.reverse())
    if turned is not None:
        return turned, True
    made = _PAIRS[graph] = TypedPairs.of(graph)
    return made, False


def typed_nodes(graph: Graph) -> TypedRows:
    """The nodes of a square graph by type, made once."""
    known = _NODES.get(graph)
    if known is None:
        known = _NODES[graph] = _stretched(graph.layout.node_offsets)
    return known


def typed_edges(graph: Graph) -> TypedRows:
    """The edges of a square graph by relation, made once."""
    known = _EDGES.get(graph)
    if known is None:
        known = _EDGES[graph] = _stretched(graph.layout.edge_offsets)
    return known


def _stretched(offsets: tuple[int, ...]) -> TypedRows:
    return TypedRows.of(torch.tensor(offsets), torch.full((len(offsets) - 1,), _CHUNK))


def same_type_degrees(graph: Graph) -> Tensor:
    """int64 (edges,): for every edge, how many edges of its type enter its destination, itself among them."""
    _, dst = graph.edges()
    key = stretches(graph.layout.edge_offsets) * max(graph.num_nodes, 1) + dst
    order = torch.argsort(key, stable=True)
    counts = torch.unique_consecutive(key[order], return_counts=True)[1]
    return torch.empty_like(order).index_copy_(0, order, torch.repeat_interleave(counts, counts))
