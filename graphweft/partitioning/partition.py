"""Partitions of a graph's nodes: making them, measuring them, keeping them.

Comes in: a graph, a number of parts and perhaps labels. Goes out: a :class:`Partition` with a :class:`Report`. Called
by users, the command line and the trainer's macro-batches. Sources: Hanoi, section 4.3.2; Morphling, section IV-D.
"""

from __future__ import annotations

import ctypes
import logging
import time
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphweft._checks import check_rows
from graphweft._errors import ConfigError, DataError, DtypeError, GraphError, IndexRangeError, MissingPackageError
from graphweft._native import declare
from graphweft.graph import edit
from graphweft.graph.graph import Graph
from graphweft.partitioning.hierarchy import hierarchical
from graphweft.partitioning.metis import metis
from graphweft.partitioning.multilevel import (
    CELL,
    NEIGHBOURS,
    InMemory,
    multilevel,
    multilevel_bytes,
    neighbours_together,
)
from graphweft.partitioning.packing import components, greedy, packed_components
from graphweft.partitioning.report import Comparison, Exchange, Prediction, Rates, predict
from graphweft.partitioning.streaming import gap

_measure = declare("gw_partition_measure")

METHODS = ("gap", "multilevel", "metis", "random")
ALL_METHODS = (*METHODS, "components", "greedy", "hierarchical", "auto")
_USUAL_PARTS = 64
_TRIED = ("metis", "multilevel", "components", "greedy", "gap", "random")  # by "auto"; the first among equals is taken
_USUAL = Exchange((32, 32))
_STREAMED = 3  # passes of GAP before its parts are made better
log = logging.getLogger("graphweft.partition")


@dataclass(frozen=True)
class Report:
    """What a partition costs.

    Attributes:
        cut: Edges between parts.
        cut_share: Of all edges.
        balance: Nodes of the largest part over the mean.
        edge_balance: In-edges of the part with the most over the mean.
        halo: int64 (k,): nodes outside each part with an edge into it.
        label_distance: float64 (k,): total variation distance of each part's labels from those of the graph, over
            labelled nodes, 1 for a part without any; None without labels.
    """

    cut: int
    cut_share: float
    balance: float
    edge_balance: float
    halo: Tensor
    label_distance: Tensor | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        distance = self.label_distance
        return {
            "cut": self.cut,
            "cut_share": self.cut_share,
            "balance": self.balance,
            "edge_balance": self.edge_balance,
            "halo_mean": float(self.halo.double().mean()),
            "halo_max": int(self.halo.max()),
            "label_distance_mean": None if distance is None else float(distance.mean()),
            "label_distance_max": None if distance is None else float(distance.max()),
        }


