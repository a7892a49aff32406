"""Which items leave a cache: by their next use where that is known, and simulations of caches to compare with.

Comes in: when items are used next, or a whole string of uses. Goes out: the items to give up, or how often an item had
to be fetched. Pure functions: called by :mod:`graphweft.storage.row_cache` and by tests. Source: Belady, IBM Systems
Journal 1966 (the item whose next use is farthest away leaves).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = np.iinfo(np.int32).max  # a next use beyond what is known


def farthest(next_use: NDArray[np.int32], uses: NDArray[np.integer[Any]], count: int) -> NDArray[np.int64]:
    """Places of the ``count`` items to give up: those used again last, and where that is unknown those used least.

    Args:
        next_use: When each item is used next, :data:`UNKNOWN` beyond what is known.
        uses: How often each was used so far.
        count: How many to give up, at most all.

    Example:
        >>> farthest(np.array([3, UNKNOWN, 9, UNKNOWN], np.int32), np.array([1, 5, 1, 2]), 3).tolist()
        [1, 2, 3]
    """
    if count >= len(next_use):
        return np.arange(len(next_use))
    if count <= 0:
        return np.empty(0, np.int64)
    # an item of unknown use is expected back the sooner, the more often it was used
    later = np.where(next_use != UNKNOWN, next_use, UNKNOWN - uses.astype(np.int32))
    least = np.partition(later, len(later) - count)[len(later) - count]
    leaves = np.flatnonzero(later > least)
    # places break ties, so that the choice follows from the numbers alone
    return np.sort(np.concatenate([leaves, np.flatnonzero(later == least)[: count - len(leaves)]]))


def optimal_misses(uses: Sequence[Hashable], capacity: int) -> int:
    """How often an item has to be fetched at the least with room for ``capacity`` of them, all uses being known.

    An item that is not used again soon need not be kept at all.

    Example:
        >>> optimal_misses("abcabc", 2), optimal_misses("abcabc", 3)
        (4, 3)
    """
    end = len(uses)
    following, last = [end] * end, dict[Hashable, int]()
    for place in range(end - 1, -1, -1):
        following[place] = last.get(uses[place], end)
        last[uses[place]] = place
    held, heap, misses = dict[Hashable, int](), list[tuple[int, int, Hashable]](), 0
    for place, item in enumerate(uses):
        misses += item not in held
        held[item] = following[place]
        heapq.heappush(heap, (-following[place], place, item))
        while len(held) > capacity:
            when, _, candidate = heapq.heappop(heap)
            if held.get(candidate) == -when:  # else the entry is of an earlier use
                del held[candidate]
    return misses


def lru_misses(uses: Iterable[Hashable], capacity: int) -> int:
    """How often an item is fetched where the one that was used longest ago leaves.

    Example:
        >>> lru_misses("abcabc", 2), lru_misses("abcabc", 3)
        (6, 3)
    """
    held, misses = OrderedDict[Hashable, None](), 0
    for item in uses:
        misses += item not in held
        held[item] = None
        held.move_to_end(item)
        if len(held) > capacity:
            held.popitem(last=False)
    return misses
