"""Neighbours of parts: nodes that a part brings into its groups, since its own training nodes read them.

Comes in: a :class:`PartSource`, training nodes, a share of a part's nodes. Goes out: :class:`Neighbours`, which has
for every part the nodes of other parts that walks from its training nodes meet first when they leave it, with their
in-edges, labels and features. Called by mode "macro". In a group these nodes are sources alone. Their rows are copied
once, in the order of the parts that bring them, so that a group reads a few long stretches and not rows that lie all
over the store.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft.loader.hubs import LAZINESS, Hubs, PartWalk, has_mixed_rows, index_dtype, row_columns
from graphweft.loader.parts import PartSource, edge_bytes
from graphweft.sample.in_edges import entries_of
from graphweft.storage.block_io import ReadCounts, aligned_empty, array_bytes, bytes_of
from graphweft.storage.requests import SECTOR

_ID = 8
_DEGREES = 4  # times the mean in-degree: neighbours', before it is known
_KEY = 2 * _ID  # bytes of a node that a group has of all of its parts' neighbours at once: its id, its in-edges


class Reader(Protocol):
    """What reads bytes from an offset on."""

    counts: ReadCounts

    def read_into(self, offset: int, out: Tensor) -> None:
        """Fills contiguous ``out``."""


class Room(Protocol):
    """Where rows of neighbours lie: a temporary file, or memory."""

    def write(self, content: memoryview, offset: int) -> None:
        """Bytes to an offset."""

    def settle(self) -> None:
        """All is written."""

    def opened(self) -> AbstractContextManager[Reader]:
        """For reads."""


class MemoryRoom:
    """Rows in memory, for a dataset that is there as well.

    Example:
        >>> room, found = MemoryRoom(8), torch.empty(2, dtype=torch.uint8)
        >>> room.write(memoryview(bytes([1, 2, 3])), 4)
        >>> with room.opened() as reader:
        ...     reader.read_into(5, found)
        >>> found.tolist()
        [2, 3]
    """

    def __init__(self, nbytes: int) -> None:
        self._held, self.counts = aligned_empty((nbytes,), torch.uint8), ReadCounts()

    def write(self, content: memoryview, offset: int) -> None:
        """Bytes to an offset."""
        bytes_of(self._held)[offset : offset + len(content)] = content

    def settle(self) -> None:
        """Nothing waits."""

    def opened(self) -> AbstractContextManager[MemoryRoom]:
        """For reads."""
        return nullcontext(self)

    def read_into(self, offset: int, out: Tensor) -> None:
        """Fills contiguous ``out``."""
        target = bytes_of(out)
        target[:] = bytes_of(self._held)[offset : offset + len(target)]


class Beside(NamedTuple):
    """Some nodes of a group besides those of its parts.

    Attributes:
        ids: Their numbers in the source.
        places: Where these lie among the nodes of ``hubs``.
        hubs: Gives their in-edges and labels.
        features_into: As :meth:`Hubs.features_into`.
    """

    ids: Ids
    places: Ids
    hubs: Callable[[], Hubs]
    features_into: Callable[[int, Ids, Tensor], None]


def beside_of(extra: Hubs | Neighbours | None, chosen: Ids) -> list[Beside]:
    """What a group of parts has besides, each node once."""
    if extra is None:
        return []
    if isinstance(extra, Hubs):
        return [Beside(extra.ids, np.arange(len(extra.ids)), lambda: extra, extra.features_into)]
    return extra.beside(chosen)


def exits(walk: PartWalk, seeds: Ids, steps: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.float64]]:
    """Nodes outside of a part, ascending, and the mass of walks from some of its nodes that meet them first.

    Walks are those of :func:`graphweft.loader.hubs.influence`, of at most ``steps`` steps, one unit from each of
    ``seeds``; the mass of a walk that leaves the part counts for the node where it arrives.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> graph, part = Graph([1, 2, 2], [0, 0, 1]), torch.tensor([0, 0, 1])
        >>> source = MemoryParts(graph, None, torch.zeros(3), part, 2)
        >>> [found.tolist() for found in exits(PartWalk(source, 0), np.array([0]), steps=2)]
        [[2], [0.5]]
    """
    mass = np.zeros(walk.end - walk.first)
    mass[seeds - walk.first] = 1.0
    stayed = np.zeros_like(mass)
    for _ in range(steps):
        stayed += mass
        moving, after = mass * (1.0 - LAZINESS), mass * LAZINESS
        after[walk.is_end] += moving[walk.is_end]
        for piece, amounts in walk.moved(moving):
            inside = (piece >= walk.first) & (piece < walk.end)
            np.add.at(after, piece[inside] - walk.first, amounts[inside])
        mass = after
    is_outside = (walk.sources < walk.first) | (walk.sources >= walk.end)
    ids = np.unique(walk.sources[is_outside])
    found = np.zeros(len(ids))
    for piece, amounts in walk.moved(stayed * (1.0 - LAZINESS)):  # a step from wherever the walks have stayed
        outside = (piece < walk.first) | (piece >= walk.end)
        np.add.at(found, np.searchsorted(ids, piece[outside]), amounts[outside])
    return ids, found


def ranked(
    source: PartSource, seeds: Tensor, steps: int, share: float
) -> Iterator[tuple[PartWalk, NDArray[np.integer[Any]]]]:
    """For every part its walk, and the nodes that it brings, the most read first.

    A part brings at most ``share`` times as many nodes as it has: those of most mass by :func:`exits`, equal ones by
    number. One without training nodes brings none.
    """
    cuts = np.searchsorted(seeds.numpy(), source.bounds)
    for number in range(len(source.bounds) - 1):
        walk = PartWalk(source, number)
        ids, mass = exits(walk, seeds[int(cuts[number]) : int(cuts[number + 1])].numpy(), steps)
        ids, mass = ids[mass > 0], mass[mass > 0]
        order = np.argsort(-mass, kind="stable")[: int(share * (walk.end - walk.first))]
        yield walk, ids[order].astype(index_dtype(source))


def most_read(source: PartSource, seeds: Tensor, steps: int, share: float) -> tuple[list[NDArray[Any]], Ids]:
    """For every part the nodes of :func:`ranked`, ascending; and the in-edges of every node of the source."""
    found: list[NDArray[Any]] = []
    degrees = np.empty(int(source.bounds[-1]), np.int64)
    for walk, ids in ranked(source, seeds, steps, share):
        degrees[walk.first : walk.end] = np.diff(walk.offsets)
        found.append(np.sort(ids))
    return found, degrees


class _Column(NamedTuple):
    """Values of the nodes, or of their in-edges, that a part brings."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    of_edges: bool

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def _columns(source: PartSource) -> list[_Column]:
    """Beside ids and numbers of in-edges, which come first."""
    y, (relations, weights) = source.labels(0), source.edge_columns(0)
    index = torch.int32 if index_dtype(source) is np.int32 else torch.int64
    found = [_Column("names", torch.int64, (), False)] if has_mixed_rows(source) else []
    found += [_Column("y", y.dtype, tuple(y.shape[1:]), False), _Column("sources", index, (), True)]
    found += [] if relations is None else [_Column("relations", torch.from_numpy(relations[:0]).dtype, (), True)]
    return found + ([] if weights is None else [_Column("weights", torch.float32, (), True)])


