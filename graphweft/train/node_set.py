"""A set of nodes of a store, a bit each, with the place of every member among them.

Comes in: ids. Goes out: the members of a range, and their places. Called by inference over parts, which computes rows
of the nodes that others read and of no others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._distinct import Ids

_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


class NodeSet:
    """Some of the nodes 0 to ``is_member.size - 1``.

    Args:
        is_member: bool (N,).

    Attributes:
        count: How many.

    Example:
        >>> some = NodeSet(np.array([True, False, True, True]))
        >>> some.count, some.within(1, 4).tolist(), some.places(np.array([2, 3])).tolist()
        (3, [2, 3], [1, 2])
        >>> some.at(1, 3).tolist()
        [2, 3]
    """

    def __init__(self, is_member: NDArray[np.bool_]) -> None:
        self._bits = np.packbits(is_member, bitorder="little")
        before = np.cumsum(_ONES[self._bits], dtype=np.int64)
        self.count = int(before[-1]) if len(before) else 0
        self._before: NDArray[np.integer[Any]] = (before - _ONES[self._bits]).astype(
            np.int32 if self.count < 1 << 31 else np.int64
        )

    @classmethod
    def of(cls, ids: Ids, nodes: int) -> NodeSet:
        """The set of some ids below ``nodes``."""
        is_member = np.zeros(nodes, np.bool_)
        is_member[ids] = True
        return cls(is_member)

    def within(self, first: int, end: int) -> Ids:
        """int64 members from ``first`` to ``end``, ascending."""
        begin = first // 8
        bits = np.unpackbits(self._bits[begin : -(-end // 8)], bitorder="little")
        found: Ids = np.flatnonzero(bits[first - 8 * begin : end - 8 * begin]) + first
        return found

    def at(self, first: int, end: int) -> Ids:
        """int64 members at the places ``first`` to ``end`` among all, ascending."""
        if first >= end:
            return np.empty(0, np.int64)
        # the last of several bytes with as many members before it is the one that has some
        begin, last = (np.searchsorted(self._before, [first, end - 1], "right") - 1).tolist()
        skipped = first - int(self._before[begin])
        found: Ids = self.within(8 * begin, min(8 * (last + 1), 8 * len(self._bits)))
        return found[skipped : skipped + end - first]

    def places(self, ids: Ids) -> Ids:
        """int64 place of each member among all, ascending."""
        byte = ids >> 3
        below = self._bits[byte] & ((1 << (ids & 7)) - 1).astype(np.uint8)
        found: Ids = self._before[byte].astype(np.int64) + _ONES[below]
        return found


__all__ = ["NodeSet"]
