"""Rows of a table on disk as few large requests.

Comes in: ascending rows, where they lie, how much may be read in vain. Goes out: ranges of rows. A pure function,
called by :mod:`graphweft.storage.row_reader`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SECTOR = 4096  # what a disk reads at the least; direct reads begin and end at multiples of it
WASTE = 0.25  # sectors read in vain to sectors with wanted rows, at most


def merged(
    rows: NDArray[np.int64],
    most: int,
    count: int,
    width: int = SECTOR,
    offset: int = 0,
    waste: float = WASTE,
) -> NDArray[np.int64]:
    """(n, 2) first row and end of ranges that hold all ``rows``, ascending, each of ``most`` rows at most.

    Rows with a sector in common are read together, and all rows of a sector with them. So are those around the
    smallest gaps, as long as no more than ``waste`` times the wanted sectors are read in vain.

    Args:
        rows: Wanted rows, ascending, each once.
        most: Rows of a range.
        count: Rows of the table.
        width: Bytes of a row.
        offset: Byte of the file where row 0 begins, a multiple of a sector.
        waste: Bound of what is read in vain.

    Example:
        >>> merged(np.array([0, 1, 3, 4, 5, 9]), 8, 10).tolist(), merged(np.array([0, 1, 2]), 2, 10).tolist()
        ([[0, 6], [9, 10]], [[0, 2], [2, 3]])
        >>> merged(np.array([3]), 100, 20, width=1024).tolist()
        [[0, 4]]
    """
    if len(rows) == 0:
        return np.empty((0, 2), np.int64)
    begins, ends = (offset + rows * width) // SECTOR, -(-(offset + (rows + 1) * width) // SECTOR)
    gaps = begins[1:] - ends[:-1]  # -1 where two rows share a sector
    wanted = int((ends - begins).sum() + np.minimum(gaps, 0).sum())
    smallest = np.argsort(gaps, kind="stable")
    joined = np.zeros(len(gaps), np.bool_)
    joined[smallest[np.cumsum(np.maximum(gaps[smallest], 0)) <= waste * wanted]] = True
    breaks = np.flatnonzero(~joined)
    first = np.concatenate([begins[:1], begins[breaks + 1]]) * SECTOR - offset
    end = np.concatenate([ends[breaks], ends[-1:]]) * SECTOR - offset
    first, end = -(-first // width), np.minimum(end // width, count)  # rows that lie in these sectors as a whole
    first = np.minimum(first, np.concatenate([rows[:1], rows[breaks + 1]]))
    end = np.maximum(end, np.concatenate([rows[breaks], rows[-1:]]) + 1)
    pieces = -(-(end - first) // most)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.repeat(first, pieces) + number * most
    return np.stack([begin, np.minimum(begin + most, np.repeat(end, pieces))], axis=1)