def _padded(nbytes: Any, to: int = _ID) -> Any:
    return -(-nbytes // to) * to


@dataclass(frozen=True, eq=False)
class BroughtSizes:
    """How much each part brings.

    Attributes:
        nodes: (parts,) nodes.
        entries: (parts,) in-edges of these, in the whole graph.
        rows: (parts,) those that have features.
        nbytes: (parts,) bytes that a group reads.
        row_bytes: Bytes of a row of features.
        node_bytes: Bytes of a node in a group beside its labels.
        edge_bytes: Bytes of an edge in a group.
    """

    nodes: Ids
    entries: Ids
    rows: Ids
    nbytes: Ids
    row_bytes: int
    node_bytes: int
    edge_bytes: int

    @classmethod
    def of(cls, source: PartSource, nodes: Ids, entries: Ids, rows: Ids, nbytes: Ids) -> BroughtSizes:
        """With what a node and an edge of a source take."""
        node = 2 * _ID + (0 if source.types is None else _ID)  # offsets and ids
        row = row_columns(source) * source.feature_dtype.itemsize
        return cls(nodes, entries, rows, nbytes, row, node, edge_bytes(source))

    @classmethod
    def estimated(cls, source: PartSource, share: float) -> BroughtSizes:
        """Before the structure is read: as many nodes as may come, with several times the in-edges of others."""
        counts, edges = np.diff(source.bounds), int(source.edge_counts.sum())
        nodes = np.minimum((share * counts).astype(np.int64), source.bounds[-1] - counts)
        entries = np.minimum((_DEGREES * nodes * (edges / max(int(source.bounds[-1]), 1))).astype(np.int64), edges)
        found = cls.of(source, nodes, entries, nodes, nodes)
        return replace(found, nbytes=found.group_bytes(_ID))

    def group_bytes(self, label_bytes: int) -> Ids:
        """(parts,) bytes inside of a group, at the most: where all in-edges come from it."""
        node = self.node_bytes + label_bytes
        return self.nodes * node + self.rows * self.row_bytes + self.entries * self.edge_bytes

    @property
    def key_bytes(self) -> Ids:
        """(parts,) bytes of what a group has of all of its parts at once while it is read."""
        return self.nodes * _KEY


class Neighbours:
    """The nodes that each part brings, with their in-edges, labels and features.

    Args:
        source: The parts.
        seeds: int64 training nodes, ascending.
        steps: Steps of the walks, one for each layer.
        share: A part brings at most so many times its own nodes.
        room: Makes room for so many bytes.

    Attributes:
        share: As given.
        sizes: How much each part brings.
        checksum: Of the nodes.

    Raises: DataError from a damaged store; what ``room`` raises where there is none.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> graph, part = Graph([3, 2, 3], [0, 0, 1]), torch.tensor([0, 0, 1, 1])
        >>> source = MemoryParts(graph, torch.eye(4), torch.arange(4), part, 2)
        >>> found = Neighbours(source, torch.tensor([0, 1]), steps=1, share=0.5)
        >>> found.sizes.nodes.tolist(), found.beside(np.array([0]))[0].ids.tolist()
        ([1, 0], [3])
    """

    def __init__(
        self,
        source: PartSource,
        seeds: Tensor,
        steps: int,
        share: float,
        room: Callable[[int], Room] = MemoryRoom,
    ) -> None:
        self.share, self._source = share, source
        self._kinds = 1 if source.types is None else len(source.types.node_types)
        self._columns = _columns(source)
        ids, degrees = most_read(source, seeds, steps, share)
        self.checksum = 0
        for some in ids:
            self.checksum = zlib.crc32(array_bytes(some), self.checksum)
        cuts = [np.searchsorted(some, source.bounds) for some in ids]
        at = [np.concatenate([[0], np.cumsum(degrees[some])])[cut] for some, cut in zip(ids, cuts, strict=True)]
        rows = [self._rows_before(some, cut) for some, cut in zip(ids, cuts, strict=True)]
        self._rows = np.stack([counts[:, -1] for counts in rows])  # (parts, kinds) rows of features
        counted = np.array([(len(some), edges[-1]) for some, edges in zip(ids, at, strict=True)], np.int64).T
        self.sizes = BroughtSizes.of(source, counted[0], counted[1], self._rows.sum(1), counted[0])
        light = np.array([self._offset(number, "") for number in range(len(ids))], np.int64)
        self._light = _padded(light, SECTOR)
        held = self.sizes.rows * self.sizes.row_bytes
        self.sizes = replace(self.sizes, nbytes=light + held)
        self._begins = np.concatenate([[0], np.cumsum(self._light + _padded(held, SECTOR))])
        self._room = room(int(self._begins[-1]))
        for number, some in enumerate(ids):
            keys = np.concatenate([some.astype(np.int64), degrees[some]])
            self._room.write(array_bytes(keys), int(self._begins[number]))
        del degrees
        for home in range(len(ids)):
            self._copy_home(home, ids, cuts, at, rows)
        self._room.settle()

    def _types_of(self, ids: NDArray[Any]) -> Ids:
        """The type of each node."""
        found: Ids = (np.searchsorted(self._source.regions[1:], ids, "right") % self._kinds).astype(np.int64)
        return found

    def _has_rows(self, kind: int) -> bool:
        """Whether nodes of a type have features."""
        if not has_mixed_rows(self._source):
            return self._source.num_features > 0
        return self._source.manifest.shape.type_widths[kind] > 0

    def _rows_before(self, ids: NDArray[Any], cuts: Ids) -> Ids:
        """(kinds, parts + 1) rows of features of a type before those that come from each part."""
        of = self._types_of(ids)
        masks = [(of == kind) & self._has_rows(kind) for kind in range(self._kinds)]
        return np.stack([np.concatenate([[0], np.cumsum(mask)])[cuts] for mask in masks]).astype(np.int64)

    def _offset(self, number: int, name: str) -> int:
        """Where a column of a part begins, from its first byte on; without that name the end of all columns."""
        offset = _KEY * int(self.sizes.nodes[number])
        for column in self._columns:
            if column.name == name:
                break
            counts = self.sizes.entries if column.of_edges else self.sizes.nodes
            offset += _padded(int(counts[number]) * column.width)
        return offset

    def _copy_home(self, home: int, ids: list[NDArray[Any]], cuts: list[Ids], at: list[Ids], rows: list[Ids]) -> None:
        """What other parts bring of one part's nodes: a stretch of every column, since ids ascend."""
        source, first = self._source, int(self._source.bounds[home])
        takers = [number for number, cut in enumerate(cuts) if cut[home] < cut[home + 1]]
        if not takers:
            return
        offsets, sources = source.structure(home)
        relations, weights = source.edge_columns(home)
        y, names = source.labels(home), source.node_ids(home) if has_mixed_rows(source) else None
        arrays = {"sources": sources, "relations": relations, "weights": weights}
        values = {"names": names, "y": y}
        values |= {name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()}
        wanted = np.unique(np.concatenate([ids[number][slice(*cuts[number][home : home + 2])] for number in takers]))
        of = self._types_of(wanted)
        wanted = wanted[np.isin(of, [kind for kind in range(self._kinds) if self._has_rows(kind)])].astype(np.int64)
        features = source.feature_rows(wanted) if len(wanted) else None
        for number in takers:
            run = slice(*cuts[number][home : home + 2].tolist())
            some, begin = ids[number][run].astype(np.int64), int(self._begins[number])
            places = some - first
            edges = entries_of(offsets, places)[1]
            for column in self._columns:
                held = values[column.name]
                assert held is not None  # as the columns say
                picked = held[torch.from_numpy(edges if column.of_edges else places)].to(column.dtype)
                before = int(at[number][home]) if column.of_edges else run.start
                where = begin + self._offset(number, column.name) + before * column.width
                self._room.write(bytes_of(picked), where)
            if features is not None:
                of = self._types_of(some)
                for kind in np.unique(of).tolist():
                    if self._has_rows(kind):
                        own = torch.from_numpy(np.searchsorted(wanted, some[of == kind]))
                        where = self._row_offset(number, kind) + int(rows[number][kind, home]) * self.sizes.row_bytes
                        self._room.write(bytes_of(features[own]), where)

    def _row_offset(self, number: int, kind: int) -> int:
        """Where the features of a type that a part brings begin."""
        return int(self._begins[number] + self._light[number] + self._rows[number, :kind].sum() * self.sizes.row_bytes)

    def beside(self, chosen: Ids) -> list[Beside]:
        """What the parts of a group bring, each node once: with the first part that does. Raises: DataError."""
        found: list[Beside] = []
        taken = np.empty(0, np.int64)
        for number in chosen.tolist():
            count = int(self.sizes.nodes[number])
            if not count:
                continue
            keys = aligned_empty((2, count), torch.int64)
            self._read(int(self._begins[number]), keys)
            ids, counts = keys.numpy()
            places = np.flatnonzero(~np.isin(ids, taken, assume_unique=True))
            taken = np.concatenate([taken, ids[places]])
            hubs = partial(self._hubs, number, ids, counts)
            found.append(Beside(ids[places], places, hubs, partial(self._features_into, number, ids)))
        return found

    def _hubs(self, number: int, ids: Ids, counts: Ids) -> Hubs:
        """In-edges and labels of what a part brings."""
        begin, end = _KEY * len(ids), self._offset(number, "")
        held = aligned_empty((end - begin,), torch.uint8)
        self._read(int(self._begins[number]) + begin, held)
        values: dict[str, Tensor] = {}
        for column in self._columns:
            first = self._offset(number, column.name) - begin
            count = int(self.sizes.entries[number]) if column.of_edges else len(ids)
            own = held[first : first + count * column.width].view(column.dtype)
            values[column.name] = own.view(count, *column.shape)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        relations, weights = (values[n].numpy() if n in values else None for n in ("relations", "weights"))
        y, names = values["y"], values.get("names")
        return Hubs(ids, indptr, values["sources"].numpy(), None, y, 0.0, relations, weights, names)

    def _features_into(self, number: int, ids: Ids, kind: int, places: Ids, out: Tensor) -> None:
        """Features of nodes of a type, by their places among those that a part brings. Raises: DataError."""
        if not len(places):
            return
        rows = aligned_empty((int(self._rows[number, kind]), row_columns(self._source)), self._source.feature_dtype)
        self._read(self._row_offset(number, kind), rows)
        at = np.cumsum(self._types_of(ids) == kind)[places] - 1
        torch.index_select(rows, 0, torch.from_numpy(at), out=out)

    def _read(self, offset: int, out: Tensor) -> None:
        if not out.numel():
            return
        with self._room.opened() as reader:
            reader.read_into(offset, out)
            counts: ReadCounts | None = getattr(self._source, "counts", None)
            if counts is not None:
                counts.add(reader.counts)


__all__ = ["Beside", "BroughtSizes", "MemoryRoom", "Neighbours", "Room", "beside_of", "exits", "most_read", "ranked"]
