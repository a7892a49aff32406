"""Groups of parts in memory: the graph that some parts of a partition induce, with their rows of features.

Comes in: a :class:`PartSource`, a store on disk or a dataset in memory, and numbers of parts. Goes out: a
:class:`Group`, which has what the loader reads of a dataset. Called by :mod:`graphweft.loader.group_loader` and by
inference part by part. Source: Hanoi, section 4.3 (macro-batches).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import MemoryBudgetError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.typed import TypedLayout
from graphweft.loader.group_layout import GroupLayout
from graphweft.loader.hubs import Hubs, has_mixed_rows
from graphweft.loader.neighbours import Beside, BroughtSizes, Neighbours, beside_of
from graphweft.loader.parts import PartSource, edge_bytes
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
        graph: Nodes part after part, by ascending number of the part, then hubs or neighbours, in each type; edges are
            those between them.
        x: Their features, or None.
        y: Their labels.
        parts: Numbers of the parts, ascending.
        n_id: int64 (nodes,) their numbers in the source, by which draws are keyed.
        edge_weight: float32 weights of the edges, by edge id, or None.
        typed: Of a typed graph whose types have columns of their own: what makes rows of features.
        edges: int64 (2, relations) in-edges of the nodes of the parts, by relation: in the source, and here. None
            where it was not counted.
        own: (kinds + 1,) as the offsets of the types would be with the nodes of the parts alone. None: they are.
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
        edges: NDArray[np.int64] | None = None,
        own: NDArray[np.int64] | None = None,
    ) -> None:
        self.graph, self.x, self.y, self.parts, self.n_id = graph, x, y, parts, n_id
        self.edge_weight, self.typed, self.edges, self._own = edge_weight, typed, edges, own
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

    def numbers(self, nodes: Tensor) -> Tensor:
        """Numbers of nodes of the parts in the group, from those without hubs and neighbours."""
        if self._own is None or not self.graph.is_typed:
            return nodes  # others come last
        shifts = torch.from_numpy(np.array(self.graph.layout.node_offsets) - self._own)
        return nodes + shifts[torch.bucketize(nodes, torch.from_numpy(self._own[1:]), right=True)]

    def rows(self, ids: Tensor) -> Any:
        """(n, F) features of nodes of the group, float32 where they are kept with fewer bits; None without."""
        if self.typed is not None:
            return self.typed.rows(ids)
        if self.x is None:
            return None
        found = gather_rows(self.x, ids)
        assert isinstance(found, Tensor)  # groups are dense
        return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def read_group(source: PartSource, parts: Sequence[int], extra: Hubs | Neighbours | None = None) -> Group:
    """The group of some parts, and of hubs or of neighbours of the parts, which come after their nodes.

    Raises: DataError from a damaged store.

    Example:
        >>> graph, part = Graph([0, 1, 2, 3], [1, 2, 3, 0]), torch.tensor([0, 0, 1, 2])
        >>> from graphweft.loader.parts import MemoryParts
        >>> group = read_group(MemoryParts(graph, torch.eye(4), torch.arange(4), part, 3), [0, 2])
        >>> [ends.tolist() for ends in group.graph.edges()], group.y.tolist()
        ([[2, 0], [0, 1]], [0, 1, 3])
    """
    chosen = np.sort(np.asarray(parts, np.int64))
    starts, beside = _started(beside_of(extra, chosen))
    layout = GroupLayout(source, chosen, np.concatenate([np.empty(0, np.int64), *(some.ids for some in beside)]))
    kinds, nodes = len(layout.regions), layout.node_offsets[-1]
    indptr = aligned_empty((nodes + 1,), torch.int64)
    degrees = indptr[1:]
    pieces: list[list[_Piece]] = [[] for _ in range(kinds)]
    plain = 0 if isinstance(source, Store) and source.manifest.shape.type_widths else source.num_features
    x = aligned_empty((nodes, plain), source.feature_dtype) if plain else None
    y = source.labels(0)[:0] if not len(chosen) else None
    n_id = aligned_empty((nodes,), torch.int64)
    edges = np.zeros((2, 1 if source.types is None else len(source.types.relations)), np.int64)
    for slot, number in enumerate(chosen.tolist()):
        source.read_ahead(number)
        offsets, sources = source.structure(number)
        relations, weights = source.edge_columns(number)
        labels = source.labels(number)
        y = labels.new_empty((nodes, *labels.shape[1:])) if y is None else y
        for kind in range(kinds):
            region, first = number * kinds + kind, int(layout.begins[kind, slot])
            bounds = source.regions[region : region + 2] - source.bounds[number]
            rows = slice(*bounds.tolist())
            group = slice(first, first + rows.stop - rows.start)
            own = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
            kept, inner, keep = layout.entries(offsets[rows.start : rows.stop + 1] - own.start, sources[own])
            of = None if relations is None else relations[own][keep]
            edges[0] += _by_relation(own.stop - own.start, None if relations is None else relations[own], edges)
            edges[1] += _by_relation(len(kept), of, edges)
            pieces[kind].append(_Piece(kept, of, None if weights is None else weights[own][keep]))
            degrees[group] = torch.from_numpy(np.diff(inner))
            y[group] = labels[rows]
            torch.arange(*source.regions[region : region + 2].tolist(), out=n_id[group])
        if x is not None and kinds == 1:
            first = int(layout.begins[0, slot])
            source.features_into(number, x[first : first + len(offsets) - 1])
        elif x is not None:
            _scattered(source, number, layout.begins[:, slot], x)
        del offsets, sources, relations, weights
    assert y is not None  # there is a part, or none at all
    names = torch.empty(len(layout.which) if has_mixed_rows(source) else 0, dtype=torch.int64)
    for first, some in zip(starts, beside, strict=True):
        _put_beside(some, first, layout, _Rows(degrees, y, n_id, x, names), pieces)
    graph, weight = _graph_of(source, [piece for some in pieces for piece in some], layout.node_offsets, indptr)
    held = list(zip(starts, beside, strict=True))
    typed = typed_rows(source, chosen, layout, held, names) if isinstance(source, Store) else None
    return Group(graph, x, y, tuple(chosen.tolist()), n_id, weight, typed, edges, layout.own_offsets)


def _by_relation(
    count: int, relations: NDArray[np.integer[Any]] | None, edges: NDArray[np.int64]
) -> NDArray[np.int64] | int:
    """``count`` edges by relation; a piece at a time, as numbers are widened for it."""
    if relations is None:
        return count
    pieces = (relations[at : at + _PIECE] for at in range(0, count, _PIECE))
    return sum((np.bincount(piece, minlength=edges.shape[1]) for piece in pieces), np.zeros_like(edges[0]))


def _started(beside: list[Beside]) -> tuple[list[int], list[Beside]]:
    """The place of the first id of each among those of all."""
    return np.cumsum([0, *(len(some.ids) for some in beside)])[:-1].tolist(), beside


class _Rows(NamedTuple):
    """Rows of a group, or of its nodes besides those of the parts, that are filled."""

    degrees: Tensor
    y: Tensor
    n_id: Tensor
    x: Tensor | None
    names: Tensor


def _put_beside(some: Beside, first: int, layout: GroupLayout, rows: _Rows, pieces: list[list[_Piece]]) -> None:
    """The rows of nodes besides those of the parts, and the entries of their in-edges, type by type."""
    hubs = some.hubs()
    for kind, own in enumerate(pieces):
        which, at = layout.besides_of(kind, first, first + len(some.ids))
        places = some.places[which - first]
        picked = torch.from_numpy(places)
        rows.y[at] = hubs.y[picked]
        rows.n_id[at] = torch.from_numpy(hubs.ids[places])
        if hubs.source_ids is not None:
            before = int(layout.own_offsets[kind + 1])
            rows.names[at.start - before : at.stop - before] = hubs.source_ids[picked]
        for run in _runs(np.diff(hubs.indptr)[places]):
            offsets, entries = hubs.entries(places[run])
            kept, inner, keep = layout.entries(offsets, hubs.sources[entries])
            rows.degrees[at][run] = torch.from_numpy(np.diff(inner))
            of = None if hubs.relations is None else hubs.relations[entries][keep]
            own.append(_Piece(kept, of, None if hubs.weights is None else hubs.weights[entries][keep]))
        if rows.x is not None:
            some.features_into(kind, places, rows.x[at])


def _runs(counts: NDArray[np.int64]) -> Iterator[slice]:
    """Rows whose entries are looked at together: as many as a piece has, or one row."""
    ends, first = np.cumsum(counts), 0
    while first < len(counts):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + _PIECE, "right")))
        yield slice(first, end)
        first = end


def _graph_of(
    source: PartSource, pieces: list[_Piece], node_offsets: tuple[int, ...], indptr: Tensor
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
    graph, ids = typed_graph(source.types, of, node_offsets, indptr, indices)
    return graph, None if weight is None else torch.empty_like(weight).index_copy_(0, ids.long(), weight)


class _Piece(NamedTuple):
    """Entries of the rows of one type in one part."""

    columns: NDArray[np.int32]
    relations: NDArray[np.integer[Any]] | None
    weights: NDArray[np.float32] | None


def _scattered(source: PartSource, number: int, begins: NDArray[np.int64], x: Tensor) -> None:
    """Rows of a part, type by type, to their places in a typed group whose nodes have the same columns."""
    kinds = len(begins)
    first, bounds = int(source.bounds[number]), source.regions[number * kinds : (number + 1) * kinds + 1]
    found = aligned_empty((int(bounds[-1] - bounds[0]), x.shape[1]), x.dtype)
    source.features_into(number, found)
    for kind, at in enumerate(begins.tolist()):
        rows = found[int(bounds[kind]) - first : int(bounds[kind + 1]) - first]
        x[at : at + len(rows)] = rows


def _joined(parts: Sequence[NDArray[Any] | None], dtype: Any) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *(p for p in parts if p is not None)]).astype(dtype))


def typed_graph(
    types: Types, of: NDArray[np.integer[Any]], node_offsets: tuple[int, ...], indptr: Tensor, indices: Tensor
) -> tuple[Graph, Tensor]:
    """A typed graph from in-edges in the order of (row, relation), ``of``; and the ids of these edges."""
    edge_offsets = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=len(types.relations)))]).astype(np.int64)
    ids = torch.from_numpy(numbered_by_group(of, edge_offsets, np.dtype(np.int32)))
    layout = TypedLayout(types.node_types, node_offsets, types.relations, tuple(edge_offsets.tolist()))
    return Graph.typed(Adjacency(indptr, indices, ids, indptr.numel() - 1), layout), ids


def group_bytes(
    source: PartSource,
    count: int,
    label_bytes: int = 8,
    hubs: int = 0,
    keep: int = 0,
    brought: BroughtSizes | None = None,
) -> int:
    """Bytes at the most while one group of ``count`` parts is trained on and the next one is read.

    ``hubs``: bytes that are pinned; each group has a copy of them. ``keep``: parts that stay besides. ``brought``:
    what each part brings.
    """
    nodes, parts = np.diff(source.bounds), part_bytes(source, label_bytes)
    entry, edges = edge_bytes(source), source.edge_counts
    part = int((nodes * (16 + label_bytes) + edges * (8 + entry)).max(initial=0))
    if brought is not None:
        parts = parts + brought.group_bytes(label_bytes)
        edges = edges + brought.entries
        looked_at = min(_PIECE, int(brought.entries.max(initial=0)))
        part = max(part, int(brought.nbytes.max(initial=0)) + _PINNED_BYTES * looked_at)
    largest = np.argsort(-parts, kind="stable")[:count]
    group = int(parts[largest].sum()) + hubs
    reading = int(edges[largest].sum()) * entry + hubs  # once more while columns are joined
    reading += 0 if brought is None else int(brought.key_bytes[largest].sum())
    piece = min(_PIECE, int(source.edge_counts.max(initial=0)))
    part += _PIECE_BYTES * piece
    kept = kept_bytes(source, keep)
    return 2 * group + reading + part + kept + (hubs + _PINNED_BYTES * _PIECE if hubs else 0)


def part_bytes(source: PartSource, label_bytes: int = 8) -> NDArray[np.int64]:
    """Bytes of each part inside of a group."""
    node_bytes = 16 + label_bytes + (0 if source.types is None else 8)  # offsets and ids
    found: NDArray[np.int64] = np.diff(source.bounds) * node_bytes + source.feature_bytes
    return found + source.edge_counts * edge_bytes(source)


def kept_bytes(source: PartSource, keep: int) -> int:
    """Bytes at the most of ``keep`` parts that stay in memory as they lie on disk; of data in memory none."""
    if not keep or not isinstance(source, Store):
        return 0
    blocks = [sum(b.nbytes for b in part.blocks if b.name != "split") for part in source.manifest.parts]
    return sum(sorted(blocks)[-keep:])


class BesideGroups(Protocol):
    """Bytes of a run beside groups of ``count`` parts; ``is_drawn``: by a batch that is drawn, which takes a while."""

    def __call__(self, count: int, *, is_drawn: bool = False) -> int: ...  # noqa: D102


def _nothing(count: int, *, is_drawn: bool = False) -> int:
    return 0


NOTHING: BesideGroups = _nothing  # where a budget is that of the groups alone


def parts_within(
    source: PartSource,
    memory: int,
    label_bytes: int = 8,
    hubs: int = 0,
    keep: int = 0,
    beside: BesideGroups = NOTHING,
    told: Callable[[int], int] = lambda least: least,
    brought: BroughtSizes | None = None,
) -> int:
    """The most parts of a group that keep within ``memory`` bytes, beside ``hubs`` pinned bytes and ``keep`` parts.

    ``beside``: bytes of a run besides, by the parts of a group. ``told``: what a refusal names, by what is counted.
    ``brought``: what each part brings.

    Raises: MemoryBudgetError naming the least that would do.
    """
    parts = len(source.bounds) - 1

    def groups(count: int) -> int:
        return group_bytes(source, count, label_bytes, hubs, keep, brought)

    def needed(count: int) -> int:
        return groups(count) + beside(count)

    least = needed(1)
    if least > memory:
        least = groups(1) + beside(1, is_drawn=True)
    if least > memory:
        least = told(least)
        fewer = ", or fewer hubs," if hubs else "" if brought is None else ", or fewer neighbours,"
        text = (
            f"memory: expected at least {shown_bytes(least)} for groups of one of {parts} parts, "
            f"got {shown_bytes(memory)}; a store of more parts" + fewer + " needs less"
        )
        raise MemoryBudgetError(text, least)
    low, high = 1, parts
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= memory else (low, middle - 1)
    return low
