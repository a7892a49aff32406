"""Batches whose rows of features are on disk: the next ones are drawn ahead, their rows read together and kept.

Comes in: what draws a batch by its place in an epoch, and a cache of rows. Goes out: batch after batch with its rows.
Called by :class:`graphweft.loader.loader.Loader` over a store. Draws follow from their keys alone, so the nodes of
coming batches are known, in this epoch and in the next: rows are replaced by their exact next use, and those of several
batches are read at once, while the batches before them are trained on. Where both have no room side by side, those that
fit are read meanwhile, and the others in between.
"""

from __future__ import annotations

import abc
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from graphweft._distinct import Ids, distinct, union
from graphweft._machine import processors
from graphweft._trace import span
from graphweft._workers import become_worker
from graphweft.storage.row_cache import TOGETHER, Loaded, RowCache

B = TypeVar("B")
_OBJECTS = 1 << 14  # bytes of a batch beside its tensors
_USES = 3  # times the rows of the table: the most uses of rows that are known ahead


def drawing_threads() -> int:
    """Threads that draw batches ahead."""
    return max(processors() // 2, 1)


def batches_known(memory: int, capacity: int, size: int, rows: int, length: int) -> int:
    """The most batches that are there at once, beside those that threads draw: known ahead, and with rows in use.

    Args:
        memory: Bytes for batches that were drawn ahead.
        capacity: Rows of the table.
        size: Bytes of a batch, as they are counted.
        rows: That a batch reads.
        length: Batches of an epoch.

    Example:
        >>> [batches_known(1 << 20, 1000, *sizes, 40) for sizes in ((1 << 17, 100), (1, 900))]
        [11, 5]
    """
    known = min(memory // max(size, 1) + 1, _USES * capacity // max(rows, 1) + 1, length)
    in_use = min(max(capacity // TOGETHER // max(rows, 1), 1), length)
    return known + in_use


@dataclass
class RowCounts:
    """What batches took of the disk.

    Attributes:
        batches: Batches handed over.
        needed: Rows that they read.
        read: Rows that were read from disk for them; the others were in memory.
        nbytes: Bytes read, sectors and gaps between rows included.
        requests: Calls of the system.
    """

    batches: int = 0
    needed: int = 0
    read: int = 0
    nbytes: int = 0
    requests: int = 0

    def copy(self) -> RowCounts:
        """The counts as they are now."""
        return replace(self)


@dataclass(frozen=True)
class _Drawn:
    """A batch that was drawn, without its rows."""

    epoch: int
    position: int
    made: Any
    ids: Ids
    nbytes: int


@dataclass(frozen=True)
class _Group:
    """Batches whose rows are in the table."""

    batches: deque[_Drawn] = field(default_factory=deque)
    ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    loaded: Loaded = field(default_factory=Loaded)


class Feed(abc.ABC, Generic[B]):
    """Hands over batches with their rows; here nothing is drawn ahead.

    Attributes:
        counts: What batches took so far.
        workers: Threads that draw batches ahead.
    """

    counts: RowCounts
    workers = 0

    @abc.abstractmethod
    def batches(self, epoch: int) -> Callable[[int], B]:
        """What hands over the batch at a position of an epoch."""

    @abc.abstractmethod
    def alone(self, made: Any) -> B:
        """A batch that is none of an epoch's, with rows that are read for it alone."""

    def forget(self) -> None:
        """Drops what was drawn ahead, where the same place would be drawn otherwise now."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside of it batches may be prepared by threads."""
        yield


class DiskFeed(Feed[B]):
    """Draws the next batches ahead, and keeps rows by their next use.

    Args:
        cache: Rows of features.
        draw: (epoch, position) -> a batch without rows; called from any thread.
        nodes: The nodes whose rows a batch reads, int64, any order.
        finish: (batch, table, place of every node's row in it) -> the batch with its rows.
        size: Bytes of a batch without rows.
        length: Batches of an epoch.
        memory: Bytes for batches that were drawn ahead.
    """

    def __init__(
        self,
        cache: RowCache,
        draw: Callable[[int, int], Any],
        nodes: Callable[[Any], Tensor],
        finish: Callable[[Any, Tensor, Tensor], B],
        size: Callable[[Any], int],
        length: Callable[[int], int],
        memory: int,
    ) -> None:
        self.cache, self.counts = cache, RowCounts()
        self._draw, self._nodes, self._finish, self._size, self._length = draw, nodes, finish, size, length
        self._memory = memory
        self.workers = drawing_threads()
        self._drawing: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._pending: deque[_Drawn]  # drawn, rows not loaded
        self._coming: Future[_Group] | None
        self._clear(0, 0)

    def _clear(self, epoch: int, position: int) -> None:
        """Begins anew at a place of an epoch; rows in the cache stay."""
        self._pending = deque()
        self._cursor = (epoch, position)  # what is drawn next
        self._group, self._coming = _Group(), None

    def forget(self) -> None:
        """Drops what was drawn ahead, where the same place would be drawn otherwise now."""
        self._settle()
        self._clear(*self._cursor)

    def batches(self, epoch: int) -> Callable[[int], B]:
        """What hands over the batch at a position of an epoch; positions ascend."""
        return lambda position: self._get(epoch, position)

    def alone(self, made: Any) -> B:
        """A batch that is none of an epoch's, with rows that are read for it alone."""
        ids = distinct(self._nodes(made).numpy())
        return self._finish(made, *self.cache.apart(ids))

    def _get(self, epoch: int, position: int) -> B:
        if not self._group.batches:
            self._turn(epoch, position)
        elif (self._group.batches[0].epoch, self._group.batches[0].position) != (epoch, position):
            self._settle()
            self._clear(epoch, position)
            self._turn(epoch, position)
        drawn = self._group.batches.popleft()
        self.counts.batches += 1
        self.counts.needed += len(drawn.ids)
        return self._finish(drawn.made, self.cache.table, self.cache.slot)

    def _turn(self, epoch: int, position: int) -> None:
        """Takes up the next group, and begins to read the one after it."""
        coming = self._settle()
        if coming is None or (coming.batches[0].epoch, coming.batches[0].position) != (epoch, position):
            first = self._pending[0] if self._pending and coming is None else None
            if first is None or (first.epoch, first.position) != (epoch, position):
                self._clear(epoch, position)
            coming = self._load(np.empty(0, np.int64))
        loaded, counts = self._completed(coming.loaded), self.counts
        self._group = coming
        counts.read, counts.nbytes = counts.read + loaded.read, counts.nbytes + loaded.nbytes
        counts.requests += loaded.requests
        if self._reading is not None:
            self._coming = self._reading.submit(self._load, coming.ids)

    def _settle(self) -> _Group | None:
        """The group that was being read, once it is there."""
        coming, self._coming = self._coming, None
        if coming is None:
            return None
        if coming.done():
            return coming.result()
        with span("wait for rows", "wait"):
            return coming.result()

    def _completed(self, begun: Loaded) -> Loaded:
        """All rows of the next batches, once those before them are done."""
        if begun.late is None:
            return begun
        with span("wait for rows", "wait"):
            return self.cache.complete(begun)

    def _load(self, pinned: Ids) -> _Group:
        """Reads the rows of the next batches, as far as they have room beside those that are pinned."""
        known = self._look_ahead()
        following = [drawn.ids for drawn in known]
        ids, count = following[0], 1
        while count < len(known):
            both = union(ids, following[count])
            if len(both) > self.cache.capacity // TOGETHER:
                break
            ids, count = both, count + 1
        with span("read rows", "read", batches=count, rows=len(ids)) as details:
            loaded = self.cache.load(ids, pinned, following[count:])
            if details is not None:
                details["bytes"] = loaded.nbytes
        return _Group(deque(self._pending.popleft() for _ in range(count)), ids, loaded)

    def _look_ahead(self) -> list[_Drawn]:
        """The next batches, as many as there is memory for, at least one; drawn where they were not yet."""
        known, nbytes, rows = list[_Drawn](), 0, 0
        # what follows from more uses than these changes little
        while nbytes <= self._memory and rows <= _USES * self.cache.capacity and len(known) < self._length(0):
            if len(known) == len(self._pending):
                places = [self._next() for _ in range(self.workers)]
                draw = map if self._drawing is None else self._drawing.map
                self._pending.extend(draw(self._drawn, places))
            drawn = self._pending[len(known)]
            nbytes, rows = nbytes + drawn.nbytes, rows + len(drawn.ids)
            known.append(drawn)
        return known

    def _next(self) -> tuple[int, int]:
        epoch, position = self._cursor
        if position >= self._length(epoch):
            epoch, position = epoch + 1, 0
        self._cursor = (epoch, position + 1)
        return epoch, position

    def _drawn(self, place: tuple[int, int]) -> _Drawn:
        with span("draw ahead", "sample", position=place[1]):
            made = self._draw(*place)
            ids = distinct(self._nodes(made).numpy())
            return _Drawn(*place, made, ids, self._size(made) + ids.nbytes + _OBJECTS)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside of it batches are drawn and read by threads, ahead of those that are asked for."""
        with (
            ThreadPoolExecutor(self.workers, "graphweft-draw", become_worker) as drawing,
            ThreadPoolExecutor(1, "graphweft-read", become_worker) as reading,
        ):
            self._drawing, self._reading = drawing, reading
            try:
                yield
            finally:
                self._reading = None  # nothing else is begun; what is under way still draws
                reading.shutdown(wait=True)
                self._drawing = None
