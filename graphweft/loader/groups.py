"""Groups of parts in memory: the graph that some parts of a partition induce, with their rows of features.

Comes in: a :class:`PartSource`, a store on disk or a dataset in memory, and numbers of parts. Goes out: a
:class:`Group`, which has what the loader reads of a dataset. Called by :mod:`graphweft.loader.group_loader` and by
inference part by part. Source: Hanoi, section 4.3 (macro-batches).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows
from graphweft.storage.memory_size import shown_bytes

_PIECE = 1 << 18  # entries of a structure that are looked at together
_PIECE_BYTES = 40 * _PIECE


class PartSource(Protocol):
    """A graph whose nodes are numbered part after part."""

    @property
    def bounds(self) -> NDArray[np.int64]:
        """(parts + 1,) first node of every part, and the number of nodes."""
        ...

    @property
    def edge_counts(self) -> NDArray[np.int64]:
        """(parts,) edges into every part."""
        ...

    @property
    def num_features(self) -> int:
        """Columns of the features."""
        ...

    @property
    def feature_dtype(self) -> torch.dtype:
        """As the features lie there."""
        ...

    def structure(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Offsets, and sources of in-edges, ascending in every row."""
        ...

    def features_into(self, number: int, out: Tensor) -> None:
        """The features of a part, (n, F), into ``out``."""
        ...

    def labels(self, number: int) -> Tensor:
        """The labels of a part."""
        ...

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, F) features of nodes with ascending ids."""
        ...


class MemoryParts:
    """A dataset in memory as parts; a store of the same parts gives the same groups.

    Args:
        graph: The graph, without types.
        x: Its features, or None.
        y: Labels of its nodes.
        part: (N,) part of every node.
        parts: Number of parts.

    Example:
        >>> source = MemoryParts(Graph([0, 1, 2], [2, 0, 0]), torch.eye(3), torch.arange(3), torch.tensor([1, 0, 1]), 2)
        >>> source.order.tolist(), source.structure(1)[1].tolist(), source.labels(0).tolist()
        ([1, 0, 2], [0, 2, 1], [1])
    """

    def __init__(self, graph: Graph, x: Tensor | SparseFeatures | None, y: Tensor, part: Tensor, parts: int) -> None:
        self._graph, self._x, self._y = graph, x, y
        numbers = part.numpy()
        self.bounds: NDArray[np.int64] = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=parts))])
        self.order = torch.from_numpy(np.argsort(numbers, kind="stable"))  # nodes of the dataset by their new ids
        self.new_id: NDArray[np.int64] = np.empty(len(numbers), np.int64)
        self.new_id[self.order.numpy()] = np.arange(len(numbers))
        self.num_features = 0 if x is None else x.shape[1]
        values = x.values if isinstance(x, SparseFeatures) else x
        self.feature_dtype = torch.float32 if values is None else values.dtype
        degrees = np.diff(graph.csc.indptr.numpy())
        self.edge_counts: NDArray[np.int64] = np.bincount(numbers, degrees, minlength=parts).astype(np.int64)

    def _nodes(self, number: int) -> Tensor:
        return self.order[int(self.bounds[number]) : int(self.bounds[number + 1])]

    def structure(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Offsets, and sources of in-edges, ascending in every row."""
        nodes, csc = self._nodes(number).numpy(), self._graph.csc
        starts, degrees = csc.indptr.numpy()[nodes], np.diff(csc.indptr.numpy())[nodes]
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        rows = np.repeat(np.arange(len(nodes)), degrees)
        places = np.arange(int(indptr[-1])) - indptr[rows] + starts[rows]
        sources = self.new_id[csc.indices.numpy()[places]]
        keys = np.sort(rows * max(len(self.new_id), 1) + sources)
        return indptr, keys % max(len(self.new_id), 1)

    def features_into(self, number: int, out: Tensor) -> None:
        """The features of a part, (n, F), into ``out``."""
        out.copy_(self._rows(self._nodes(number)))

    def labels(self, number: int) -> Tensor:
        """The labels of a part."""
        return self._y[self._nodes(number)]

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, F) features of nodes with ascending ids."""
        return self._rows(self.order[torch.from_numpy(ids)])

    def _rows(self, nodes: Tensor) -> Tensor:
        if self._x is None:
            return torch.empty(nodes.numel(), 0)
        found = gather_rows(self._x, nodes)
        return found.to_dense() if isinstance(found, SparseFeatures) else found


class Group:
    """Some parts in memory: the graph that they induce.

    Attributes:
        graph: Nodes part after part, by ascending number of the part; edges are those between them.
        x: Their features, or None.
        y: Their labels.
        parts: Numbers of the parts, ascending.
    """

    def __init__(self, graph: Graph, x: Tensor | None, y: Tensor, parts: tuple[int, ...]) -> None:
        self.graph, self.x, self.y, self.parts = graph, x, y, parts
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
                self._samplers[fanouts] = NeighborSampler(self.graph, fanouts)
            return self._samplers[fanouts]

    def rows(self, ids: Tensor) -> Tensor | None:
        """(n, F) features of nodes of the group, float32 where they are kept with fewer bits."""
        if self.x is None:
            return None
        found = gather_rows(self.x, ids)
        assert isinstance(found, Tensor)  # groups are dense
        return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found


def read_group(source: PartSource, parts: Sequence[int]) -> Group:
    """The group of some parts. Raises: DataError from a damaged store.

    Example:
        >>> graph, part = Graph([0, 1, 2, 3], [1, 2, 3, 0]), torch.tensor([0, 0, 1, 2])
        >>> group = read_group(MemoryParts(graph, torch.eye(4), torch.arange(4), part, 3), [0, 2])
        >>> [ends.tolist() for ends in group.graph.edges()], group.y.tolist()
        ([[2, 0], [0, 1]], [0, 1, 3])
    """
    chosen = np.sort(np.asarray(parts, np.int64))
    bounds = source.bounds
    starts = starts_of(bounds, chosen)
    base, member = np.zeros(len(bounds) - 1, np.int64), np.zeros(len(bounds) - 1, np.bool_)
    base[chosen], member[chosen] = starts[:-1] - bounds[chosen], True
    nodes = int(starts[-1])
    x = aligned_empty((nodes, source.num_features), source.feature_dtype) if source.num_features else None
    indptr = aligned_empty((nodes + 1,), torch.int64)
    columns, labels = [], []
    for place, number in enumerate(chosen.tolist()):
        first, last = int(starts[place]), int(starts[place + 1])
        offsets, sources = source.structure(number)
        kept, inner = _inner(offsets, sources, bounds, member, base)
        indptr[first + 1 : last + 1] = torch.from_numpy(inner[1:]) + int(indptr[first])
        columns.append(kept)
        labels.append(source.labels(number))
        del offsets, sources
        if x is not None:
            source.features_into(number, x[first:last])
    indices = aligned_empty((int(indptr[-1]),), torch.int32)
    torch.cat([torch.from_numpy(part) for part in columns], out=indices)
    graph = Graph.from_adjacency(Adjacency(indptr, indices, None, nodes))
    return Group(graph, x, torch.cat(labels), tuple(chosen.tolist()))


def starts_of(bounds: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """(parts + 1,) first number of each chosen part inside of its group, and the group's nodes."""
    return np.concatenate([[0], np.cumsum((bounds[1:] - bounds[:-1])[chosen])])


