"""What a mini-batch over a store reaches, hop by hop, counted on its structure, which is read part by part.

Comes in: a store, seeds and fanouts. Goes out: edges and nodes of every hop. Called where sizes alone would refuse a
run from a store: uniform draws meet too few nodes twice. A part and two marks of every node are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphweft._distinct import Ids
from graphweft.storage.store import Store

_ID = 8


class Hop(NamedTuple):
    """One hop of a batch.

    Attributes:
        edges: That all nodes draw which are there before it.
        nodes: That are there after it.
    """

    edges: float
    nodes: float


def drawn_hops(store: Store, seeds: Ids, fanouts: Sequence[int], parts: Sequence[int] | None = None) -> list[Hop]:
    """The hops of a batch, by draws of as many in-edges as its sampler takes.

    Every in-edge of a node is among ``k`` of its ``d`` with probability ``k / d``, as those of the sampler are, and
    draws of different nodes do not depend on each other: so many nodes are reached on average.

    Args:
        store: The store.
        seeds: Numbers in it; a node may come several times.
        fanouts: Of the hops, those of the seeds first; of a typed store by relation.
        parts: Those that are in a group, whose edges from other parts are left out; None: all.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> store = prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4)
        >>> drawn_hops(store, np.arange(store.num_nodes), [-1])[0].edges == store.num_edges
        True
    """
    rng, chosen = np.random.default_rng(0), range(len(store)) if parts is None else sorted(parts)
    there, fresh = np.zeros(store.num_nodes, np.bool_), np.zeros(store.num_nodes, np.bool_)
    there[seeds] = fresh[seeds] = True
    inside = None if parts is None else _inside(store, chosen)
    found: list[Hop] = []
    for hop, fanout in enumerate(fanouts):
        # a node draws once: what it takes in a later hop is among what it has taken before, unless that is more
        adds = fresh if all(0 <= fanout <= before or before < 0 for before in fanouts[:hop]) else there
        after, edges = there.copy(), 0
        for number in chosen:
            start, end = store.bounds[number : number + 2].tolist()
            rows = np.flatnonzero(there[start:end])
            if not len(rows):
                continue
            offsets, sources = _segments(store, number, inside)
            runs = (len(offsets) - 1) // max(end - start, 1)
            edges += int(_taken(offsets, _of_rows(rows, runs), fanout).sum())
            drawn = _of_rows(np.flatnonzero(adds[start:end]), runs)
            after[sources[_places(offsets, drawn, fanout, rng)]] = True
        fresh = after & ~there
        there = after
        found.append(Hop(edges, int(there.sum())))
    return found


def inner_edges(store: Store, count: int, parts: Sequence[int] | None = None) -> Ids:
    """(2, n) ends of about ``count`` edges between nodes of the parts, drawn alike; fewer where there are few."""
    rng, chosen = np.random.default_rng(1), range(len(store)) if parts is None else sorted(parts)
    inside, ends = None if parts is None else _inside(store, chosen), list[Ids]()
    share = count / max(int(store.edge_counts[list(chosen)].sum()), 1)
    for number in chosen:
        offsets, sources = _segments(store, number, inside)
        wanted = min(round(share * int(store.edge_counts[number])), len(sources))
        places = rng.choice(len(sources), wanted, replace=False)
        runs = (len(offsets) - 1) // max(int(np.diff(store.bounds)[number]), 1)
        rows = (np.searchsorted(offsets, places, "right") - 1) // max(runs, 1)
        ends.append(np.stack([sources[places].astype(np.int64), rows + store.bounds[number]]))
    return np.concatenate(ends, axis=1)


def some_of(ids: Ids, count: int) -> Ids:
    """``count`` of some nodes at most, drawn alike."""
    return ids if len(ids) <= count else np.random.default_rng(3).choice(ids, count, replace=False)


def counting_bytes(store: Store) -> int:
    """Bytes that counting takes: a part's structure, with a number and a mark of every edge, and marks of nodes."""
    nodes, edges = np.diff(store.bounds), store.edge_counts
    runs = 1 if store.types is None else len(store.types.relations)
    return int((2 * _ID * runs * nodes + (3 * _ID + 1) * edges).max(initial=0)) + 4 * store.num_nodes


def _inside(store: Store, parts: Sequence[int]) -> NDArray[np.bool_]:
    """Which nodes are in some parts."""
    found = np.zeros(store.num_nodes, np.bool_)
    for number in parts:
        found[store.bounds[number] : store.bounds[number + 1]] = True
    return found


def _segments(store: Store, number: int, inside: NDArray[np.bool_] | None) -> tuple[Ids, NDArray[np.integer[Any]]]:
    """Offsets of the in-edges of a part, by row and relation, and their sources; those ``inside`` alone."""
    offsets, sources = store.structure(number)
    if store.types is None and inside is None:
        return offsets, sources
    relations = 1 if store.types is None else len(store.types.relations)
    keys = np.repeat(np.arange(len(offsets) - 1) * relations, np.diff(offsets))
    if store.types is not None:
        keys += store.block(number, "relations").numpy()
    if inside is not None:
        kept = inside[sources]
        keys, sources = keys[kept], sources[kept]
    counts = np.bincount(keys, minlength=(len(offsets) - 1) * relations)
    return np.concatenate([[0], np.cumsum(counts)]), sources


def _of_rows(rows: Ids, runs: int) -> Ids:
    """The runs of edges of some rows."""
    return (rows[:, None] * runs + np.arange(runs)).reshape(-1)


def _taken(offsets: Ids, runs: Ids, fanout: int) -> Ids:
    """How many edges are drawn of some runs."""
    degrees = offsets[runs + 1] - offsets[runs]
    return degrees if fanout < 0 else np.minimum(degrees, fanout)


def _places(offsets: Ids, runs: Ids, fanout: int, rng: np.random.Generator) -> Ids:
    """Where these edges lie: in steps of equal length from a random place on."""
    counts = _taken(offsets, runs, fanout)
    degrees, first = offsets[runs + 1] - offsets[runs], np.cumsum(counts) - counts
    turn = np.arange(int(counts.sum())) - np.repeat(first, counts)
    step, begin = degrees / np.maximum(counts, 1), rng.random(len(runs))
    within = ((turn + np.repeat(begin, counts)) * np.repeat(step, counts)).astype(np.int64)
    found: Ids = np.repeat(offsets[runs], counts) + np.minimum(within, np.repeat(degrees, counts) - 1)
    return found


__all__ = ["Hop", "counting_bytes", "drawn_hops", "inner_edges", "some_of"]