@dataclass(frozen=True, eq=False)
class Partition:
    """Every node of a graph in one of ``k`` parts.

    Attributes:
        graph: The graph.
        part: int32 (N,) numbers in [0, k).
        k: Number of parts; some may be empty.
        method: The method, including the branch that was taken.
        labels: int64 (N,) labels that were given, negative for no label; or None.
        phases: Seconds of every phase, by name.
        comparison: For "auto", figures of all methods.

    Example:
        >>> made = partition(Graph([0, 1, 2, 3], [1, 0, 3, 2]), 2)
        >>> made.part.tolist(), made.report.cut, made.nodes(1).tolist()
        ([0, 0, 1, 1], 0, [2, 3])
    """

    graph: Graph
    part: Tensor
    k: int
    method: str = "given"
    labels: Tensor | None = None
    phases: tuple[tuple[str, float], ...] = ()
    comparison: Comparison | None = None

    def __post_init__(self) -> None:
        check_part("Partition", self.part, self.k, self.graph.num_nodes)

    @cached_property
    def sizes(self) -> Tensor:
        """int64 (k,): nodes of each part."""
        return torch.bincount(self.part.long(), minlength=self.k)

    def nodes(self, part: int) -> Tensor:
        """int64 ids of the nodes of one part, ascending. Raises: IndexRangeError."""
        if not 0 <= part < self.k:
            raise IndexRangeError(f"Partition.nodes: expected a part in [0, {self.k}), got {part}")
        return (self.part == part).nonzero().reshape(-1)

    @cached_property
    def report(self) -> Report:
        """Cut, balance, halos and distance of labels, computed once."""
        graph, cut = self.graph, ctypes.c_int64()
        halo = torch.zeros(self.k, dtype=torch.int64)
        _measure(graph.csc.native, self.k, self.part.data_ptr(), ctypes.byref(cut), halo.data_ptr())
        edges = torch.zeros(self.k, dtype=torch.int64).index_add_(0, self.part.long(), graph.in_degrees().long())
        return Report(
            cut.value,
            cut.value / max(graph.num_edges, 1),
            _most_over_mean(self.sizes),
            _most_over_mean(edges),
            halo,
            None if self.labels is None else label_distance(self.part, self.k, self.labels),
        )

    def predict(self, epoch: Exchange | None = None, rates: Rates | None = None) -> Prediction:
        """Predicts a full-batch epoch over as many ranks: exact bytes, and seconds by Morphling's cost model.

        Args:
            epoch: Widths that the model exchanges; None: two layers of 32 columns.
            rates: What machine and network do in a second; None: usual ones.

        Example:
            >>> made = partition(Graph([0, 1, 2, 3], [1, 0, 3, 2]), 2)
            >>> made.predict().bytes_sent, made.predict().ghosts
            (0, (0, 0))
        """
        return predict(self.graph, self.part, self.k, epoch or _USUAL, rates)

    def save(self, path: str | Path) -> None:
        """Writes parts and method as ``.npz``."""
        np.savez_compressed(Path(path), part=self.part.numpy(), k=self.k, method=self.method)

    @classmethod
    def load(cls, path: str | Path, graph: Graph, labels: Tensor | None = None) -> Partition:
        """Reads a file of :meth:`save`. Raises: DataError for another file; ShapeError for a partition of another
        graph.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                part, k, method = torch.from_numpy(file["part"]).int(), int(file["k"]), str(file["method"])
        except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as failure:
            raise DataError(f"{path}: expected a saved partition, got {failure}") from None
        return cls(graph, part, k, method, labels)


def partition(
    graph: Graph,
    k: int,
    method: str = "gap",
    labels: Tensor | None = None,
    *,
    passes: int = 3,
    balance: float = 1.0,
    initial: Tensor | None = None,
    seed: int = 0,
    distance: float = 0.1,
    epoch: Exchange | None = None,
    rates: Rates | None = None,
) -> Partition:
    """Splits the nodes of ``graph`` into ``k`` parts with few edges between them.

    Args:
        graph: A graph over one set of nodes. Directions of edges do not matter. In a graph that is not symmetric,
            parallel and opposite edges count once.
        k: Number of parts.
        method: "gap" streams over the nodes and keeps the labels of every part close to those of the graph.
            "multilevel" clusters nodes first, cuts fewer edges, and keeps labels within ``distance``. "metis" cuts the
            fewest edges of an undirected graph; it needs pymetis and ignores labels. "components" keeps connected
            components whole. "greedy" balances the sums of degrees. "random" gives equal sizes. "hierarchical" is
            METIS, else components, else greedy, as in Morphling. "auto" tries all of them and takes the partition with
            the shortest predicted time of full-batch training over ranks.
        labels: (N,) integers, usually the classes of the training nodes. Negative means no label, which counts as one
            more label. For "gap", "multilevel" and the report.
        passes: For "gap", number of passes over all nodes. Each pass starts from the parts of the previous one.
        balance: For "gap", weight of balance against neighbours.
        initial: For "gap", (N,) parts to start from, -1 for none.
        seed: Seed of "random", and of the order of moves of "multilevel".
        distance: For "multilevel", largest total variation distance between the labels of a part and of the graph. It
            may be larger for labels with few nodes. A smaller distance cuts more edges.
        epoch: For "auto", widths that a model exchanges in an epoch; None: two layers of 32 columns.
        rates: For "auto", speeds of machine and network; None: usual speeds.

    Raises: ConfigError, GraphError, ShapeError, DtypeError, IndexRangeError; MissingPackageError.

    Example:
        >>> ring = Graph([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3])
        >>> partition(ring, 2, passes=2).report.cut
        0
    """
    if not isinstance(graph, Graph) or not graph.is_square:
        raise GraphError(f"partition: expected a graph over one set of nodes, got {graph!r}")
    check_choice(k, method, passes)
    if not isinstance(balance, int | float) or not 0 < balance < float("inf"):
        raise ConfigError(f"partition: expected balance above 0, got {balance!r}")
    if not isinstance(distance, int | float) or not 0 < distance <= 1:
        raise ConfigError(f"partition: expected distance above 0, up to 1, got {distance!r}")
    labels = _checked_labels(labels, graph.num_nodes)
    if initial is not None:
        check_part("partition initial", initial, k, graph.num_nodes, least=-1)
        initial = initial.int().contiguous()
    asked = _Asked(labels, passes, float(balance), initial, seed, float(distance))
    if method == "auto":
        return _fastest(graph, k, asked, epoch or _USUAL, rates)
    begun = time.perf_counter()
    part, made_by, phases = _assign(graph, k, method, asked)
    phases = phases or ((made_by, time.perf_counter() - begun),)
    return Partition(graph, part, k, made_by, labels, phases)


_TURNED, _METIS, _CLUSTERED, _NODE = 20, 160, 16, 48  # bytes: of edges in both directions, and beside them


def partition_bytes(graph: Graph, k: int, method: str, classes: int = 0) -> int:
    """The most that :func:`partition` takes beside the graph, roughly; ``classes``: of its labels.

    Example:
        >>> ring = Graph([0, 1, 2, 3], [1, 2, 3, 0])
        >>> partition_bytes(ring, 2, "random") < partition_bytes(ring, 2, "gap") < partition_bytes(ring, 2, "metis")
        True
    """
    nodes, entries = graph.num_nodes, graph.num_edges
    if method == "random":
        return _NODE * nodes
    turned = 0 if graph.is_symmetric else _TURNED * entries
    entries = entries if graph.is_symmetric else 2 * entries
    most = _NODE * nodes
    if method in ("multilevel", "auto"):
        most += multilevel_bytes(nodes, k, classes) + _CLUSTERED * entries
    if method in ("metis", "hierarchical", "auto"):
        most = max(most, _NODE * nodes + _METIS * entries)
    return turned + most


def check_choice(k: int, method: str, passes: int) -> None:
    """There are so many parts, such a method and so many passes. Raises: ConfigError."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < 2**30:
        raise ConfigError(f"partition: expected k from 1 to {2**30 - 1}, got {k!r}")
    if method not in ALL_METHODS:
        raise ConfigError(f"partition: expected method as one of {', '.join(ALL_METHODS)}, got {method!r}")
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ConfigError(f"partition: expected passes >= 1, got {passes!r}")


