"""Batches whose rows of features come from memory maps of a store: the system's page cache decides what is in memory.

Comes in: what draws a batch, a store. Goes out: batch after batch with its rows. Called by the loader in mode "mapped",
which is there to compare with: nothing is read ahead or kept by use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphweft._distinct import distinct
from graphweft.loader.disk_feed import Feed, RowCounts
from graphweft.storage.store import Store

B = TypeVar("B")


class MappedFeed(Feed[B]):
    """Hands over batches with their rows; from any thread.

    Args:
        store: The store; blocks of features are compared with their checksums once, at the beginning.
        place: int64 (N,) id in the store of every node.
        draw: (epoch, position) -> a batch without rows.
        nodes: The nodes whose rows a batch reads, int64, any order.
        finish: (batch, table, place of every node's row in it) -> the batch with its rows.
    """

    def __init__(
        self,
        store: Store,
        place: Tensor,
        draw: Callable[[int, int], Any],
        nodes: Callable[[Any], Tensor],
        finish: Callable[[Any, Tensor, Tensor], B],
    ) -> None:
        self.counts = RowCounts()
        self._place, self._width = place.numpy(), store.row_width
        self._draw, self._nodes, self._finish = draw, nodes, finish
        self._maps = [(region, store.block(region.part, region.block, mapped=True)) for region in store.feature_regions]
        self._local, self._lock = threading.local(), threading.Lock()

    def batches(self, epoch: int) -> Callable[[int], B]:
        """What hands over the batch at a position of an epoch."""

        def made(position: int) -> B:
            drawn = self._draw(epoch, position)
            ids = distinct(self._nodes(drawn).numpy())
            with self._lock:
                self.counts.batches += 1
                self.counts.needed += len(ids)
                self.counts.read += len(ids)
            return self._finish(drawn, *self._rows(ids))

        return made

    def alone(self, made: Any) -> B:
        """A batch that is none of an epoch's."""
        return self._finish(made, *self._rows(distinct(self._nodes(made).numpy())))

    def _rows(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Tensor, Tensor]:
        """Rows of nodes, and int32 (N,) the place of each in them; other entries of it mean nothing."""
        where = self._place[ids]
        order = np.argsort(where, kind="stable")
        ascending = where[order]
        table = torch.zeros(len(ids), self._width)
        for region, rows in self._maps:
            first, last = np.searchsorted(ascending, (region.first, region.end)).tolist()
            if first < last:
                at = torch.from_numpy(ascending[first:last] - region.first)
                table[first:last, : region.width] = rows[at].float()
        slot = getattr(self._local, "slot", None)
        if slot is None:
            slot = self._local.slot = torch.full((len(self._place),), -1, dtype=torch.int32)
        slot[torch.from_numpy(ids[order])] = torch.arange(len(ids), dtype=torch.int32)
        return table, slot


__all__ = ["MappedFeed"]
