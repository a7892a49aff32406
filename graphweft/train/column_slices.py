"""Rows of a table cut into slices of columns, each of which lies in one place of a temporary file.

Comes in: rows, stretch by stretch, or a slice of them. Goes out: a whole slice, or stretches of whole rows. Called by
inference over stores: a slice of all rows fits into memory where all columns of all rows do not.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from torch import Tensor

from graphweft.storage.block_io import ReadCounts, aligned_empty
from graphweft.storage.requests import SECTOR
from graphweft.train.scratch import Scratch

ROWS = SECTOR // 4  # a stretch begins at a multiple of so many, so that it begins a sector of every slice
_REAL = 4


class ColumnSlices:
    """float32 rows, slice after slice.

    Args:
        rows: How many.
        width: Columns of a row.
        columns: Of a slice, at most.
        folder: Of the file; None: the system's folder of such files.

    Attributes:
        cuts: First column of every slice, and the number of columns.

    Raises: NoRoomError.

    Example:
        >>> held = ColumnSlices(2, 3, 2, None)
        >>> held.put(0, torch.arange(6.0).view(2, 3))
        >>> held.cuts, held.slice(1).tolist(), held.rows(1, 2).tolist()
        ([0, 1, 3], [[1.0, 2.0], [4.0, 5.0]], [[3.0, 4.0, 5.0]])
    """

    def __init__(self, rows: int, width: int, columns: int, folder: Path | None) -> None:
        count = max(-(-width // max(columns, 1)), 1)
        self.cuts = [width * number // count for number in range(count + 1)]
        self._rows, self.width = rows, width
        sizes = [_pages(_REAL * rows * (end - first)) for first, end in itertools.pairwise(self.cuts)]
        self._begins = [0, *itertools.accumulate(sizes)]
        self._file = Scratch(folder, 1 << 20, self._begins[-1])

    def __len__(self) -> int:
        return len(self.cuts) - 1

    @staticmethod
    def nbytes(rows: int, width: int, columns: int) -> int:
        """Bytes of the file, about."""
        return _REAL * rows * width + SECTOR * -(-width // max(columns, 1))

    def put(self, first: int, rows: Tensor) -> None:
        """Whole rows from row ``first`` on, a multiple of ``ROWS``; but for the last ones so are their number."""
        for number, (begin, end) in enumerate(itertools.pairwise(self.cuts)):
            self.put_slice(number, first, rows[:, begin:end])

    def put_slice(self, number: int, first: int, rows: Tensor) -> None:
        """The columns of a slice of rows from row ``first`` on, as :meth:`put` has it."""
        held = aligned_empty(tuple(rows.shape), torch.float32).copy_(rows)
        self._file.write_pages(held, self._begins[number] + _REAL * first * rows.shape[1])

    def slice(self, number: int) -> Tensor:
        """A slice of all rows, (n, its columns)."""
        found = aligned_empty((self._rows, self.cuts[number + 1] - self.cuts[number]), torch.float32)
        with self._file.opened() as file:
            file.read_into(self._begins[number], found)
        return found

    def rows(self, first: int, end: int, out: Tensor | None = None, counts: ReadCounts | None = None) -> Tensor:
        """Rows ``first`` to ``end``, (end - first, width), in ``out`` where that is given.

        ``counts``: adds what was read.
        """
        found = torch.empty(end - first, self.width) if out is None else out
        most = max((last - begin for begin, last in itertools.pairwise(self.cuts)), default=0)
        buffer = aligned_empty((_REAL * (end - first) * most + 2 * SECTOR,), torch.uint8)
        with self._file.opened() as file:
            for number, (begin, last) in enumerate(itertools.pairwise(self.cuts)):
                place, row = self._begins[number], _REAL * (last - begin)
                held = file.read_span(place + row * first, place + row * end, buffer)
                found[:, begin:last] = held.view(torch.float32).view(end - first, last - begin)
            if counts is not None:
                counts.add(file.counts)
        return found


def _pages(nbytes: int) -> int:
    return -(-nbytes // SECTOR) * SECTOR


__all__ = ["ROWS", "ColumnSlices"]
