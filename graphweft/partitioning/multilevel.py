"""Multilevel partitioning with few edges cut and every part's labels close to the whole graph's; also from disk.

Comes in: the structure in pieces of consecutive rows, labels, a number of parts. Goes out: the part of every node.
Called by :mod:`graphweft.partitioning.partition` and by preparing a store. Nodes of one label join clusters along their
edges, clusters join larger ones, the last level is split into parts, and on the way back nodes move between parts. A
pass reads the structure once, in order, so that it may lie in a file; in memory are O(nodes), O(parts x labels) and the
graph between clusters. Sources: size-constrained label propagation and its use for partitions, Meyerhenke, Sanders and
Schulz, SEA 2014; balance per label, Hanoi, section 4.3.2.

A node in a part costs what grows with the weight of its label there beyond an equal share, and with that of the part.
The cost starts low, so that clusters can pass through parts that are full, and rises until the limits are kept.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft._native import declare
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.edit import thinned
from graphweft.partitioning.between import Between, address

_cluster = declare("gw_multilevel_cluster")
_place = declare("gw_multilevel_place")

Ints = NDArray[np.int32]

TOLERANCE = 1.05  # largest part over the mean
_ROUNDS = 3  # passes in which clusters form
_LARGEST, _SMALLEST = 0.25, 0.02  # weight of a cluster: a share of its label in a part, but so much of a part
_STOP = 0.95  # a level that keeps so much of the one before is the last
_FIRST_PULL, _RISE, _TRIALS = 0.03, 1.25, 20  # of the costs at the last level, in mean degrees
_PULLS = (0.1, 0.2, 0.4)  # one pass each on the way back
_LAST_PULL = 0.02
_SCALE = 0.05  # a deviation by this share of a part costs a pull
_STRICT = 3  # passes within the limits on every level
_MARGIN = 0.8  # of the distance: the spread that parts may have, which bounds it from below alone
_TIGHTER = 5  # times that the limit is lowered where the distance is above what was asked for
_SETTLED = 0.002  # share of nodes that move when a level is done
_MOST_ENTRIES = 1 << 26  # of the graph between clusters; beyond, a sample of them
CELL = 2048  # nodes that stand together: their rows of 32 columns are in a core's own cache
WORTH_ORDERING = 1 << 18  # edges from which on an order of the nodes pays: the rows of fewer are in the cache
NEIGHBOURS = 32  # of a node that are looked at where an order is wanted: clusters have many more edges than nodes
_ENTRIES_OF_ORDER = 1 << 20  # of a piece, and of the graph between clusters, where only an order is wanted
AT_ONCE = 1 << 20  # ids that are made wider together
_NODE_BYTES = 64  # labels, clusters and their weights, sums, parts, and their copies while a level is made
ENTRY_BYTES = 40  # of an entry between clusters while those of two pieces are put together: four times 8, and sums


class Structure(Protocol):
    """A symmetric graph, read in pieces of consecutive rows."""

    @property
    def num_nodes(self) -> int:
        """Nodes."""

    @property
    def num_entries(self) -> int:
        """Neighbours of all nodes."""

    def pieces(self) -> Iterator[tuple[int, Adjacency]]:
        """The first node of each piece, and its rows, with all nodes as columns."""


@dataclass(frozen=True)
class InMemory:
    """A symmetric graph in memory, in one piece."""

    csc: Adjacency

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return self.csc.num_rows

    @property
    def num_entries(self) -> int:
        """Neighbours of all nodes."""
        return self.csc.num_edges

    def pieces(self) -> Iterator[tuple[int, Adjacency]]:
        """All rows."""
        yield 0, self.csc


@dataclass(frozen=True)
class _InPieces(InMemory):
    """A graph in memory, in pieces of so many neighbours, so that what is made of a piece is small."""

    def pieces(self) -> Iterator[tuple[int, Adjacency]]:
        """Some rows at a time."""
        ends, first = self.csc.indptr.numpy(), 0  # NumPy wakes no threads for so little
        while first < self.csc.num_rows:
            begin = int(ends[first])
            last = int(np.searchsorted(ends, begin + _ENTRIES_OF_ORDER, side="right")) - 1
            last = min(max(last, first + 1), self.csc.num_rows)
            indptr = torch.from_numpy(ends[first : last + 1] - begin)
            yield first, Adjacency(indptr, self.csc.indices[begin : int(ends[last])], None, self.csc.num_cols)
            first = last


@dataclass(frozen=True)
class _Level:
    """A graph of weighted nodes with a label each; weights None: 1."""

    structure: Structure
    labels: Ints
    node_weight: Ints | None = None
    edge_weight: Ints | None = None  # of a structure in one piece

    @property
    def num_nodes(self) -> int:
        return self.structure.num_nodes

    def weights(self) -> NDArray[np.int64]:
        """Of all nodes."""
        return np.ones(self.num_nodes, np.int64) if self.node_weight is None else self.node_weight.astype(np.int64)


def multilevel(
    structure: Structure,
    k: int,
    labels: Tensor | None,
    distance: float = 0.1,
    seed: int = 0,
    initial: Tensor | None = None,
    most_entries: int = _MOST_ENTRIES,
) -> Tensor:
    """Splits the nodes into ``k`` parts; int32 (N,).

    Shape: labels (N,) integers, negative for none.

    Args:
        structure: A symmetric graph.
        k: Number of parts.
        labels: What is balanced, where it is known; None: the number of nodes alone.
        distance: Largest total variation distance between the labels of a part and of all nodes. Where there are too
            few nodes of a label for it, the distance is larger.
        seed: Of the order in which clusters move.
        initial: Parts to start from, in the place of clusters.
        most_entries: Entries of the graph between clusters that are kept in memory; of more a sample is taken.

    Raises: ConfigError for 2^31 nodes or more.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> ring = Graph([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]).to_bidirected()
        >>> part = multilevel(InMemory(ring.csc), 2, None)
        >>> len(set(part[:3].tolist())), len(set(part[3:].tolist()))
        (1, 1)
    """
    nodes = _counted(structure)
    if nodes == 0:
        return torch.empty(0, dtype=torch.int32)
    limits = _Limits(nodes, k, labels, distance)
    rng = np.random.default_rng(seed)
    finest = _Level(structure, limits.labels)
    levels, maps = [finest], []
    while initial is None:
        coarser, of = _coarser(levels[-1], limits, most_entries)
        if coarser.num_nodes > _STOP * levels[-1].num_nodes:
            break
        levels.append(coarser)
        maps.append(of)
    if initial is not None:
        state = _State(finest, limits, initial.numpy().astype(np.int32))
    else:
        state = _split(levels[-1], limits, rng)
    while maps:
        levels.pop()
        state = _State(levels[-1], limits, state.part[maps.pop()])
        _refine(levels[-1], limits, state)
    if initial is not None:
        _refine(finest, limits, state)
    _tighten(finest, limits, state)
    return torch.from_numpy(state.part)


def neighbours_together(csc: Adjacency, most: int) -> Tensor:
    """An order of the nodes in which neighbours stand near each other; int64 (N,), a permutation.

    ``csc``: in-edges by node; best of a symmetric graph.

    Nodes of a cluster follow each other, clusters of a larger cluster as well; none has more than ``most`` nodes. Sums
    over edges then read rows that are in the cache.

    Raises: ConfigError for 2^31 nodes or more.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> pairs = Graph([0, 1, 2, 3], [3, 2, 1, 0])
        >>> neighbours_together(pairs.csc, 2).tolist() in ([0, 3, 1, 2], [1, 2, 0, 3])
        True
    """
    structure = _InPieces(thinned(csc, NEIGHBOURS))
    limits = _Limits(_counted(structure), 1, None, 1.0)
    limits.cluster_weight[:] = most
    level, keys = _Level(structure, limits.labels), list[Ints]()
    cluster: Ints = np.arange(csc.num_rows, dtype=np.int32)
    while level.num_nodes:
        coarser, of = _coarser(level, limits, _ENTRIES_OF_ORDER)
        if coarser.num_nodes > _STOP * level.num_nodes:
            break
        cluster = of[cluster]
        keys.append(cluster)
        level = coarser
    return torch.from_numpy(np.lexsort(keys)) if keys else torch.arange(csc.num_rows)


def first_places(ids: Tensor, count: int) -> Tensor:
    """int64 (count,): where each of ``count`` ids stands first in ``ids``; its length for others.

    Example:
        >>> first_places(torch.tensor([2, 0, 2]), 4).tolist()
        [1, 3, 0, 3]
    """
    places = torch.full((count,), ids.numel())
    for number, some in enumerate(torch.split(ids, AT_ONCE)):
        first = number * AT_ONCE
        places.scatter_reduce_(0, some.long(), torch.arange(first, first + some.numel()), "amin")
    return places


def _counted(structure: Structure) -> int:
    """Nodes. Raises: ConfigError."""
    if structure.num_nodes >= 2**31:
        raise ConfigError(
            f"partition: expected up to {2**31 - 1} nodes, got {structure.num_nodes}; prepare has hash and range"
        )
    return structure.num_nodes


class _Limits:
    """How full parts may be; ``spread`` is a part's half sum of |weight of a label - its equal share|.

    Attributes:
        labels: int32 (N,), one more label for nodes without.
        target: (L,) equal share of each label.
        counted: int32 (L,): whether a label's deviation counts.
    """

    def __init__(self, nodes: int, k: int, labels: Tensor | None, distance: float) -> None:
        self.nodes, self.k, self.distance = nodes, k, distance
        known = None if labels is None else labels.numpy()
        classes = 0 if known is None else int(known.max(initial=-1)) + 1
        self.labels = np.zeros(nodes, np.int32)
        if known is not None:
            np.copyto(self.labels, known, casting="unsafe")
            self.labels[known < 0] = classes
        count = np.bincount(self.labels, minlength=classes + 1)
        self.counted = np.ones(classes + 1, np.int32)
        self.counted[classes] = 0
        self.target: NDArray[np.float64] = count / k
        self.labelled = int(count[:classes].sum())
        self.most_weight = max(TOLERANCE * nodes / k, float(math.ceil(nodes / k)))
        self.most_spread = _MARGIN * distance * self.labelled / k if self.labelled else math.inf
        # counts are whole, so a part misses its share by up to half a node a label
        self.least_spread = 0.25 * float(np.minimum(self.target[:classes], 1.0).sum())
        self.most_spread = max(self.most_spread, self.least_spread)
        heaviest = np.maximum(_LARGEST * self.target, _SMALLEST * nodes / k)
        self.cluster_weight = np.maximum(heaviest, 1).astype(np.int64)

    @property
    def classes(self) -> int:
        """Labels, that of nodes without included."""
        return len(self.target)

    def numbers(self, pull: float, strict: bool) -> NDArray[np.float64]:
        """As the kernel takes them; ``pull``: cost of a deviation in edges."""
        share = self.nodes / self.k
        weight, spread = (self.most_weight, self.most_spread) if strict else (math.inf, math.inf)
        return np.array([share, weight, spread, pull / (_SCALE * share), pull / (_SCALE * share)])

    def furthest(self, counts: NDArray[np.int64]) -> float:
        """The largest distance of a part that has labels at all."""
        of = counts[:-1][self.counted > 0].astype(np.float64)
        if not self.labelled:
            return 0.0
        own = of / np.maximum(of.sum(0), 1.0)
        whole = of.sum(1, keepdims=True) / self.labelled
        return float(0.5 * np.abs(own - whole).sum(0).max())


class _State:
    """An assignment at one level, and what it adds up to.

    Attributes:
        part: int32 (nodes,), -1 for none yet.
        counts: int64 (L + 1, k): weights by label, and of all labels.
        spread: (k,).
    """

    def __init__(self, level: _Level, limits: _Limits, part: Ints) -> None:
        self.part, self._limits = np.ascontiguousarray(part), limits
        self.counts = np.zeros((limits.classes + 1, limits.k), np.int64)
        pairs = level.labels.astype(np.int64) * limits.k + self.part
        there = self.part >= 0
        held = np.bincount(pairs[there], weights=level.weights()[there], minlength=limits.classes * limits.k)
        self.counts[:-1] = held.reshape(limits.classes, limits.k)
        self.counts[-1] = self.counts[:-1].sum(0)
        self.spread = np.empty(limits.k)
        self.measure()

    def measure(self) -> None:
        """Spreads from the counts."""
        limits = self._limits
        apart = np.abs(self.counts[:-1] - limits.target[:, None]) * limits.counted[:, None]
        self.spread = np.ascontiguousarray(0.5 * apart.sum(0))

    def keeps(self) -> bool:
        """Whether all parts are within the limits."""
        limits = self._limits
        return bool(self.counts[-1].max() <= limits.most_weight and self.spread.max() <= limits.most_spread)


def _coarser(level: _Level, limits: _Limits, most_entries: int) -> tuple[_Level, Ints]:
    """The graph between clusters, and the cluster of every node."""
    nodes = level.num_nodes
    cluster, heavy = np.arange(nodes, dtype=np.int32), level.weights()
    moved = ctypes.c_int64()
    for _ in range(_ROUNDS):
        changed = 0
        for first, rows in level.structure.pieces():
            weights = (
                address(level.edge_weight),
                address(level.node_weight),
                address(level.labels),
                address(limits.cluster_weight),
            )
            _cluster(ctypes.byref(rows.native), first, *weights, address(cluster), address(heavy), ctypes.byref(moved))
            changed += moved.value
        if changed < _SETTLED * nodes:
            break
    used = np.zeros(nodes, np.bool_)
    used[cluster] = True
    number = np.cumsum(used, dtype=np.int32) - np.int32(1)
    count = int(number[-1]) + 1
    weight, labels = heavy[used].astype(np.int32), level.labels[used]
    del heavy
    of = number[cluster]
    del number, cluster, used
    between = Between(count, most_entries)
    for first, rows in level.structure.pieces():
        between.add(first, rows, level.edge_weight, of)
    csc, edge_weight = between.graph()
    return _Level(InMemory(csc), labels, weight, edge_weight), of


def _split(level: _Level, limits: _Limits, rng: np.random.Generator) -> _State:
    """Parts of the clusters: the heaviest first, then in random order while costs rise until the limits are kept."""
    order = np.argsort(-level.weights(), kind="stable")
    state = _State(level, limits, np.full(level.num_nodes, -1, np.int32))
    pull = _FIRST_PULL
    _pass(level, limits, state, pull, strict=False, order=order)
    for _ in range(_TRIALS):
        _pass(level, limits, state, pull, strict=False, order=rng.permutation(level.num_nodes))
        if state.keeps():
            break
        pull *= _RISE
    for _ in range(_STRICT):
        _pass(level, limits, state, _LAST_PULL, order=rng.permutation(level.num_nodes))
    return state


def _refine(level: _Level, limits: _Limits, state: _State) -> None:
    """Moves on the way back: costs rise again, then none leads beyond the limits."""
    for pull in _PULLS:
        _pass(level, limits, state, pull, strict=False)
    for _ in range(_STRICT):
        if _pass(level, limits, state, _LAST_PULL) < _SETTLED * level.num_nodes:
            break


def _tighten(level: _Level, limits: _Limits, state: _State) -> None:
    """Lowers the limit while a part is too far from the labels of the whole graph."""
    if not limits.labelled:
        return
    for _ in range(_TIGHTER):
        found = limits.furthest(state.counts)
        if found <= limits.distance or limits.most_spread <= limits.least_spread:
            return
        limits.most_spread = max(limits.most_spread * max(0.5, 0.95 * limits.distance / found), limits.least_spread)
        for _ in range(2):
            _pass(level, limits, state, _LAST_PULL)


def _pass(
    level: _Level,
    limits: _Limits,
    state: _State,
    pull: float,
    strict: bool = True,
    order: NDArray[np.int64] | None = None,
) -> int:
    """Every node moves where it costs least; how many did. ``pull`` is in mean degrees; ``order``: of one piece."""
    moved, done = ctypes.c_int64(), 0
    numbers = limits.numbers(pull * _mean_degree(level, limits), strict)
    for first, rows in level.structure.pieces():
        weights = (address(level.edge_weight), address(level.node_weight), address(level.labels), address(order))
        kept = (limits.k, limits.classes, address(limits.target), address(limits.counted), address(numbers))
        held = (address(state.part), address(state.counts), address(state.spread))
        _place(ctypes.byref(rows.native), first, *weights, *kept, *held, ctypes.byref(moved))
        done += moved.value
        state.measure()
    return done


def _mean_degree(level: _Level, limits: _Limits) -> float:
    """Weight of entries over weight of nodes."""
    weight = level.structure.num_entries if level.edge_weight is None else int(level.edge_weight.sum(dtype=np.int64))
    return weight / limits.nodes


def order_bytes(nodes: int) -> int:
    """What :func:`neighbours_together` takes beside the structure."""
    return _NODE_BYTES * nodes + ENTRY_BYTES * 2 * _ENTRIES_OF_ORDER


def multilevel_bytes(nodes: int, k: int, classes: int) -> int:
    """Bytes that are held for nodes and parts, beside a piece and the graph between clusters.

    Example:
        >>> multilevel_bytes(1000, 4, 2) > 60_000
        True
    """
    return _NODE_BYTES * nodes + 64 * k * (classes + 2)


__all__ = [
    "CELL", "ENTRY_BYTES", "NEIGHBOURS", "TOLERANCE", "WORTH_ORDERING", "InMemory", "Structure", "first_places",
    "multilevel", "multilevel_bytes", "neighbours_together", "order_bytes",
]  # fmt: skip
