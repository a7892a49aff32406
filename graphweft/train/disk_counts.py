"""What an epoch took of the disk, for every kind of batches whose rows of features lie there.

Comes in: the counts of a loader before and after an epoch. Goes out: columns of the history. A base of the kinds of
mini-batches from a store.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweft.loader.disk_feed import RowCounts
from graphweft.storage.store import Store
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.needs import RunBudget
from graphweft.train.stored_needs import fit_rows


class FromDisk(MiniBatch):
    """Mini-batches whose rows of features come from a store."""

    _seen = RowCounts()

    @property
    def store(self) -> Store:
        """Where the features are."""
        ds: Any = self.ds
        store: Store = ds.store
        return store

    @property
    def takes_pieces(self) -> bool:
        """Whether products can read rows a piece at a time."""
        return False

    def fit_into(self, budget: RunBudget) -> None:
        """Chooses how rows come, batches that are drawn ahead and what an evaluation has in memory."""
        fit_rows(self, budget)

    def pooled(self, before: int) -> int:
        """Bytes that the pool holds for the whole run, beside ``before``; called where nothing else is there."""
        return 0

    def step(self) -> Tensor:
        """One epoch, or the rest of one; the mean of its losses before their updates, shape ()."""
        self._seen = self._counts().copy()
        return super().step()

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {**super().identity(), "store": self.store.manifest.crc32}

    def measured(self) -> dict[str, float]:
        """What the last epoch took of the disk."""
        now, before, store = self._counts(), self._seen, self.store
        width = store.row_width * torch.empty(0, dtype=store.feature_dtype).element_size()
        needed = now.needed - before.needed
        return {
            "bytes_needed": float(needed * width),
            "bytes_read": float(now.nbytes - before.nbytes),
            "read_requests": float(now.requests - before.requests),
            "row_hits": float(needed - (now.read - before.read)),
            "rows_read": float(now.read - before.read),
        }

    def _counts(self) -> RowCounts:
        counts: RowCounts | None = getattr(self.loader, "disk", None)
        return RowCounts() if counts is None else counts


__all__ = ["FromDisk"]
