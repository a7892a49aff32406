"""Groups of parts in memory: the graph that some parts of a partition induce, with their rows of features.

Comes in: a :class:`PartSource`, a store on disk or a dataset in memory, and numbers of parts. Goes out: a
:class:`Group`, which has what the loader reads of a dataset. Called by :mod:`graphweft.loader.group_loader` and by
inference part by part. Source: Hanoi, section 4.3 (macro-batches).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import MemoryBudgetError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.typed import TypedLayout
from graphweft.loader.hubs import Hubs
from graphweft.loader.parts import PartSource
from graphweft.loader.typed_groups import TypedRows, typed_rows
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.gather import gather_rows
from graphweft.storage.memory_size import shown_bytes
from graphweft.storage.numbering import numbered_by_group
from graphweft.storage.store import Store
from graphweft.storage.store_types import Types

_PIECE = 1 << 18  # entries of a structure that are looked at together
_PIECE_BYTES, _PINNED_BYTES = 40, 24  # an entry of a piece


class Group:
    """Some parts in memory: the graph that they induce.

    Attributes:
        graph: Nodes part after part, by ascending number of the part, then hubs; edges are those between them.
        x: Their features, or None.
        y: Their labels.
        parts: Numbers of the parts, ascending.
        n_id: int64 (nodes,) their numbers in the source, by which draws are keyed.
        edge_weight: float32 weights of the edges, by edge id, or None.
        typed: Of a typed graph whose types have columns of their own: what makes rows of features.
    """

    def __init__(
        self,
        graph: Graph,
        x: Tensor | None,
        y: Tensor,
        parts: tuple[int, ...],
        n_id: Tensor,
        edge_weight: Tensor | None = None,
        typed: TypedRows | None = None,
    ) -> None:
        self.graph, self.x, self.y, self.parts, self.n_id = graph, x, y, parts, n_id
        self.edge_weight, self.typed = edge_weight, typed
        self._lock = threading.Lock()
        self._samplers: dict[tuple[int, ...], NeighborSampler | SegmentSampler] = {}

    @property
    def train_idx(self) -> Tensor:
        """No node: seeds are the loader's."""
        return torch.empty(0, dtype=torch.int64)

    def sampler(self, fanouts: tuple[int, ...]) -> NeighborSampler | SegmentSampler:
        """A sampler of the graph, made once; of a typed graph by relation."""
        with self._lock:
            if fanouts not in self._samplers:
                made: NeighborSampler | SegmentSampler
                if self.graph.is_typed:
                    made = SegmentSampler(self.graph, list(fanouts))
                else:
                    made = NeighborSampler(self.graph, fanouts, names=self.n_id)
                self._samplers[fanouts] = made
            return self._samplers[fanouts]

    def rows(self, ids: Tensor) -> Any:
        """(n, F) features of nodes of the group, float32 where they are kept with fewer bits; None without."""
        if self.typed is not None:
            return self.typed.rows(ids)
        if self.x is None:
            return None
        found = gather_rows(self.x, ids)
        assert isinstance(found, Tensor)  # groups are dense
        return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def read_group(source: PartSource, parts: Sequence[int], hubs: Hubs | None = None) -> Group:
    """The group of some parts, and of hubs, which come after the nodes of the parts.

    Raises: DataError from a damaged store.

    Example:
        >>> graph, part = Graph([0, 1, 2, 3], [1, 2, 3, 0]), torch.tensor([0, 0, 1, 2])
        >>> from graphweft.loader.parts import MemoryParts
        >>> group = read_group(MemoryParts(graph, torch.eye(4), torch.arange(4), part, 3), [0, 2])
        >>> [ends.tolist() for ends in group.graph.edges()], group.y.tolist()
        ([[2, 0], [0, 1]], [0, 1, 3])
    """
    chosen = np.sort(np.asarray(parts, np.int64))
    kinds = _kinds(source)
    regions = regions_of(source, chosen)
    starts = starts_of(source.regions, regions)
    begins = dict(zip(regions.tolist(), starts.tolist(), strict=False))
    members = _Members(source.regions, regions, starts, hubs)
    inside, nodes = int(starts[-1]), int(starts[-1]) + len(members.extra)
    indptr = aligned_empty((nodes + 1,), torch.int64)
    degrees = indptr[1:]
    pieces: dict[int, _Piece] = {}
    plain = 0 if isinstance(source, Store) and source.manifest.shape.type_widths else source.num_features
    x = aligned_empty((nodes, plain), source.feature_dtype) if plain else None
    y: Tensor | None = None
    n_id = aligned_empty((nodes,), torch.int64)
    for number in chosen.tolist():
        source.read_ahead(number)
        offsets, sources = source.structure(number)
        relations, weights = source.edge_columns(number)
        labels = source.labels(number)
        y = labels.new_empty((nodes, *labels.shape[1:])) if y is None else y
        for kind in range(kinds):
            region = number * kinds + kind
            bounds = source.regions[region : region + 2] - source.bounds[number]
            rows = slice(*bounds.tolist())
            group = slice(begins[region], begins[region] + rows.stop - rows.start)
            own = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
            kept, inner, keep = members.entries(offsets[rows.start : rows.stop + 1] - own.start, sources[own])
            of = None if relations is None else relations[own][keep]
            pieces[region] = _Piece(kept, of, None if weights is None else weights[own][keep])
            degrees[group] = torch.from_numpy(np.diff(inner))
            y[group] = labels[rows]
            torch.arange(*source.regions[region : region + 2].tolist(), out=n_id[group])
        if x is not None and kinds == 1:
            first = begins[number]
            source.features_into(number, x[first : first + len(offsets) - 1])
        elif x is not None:
            _scattered(source, number, kinds, begins, x)
        del offsets, sources, relations, weights
    y = source.labels(0)[:0] if y is None else y
    if hubs is not None and nodes > inside:
        kept, inner, _ = members.entries(*hubs.rows(members.which))
        degrees[inside:] = torch.from_numpy(np.diff(inner))
        pieces[int(regions.max()) + 1] = _Piece(kept, None, None)
        regions = np.append(regions, regions.max() + 1)
        y[inside:] = hubs.y[torch.from_numpy(members.which)]
        if x is not None and hubs.x is not None:
            torch.index_select(hubs.x, 0, torch.from_numpy(members.which), out=x[inside:])
    n_id[inside:] = torch.from_numpy(members.extra)
    graph, weight = _graph_of(source, [pieces[region] for region in regions.tolist()], starts, indptr)
    typed = typed_rows(source, chosen) if isinstance(source, Store) else None
    return Group(graph, x, y, tuple(chosen.tolist()), n_id, weight, typed)


