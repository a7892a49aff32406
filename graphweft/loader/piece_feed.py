"""Batches whose rows of features stay on disk: products read them a piece at a time.

Comes in: what draws a batch by its place in an epoch, and a source of pieces of rows. Goes out: batch after batch.
Called by :class:`graphweft.loader.loader.Loader` over a typed store where the rows of a batch have no room in memory
together. No row is kept from one product to the next, so that a step reads the rows of its batch twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from graphweft.loader.disk_feed import Feed, RowCounts
from graphweft.storage.piece_rows import PieceRows

B = TypeVar("B")


class PieceFeed(Feed[B]):
    """Hands over batches that read their rows themselves.

    Args:
        rows: Where these are.
        draw: (epoch, position) -> a batch without rows.
        finish: (batch, rows) -> the batch with its rows.
    """

    def __init__(self, rows: PieceRows, draw: Callable[[int, int], Any], finish: Callable[[Any, PieceRows], B]) -> None:
        self._rows, self._draw, self._finish, self._batches = rows, draw, finish, 0

    @property
    def counts(self) -> RowCounts:  # type: ignore[override]
        """What batches took so far; rows are needed as often as a product reads them."""
        nbytes, requests = self._rows.counts
        return RowCounts(self._batches, self._rows.read, self._rows.read, nbytes, requests)

    def batches(self, epoch: int) -> Callable[[int], B]:
        """What hands over the batch at a position of an epoch."""

        def made(position: int) -> B:
            self._batches += 1
            return self._finish(self._draw(epoch, position), self._rows)

        return made

    def alone(self, made: Any) -> B:
        """A batch that is none of an epoch's."""
        return self._finish(made, self._rows)


__all__ = ["PieceFeed"]
