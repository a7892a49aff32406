"""The link loader over a store: the batches of memory, with rows of features read from disk.

Comes in: a store's structure in memory, edges to predict. Goes out: :class:`LinkBatch` after batch. Called by link
prediction from a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from graphweft.loader.disk import DiskTables, feed_of
from graphweft.loader.disk_feed import DiskFeed, RowCounts
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import LinkBatch


class DiskLinkLoader(LinkLoader):
    """A :class:`LinkLoader` whose rows of features are on disk.

    Args: as for :class:`LinkLoader`, with tables of a store as ``ds``, and without ``prefetch`` and ``workers``.

    Raises: ConfigError for a budget without room for rows.
    """

    def __init__(self, ds: DiskTables, *arguments: Any, **options: Any) -> None:
        super().__init__(ds, *arguments, **options, prefetch=0)
        self._stored = ds
        self._feed = feed_of(self, ds)

    @property
    def disk(self) -> RowCounts:
        """What the batches so far took of the disk."""
        return self._feed.counts

    def nodes_read(self, made: Any) -> Tensor:
        """int64 nodes whose rows of features a batch of :meth:`make` reads."""
        return self._stored.nodes_read(made.n_id)

    def with_rows(self, made: Any, table: Tensor, place: Tensor) -> LinkBatch:
        """A batch of :meth:`make` with its features: the row of node i is ``table[place[i]]``."""
        made.x = self._stored.rows(made.n_id, table, place)
        batch: LinkBatch = made
        return batch

    def with_own_rows(self, made: Any) -> LinkBatch:
        """A batch of :meth:`make` with rows that are read for it alone."""
        batch: LinkBatch = self._feed.alone(made)
        return batch

    @property
    def disk_workers(self) -> int:
        """Threads that draw batches ahead."""
        return self._feed.workers if isinstance(self._feed, DiskFeed) else 0

    def __call__(self, index: Any) -> LinkBatch:
        """The batch of the edges at these places of the list, drawn as in the epoch under way.

        Raises: IndexRangeError for a place that is none.
        """
        batch: LinkBatch = self._feed.alone(super().__call__(index))
        return batch

    def _preparer(self, epoch: int) -> Callable[[int], LinkBatch]:
        return self._feed.batches(epoch)

    def _batches(self, turn: object, epoch: int, first: int) -> Iterator[LinkBatch]:
        with self._feed.running():
            yield from super()._batches(turn, epoch, first)


__all__ = ["DiskLinkLoader"]
