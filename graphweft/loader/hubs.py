"""Hubs: nodes that many training nodes reach, kept in memory with their structure and features in every group.

Comes in: a :class:`PartSource`, training nodes and a budget in bytes. Goes out: :class:`Hubs`. Called by mode "macro".
A node's influence is the mass that a lazy random walk from the training nodes along their in-edges leaves on it; the
walks from all parts sum to one walk, so one chain of products over the structure, read part by part, is enough, and
another one for the walks that stay in their parts. Source: Hanoi, section 4.3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.loader.parts import PartSource, edge_bytes
from graphweft.sample.in_edges import entries_of
from graphweft.storage.store import Store

LAZINESS = 0.5
_PIECE = 1 << 18  # entries of a structure that are looked at together
_NONE = 1e-9  # influence that is rounding
_LARGEST = 8  # a hub takes at most one in so many bytes of the budget


@dataclass(frozen=True, eq=False)
class Hubs:
    """Nodes that are in every group.

    Attributes:
        ids: int64 (k,) numbers of the nodes in the source, ascending.
        indptr: int64 (k + 1,) offsets of their in-edges.
        sources: Numbers in the source of the sources of their in-edges, ascending in every row.
        x: (k, F) features in the dtype of the source, or None; where node types have features of their own, those of
            the hubs that have some.
        y: Their labels.
        covered: Share of the influence across parts that they have.
        relations: Of a typed graph, the relation of each in-edge; a row is in order of relation, then of source.
        weights: float32 weights of the in-edges, where there are some.
        source_ids: int64 (k,) rows in the data that a store was made of, where node types have features of their own.
        rows: int64 (k,) rows of ``x`` there, and any number for a hub without features.
    """

    ids: NDArray[np.int64]
    indptr: NDArray[np.int64]
    sources: NDArray[np.integer[Any]]
    x: Tensor | None
    y: Tensor
    covered: float
    relations: NDArray[np.integer[Any]] | None = None
    weights: NDArray[np.float32] | None = None
    source_ids: Tensor | None = None
    rows: Tensor | None = None

    def entries(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets of the in-edges of some of them, by their places, and where these lie in ``sources``."""
        counts, entries = entries_of(self.indptr, places)
        return np.concatenate([[0], np.cumsum(counts)]), entries

    def features_into(self, kind: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Features of some of them, all of one type, by their places, into ``out``, in its dtype."""
        assert self.x is not None  # the caller has columns for them
        at = torch.from_numpy(places)
        torch.index_select(self.x, 0, at if self.rows is None else self.rows[at], out=out)

    @property
    def nbytes(self) -> int:
        """Bytes that are pinned."""
        held = (self.ids, self.indptr, self.sources, self.x, self.y, self.relations, self.weights)
        more = (self.source_ids, self.rows)
        return sum(0 if array is None else array.nbytes for array in (*held, *more))


def influence(
    source: PartSource, seeds: Tensor, steps: int, laziness: float = LAZINESS, *, inside: bool = False
) -> NDArray[np.float64]:
    """(N,) mass that ``steps`` steps of a lazy walk from ``seeds``, one unit each, leave on every node.

    In a step a walk stays where it is with probability ``laziness`` or goes to the source of a random in-edge; without
    in-edges it stays. In a typed graph it first takes one of the relations that lead to the node, as layers take means
    relation by relation. The mass sums to the number of seeds.

    Args:
        source: The graph.
        seeds: int64 distinct nodes.
        steps: Steps, one for each layer.
        laziness: In [0, 1).
        inside: Only the mass of walks that have never left the part where they began.

    Raises: ConfigError for steps or laziness out of range; DataError from a damaged store.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> source = MemoryParts(Graph([0, 1], [2, 2]), None, torch.zeros(3), torch.tensor([0, 0, 0]), 1)
        >>> influence(source, torch.tensor([2]), steps=1).tolist()
        [0.25, 0.25, 0.5]
    """
    if steps < 0 or not 0.0 <= laziness < 1.0:
        raise ConfigError(f"influence: expected steps >= 0 and laziness in [0, 1), got {steps} and {laziness}")
    mass = np.zeros(int(source.bounds[-1]))
    mass[seeds.numpy()] = 1.0
    for _ in range(steps):
        mass = _step(source, mass, laziness, inside)
    return mass


def _step(source: PartSource, mass: NDArray[np.float64], laziness: float, inside: bool) -> NDArray[np.float64]:
    after = mass * laziness
    for number in range(len(source.bounds) - 1):
        walk = PartWalk(source, number)
        moving = mass[walk.first : walk.end] * (1.0 - laziness)
        after[walk.first : walk.end][walk.is_end] += moving[walk.is_end]
        for piece, amounts in walk.moved(moving):
            kept = (piece >= walk.first) & (piece < walk.end) if inside else slice(None)
            np.add.at(after, piece[kept], amounts[kept])
    return after


class PartWalk:
    """A step of a random walk from the nodes of one part along their in-edges.

    Attributes:
        first: The part's first node.
        end: The node after its last one.
        offsets: Of its in-edges.
        sources: Of these, in the numbers of the source.
        is_end: (n,) whether a node has no in-edges, so that a walk stays there.
    """

    def __init__(self, source: PartSource, number: int) -> None:
        self.first, self.end = source.bounds[number : number + 2].tolist()
        self.offsets, self.sources = source.structure(number)
        self._starts, self._rows = _runs(self.offsets, source.edge_columns(number)[0])
        self._runs = np.bincount(self._rows, minlength=self.end - self.first)
        self.is_end: NDArray[np.bool_] = self._runs == 0

    def moved(self, moving: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.integer[Any]], NDArray[np.float64]]]:
        """Nodes that mass ``moving`` from the part's nodes goes to, and how much of it; a piece of the edges each."""
        lengths = np.diff(np.append(self._starts, len(self.sources)))
        share = moving[self._rows] / (self._runs[self._rows] * lengths)
        for begin in range(0, len(self.sources), _PIECE):
            piece = self.sources[begin : begin + _PIECE]
            of = np.searchsorted(self._starts, np.arange(begin, begin + len(piece)), "right") - 1
            yield piece, share[of]


def _runs(
    offsets: NDArray[np.int64], relations: NDArray[np.integer[Any]] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where entries of one row and one relation begin, and the row of each such run."""
    begins = np.zeros(int(offsets[-1]), np.bool_)
    begins[offsets[:-1][np.diff(offsets) > 0]] = True
    if relations is not None:
        begins[1:] |= relations[1:] != relations[:-1]
    starts = np.flatnonzero(begins)
    return starts, np.searchsorted(offsets, starts, "right") - 1


def pin_hubs(source: PartSource, seeds: Tensor, steps: int, budget: int, label_bytes: int = 8) -> Hubs:
    """The nodes of the highest influence whose structure, features and labels keep within ``budget`` bytes.

    What counts is the influence on training nodes of other parts, of walks that have left their part: with those of its
    own part a node is in every group anyway, above all with itself, where a lazy walk may stay. Nodes are taken by
    descending influence; equal ones by number. A node that alone would take more than an eighth of the budget is left
    out where others would not, so that one giant row does not crowd out all others.

    Args:
        source: The graph.
        seeds: int64 training nodes.
        steps: Steps of the walk, one for each layer.
        budget: Bytes.
        label_bytes: Bytes of a node's labels.

    Raises: ConfigError where no node fits; DataError from a damaged store.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> graph, part = Graph([3, 3, 3, 0], [0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])
        >>> source = MemoryParts(graph, torch.eye(4), torch.arange(4), part, 2)
        >>> hubs = pin_hubs(source, torch.tensor([0, 1, 2]), steps=2, budget=500)
        >>> hubs.ids.tolist()[-1], hubs.nbytes <= 500
        (3, True)
    """
    mass = np.maximum(influence(source, seeds, steps) - influence(source, seeds, steps, inside=True), 0.0)
    mass[mass < _NONE] = 0.0
    total = float(mass.sum())
    degrees = np.concatenate([np.diff(source.structure(number)[0]) for number in range(len(source.bounds) - 1)])
    entry = edge_bytes(source) - 4 + np.dtype(index_dtype(source)).itemsize
    has_own = has_own_rows(source)
    row = row_columns(source) * torch.empty(0, dtype=source.feature_dtype).element_size()
    # 16: the node's number and its offset, and as many again for its rows where types have features of their own
    costs = row * has_own + label_bytes + (32 if has_mixed_rows(source) else 16) + entry * degrees
    reached = mass > 0
    few = reached & (costs <= budget // _LARGEST)
    able = np.flatnonzero(few if few.any() else reached)
    order = able[np.argsort(-mass[able], kind="stable")]
    count = int(np.searchsorted(np.cumsum(costs[order]), budget - 8, "right"))
    if count == 0:
        least = int(costs[able].min(initial=int(costs.max(initial=0)))) + 8
        raise ConfigError(f"hubs: expected at least {least:,} bytes, for one node, got {budget:,}")
    ids = np.sort(order[:count])
    covered = float(mass[ids].sum()) / max(total, 1e-300)
    del mass, degrees, costs, reached, few, able, order
    return _rows_of(source, ids, ids[has_own[ids]], covered)


def _rows_of(source: PartSource, ids: NDArray[np.int64], own: NDArray[np.int64], covered: float) -> Hubs:
    """Hubs with their in-edges, labels and features; ``own``: those that have features."""
    cuts = np.searchsorted(ids, source.bounds)
    counts, columns, labels = [np.zeros(1, np.int64)], [], []
    relations: list[NDArray[Any]] = []
    weights: list[NDArray[np.float32]] = []
    names: list[Tensor] = []
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        rows = ids[cuts[number] : cuts[number + 1]] - source.bounds[number]
        offsets, sources = source.structure(number)
        of, weight = source.edge_columns(number)
        counts.append(offsets[rows + 1] - offsets[rows])
        spans = [slice(offsets[row], offsets[row + 1]) for row in rows.tolist()]
        columns += [sources[span].astype(index_dtype(source)) for span in spans]
        relations += [] if of is None else [of[span] for span in spans]
        weights += [] if weight is None else [weight[span] for span in spans]
        labels.append(source.labels(number)[torch.from_numpy(rows)])
        names += [source.node_ids(number)[torch.from_numpy(rows)]] if has_mixed_rows(source) else []
    return Hubs(
        *(ids, np.cumsum(np.concatenate(counts)), np.concatenate(columns)),
        source.feature_rows(own) if source.num_features else None,
        torch.cat(labels),
        covered,
        np.concatenate(relations) if relations else None,
        np.concatenate(weights) if weights else None,
        torch.cat(names) if names else None,
        torch.from_numpy(np.searchsorted(own, ids)) if names else None,
    )


def has_mixed_rows(source: PartSource) -> TypeGuard[Store]:
    """Whether node types have features of their own."""
    return isinstance(source, Store) and bool(source.manifest.shape.type_widths)


def has_own_rows(source: PartSource) -> NDArray[np.bool_]:
    """(N,) whether a node has features; all alike without types."""
    if not has_mixed_rows(source):
        return np.ones(int(source.bounds[-1]), np.bool_)
    has = np.array(source.manifest.shape.type_widths) > 0
    return np.repeat(np.tile(has, len(source.bounds) - 1), np.diff(source.regions))


def row_columns(source: PartSource) -> int:
    """Columns of a row of features as it lies there."""
    return source.row_width if has_mixed_rows(source) else source.num_features


def index_dtype(source: PartSource) -> type[np.integer[Any]]:
    """As stores keep sources of edges."""
    return np.int32 if int(source.bounds[-1]) < 2**31 else np.int64


__all__ = [
    "LAZINESS",
    "Hubs",
    "PartWalk",
    "has_mixed_rows",
    "index_dtype",
    "influence",
    "pin_hubs",
    "row_columns",
]
