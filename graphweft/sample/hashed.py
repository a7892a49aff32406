"""Random numbers of ids: a hash of each.

Comes in: ids and a seed. Goes out: 64 bits an id. Called where a choice has to follow from an id alone, such as splits
of nodes and pairs that are too many to be listed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hashed(ids: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """64 random bits an id (SplitMix64), a pure function of id and seed.

    Example:
        >>> bool((hashed(np.arange(3), 0) == hashed(np.arange(3), 0)).all())
        True
    """
    with np.errstate(over="ignore"):
        key = ids.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & (2**64 - 1))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
        found: NDArray[np.uint64] = key ^ (key >> np.uint64(31))
    return found


__all__ = ["hashed"]
