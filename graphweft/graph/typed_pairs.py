"""The edges of a typed graph grouped for products with a matrix per relation, and nodes grouped by type.

Comes in: a square graph with types. Goes out: :class:`TypedPairs`, made once per graph and shared with its reverse,
and :class:`TypedRows`; kernels take both as ``.native``. In every relation edges are grouped by the end, destination or
source, that makes fewer pairs: one product per pair serves all its edges. Called by the runtime.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphweft import _abi
from graphweft._errors import GraphError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.graph.derived import derived, is_derived
from graphweft.graph.graph import Graph
from graphweft.graph.placed import PlacedGraph

_CHUNK, _NARROW_CHUNK = 96, 24  # pairs multiplied at once; fewer where each has many edges
_CROWDED = 32  # edges per pair from which chunks are narrow
_UNIT = 2048  # rows whose share of a matrix's gradient is summed apart
_BLOCKS, _BLOCK_WORK = 256, 2048  # row sums are cut into at most so many blocks, of at least so much work
_INT32 = 2**31 - 1


_group = declare("gw_typed_group")
_list = declare("gw_typed_list")
_degrees = declare("gw_typed_degrees")


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
    def native(self) -> _abi.TypedRows:
        """The structure that native entry points take by reference; valid while this object lives."""
        arrays = (self.chunk_begin, self.chunk_type, self.unit_chunk, self.type_unit)
        sizes = (self.num_types, self.chunk_type.numel(), self.unit_chunk.numel() - 1)
        return _abi.TypedRows(*sizes, *(array.data_ptr() for array in arrays))


@dataclass(frozen=True, eq=False)
class _Sums:
    """What each row of a result adds up: its own pairs (edge -1), and pairs at the other end of its edges."""

    indptr: Tensor
    pair: Tensor
    edge: Tensor

    @classmethod
    def empty(cls, nodes: int, entries: int, kind: torch.dtype) -> _Sums:
        """Room for so many rows and entries."""
        return cls(empty((nodes + 1,), torch.int64), empty((entries,), kind), empty((entries,), kind))

    @property
    def arrays(self) -> tuple[int, int, int]:
        """Addresses."""
        return self.indptr.data_ptr(), self.pair.data_ptr(), self.edge.data_ptr()

    @cached_property
    def block_row(self) -> Tensor:
        """int64 (blocks + 1,): first rows of blocks of about equal work."""
        if self.indptr.numel() == 1:
            return torch.zeros(1, dtype=torch.int64)
        work = self.indptr + torch.arange(self.indptr.numel())
        count = max(1, min(_BLOCKS, int(work[-1]) // _BLOCK_WORK))
        cuts = torch.arange(count + 1) * int(work[-1]) // count
        found: Tensor = torch.unique_consecutive(torch.searchsorted(work, cuts))
        return found

    def native(self) -> _abi.TypedSums:
        return _abi.TypedSums(
            self.indptr.numel() - 1, self.block_row.numel() - 1, *self.arrays, self.block_row.data_ptr()
        )


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
        count, nodes, edges = len(graph.relations), graph.num_nodes, graph.num_edges
        if count * max(nodes, 1) >= 2**62:
            raise GraphError(f"typed pairs: expected relations x nodes below 2**62, got {count} x {nodes}")
        narrow = torch.int32 if max(nodes, edges) <= _INT32 and not wide else torch.int64
        form, by_dst = graph.any_form
        offsets = torch.tensor(graph.layout.edge_offsets)
        types = (count, offsets.data_ptr(), int(narrow == torch.int64))
        src, dst, other, edge = (empty((edges,), narrow) for _ in range(4))
        on_dst, counts = torch.empty(count, dtype=torch.uint8), torch.empty(count, dtype=torch.int64)
        ends, grouped = (src.data_ptr(), dst.data_ptr()), (other.data_ptr(), edge.data_ptr())
        _group(form.native, not by_dst, *types, *ends, on_dst.data_ptr(), counts.data_ptr(), *grouped)
        first = _before(counts)
        node, entries = empty((int(first[-1]),), narrow), empty((int(first[-1]) + 1,), torch.int64)
        sizes, mine = offsets[1:] - offsets[:-1], on_dst.bool()
        sums = [_Sums.empty(nodes, int(torch.where(own, counts, sizes).sum()), narrow) for own in (mine, ~mine)]
        places = (ctypes.c_void_p * 6)(*sums[0].arrays, *sums[1].arrays)
        pairs = (node.data_ptr(), entries.data_ptr())
        _list(nodes, *types, on_dst.data_ptr(), first.data_ptr(), edge.data_ptr(), *ends, *pairs, places)
        widths = torch.where(sizes > counts * _CROWDED, _NARROW_CHUNK, _CHUNK)
        rows = TypedRows.of(first, widths)
        return cls(rows, entries, node, other, edge, on_dst, sums[0], sums[1], nodes)

    @property
    def num_pairs(self) -> int:
        """Products that one pass makes."""
        return self.node.numel()

    @property
    def num_edges(self) -> int:
        """Edges of the graph."""
        return self.other.numel()

    @cached_property
    def native(self) -> _abi.TypedPairs:
        """The structure that native entry points take by reference; valid while this object lives."""
        arrays = (self.entries, self.node, self.other, self.edge, self.on_dst)
        sums = (_abi.TypedSums * 2)(self.by_dst.native(), self.by_src.native())
        wide = int(self.node.dtype == torch.int64)
        return _abi.TypedPairs(self.rows.native, *(array.data_ptr() for array in arrays), sums, wide)


def _before(counts: Tensor) -> Tensor:
    """Offsets: 0, then running sums."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def typed_pairs(graph: Graph) -> tuple[TypedPairs, bool]:
    """The pairs of a graph, made once, and whether they are those of its reverse."""
    turned = not is_derived(graph, _pairs) and is_derived(graph.reverse(), _pairs)
    return derived(graph.reverse() if turned else graph, _pairs), turned


def _pairs(graph: Graph) -> TypedPairs:
    return TypedPairs.of(graph)


def typed_nodes(graph: Graph) -> TypedRows:
    """The nodes of a square graph by type, made once."""
    return derived(graph, _nodes)


def typed_edges(graph: Graph) -> TypedRows:
    """The edges of a square graph by relation, made once."""
    return derived(graph, _edges)


def _nodes(graph: Graph) -> TypedRows:
    return _stretched(graph.layout.node_offsets)


def _edges(graph: Graph) -> TypedRows:
    return _stretched(graph.layout.edge_offsets)


def _stretched(offsets: tuple[int, ...]) -> TypedRows:
    return TypedRows.of(torch.tensor(offsets), torch.full((len(offsets) - 1,), _CHUNK))


def same_type_degrees(graph: Graph, dtype: torch.dtype = torch.float32) -> Tensor:
    """(edges,) float32 or float64: for every edge, how many edges of its type enter its destination, itself too."""
    if isinstance(graph, PlacedGraph):
        return same_type_degrees(graph.host, dtype).to(graph.place)
    form, by_dst = graph.any_form
    offsets = torch.tensor(graph.layout.edge_offsets)
    narrow = torch.int32 if max(graph.num_nodes, graph.num_edges) <= _INT32 else torch.int64
    ends, out = empty((graph.num_edges,), narrow), empty((graph.num_edges,), dtype)
    types = (len(graph.relations), offsets.data_ptr(), int(narrow == torch.int64))
    _degrees(form.native, not by_dst, *types, dtype.itemsize, ends.data_ptr(), out.data_ptr())
    return out
