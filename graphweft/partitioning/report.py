"""What training over ranks takes with given parts: bytes exactly, seconds by a model.

Comes in: a graph, the part of every node, what a full-batch epoch does, and rates of machine and network. Goes out:
:class:`Prediction`. Called by :mod:`graphweft.partitioning.partition` for method "auto", by the ranks, and by the
command line. Source: Morphling, section IV-E3: T = max over ranks of computation, halo and gradients (equation 8), with
computation proportional to in-edges times columns (9), halos priced by latency and bandwidth (10), and sums of
gradients as a ring's (11).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphweft.graph.graph import Graph

HALO = ("exact", "bf16", "int8", "stale", "sampled")
_BLOCK = 64  # parts whose halos are marked at a time
_ENTRIES = 1 << 22  # edges at a time


def row_bytes(halo: str, columns: int) -> int:
    """Bytes of a row of ``columns`` float32 numbers as it travels; int8 rows carry their lowest number and step.

    Example:
        >>> [row_bytes(halo, 32) for halo in HALO]
        [128, 64, 36, 128, 128]
    """
    return {"bf16": 2 * columns, "int8": columns + 4}.get(halo, 4 * columns)


def rows_sent(halo: str, rows: Tensor) -> Tensor:
    """How many of so many rows travel between two ranks: half of them where they are sampled.

    Example:
        >>> rows_sent("sampled", torch.tensor([0, 3])).tolist(), rows_sent("int8", torch.tensor([3])).tolist()
        ([0, 2], [3])
    """
    return (rows + 1) // 2 if halo == "sampled" else rows


def ring_bytes(nbytes: int, ranks: int) -> int:
    """Bytes that a rank sends while so many are summed over ``ranks`` in a ring.

    Example:
        >>> ring_bytes(100, 4)
        150
    """
    return 2 * (ranks - 1) * nbytes // ranks


@dataclass(frozen=True)
class Exchange:
    """What a full-batch epoch of a model does.

    Attributes:
        widths: Columns that every layer aggregates. Rows of the first are at hand, those of the others are fetched.
        products: Multiplications a node, of each layer's dense product.
        sums: Bytes of gradients and losses, for every sum over ranks.
        rows: Ids of the nodes that the last layer is computed for in training; None: all.
        halo: How rows travel, one of :data:`HALO`.
        train: Ids of the training nodes; None: unknown, and in every part.
        marks: Bytes by which each of ``sums`` is longer where a rank has nothing to compute: it says so by parameter.
    """

    widths: tuple[int, ...]
    products: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()
    rows: Tensor | None = None
    halo: str = "exact"
    train: Tensor | None = None
    marks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rates:
    """What a rank and the network do in a second.

    Defaults are those of one core of an Intel server with 512-bit vectors while another core computes as well, and of
    two ranks on one host, fitted to epochs of a GCN of three layers on parts of the twins of ogbn-arxiv and
    ogbn-products (0.1), whose neighbours stand together. A core of an AMD server of 2023 took 0.7 of the seconds.

    Attributes:
        latency: Seconds of a message (alpha).
        seconds_per_byte: Of a link, each way at once (1 / bandwidth, beta), packing and adding up included.
        entry: Seconds for one column of one in-edge, once, whose source is in the cache.
        table: Seconds for one column of a row that a sum over edges reads from memory or writes, once.
        multiply: Seconds of a multiplication and an addition in a dense product.
        fixed: Seconds a layer takes whatever its size, forward and backward: Python, sums, the update.
        row: Seconds for one column of a row that is read and written once more: gradients that come home, the loss.
    """

    latency: float = 2.9e-5
    seconds_per_byte: float = 8e-10
    entry: float = 6e-11
    table: float = 4.5e-10
    multiply: float = 1.75e-11
    fixed: float = 4.4e-4
    row: float = 5.8e-10


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a full-batch epoch over ranks is predicted to take.

    Attributes:
        pairs: int64 (k, k): ``pairs[p, r]`` nodes of part r are ghosts of part p.
        compute: Seconds of each part's own work.
        halo: Seconds of its exchanges.
        gradients: Seconds of its sums of gradients.
        bytes_sent: Of all ranks in an epoch; as a run counts them.
        degree_balance: In-edges of the part with the most over the mean.
    """

    pairs: Tensor
    compute: tuple[float, ...]
    halo: tuple[float, ...]
    gradients: float
    bytes_sent: int
    degree_balance: float

    @property
    def ghosts(self) -> tuple[int, ...]:
        """Ghosts of every part."""
        return tuple(self.pairs.sum(1).tolist())

    @property
    def seconds(self) -> float:
        """Predicted for an epoch: those of the slowest part."""
        return max((a + b for a, b in zip(self.compute, self.halo, strict=True)), default=0.0) + self.gradients

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "predicted_epoch_seconds": self.seconds,
            "predicted_bytes_per_epoch": self.bytes_sent,
            "compute_seconds_max": max(self.compute, default=0.0),
            "halo_seconds_max": max(self.halo, default=0.0),
            "gradient_seconds": self.gradients,
            "ghosts": list(self.ghosts),
            "degree_balance": self.degree_balance,
        }


