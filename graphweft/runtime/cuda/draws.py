"""Launches that draw a batch: counts, draws, numbers, blocks.

Comes in: structure on a device, a plan of hops, seeds and a key. Goes out: :class:`Draws`, arrays of a batch. Where the
most that a batch can draw is known and small, its arrays have that size and nothing waits: the launches are the same
for every batch and can be recorded. Otherwise each hop waits for two numbers, how many edges it drew and how many nodes
are new. Called by ``sampling.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft.codegen.edge_triton import padded
from graphweft.graph.adjacency import Adjacency
from graphweft.runtime.cuda import sampling_kernels as kernels
from graphweft.runtime.cuda.edges import draw_words
from graphweft.sample.neighbor import is_widest

FEW, NARROW = 64, 1 << 16  # draws and edges of a row whose draws have 32 bits, as on the CPU
ALL = 1 << 62
_BLOCK, _TILE, _WIDE_STREAM = 256, 256, 1 << 31


class Hop(NamedTuple):
    """What the hops drew: how many edges a node of each draws, and the least that it or a later hop reads of them."""

    width: int
    least: int


def hops_of(fanouts: tuple[int, ...]) -> list[Hop]:
    """What each hop draws for itself and for all later ones.

    Example:
        >>> hops_of((5, 10))
        [Hop(width=10, least=5), Hop(width=10, least=10)]
    """
    limits = [ALL if fanout < 0 else fanout for fanout in fanouts]
    return [Hop(max(limits[h:]), min(limits[h:])) for h in range(len(limits))]


class HopBounds(NamedTuple):
    """The most of a hop: rows that draw, edges that they draw, ids that are looked at, nodes of the batch after it."""

    rows: int
    edges: int
    reached: int
    nodes: int


class Structure(NamedTuple):
    """What is drawn from, and how.

    Attributes:
        csc: In-edges, readable on the device.
        names: int64 (nodes,) by which draws are keyed; None: ids.
        fanouts: Of each hop, -1: all.
        replace: Whether an edge may be drawn again.
        falls: Whether no hop reads more of a row than the hop before: older rows lead to nothing that has no number.
        longest: The most in-edges of a node.
        hot: Lists of in-edges in the device's own memory; None: all are those of ``csc``.
        first: int64 (nodes,): with hot lists, where each list begins, in columns from the first one of ``csc`` on.
    """

    csc: Adjacency
    names: Tensor | None
    fanouts: tuple[int, ...]
    replace: bool
    falls: bool
    longest: int
    hot: Tensor | None = None
    first: Tensor | None = None

    def rooms(self, seeds: int) -> list[HopBounds] | None:
        """The most that a batch of ``seeds`` draws; None where rows of many draws may be among them."""
        hops, nodes = hops_of(self.fanouts), self.csc.num_cols
        if self.longest > NARROW or max(min(hop.width, self.longest) for hop in hops) > FEW or not self.csc.num_edges:
            return None
        if self.replace and max(hop.width for hop in hops) > FEW:
            return None
        made, new, total = [], seeds, seeds
        for (width, _), limit in zip(hops, self.fanouts, strict=True):
            most = width if self.replace else min(width, self.longest)
            wanted = most if limit < 0 else min(limit, most)
            reached = new * most if self.falls else total * wanted
            found = min(reached, nodes)  # the batch may have fewer nodes before than it can have
            total = min(total + found, nodes)
            made.append(HopBounds(new, new * most, reached, total))
            new = found
        return made


class Draws:
    """Arrays of a batch, and the launches that fill them.

    Args:
        structure: What is drawn from.
        seeds: The most seeds of a batch.
        device: Where.
        rooms: The most of each hop; None: arrays grow, and hops wait.

    Attributes:
        nodes: int64 ids by number.
        starts: int64 (rows + 1,): first drawn edge.
        places: int32 (edges,) places in the rows of the whole graph.
        columns: int32 (edges,) numbers of the sources.
        narrow: Of hops whose block has some edges of its rows alone: offsets, numbers of sources and places.
        told: int64: ends of the nodes of each hop, from 0 on, then edges of each hop's block and all edges.
    """

    def __init__(self, structure: Structure, seeds: int, device: torch.device, rooms: list[HopBounds] | None) -> None:
        self._of, self.seeds, self._rooms, self._hops = structure, seeds, rooms, hops_of(structure.fanouts)
        rows, edges, nodes = seeds, 0, seeds
        if rooms is not None:
            rows, edges = sum(room.rows for room in rooms), sum(room.edges for room in rooms)
            nodes = max(rows, rooms[-1].nodes)
        self._device, self._ends_here, self._edges_here = device, [0, seeds], [0]
        self.message = torch.zeros(2 + seeds, dtype=torch.int64, device=device)
        self.nodes = torch.empty(nodes, dtype=torch.int64, device=device)
        self.ends = torch.zeros(len(self._hops) + 2, dtype=torch.int64, device=device)
        self.starts = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.ids = torch.empty(edges, dtype=torch.int64, device=device)
        self.places = torch.empty(edges, dtype=torch.int32, device=device)
        self.columns, self.told = self.places, self.ends
        self.narrow = dict[int, tuple[Tensor, Tensor, Tensor]]()

    @staticmethod
    def bytes_of(rooms: list[HopBounds]) -> int:
        """About what a batch takes on the device, with what it needs under way."""
        rows, edges, reached = (sum(column) for column in list(zip(*rooms, strict=True))[:3])
        return int(48 * rows + 24 * edges + 40 * reached + 8 * rooms[-1].nodes)

    def launch(self, numbers: Tensor) -> None:
        """Draws for the message. ``numbers``: int32, -1 for every node of the graph, before and after."""
        kernels.seat(_grid(self.seeds), self.message, self.nodes, self.ends, numbers, self.seeds, BLOCK=_BLOCK)
        for hop in range(len(self._hops)):
            self._draw(hop)
            self._number(hop, numbers)
        count, hops = self.ids.numel(), len(self._hops)
        self.columns = torch.empty_like(self.places)
        arrays = (self.ids, numbers, self.columns, self.starts, self.ends, hops)
        kernels.look_up(_grid(count), *arrays, BLOCK=_BLOCK)
        kernels.forget(_grid(self.nodes.numel()), self.nodes, self.ends, numbers, hops, BLOCK=_BLOCK)
        edges = []
        for hop in range(hops):
            at, offsets = self.ends[hop + 1 : hop + 2], self.starts
            if not is_widest(self._of.fanouts, hop):
                offsets = self._kept(hop)
                columns, places = (self._first_of(hop, offsets, values) for values in (self.columns, self.places))
                self.narrow[hop] = offsets, columns, places
            edges.append(offsets.index_select(0, at))
        every = self.starts.index_select(0, self.ends[hops : hops + 1])
        self.told = torch.cat([self.ends, *edges, every])

    def _draw(self, hop: int) -> None:
        """The rows that no earlier hop has reached draw."""
        of, (width, least), rows = self._of, self._hops[hop], self._rows(hop)
        if not rows:
            self._edges_here.append(self._edges_here[-1])
            return
        begins, degrees, counts = (torch.empty(rows, dtype=torch.int64, device=self._device) for _ in range(3))
        found = (begins, degrees, counts)
        fixed: dict[str, Any] = {"HAS_HOT": of.first is not None, "REPLACE": of.replace, "BLOCK": _BLOCK}
        lists = of.csc.indptr, of.csc.indptr if of.first is None else of.first
        kernels.count_draws(_grid(rows), *lists, self.nodes, self.ends, *found, hop, rows, width, **fixed)
        through = () if of.hot is None else (of.hot,)
        upto, long_rows, alone = counts.cumsum(0), 0, counts
        if self._rooms is None:
            alone = (degrees > NARROW) | (counts > FEW)
            edges, long_rows = torch.stack([upto[-1], alone.sum()]).tolist()
            self._grow(rows, edges)
        words = draw_words(self.message[:1], 0)[:2]
        rows_of = (self.nodes, self.nodes if of.names is None else of.names, self.ends, begins, degrees)
        k = padded(min(width, FEW))
        at_once = max(1, _TILE // k)
        kind = 0 if of.replace else 2 if least < width else 1
        fixed = {"KIND": kind, "HAS_NAMES": of.names is not None, "NARROW": NARROW, "FEW": FEW, "K": k, "BR": at_once}
        results = (self.starts, self.places, self.ids)
        kernels.draw_few(
            (-(-rows // at_once),), *rows_of, upto, of.csc.indices, *results, least, *words, hop,
            through=through, **fixed,
        )  # fmt: skip
        if long_rows:
            which = alone.nonzero().reshape(-1)
            needed = degrees[which] if not of.replace else degrees.new_zeros(long_rows)
            rooms = torch.cat([needed.new_zeros(1), needed.cumsum(0)])
            order = torch.empty(int(rooms[-1]), dtype=torch.int32, device=self._device)
            order = order if order.numel() else self.places
            kernels.draw_many(
                (long_rows,), which, *rows_of, self.starts, rooms, of.csc.indices, order, self.places, self.ids,
                least, *words, hop, _WIDE_STREAM | hop,
                REPLACE=of.replace, HAS_NAMES=of.names is not None, BLOCK=_BLOCK, through=through,
            )  # fmt: skip

    def _rows(self, hop: int) -> int:
        """Rows of a hop, at most."""
        return self._ends_here[hop + 1] - self._ends_here[hop] if self._rooms is None else self._rooms[hop].rows

    def _grow(self, rows: int, edges: int) -> None:
        """Makes room for the offsets of ``rows`` and for ``edges``."""
        self._edges_here.append(self._edges_here[-1] + edges)
        if self._ends_here[-2]:  # the first rows have room
            self.starts = torch.cat([self.starts, self.starts.new_empty(rows)])
        self.ids = torch.cat([self.ids, self.ids.new_empty(edges)])
        self.places = torch.cat([self.places, self.places.new_empty(edges)])

    def _number(self, hop: int, numbers: Tensor) -> None:
        """Numbers what a hop reaches, in ascending order of the ids."""
        reached = self._reached(hop)
        count, new = reached.numel(), 0
        if count:
            keys = reached.sort()[0]
            flags = torch.empty(count, dtype=torch.int32, device=self._device)
            kernels.first_new(_grid(count), keys, numbers, flags, count, numbers.numel(), BLOCK=_BLOCK)
            upto = flags.cumsum(0)
            if self._rooms is None:
                new = int(upto[-1])
                self.nodes = torch.cat([self.nodes, self.nodes.new_empty(new)])
            arrays = (keys, flags, upto, self.nodes, numbers, self.ends, hop, count)
            kernels.number_new(_grid(count), *arrays, BLOCK=_BLOCK)
        else:
            self.ends[hop + 2] = self.ends[hop + 1]
        self._ends_here.append(self._ends_here[-1] + new)

    def _reached(self, hop: int) -> Tensor:
        """Ids that a hop leads to, again and again; those that are not less than the graph has nodes are none."""
        of, none = self._of, self._of.csc.num_cols
        if self._rooms is None:
            if of.falls:
                return self.ids[self._edges_here[hop] :]
            return self.ids if of.fanouts[hop] < 0 else self._first_of(hop, self._kept(hop), self.ids)
        count, kind = self._rooms[hop].reached, torch.int32 if none < 2**31 else torch.int64  # half as many digits
        if not of.falls:
            keys = torch.full((count,), none, dtype=kind, device=self._device)
            return self._first_of(hop, self._kept(hop), self.ids, keys)
        keys = torch.empty(count, dtype=kind, device=self._device)
        kernels.drawn_by(_grid(count), self.ids, self.starts, self.ends, keys, hop, count, none, BLOCK=_BLOCK)
        return keys

    def _limit(self, hop: int) -> int:
        """The most edges of a row in a hop's block."""
        limit = self._of.fanouts[hop]
        limit = ALL if limit < 0 else limit
        return limit if self._of.replace else min(limit, self._of.longest)

    def _kept(self, hop: int) -> Tensor:
        """Offsets of the edges that a hop's block has of its rows."""
        rows = self._ends_here[hop + 1] if self._rooms is None else sum(room.rows for room in self._rooms[: hop + 1])
        counts = torch.empty(rows, dtype=torch.int64, device=self._device)
        arrays = (self.starts, self.ends, counts, hop, rows, self._limit(hop))
        kernels.count_kept(_grid(rows), *arrays, BLOCK=_BLOCK)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def _first_of(self, hop: int, kept: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
        """The first values of each row of a hop's block, as many as ``kept`` has room for."""
        rows, limit = kept.numel() - 1, self._limit(hop)
        if out is None:
            count = int(kept[-1]) if self._rooms is None else min(rows * limit, values.numel())
            out = torch.empty(count, dtype=values.dtype, device=self._device)
        if out.numel():
            k = padded(min(limit, FEW))
            at_once = max(1, _TILE // k)
            arrays = (self.starts, kept, self.ends, values, out, hop, limit)
            kernels.keep_first((-(-rows // at_once),), *arrays, K=k, BR=at_once)
        return out


def _grid(count: int) -> tuple[int, ...]:
    return (-(-count // _BLOCK),)


__all__ = ["ALL", "FEW", "NARROW", "Draws", "Hop", "HopBounds", "Structure", "hops_of"]
