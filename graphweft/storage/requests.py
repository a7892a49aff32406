"""Rows of a table on disk as few large requests.

Comes in: ascending rows, their width, how much may be read in vain. Goes out: ranges of rows. A pure function, called
by :mod:`graphweft.storage.row_reader`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WASTE = 0.25  # bytes read in vain to bytes wanted, at most


def merged(rows: NDArray[np.int64], most: int, waste: float = WASTE) -> NDArray[np.int64]:
    """(n, 2) first row and end of ranges that hold all ``rows``, ascending, each of ``most`` rows at most.

    The smallest gaps are read over, as long as no more than ``waste`` times the wanted rows is read in vain.

    Example:
        >>> merged(np.array([0, 1, 3, 4, 5, 9]), 8).tolist(), merged(np.array([0, 1, 2, 3, 4]), 2).tolist()
        ([[0, 6], [9, 10]], [[0, 2], [2, 4], [4, 5]])
    """
    if len(rows) == 0:
        return np.empty((0, 2), np.int64)
    gaps = np.diff(rows) - 1
    smallest = np.argsort(gaps, kind="stable")
    joined = np.zeros(len(gaps), np.bool_)
    joined[smallest[np.cumsum(gaps[smallest]) <= waste * len(rows)]] = True
    breaks = np.flatnonzero(~joined)
    first = np.concatenate([rows[:1], rows[breaks + 1]])
    end = np.concatenate([rows[breaks], rows[-1:]]) + 1
    pieces = -(-(end - first) // most)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.repeat(first, pieces) + number * most
    return np.stack([begin, np.minimum(begin + most, np.repeat(end, pieces))], axis=1)