def _graph_of(
    source: PartSource, pieces: list[_Piece], starts: NDArray[np.int64], indptr: Tensor
) -> tuple[Graph, Tensor | None]:
    """The graph of rows whose degrees are in ``indptr[1:]``, and the weights of its edges by edge id."""
    indptr[0] = 0
    torch.cumsum(indptr[1:], 0, out=indptr[1:])
    indices = aligned_empty((int(indptr[-1]),), torch.int32)
    torch.cat([torch.from_numpy(piece.columns) for piece in pieces], out=indices)
    weight = _joined([piece.weights for piece in pieces], np.float32) if source.has_weights else None
    if source.types is None:
        return Graph.from_adjacency(Adjacency(indptr, indices, None, indptr.numel() - 1)), weight
    of = _joined([piece.relations for piece in pieces], np.int32).numpy()
    graph, ids = _typed_graph(source.types, of, starts, indptr, indices)
    return graph, None if weight is None else torch.empty_like(weight).index_copy_(0, ids.long(), weight)


class _Piece(NamedTuple):
    """Entries of the rows of one type in one part."""

    columns: NDArray[np.int32]
    relations: NDArray[np.integer[Any]] | None
    weights: NDArray[np.float32] | None


def _kinds(source: PartSource) -> int:
    return 1 if source.types is None else len(source.types.node_types)


