"""Groups of parts in memory: the graph that some parts of a partition induce, with their rows of features.

Comes in: a :class:`PartSource`, a store on disk or a dataset in memory, and numbers of parts. Goes out: a
:class:`Group`, which has what the loader reads of a dataset. Called by :mod:`graphweft.loader.group_loader` and by
inference part by part. Source: Hanoi, section 4.3 (macro-batches).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.loader.hubs import Hubs
from graphweft.loader.parts import PartSource
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.gather import gather_rows
from graphweft.storage.memory_size import shown_bytes

_PIECE = 1 << 18  # entries of a structure that are looked at together
_PIECE_BYTES, _PINNED_BYTES = 40 * _PIECE, 24 * _PIECE


class Group:
    """Some parts in memory: the graph that they induce.

    Attributes:
        graph: Nodes part after part, by ascending number of the part, then hubs; edges are those between them.
        x: Their features, or None.
        y: Their labels.
        parts: Numbers of the parts, ascending.
        n_id: int64 (nodes,) their numbers in the source, by which draws are keyed.
    """

    def __init__(self, graph: Graph, x: Tensor | None, y: Tensor, parts: tuple[int, ...], n_id: Tensor) -> None:
        self.graph, self.x, self.y, self.parts, self.n_id = graph, x, y, parts, n_id
        self._lock = threading.Lock()
        self._samplers: dict[tuple[int, ...], NeighborSampler] = {}

    @property
    def train_idx(self) -> Tensor:
        """No node: seeds are the loader's."""
        return torch.empty(0, dtype=torch.int64)

    def sampler(self, fanouts: tuple[int, ...]) -> NeighborSampler:
        """A sampler of the graph, made once."""
        with self._lock:
            if fanouts not in self._samplers:
                self._samplers[fanouts] = NeighborSampler(self.graph, fanouts, names=self.n_id)
            return self._samplers[fanouts]

    def rows(self, ids: Tensor) -> Tensor | None:
        """(n, F) features of nodes of the group, float32 where they are kept with fewer bits."""
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
    starts = starts_of(source.bounds, chosen)
    members = _Members(source.bounds, chosen, starts, hubs)
    inside, nodes = int(starts[-1]), int(starts[-1]) + len(members.extra)
    x = aligned_empty((nodes, source.num_features), source.feature_dtype) if source.num_features else None
    indptr = aligned_empty((nodes + 1,), torch.int64)
    indptr[0] = 0
    columns, labels = [], []
    for place, number in enumerate(chosen.tolist()):
        first, last = int(starts[place]), int(starts[place + 1])
        offsets, sources = source.structure(number)
        kept, inner = members.entries(offsets, sources)
        indptr[first + 1 : last + 1] = torch.from_numpy(inner[1:]) + int(indptr[first])
        columns.append(kept)
        labels.append(source.labels(number))
        del offsets, sources
        if x is not None:
            source.features_into(number, x[first:last])
    if hubs is not None and nodes > inside:
        kept, inner = members.entries(*hubs.rows(members.which))
        indptr[inside + 1 :] = torch.from_numpy(inner[1:]) + int(indptr[inside])
        columns.append(kept)
        labels.append(hubs.y[torch.from_numpy(members.which)])
        if x is not None and hubs.x is not None:
            torch.index_select(hubs.x, 0, torch.from_numpy(members.which), out=x[inside:])
    indices = aligned_empty((int(indptr[-1]),), torch.int32)
    torch.cat([torch.from_numpy(part) for part in columns], out=indices)
    graph = Graph.from_adjacency(Adjacency(indptr, indices, None, nodes))
    n_id = aligned_empty((nodes,), torch.int64)
    for first, begin, end in zip(starts, source.bounds[chosen], source.bounds[chosen + 1], strict=False):
        torch.arange(int(begin), int(end), out=n_id[int(first) : int(first + end - begin)])
    n_id[inside:] = torch.from_numpy(members.extra)
    return Group(graph, x, torch.cat(labels), tuple(chosen.tolist()), n_id)


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
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The entries whose source is in the group, in its numbers, and the offsets of rows among them."""
        kept: list[NDArray[np.int32]] = []
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
            count = np.cumsum(keep)
            rows = slice(*np.searchsorted(offsets, (first, first + len(piece)), "right").tolist())
            inner[rows] = before + count[offsets[rows] - first - 1]
            before += int(count[-1])
        return np.concatenate([np.empty(0, np.int32), *kept]), inner


def group_bytes(source: PartSource, count: int, label_bytes: int = 8, hubs: int = 0) -> int:
    """Bytes at the most while one group of ``count`` parts is trained on and the next one is read.

    ``hubs``: bytes that are pinned; each group has a copy of them.
    """
    nodes = np.diff(source.bounds)
    width = source.num_features * torch.empty(0, dtype=source.feature_dtype).element_size()
    node_bytes, edge_bytes = width + 16 + label_bytes, 4  # offsets and ids
    parts = nodes * node_bytes + source.edge_counts * edge_bytes
    largest = np.argsort(-parts, kind="stable")[:count]
    group = int(parts[largest].sum()) + hubs
    reading = int(source.edge_counts[largest].sum()) * edge_bytes + hubs  # once more while columns are joined
    part = int((nodes * (16 + label_bytes) + source.edge_counts * 12).max(initial=0)) + _PIECE_BYTES
    return 2 * group + reading + part + (hubs + _PINNED_BYTES if hubs else 0)


def parts_within(source: PartSource, memory: int, label_bytes: int = 8, hubs: int = 0) -> int:
    """The most parts of a group that keep within ``memory`` bytes, beside ``hubs`` pinned bytes.

    Raises: ConfigError naming the least that would do.
    """
    parts = len(source.bounds) - 1
    least = group_bytes(source, 1, label_bytes, hubs)
    if least > memory:
        raise ConfigError(
            f"memory: expected at least {shown_bytes(least)} for groups of one of {parts} parts, "
            f"got {shown_bytes(memory)}; a store of more parts" + (", or fewer hubs," if hubs else "") + " needs less"
        )
    low, high = 1, parts
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if group_bytes(source, middle, label_bytes, hubs) <= memory else (low, middle - 1)
    return low
