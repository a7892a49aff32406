"""The memory of an evaluation over a store: how much of a layer is computed at once, and what that takes.

Comes in: the steps of mode "macro" or "mini" over a store, and bytes. Goes out: tiles that are set, and what the
evaluation takes, by sizes and by a tile that is tried. Called where a run from a store keeps to a budget.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._budget import lifted
from graphweft._memory import POOL
from graphweft.data.stored import StoredDataset
from graphweft.nn.stack import Stack
from graphweft.storage.store import Store
from graphweft.train.needs_by_running import grown_while
from graphweft.train.part_inference import embeds, out_width
from graphweft.train.tiles import LEAST_WITHIN, TileCost, Tiles

_REAL, _ID = 4, 8
_LEAST_PIECE, _PIECE_SHARE = 1 << 18, 4  # of a tile: what is read of features at a time
_BESIDE = 1.45  # times what a tile takes: gaps of the heap, pieces that are read, pages on their way to the disk
_TRIED = 2  # of the room of a tile: the one that is tried
_MOST_RUN = 1 << 26  # bytes of a graph, as sizes tell them, whose evaluation is run to see what it takes
_AGAIN = 1.08  # times what is measured, for another run
_FLAT = 0.1  # bytes that a byte of a smaller tile saves at least, as sizes tell it
_TRIALS = 4  # of tiles, each smaller than the one before
_TILES = 4  # times the least tile, before hidden rows are kept in memory


def evaluation_needs(steps: Any, wanted: int, most: int, measured: int = 0) -> int:
    """What an evaluation takes: ``wanted`` bytes, more up to ``most`` where hidden rows have no room otherwise."""
    ds, model, inference = steps.ds, steps.model, steps.inference
    held, scoring = _outputs(steps)
    if not isinstance(model, Stack):
        inference.tiles = replace(inference.tiles, kept=most)
        return held + max(measured, scoring)
    store = ds.store
    part = structure_of_part(store)
    widths = [store.row_width, *(out_width(layer) for layer in model.layers)]
    costs = []
    if embeds(model):
        assert model.embedding is not None  # as embeds says
        widths[0] = model.embedding.shape[1]
        costs = [inference.embedding_cost(model)]
    costs += [inference.cost(model, index, width) for index, width in enumerate(widths[:-1])]
    made = inference.computed(_evaluated(steps))
    between = widths[:-1] if embeds(model) else widths[1:-1]
    hidden = [_REAL * nodes.count * width for nodes, width in zip(made, between, strict=False)]
    pairs = max(a + b for a, b in zip([0, *hidden], [*hidden, 0], strict=True))  # what a layer reads and what it makes
    least = LEAST_WITHIN * max(cost.row + cost.edge for cost in costs)
    all_kept = held + part + pairs + _TILES * least
    kept = pairs if all_kept <= max(wanted, most) else 0
    room = max(wanted, all_kept if kept else 0) - held - part - kept
    small = _tried_with(steps, least, kept)
    large = _tried_within(steps, room, least, kept)
    whole = max(_largest_tile(store, cost) for cost in costs)
    tile = max(min(large.told_within(int(room / _BESIDE), small), whole), least)
    granted = int(_BESIDE * large.grown(tile, small))
    outputs = _REAL * made[-1].count * widths[-1] if kept else 0  # which are a part of what is held
    inference.tiles = Tiles(tile, kept + outputs, granted)
    store.piece = _piece_of(tile)
    if max(cost.of(store.num_nodes, store.num_nodes, store.num_edges) for cost in costs) <= _MOST_RUN:
        return max(_run_bytes(steps), held + scoring)
    return int(max(held + kept + part + max(large.taken, granted), held + scoring))


def _piece_of(tile: int) -> int:
    """Bytes that are read at a time, and that wait for the disk together, beside a tile."""
    return max(_LEAST_PIECE, tile // _PIECE_SHARE)


def _run_bytes(steps: Any) -> int:
    """What an evaluation takes with the tiles that are set, outputs and what it computes once included: it is run.

    What it compiles stays, and is counted with the program.
    """
    with lifted():
        steps.outputs()  # compiles
        POOL.trim()
        taken, _ = grown_while(steps.outputs)
        POOL.trim()
    return int(steps.inference.remembered + _AGAIN * taken)


def _largest_tile(store: Store, cost: TileCost) -> int:
    """Bytes of all nodes as one tile; of a typed graph, whose tiles end with their part, of the largest part.

    Example:
        >>> from types import SimpleNamespace
        >>> store = SimpleNamespace(num_nodes=9, num_edges=5, types=None)
        >>> _largest_tile(store, TileCost(1, 10, 100))
        599
        >>> store.types, store.bounds, store.edge_counts = "ab", np.array([0, 4, 9]), np.array([3, 2])
        >>> _largest_tile(store, TileCost(1, 10, 100))
        347
    """
    if store.types is None:
        return cost.of(store.num_nodes, store.num_nodes, store.num_edges)
    parts = zip(np.diff(store.bounds).tolist(), store.edge_counts.tolist(), strict=True)
    return max(cost.of(min(nodes + edges, store.num_nodes), nodes, edges) for nodes, edges in parts)


def _evaluated(steps: Any) -> NDArray[np.int64]:
    """Ids in the store of the nodes of the splits, ascending; of all nodes for links."""
    if getattr(steps, "counted", None) is not None:
        return np.arange(steps.ds.store.num_nodes)
    rows = torch.unique(torch.cat(list(steps.rows.values())), sorted=True)
    return np.sort(steps.ds.row_ids[rows].numpy())


class TriedTile(NamedTuple):
    """Bytes that a tile over features takes, and those that sizes say of it."""

    taken: int
    told: int

    def grown(self, told: int, small: TriedTile) -> int:
        """What another tile takes, by the line through this one and a ``small`` one.

        Example:
            >>> tried = TriedTile(500, 200)
            >>> tried.grown(1000, TriedTile(320, 20)), tried.grown(1000, TriedTile(450, 150))
            (1300, 2500)
            >>> tried.grown(1000, TriedTile(450, 20)), tried.grown(92, TriedTile(470, 20))
            (1300, 482)
        """
        return int(self.taken + self._slope(small, told > self.told) * (told - self.told))

    def told_within(self, room: int, small: TriedTile) -> int:
        """The largest tile, as sizes tell it, that takes at most ``room`` bytes by that line.

        Example:
            >>> tried, small = TriedTile(500, 200), TriedTile(410, 20)
            >>> tried.told_within(1300, small), tried.told_within(455, small), tried.told_within(100, small)
            (1000, 110, 0)
        """
        more = room - self.taken
        return max(int(self.told + more / self._slope(small, more > 0)), 0)

    def _slope(self, small: TriedTile, beyond: bool) -> float:
        """Bytes that a byte of a tile takes: ``beyond`` what was tried one at least, as sizes say."""
        more = self.told - small.told
        rises = more > small.told and self.taken > small.taken  # tiles of about one size tell no slope
        slope = (self.taken - small.taken) / more if rises else self.taken / max(self.told, 1)
        return max(slope, 1.0 if beyond else _FLAT)


def _tried_within(steps: Any, room: int, least: int, kept: int) -> TriedTile:
    """As :func:`_tried_with`, of a tile of half of the room; of a smaller one where that takes more than there is.

    Rows of typed graphs take several times what sizes say of them.
    """
    tile = max(room // _TRIED, least)
    for _ in range(_TRIALS):
        found = _tried_with(steps, tile, kept)
        if found.taken <= room or tile == least:
            break
        tile = max(int(min(found.told, tile) * room / (_BESIDE * found.taken)), least)
    return found


def _tried_with(steps: Any, tile: int, kept: int) -> TriedTile:
    """What a tile of so many bytes takes."""
    steps.inference.tiles = Tiles(tile, kept)
    steps.ds.store.piece = _piece_of(tile)
    run = functools.partial(steps.inference.first_tile, steps.model)
    with lifted():
        run()  # compiles
        POOL.trim()
        taken, told = grown_while(run)
        POOL.trim()
    # numbers of nodes are counted with the outputs
    return TriedTile(max(taken - _REAL * steps.ds.store.num_nodes, 0), told)


def _outputs(steps: Any) -> tuple[int, int]:
    """Outputs of the splits with ids and their order, degrees and numbers of nodes; and what scoring one split takes.

    It is scored when no tile is left; further metrics are given copies of its outputs.
    """
    counted: tuple[int, int] | None = getattr(steps, "counted", None)
    if counted is not None:
        return counted
    counts = [len(ids) for ids in steps.rows.values()]
    columns = max(steps.ds.num_classes, 1)
    copies = 2 * _REAL * columns if steps.metrics else 0
    return outputs_bytes(counts, steps.ds), (steps.target.scored_row(columns) + copies) * max(counts)


def outputs_bytes(counts: Sequence[int], ds: StoredDataset) -> int:
    """Bytes of outputs of splits of so many nodes with ids and their order, degrees and numbers of nodes."""
    of_row = _REAL * max(ds.num_classes, 1) + 3 * _ID
    of_node = _ID + (_REAL if ds.store.types is None else 2 * _REAL)  # and places of rows of types
    of_node += 2 * _REAL if ds.store.has_weights else 0  # of in-edges, and of the own row
    return of_row * sum(counts) + of_node * ds.num_nodes


def structure_of_part(store: Store) -> int:
    """Structure of a part, and what its tiles are cut by."""
    nodes, edges = np.diff(store.bounds), store.edge_counts
    wide = np.dtype(np.int32).itemsize if store.manifest.shape.index_dtype == "int32" else _ID
    return int((nodes * 5 * _ID + edges * (wide + (4 if store.has_weights else 0))).max(initial=0))


__all__ = ["evaluation_needs", "outputs_bytes", "structure_of_part"]