def usual_parts(nodes: int) -> int:
    """Parts where nobody says how many."""
    return max(min(_USUAL_PARTS, nodes), 1)


def check_filled(who: str, parts: int, nodes: int) -> None:
    """Every part can have a node, as what is made of parts needs. Raises: ConfigError."""
    if parts > nodes:
        raise ConfigError(f"{who}: expected at most one for each of the {nodes:,} nodes, got {parts:,}")


class _Asked(NamedTuple):
    """Arguments of :func:`partition` that not every method reads."""

    labels: Tensor | None
    passes: int
    balance: float
    initial: Tensor | None
    seed: int
    distance: float


def _fastest(graph: Graph, k: int, asked: _Asked, epoch: Exchange, rates: Rates | None) -> Partition:
    """The parts with the least predicted seconds an epoch."""
    made: dict[str, Partition] = {}
    found: dict[str, Prediction] = {}
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    flat = undirected(graph)
    for method in _TRIED:
        begun = time.perf_counter()
        try:
            part, made_by, _ = _assign(flat, k, method, asked)
        except (MissingPackageError, GraphError) as failure:
            refused[method] = str(failure)
            continue
        seconds[method] = time.perf_counter() - begun
        if method == "metis" and not made_by.startswith("metis"):
            refused[method], _ = "no branch gave balanced parts", seconds.pop(method)
            continue
        made[method] = Partition(graph, part, k, made_by, asked.labels)
        found[method] = predict(graph, part, k, epoch, rates)
    chosen = min(found, key=lambda method: found[method].seconds)
    log.info("auto: %s, predicted %.3g s an epoch", made[chosen].method, found[chosen].seconds)
    best = made[chosen]
    comparison = Comparison(chosen, found, seconds, refused)
    return Partition(graph, best.part, k, best.method, best.labels, tuple(seconds.items()), comparison)


def _assign(graph: Graph, k: int, method: str, asked: _Asked) -> tuple[Tensor, str, tuple[tuple[str, float], ...]]:
    """Parts, what made them, and the seconds of several phases."""
    if method == "random":
        generator = torch.Generator().manual_seed(asked.seed)
        return (torch.randperm(graph.num_nodes, generator=generator) % k).int(), method, ()
    graph = undirected(graph)
    if method == "hierarchical":
        return hierarchical(graph, k)
    if method == "components":
        return _packed(graph, k), method, ()
    if method == "greedy":
        return greedy(graph.in_degrees(), k), method, ()
    if method == "metis":
        found = metis(graph, k) if graph.num_nodes else None
        if found is not None:
            return *found, ()
        log.warning("metis failed in every branch: gap takes over")
    if method == "multilevel":
        return _best_of_two(graph, k, asked.labels, asked.distance, asked.seed), method, ()
    return gap(graph, k, _classes(asked.labels), asked.passes, asked.balance, asked.initial), "gap", ()


