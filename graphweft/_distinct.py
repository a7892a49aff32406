"""Sets of ids as ascending arrays.

Comes in: arrays of integers. Goes out: ascending ones in which each stands once. Pure functions, called by samplers
and readers. ``np.unique`` and ``np.union1d`` put integers into a hash table first (NumPy 2.4), which takes five to
fifty times as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def distinct(ids: NDArray[np.integer[Any]]) -> Ids:
    """int64 ids, ascending, each once.

    Example:
        >>> distinct(np.array([5, 2, 5, 3])).tolist()
        [2, 3, 5]
    """
    return _once(np.sort(ids.astype(np.int64, copy=False), axis=None))


def union(first: Ids, second: Ids) -> Ids:
    """The ids of two ascending arrays, ascending, each once.

    Example:
        >>> union(np.array([2, 5]), np.array([1, 2, 7])).tolist()
        [1, 2, 5, 7]
    """
    return _once(np.sort(np.concatenate([first, second]), kind="stable"))  # which merges two ascending runs


def _once(ascending: Ids) -> Ids:
    kept = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=kept[1:])
    return ascending[kept]


__all__ = ["distinct", "union"]