def _inner(
    offsets: NDArray[np.int64],
    sources: NDArray[np.integer[Any]],
    bounds: NDArray[np.int64],
    member: NDArray[np.bool_],
    base: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The entries whose source is in the group, in its numbers, and the offsets of rows among them."""
    kept: list[NDArray[np.int32]] = []
    inner = np.zeros(len(offsets), np.int64)
    before = 0
    cuts = bounds[1:].astype(sources.dtype)
    for first in range(0, len(sources), _PIECE):
        piece = sources[first : first + _PIECE]
        part = np.searchsorted(cuts, piece, "right")
        keep = member[part]
        kept.append((piece + base[part])[keep].astype(np.int32))
        count = np.cumsum(keep)
        rows = slice(*np.searchsorted(offsets, (first, first + len(piece)), "right").tolist())
        inner[rows] = before + count[offsets[rows] - first - 1]
        before += int(count[-1])
    return np.concatenate([np.empty(0, np.int32), *kept]), inner


def group_bytes(source: PartSource, count: int, label_bytes: int = 8) -> int:
    """Bytes at the most while one group of ``count`` parts is trained on and the next one is read."""
    nodes = np.diff(source.bounds)
    width = source.num_features * torch.empty(0, dtype=source.feature_dtype).element_size()
    node_bytes, edge_bytes = width + 8 + label_bytes, 4
    parts = nodes * node_bytes + source.edge_counts * edge_bytes
    largest = np.argsort(-parts, kind="stable")[:count]
    group = int(parts[largest].sum())
    reading = int(source.edge_counts[largest].sum()) * edge_bytes  # once more while columns are joined
    part = int((nodes * (16 + label_bytes) + source.edge_counts * 12).max(initial=0)) + _PIECE_BYTES
    return 2 * group + reading + part


def parts_within(source: PartSource, memory: int, label_bytes: int = 8) -> int:
    """The most parts of a group that keep within ``memory`` bytes.

    Raises: ConfigError naming the least that would do.
    """
    parts = len(source.bounds) - 1
    least = group_bytes(source, 1, label_bytes)
    if least > memory:
        raise ConfigError(
            f"memory: expected at least {shown_bytes(least)} for groups of one of {parts} parts, "
            f"got {shown_bytes(memory)}; a store of more parts needs less"
        )
    low, high = 1, parts
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if group_bytes(source, middle, label_bytes) <= memory else (low, middle - 1)
    return low