def _packed(graph: Graph, k: int) -> Tensor:
    """Raises: GraphError for fewer components than parts."""
    count, of_node = components(graph)
    if count < k:
        raise GraphError(f"partition: expected at least {k} connected components for method components, got {count}")
    return packed_components(of_node, count, k)


def _classes(labels: Tensor | None) -> Tensor | None:
    """Labels from 0 on, 0 for none."""
    return None if labels is None else (labels.clamp(min=-1) + 1).int()


def _best_of_two(graph: Graph, k: int, labels: Tensor | None, distance: float, seed: int) -> Tensor:
    """From clusters, and from the parts of GAP, which are better where a dense graph has no clusters."""
    structure = InMemory(graph.csc)
    streamed = gap(graph, k, _classes(labels), _STREAMED, 1.0, None)
    found = [
        multilevel(structure, k, labels, distance, seed),
        multilevel(structure, k, labels, distance, seed, streamed),
    ]
    costs = []
    for part in found:
        cut, halo = ctypes.c_int64(), torch.zeros(k, dtype=torch.int64)
        _measure(graph.csc.native, k, part.data_ptr(), ctypes.byref(cut), halo.data_ptr())
        furthest = 0.0 if labels is None else float(label_distance(part, k, labels).max())
        costs.append((max(furthest, distance), cut.value))
    return found[costs.index(min(costs))]


def undirected(graph: Graph) -> Graph:
    """Every edge in both directions, without types: partitioners read in-edges, and a cut costs both ends of an edge.

    Example:
        >>> undirected(Graph([0, 1], [1, 2])).in_degrees().tolist()
        [1, 2, 1]
    """
    if not graph.is_symmetric:
        return Graph.from_adjacency(edit.both_directions(graph.csc))
    return Graph.from_adjacency(graph.csc) if graph.is_typed else graph


def order_of(graph: Graph) -> Tensor:
    """int64 (N,): the nodes of an untyped graph over one set of nodes, neighbours near each other; in O(E).

    Example:
        >>> order_of(Graph([0, 2, 4, 1], [2, 4, 1, 3])).sort().values.tolist()
        [0, 1, 2, 3, 4]
    """
    csc = graph.csc
    if not graph.is_symmetric:
        csc = edit.both_directions(edit.thinned(csc, NEIGHBOURS))
    return neighbours_together(csc, CELL)


def label_distance(part: Tensor, k: int, labels: Tensor) -> Tensor:
    """Total variation distance between the labels of each part and of all nodes, labelled nodes only; float64 (k,).

    Example:
        >>> label_distance(torch.tensor([0, 0, 1, 1]), 2, torch.tensor([0, 1, 1, 1])).tolist()
        [0.25, 0.25]
    """
    known = labels >= 0
    classes = int(labels.max()) + 1 if bool(known.any()) else 1
    pairs = part[known].long() * classes + labels[known].long()
    counts = torch.bincount(pairs, minlength=k * classes).reshape(k, classes).double()
    total = counts.sum(0) / counts.sum().clamp(min=1)
    own = counts / counts.sum(1, keepdim=True).clamp(min=1)
    distance = 0.5 * (own - total).abs().sum(1)
    return torch.where(counts.sum(1) > 0, distance, torch.ones(k, dtype=torch.float64))


def check_part(who: str, part: Tensor, k: int, nodes: int, least: int = 0) -> None:
    """An assignment of ``nodes`` nodes. Raises: ShapeError, DtypeError, IndexRangeError."""
    check_rows(who, part, nodes, "node")
    if part.dtype not in (torch.int32, torch.int64) or part.dim() != 1:
        raise DtypeError(
            f"{who}: expected parts as a vector of integers, got {part.dtype} of shape {tuple(part.shape)}"
        )
    if part.numel() and not (int(part.min()) >= least and int(part.max()) < k):
        at = int(((part < least) | (part >= k)).nonzero()[0])
        raise IndexRangeError(f"{who}: expected parts in [{least}, {k}), got {int(part[at])} at position {at}")


def _checked_labels(labels: Tensor | None, nodes: int) -> Tensor | None:
    if labels is None:
        return None
    labels = torch.as_tensor(labels)
    check_rows("partition labels", labels, nodes, "node")
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.dim() != 1:
        raise DtypeError(f"partition: expected labels as a vector of integers, got {labels.dtype}")
    if labels.numel() and int(labels.max()) >= 2**31 - 1:
        raise IndexRangeError(f"partition: expected labels below {2**31 - 1}, got {int(labels.max())}")
    return labels.long()


def _most_over_mean(counts: Tensor) -> float:
    total = int(counts.sum())
    return float(counts.max()) * counts.numel() / total if total else 1.0
