"""Rows of features that batches read, kept in a table of fixed size by their exact next use.

Comes in: the nodes of the next batches, and of those that follow as far as they are known. Goes out: a table with the
rows of the next ones, and where each lies. Called by the loader of batches from disk. Rows that batches at hand read
are never replaced; among the others the one that is used again last leaves. Where the next batches have no room beside
those at hand, what is read is decided at once, read as far as there is room, and the rest once those at hand are done.
A disk reads sectors, so rows that lie beside the wanted ones come along; they are kept where they are used again sooner
than others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphweft._distinct import Ids
from graphweft._errors import ConfigError
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.memory_size import shown_bytes
from graphweft.storage.replacement import UNKNOWN, farthest
from graphweft.storage.requests import SECTOR
from graphweft.storage.row_reader import RowReader
from graphweft.storage.store import Store

_ELEMENT = 4  # bytes of a float32, as models read features
_SLOT_BYTES = 8 + 1 + 24  # a row's id and mark, and what its replacement computes
_BUFFERS, _LEAST_BUFFERS = 32, 1 << 20  # a share of the memory, and bytes: what is read before rows have their places
_SEVERAL = 4  # rows that a disk reads at once, from which on those beside a wanted one cost more than they save
TOGETHER = 4  # of the rows of a table: what batches that are read together have
NODE_BYTES = 4 + 4 + 4 + 2  # of a node: its place, the node there, its next use and how many


@dataclass(frozen=True)
class _Late:
    """Rows whose places belong to batches at hand: ranges to read, nodes in the order of the store, and the places."""

    plan: list[Ids]
    nodes: Ids
    slots: Ids


@dataclass(frozen=True)
class Loaded:
    """What loading rows took.

    Attributes:
        read: Rows that were read.
        nbytes: Bytes that were asked of the system, sectors and gaps between rows included.
        requests: Calls of the system.
        late: Rows that are not read yet; :meth:`RowCache.complete` reads them.
    """

    read: int = 0
    nbytes: int = 0
    requests: int = 0
    late: _Late | None = None


def least_memory(store: Store, nodes: int, rows: int, share: float = 7 / 8 * 5 / 6) -> int:
    """Bytes for a table of ``rows`` rows with books and buffers, of which it gets a ``share``."""
    return int((rows * (store.row_width * _ELEMENT + _SLOT_BYTES) + nodes * NODE_BYTES) / share) + (1 << 20)


def _for_buffers(memory: int) -> int:
    """Bytes of so many for what is read before rows have their places."""
    return min(memory // 8, max(memory // _BUFFERS, _LEAST_BUFFERS))


class TableRoom(NamedTuple):
    """What a table has of some bytes.

    Attributes:
        rows: Rows that it has room for, no more than are on disk.
        buffers: Bytes for what is read before rows have their places.
        read: Bytes of these that are touched at most, while rows are read.
        taken: Bytes that are touched once all of its rows are there.
    """

    rows: int
    buffers: int
    read: int
    taken: int


def table_room(store: Store, nodes: int, memory: int) -> TableRoom:
    """The table of ``memory`` bytes over so many nodes. It may have no room for a row."""
    reader = RowReader(store, _for_buffers(memory))
    row, buffers = store.row_width * _ELEMENT + _SLOT_BYTES, reader.buffer_bytes
    rows = min((memory - nodes * NODE_BYTES - buffers) // row, store.num_rows)
    read = min(buffers, reader.least_bytes + nodes * store.row_width * store.feature_dtype.itemsize)
    return TableRoom(rows, buffers, read, nodes * NODE_BYTES + rows * row)


def epoch_reads(needed: int, capacity: int, nodes: int, width: int) -> int:
    """About the bytes that an epoch reads at most once a table is full: as if batches read any rows alike.

    Rows that many batches read stay, so less is read where some nodes are drawn much more than others. As was measured:
    of wide rows those are read again that their next use tells to replace; of rows of which a disk reads several at
    once, twice as many bytes as the rows that have no room.

    Args:
        needed: Rows that the batches of an epoch read.
        capacity: Rows of the table.
        nodes: That there are.
        width: Bytes of a row on disk.

    Example:
        >>> [epoch_reads(1000, capacity, 100, 256) for capacity in (50, 75, 100)]
        [256000, 128000, 0]
        >>> [epoch_reads(1000, capacity, 100, 4096) for capacity in (0, 75, 100)]
        [4096000, 512000, 0]
    """
    without = max(1 - capacity / max(nodes, 1), 0.0)
    again = min(2 * without, 1.0) if _SEVERAL * width <= SECTOR else without**1.5
    return int(needed * width * again)


class RowCache:
    """A table of rows.

    Args:
        store: The store.
        place: int64 (N,) id in the store of every node, in the numbers that are asked for.
        memory: Bytes for the table, its books and the buffers of reads.

    Attributes:
        table: float32 (capacity, F); rows that no node has hold anything.
        slot: int32 (N,) row of the table that a node has, or -1.
        capacity: Rows of the table.

    Raises: ConfigError for memory without room for a row.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> store = prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4)
        >>> cache = RowCache(store, torch.arange(ds.num_nodes), 1 << 20)
        >>> cache.load(np.array([3, 5]), np.array([], np.int64), []).read, cache.load(np.array([3]), (), []).read
        (2, 0)
    """

    def __init__(self, store: Store, place: Tensor, memory: int) -> None:
        nodes, self._place = len(place), place.numpy()
        self._row = row = store.row_width * _ELEMENT
        self.capacity, buffers, *_ = table_room(store, nodes, memory)
        self._reader = RowReader(store, _for_buffers(memory))
        if self.capacity < 1:
            least = nodes * NODE_BYTES + buffers + row + _SLOT_BYTES
            raise ConfigError(
                f"memory: expected at least {shown_bytes(least)} for rows of features beside the structure, got "
                f"{shown_bytes(memory)}"
            )
        self.table = aligned_empty((self.capacity, store.row_width), torch.float32)
        self.slot = torch.full((nodes,), -1, dtype=torch.int32)
        self._slot = self.slot.numpy()
        self._when = np.full(nodes, UNKNOWN, np.int32)  # scratch: next use of each node
        self._uses = np.zeros(nodes, np.uint16)
        self._node = np.full(self.capacity, -1, np.int64)
        self._at = np.empty(nodes, np.int32 if nodes < UNKNOWN else np.int64)  # the node at every place of the store
        self._at[self._place] = np.arange(nodes, dtype=self._at.dtype)

    @property
    def held(self) -> int:
        """Rows of nodes in the table."""
        return int((self._node >= 0).sum())

    def load(self, ids: Ids, pinned: Ids | tuple[()], following: Sequence[Ids]) -> Loaded:
        """Makes the rows of ``ids`` be in the table, as far as there is room; :meth:`complete` reads what is left.

        Args:
            ids: Nodes, ascending, each once.
            pinned: Nodes whose rows stay where they are until then.
            following: Nodes of each later batch that is known, the next one first.

        Raises: ConfigError where there is no room for all of ``ids``; DataError for a damaged store, or a failing read.
        """
        missing = ids[self._slot[ids] < 0]
        self._count(ids)
        if len(missing) == 0:
            return Loaded()
        plan = self._reader.plan(np.sort(self._place[missing]))
        for turn, nodes in reversed(list(enumerate(following))):
            self._when[nodes] = turn
        self._when[ids] = UNKNOWN  # they stay, so that none is taken for a row beside them
        try:
            beside, slots = self._room(missing, ids, np.asarray(pinned, np.int64), self._beside(plan))
        finally:
            for nodes in following:
                self._when[nodes] = UNKNOWN
        taken = self._at[np.sort(self._place[np.concatenate([missing, beside])])]
        free = np.flatnonzero(self._node < 0)[: len(taken)]
        if len(free) == len(taken):
            return replace(self._put(plan, taken, free), read=len(missing))
        # neighbours in the store stay together, so that requests are as large as those of all rows at once
        now, later = taken[: len(free)], taken[len(free) :]
        late = _Late(self._reader.plan(self._place[later]), later, slots[: len(later)])
        found = Loaded() if len(now) == 0 else self._put(self._reader.plan(self._place[now]), now, free)
        return replace(found, read=len(missing), late=late)

    def complete(self, begun: Loaded) -> Loaded:
        """Reads what :meth:`load` has left, in the places of rows that were pinned; what both took.

        Raises: DataError for a failing read.
        """
        late = begun.late
        if late is None:
            return begun
        self._slot[self._node[late.slots]] = -1
        self._node[late.slots] = -1
        found = self._put(late.plan, late.nodes, late.slots)
        return Loaded(begun.read, begun.nbytes + found.nbytes, begun.requests + found.requests)

    def _put(self, plan: list[Ids], nodes: Ids, slots: Ids) -> Loaded:
        """Reads rows of nodes, in the order of the store, into free places."""
        before = (self._reader.counts.nbytes, self._reader.counts.requests)
        self._reader.read(plan, self._place[nodes], slots, self.table)
        self._node[slots] = nodes
        self._slot[nodes] = slots
        after = self._reader.counts
        return Loaded(0, after.nbytes - before[0], after.requests - before[1])

    def _beside(self, plan: list[Ids]) -> Ids:
        """Nodes whose rows are read with others, in the same sectors, and that a later batch is known to read."""
        found = [np.empty(0, np.int64)]
        for ranges in plan:  # of a part each, so what is made of one is small
            lengths = ranges[:, 1] - ranges[:, 0]
            before = np.cumsum(lengths) - lengths
            nodes = self._at[np.repeat(ranges[:, 0] - before, lengths) + np.arange(int(lengths.sum()))]
            nodes = nodes[(self._when[nodes] != UNKNOWN) & (self._slot[nodes] < 0)]
            if len(nodes):
                found.append(nodes.astype(np.int64))
        return np.concatenate(found)

    def _room(self, missing: Ids, ids: Ids, pinned: Ids, beside: Ids) -> tuple[Ids, Ids]:
        """Makes room for the missing rows: nodes of ``beside`` that have room as well, and pinned places to free later.

        Raises: ConfigError where rows that have to stay leave too little.
        """
        stays, held = np.zeros((2, self.capacity + 1), np.bool_)  # the last one stands for nodes that are in no slot
        stays[self._slot[ids]] = held[self._slot[pinned]] = True
        room = self.capacity - int(stays[:-1].sum()) - len(missing)
        if room < 0:
            rows = self.capacity - room
            raise ConfigError(
                f"memory: expected room for {rows} rows of features at once, {shown_bytes(rows * self._row)}, got room "
                f"for {self.capacity}; a smaller batch_size or smaller fanouts need less"
            )
        more = int((held & ~stays)[:-1].sum())
        if more <= room:
            stays, room = stays | held, room - more
        at = np.flatnonzero((self._node >= 0) & ~stays[:-1])
        nodes, late = np.concatenate([self._node[at], beside]), at[:0]
        if len(nodes) > room:
            leaves = farthest(self._when[nodes], self._uses[nodes], len(nodes) - room)
            given_up = at[leaves[leaves < len(at)]]
            given_up, late = given_up[~held[given_up]], given_up[held[given_up]]
            self._slot[self._node[given_up]] = -1
            self._node[given_up] = -1
            beside = np.delete(beside, leaves[leaves >= len(at)] - len(at))
        return beside, late

    def _count(self, ids: Ids) -> None:
        """One more use of each node; all are halved before a number overflows."""
        self._uses[ids] += 1
        if len(ids) and int(self._uses[ids].max()) == np.iinfo(np.uint16).max:
            self._uses //= 2

    def apart(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """Rows of ``ids``, ascending, in a table of their own, and int32 (N,) the place of each node in it, or -1."""
        table, place = torch.empty(len(ids), self.table.shape[1]), torch.full_like(self.slot, -1)
        place[torch.from_numpy(ids)] = torch.arange(len(ids), dtype=torch.int32)
        order = np.argsort(self._place[ids], kind="stable")
        where = self._place[ids[order]]
        self._reader.read(self._reader.plan(where), where, order, table)
        return table, place