def predict(graph: Graph, part: Tensor, k: int, epoch: Exchange, rates: Rates | None = None) -> Prediction:
    """What ``epoch`` takes on ``k`` ranks that have these parts.

    Shape: part (num_nodes,) integers in [0, k).

    Example:
        >>> ring = Graph([0, 1, 2, 3], [1, 2, 3, 0])
        >>> found = predict(ring, torch.tensor([0, 0, 1, 1]), 2, Exchange((8, 4), sums=(64,)))
        >>> found.ghosts, found.bytes_sent, found.pairs.tolist()
        ((1, 1), 192, [[0, 1], [1, 0]])
    """
    rates = rates or Rates()
    whole = halo_pairs(graph, part, k)
    edges = edges_into(graph, part, k)
    nodes = torch.bincount(part.long(), minlength=k)
    last, last_edges, last_nodes = whole, edges, nodes
    if epoch.rows is not None and len(epoch.widths) > 0:
        last = halo_pairs(graph, part, k, epoch.rows)
        last_edges = edges_into(graph, part, k, epoch.rows)
        last_nodes = torch.bincount(part[epoch.rows].long(), minlength=k)
    compute, halo = torch.zeros(k, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
    sent = 0
    products = epoch.products or (0,) * len(epoch.widths)
    for index, (width, product) in enumerate(zip(epoch.widths, products, strict=True)):
        ends = index == len(epoch.widths) - 1
        pairs, into, rows = (last, last_edges, last_nodes) if ends else (whole, edges, nodes)
        if index:  # sums of the features are the same in every epoch
            read = rows + nodes + pairs.sum(1)  # rows of the result, own rows and ghosts
            compute += 2 * width * (rates.entry * into + rates.table * read) + rates.row * width * nodes
            size, pairs = row_bytes(epoch.halo, width), rows_sent(epoch.halo, pairs)
            most = torch.maximum(pairs.sum(0), pairs.sum(1))  # both ways at once
            messages = torch.maximum((pairs > 0).sum(0), (pairs > 0).sum(1))
            halo += 2 * (rates.latency * messages + rates.seconds_per_byte * size * most)  # and back, as gradients
            sent += 2 * int(pairs.sum()) * size
        compute += (3 if index else 2) * rates.multiply * product * rows + rates.fixed
        if ends and width:
            compute += 2 * rates.row * (product // width) * rows  # the loss of as many classes
    sums = epoch.sums
    if epoch.marks:
        mine = nodes if epoch.train is None else torch.bincount(part[epoch.train].long(), minlength=k)
        if not int(torch.stack([edges, last_edges, mine]).min()):
            sums = tuple(nbytes + more for nbytes, more in zip(sums, epoch.marks, strict=True))
    rings = sum(ring_bytes(nbytes, k) for nbytes in sums)
    waits = 2 * (k - 1) * rates.latency * len(epoch.sums) + rates.seconds_per_byte * rings
    total = int(edges.sum())
    balance = float(edges.max()) * k / total if total else 1.0
    seconds = (tuple(compute.tolist()), tuple(halo.tolist()))
    return Prediction(whole, *seconds, waits if k > 1 else 0.0, sent + k * rings, balance)


def edges_into(graph: Graph, part: Tensor, k: int, rows: Tensor | None = None) -> Tensor:
    """int64 (k,): in-edges of the nodes of every part, of ``rows`` alone where they are given."""
    degrees, of = graph.in_degrees().long(), part.long()
    if rows is not None:
        degrees, of = degrees[rows], of[rows]
    return torch.zeros(k, dtype=torch.int64).index_add_(0, of, degrees)


def halo_pairs(graph: Graph, part: Tensor, k: int, rows: Tensor | None = None) -> Tensor:
    """int64 (k, k): in row p and column r nodes of part r with an edge into part p; into its ``rows``, if given.

    Example:
        >>> halo_pairs(Graph([0, 0, 1], [1, 2, 2]), torch.tensor([0, 1, 1]), 2).tolist()
        [[0, 0], [1, 0]]
    """
    indptr, indices, of = graph.csc.indptr, graph.csc.indices, part.long()
    every = torch.argsort(of, stable=True) if rows is None else rows[torch.argsort(of[rows], stable=True)]
    ends = [0, *torch.bincount(of[every], minlength=k).cumsum(0).tolist()]
    pairs = torch.zeros(k, k, dtype=torch.int64)
    for first in range(0, k, _BLOCK):
        width = min(_BLOCK, k - first)
        seen = torch.zeros(width * graph.num_nodes, dtype=torch.bool)
        mine = every[ends[first] : ends[first + width]]
        held = torch.cat([torch.zeros(1, dtype=torch.int64), (indptr[mine + 1] - indptr[mine]).cumsum(0)])
        for low, high in row_ranges(held):
            some, counts = mine[low:high], held[low : high + 1].diff()
            places = torch.arange(int(held[low]), int(held[high]))
            places += torch.repeat_interleave(indptr[some] - held[low:high], counts)
            src, into = indices[places].long(), torch.repeat_interleave(of[some], counts)
            wanted = of[src] != into
            seen[(into[wanted] - first) * graph.num_nodes + src[wanted]] = True
        for row, marks in enumerate(seen.view(width, -1).unbind()):
            pairs[first + row] = torch.bincount(of[marks], minlength=k)
    return pairs


def row_ranges(indptr: Tensor, most: int = _ENTRIES) -> list[tuple[int, int]]:
    """Ranges of rows with a bounded number of entries each, about ``most``."""
    total, rows = int(indptr[-1]), indptr.numel() - 1
    count = max(1, -(-total // most))
    marks = torch.arange(1, count) * total // count
    cuts = [0, *torch.searchsorted(indptr, marks).tolist(), rows]
    return [(low, high) for low, high in itertools.pairwise(cuts) if high > low]


@dataclass(frozen=True)
class Comparison:
    """Methods side by side.

    Attributes:
        chosen: The one with the least predicted seconds.
        found: What each is predicted to take, by its name.
        seconds: What making each took.
        refused: Why a method was not tried, by its name.
    """

    chosen: str
    found: Mapping[str, Prediction]
    seconds: Mapping[str, float]
    refused: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        tried = {name: {"seconds": self.seconds[name], **one.to_dict()} for name, one in self.found.items()}
        return {**tried, **{name: {"refused": why} for name, why in self.refused.items()}}