def regions_of(source: PartSource, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Regions of some parts in the order of their group: type after type, in a type part after part."""
    kinds = _kinds(source)
    return (chosen[None, :] * kinds + np.arange(kinds)[:, None]).reshape(-1)


def _scattered(source: PartSource, number: int, kinds: int, begins: dict[int, int], x: Tensor) -> None:
    """Rows of a part, type by type, to their places in a typed group whose nodes have the same columns."""
    first, bounds = int(source.bounds[number]), source.regions[number * kinds : (number + 1) * kinds + 1]
    found = aligned_empty((int(bounds[-1] - bounds[0]), x.shape[1]), x.dtype)
    source.features_into(number, found)
    for kind in range(kinds):
        rows = found[int(bounds[kind]) - first : int(bounds[kind + 1]) - first]
        at = begins[number * kinds + kind]
        x[at : at + len(rows)] = rows


def _joined(parts: Sequence[NDArray[Any] | None], dtype: Any) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *(p for p in parts if p is not None)]).astype(dtype))


def _typed_graph(
    types: Types, of: NDArray[np.integer[Any]], starts: NDArray[np.int64], indptr: Tensor, indices: Tensor
) -> tuple[Graph, Tensor]:
    """A typed graph of in-edges in the order of (row, relation), and the ids of these edges."""
    kinds = len(types.node_types)
    firsts = starts[:: max((len(starts) - 1) // max(kinds, 1), 1)]
    return typed_graph(types, of, tuple(firsts.tolist()), indptr, indices)


def typed_graph(
    types: Types, of: NDArray[np.integer[Any]], node_offsets: tuple[int, ...], indptr: Tensor, indices: Tensor
) -> tuple[Graph, Tensor]:
    """A typed graph from in-edges in the order of (row, relation), ``of``; and the ids of these edges."""
    edge_offsets = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=len(types.relations)))]).astype(np.int64)
    ids = torch.from_numpy(numbered_by_group(of, edge_offsets, np.dtype(np.int32)))
    layout = TypedLayout(types.node_types, node_offsets, types.relations, tuple(edge_offsets.tolist()))
    return Graph.typed(Adjacency(indptr, indices, ids, indptr.numel() - 1), layout), ids


def starts_of(bounds: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """(parts + 1,) first number of each chosen part inside of its group, and the group's nodes."""
    return np.concatenate([[0], np.cumsum((bounds[1:] - bounds[:-1])[chosen])])


class _Members:
    """The nodes of a group and their numbers in it.

    Attributes:
        which: Places among the hubs of those that are in no part of the group.
        extra: Their numbers in the source, ascending.
    """

    def __init__(
        self, bounds: NDArray[np.int64], chosen: NDArray[np.int64], starts: NDArray[np.int64], hubs: Hubs | None
    ) -> None:
        self._base, self._member = np.zeros(len(bounds) - 1, np.int64), np.zeros(len(bounds) - 1, np.bool_)
        self._base[chosen], self._member[chosen] = starts[:-1] - bounds[chosen], True
        self._cuts, self._inside = bounds[1:], int(starts[-1])
        ids = np.empty(0, np.int64) if hubs is None else hubs.ids
        self.which = np.flatnonzero(~self._member[np.searchsorted(self._cuts, ids, "right")])
        self.extra = ids[self.which]

    def entries(
        self, offsets: NDArray[np.int64], sources: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]:
        """The entries with a source in the group, in its numbers, the offsets of rows among them, which they are."""
        kept: list[NDArray[np.int32]] = []
        chosen = [np.empty(0, np.bool_)]
        inner = np.zeros(len(offsets), np.int64)
        before = 0
        cuts = self._cuts.astype(sources.dtype)
        for first in range(0, len(sources), _PIECE):
            piece = sources[first : first + _PIECE]
            part = np.searchsorted(cuts, piece, "right")
            keep, new = self._member[part], piece + self._base[part]
            if len(self.extra):
                place = np.minimum(np.searchsorted(self.extra, piece), len(self.extra) - 1)
                pinned = self.extra[place] == piece
                new[pinned] = place[pinned] + self._inside
                keep |= pinned
            kept.append(new[keep].astype(np.int32))
            chosen.append(keep)
            count = np.cumsum(keep)
            rows = slice(*np.searchsorted(offsets, (first, first + len(piece)), "right").tolist())
            inner[rows] = before + count[offsets[rows] - first - 1]
            before += int(count[-1])
        return np.concatenate([np.empty(0, np.int32), *kept]), inner, np.concatenate(chosen)


def group_bytes(source: PartSource, count: int, label_bytes: int = 8, hubs: int = 0, keep: int = 0) -> int:
    """Bytes at the most while one group of ``count`` parts is trained on and the next one is read.

    ``hubs``: bytes that are pinned; each group has a copy of them. ``keep``: parts that stay besides.
    """
    nodes, parts = np.diff(source.bounds), part_bytes(source, label_bytes)
    edge_bytes = _edge_bytes(source)
    largest = np.argsort(-parts, kind="stable")[:count]
    group = int(parts[largest].sum()) + hubs
    reading = int(source.edge_counts[largest].sum()) * edge_bytes + hubs  # once more while columns are joined
    part = int((nodes * (16 + label_bytes) + source.edge_counts * (8 + edge_bytes)).max(initial=0))
    piece = min(_PIECE, int(source.edge_counts.max(initial=0)))
    part += _PIECE_BYTES * piece
    kept = kept_bytes(source, keep)
    return 2 * group + reading + part + kept + (hubs + _PINNED_BYTES * _PIECE if hubs else 0)


def part_bytes(source: PartSource, label_bytes: int = 8) -> NDArray[np.int64]:
    """Bytes of each part inside of a group."""
    node_bytes = 16 + label_bytes + (0 if source.types is None else 8)  # offsets and ids
    found: NDArray[np.int64] = np.diff(source.bounds) * node_bytes + source.feature_bytes
    return found + source.edge_counts * _edge_bytes(source)


def _edge_bytes(source: PartSource) -> int:
    """Ids of edges, relations and weights."""
    return 4 + (0 if source.types is None else 8) + (4 if source.has_weights else 0)


def kept_bytes(source: PartSource, keep: int) -> int:
    """Bytes at the most of ``keep`` parts that stay in memory as they lie on disk; of data in memory none."""
    if not keep or not isinstance(source, Store):
        return 0
    blocks = [sum(b.nbytes for b in part.blocks if b.name != "split") for part in source.manifest.parts]
    return sum(sorted(blocks)[-keep:])


def parts_within(
    source: PartSource,
    memory: int,
    label_bytes: int = 8,
    hubs: int = 0,
    keep: int = 0,
    beside: Callable[[int], int] = lambda count: 0,
    told: Callable[[int], int] = lambda least: least,
) -> int:
    """The most parts of a group that keep within ``memory`` bytes, beside ``hubs`` pinned bytes and ``keep`` parts.

    ``beside``: bytes of a run besides, by the parts of a group. ``told``: what a refusal names, by what is counted.

    Raises: MemoryBudgetError naming the least that would do.
    """
    parts = len(source.bounds) - 1

    def needed(count: int) -> int:
        return group_bytes(source, count, label_bytes, hubs, keep) + beside(count)

    least = needed(1)
    if least > memory:
        least = told(least)
        text = (
            f"memory: expected at least {shown_bytes(least)} for groups of one of {parts} parts, "
            f"got {shown_bytes(memory)}; a store of more parts" + (", or fewer hubs," if hubs else "") + " needs less"
        )
        raise MemoryBudgetError(text, least)
    low, high = 1, parts
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= memory else (low, middle - 1)
    return low
