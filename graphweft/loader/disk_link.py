"""The link loader over a store: the batches of memory, with rows of features read from disk.

Comes in: a store's structure in memory, edges to predict. Goes out: :class:`LinkBatch` after batch. Called by link
prediction from a store.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphweft._torch_private import hosted
from graphweft.loader.disk import DiskTables, feed_of
from graphweft.loader.link import LinkLoader
from graphweft.loader.link_batch import LinkBatch


class DiskLinkLoader(LinkLoader):
    """A :class:`LinkLoader` whose rows of features are on disk.

    Args: as for :class:`LinkLoader`, with tables of a store as ``ds``, and without ``prefetch`` and ``workers``.

    Raises: ConfigError for a budget without room for rows.
    """

    @hosted
    def __init__(self, ds: DiskTables, *arguments: Any, **options: Any) -> None:
        super().__init__(ds, *arguments, **options, prefetch=0)
        self._stored = ds
        self._feed = feed_of(self, ds)

    def nodes_read(self, made: Any) -> Tensor:
        """int64 nodes whose rows of features a batch of :meth:`make` reads."""
        return self._stored.nodes_read(made.n_id)

    def with_rows(self, made: Any, table: Tensor, place: Tensor) -> LinkBatch:
        """A batch of :meth:`make` with its features: the row of node i is ``table[place[i]]``."""
        made.x = self._stored.rows(made.n_id, table, place)
        batch: LinkBatch = made
        return batch


__all__ = ["DiskLinkLoader"]
