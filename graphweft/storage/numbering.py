"""Numbers of things that are put in order by group, their order within a group kept.

Comes in: the group of every thing, and where groups begin. Goes out: new numbers. Called for nodes by part while a
store is built, and for edges by relation when one is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_STEP = 1 << 15  # things at a time: with orders and ranks of these, a megabyte


def numbered_by_group(
    group: NDArray[np.integer[Any]], bounds: NDArray[np.int64], dtype: np.dtype[np.signedinteger]
) -> NDArray[np.signedinteger]:
    """(N,) new numbers: group after group from ``bounds`` on, inside of a group in the order that they have.

    Example:
        >>> numbered_by_group(np.array([1, 0, 1]), np.array([0, 1, 3]), np.dtype("int32")).tolist()
        [1, 0, 2]
    """
    found = np.empty(len(group), dtype)
    following = bounds[:-1].copy()
    for first in range(0, len(group), _STEP):
        of = group[first : first + _STEP]
        order = np.argsort(of, kind="stable")
        counts = np.bincount(of, minlength=len(following))
        starts = np.cumsum(counts) - counts
        ranks = np.arange(len(of)) - np.repeat(starts, counts)
        found[first + order] = np.repeat(following, counts) + ranks
        following += counts
    return found


__all__ = ["numbered_by_group"]
