"""How the nodes of a group of parts are numbered: type after type; in a type part after part, then nodes besides.

Comes in: a :class:`PartSource`, numbers of parts, and hubs or other nodes. Goes out: :class:`GroupLayout`, which finds
the entries of rows that lie in the group. Called by what reads groups, and by their loader for the numbers of seeds. A
graph without types has one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphweft.loader.parts import PartSource

_PIECE = 1 << 18  # entries of a structure that are looked at together


class GroupLayout:
    """Numbers of nodes inside of a group.

    Args:
        source: The parts.
        chosen: Numbers of those of the group, ascending.
        ids: Distinct nodes that are in it besides, such as hubs; None for none.

    Attributes:
        regions: (kinds, parts) regions of the source.
        begins: (kinds, parts) numbers of their first nodes.
        besides: (kinds + 1,) places in ``which`` where the nodes of each type begin.
        which: Places among ``ids`` of those that are in no part of the group, type after type.
        node_offsets: (kinds + 1,) first number of each type, and the number of nodes.
        own_offsets: The same with the nodes of the parts alone.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> from graphweft.loader.parts import MemoryParts
        >>> graph, part = Graph([0], [2], num_nodes=4), torch.tensor([0, 1, 1, 2])
        >>> source = MemoryParts(graph, None, torch.zeros(4), part, 3)
        >>> layout = GroupLayout(source, np.array([0, 2]), None)
        >>> layout.begins.tolist(), layout.node_offsets
        ([[0, 1]], (0, 2))
    """

    def __init__(self, source: PartSource, chosen: NDArray[np.int64], ids: NDArray[np.int64] | None) -> None:
        kinds = 1 if source.types is None else len(source.types.node_types)
        self.regions: NDArray[np.int64] = chosen[None, :] * kinds + np.arange(kinds)[:, None]
        ids = np.empty(0, np.int64) if ids is None else ids
        count = len(source.regions) - 1
        self._cuts, self._member, self._base = source.regions[1:], np.zeros(count, np.bool_), np.zeros(count, np.int64)
        self._member[self.regions] = True
        region = np.searchsorted(self._cuts, ids, "right")
        away = np.flatnonzero(~self._member[region])
        by_kind = np.argsort(region[away] % kinds, kind="stable")
        self.which = away[by_kind]
        counts = np.bincount(region[away] % kinds, minlength=kinds)
        sizes = np.concatenate([np.diff(source.regions)[self.regions], counts[:, None]], axis=1)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        firsts = starts[:-1].reshape(sizes.shape)
        self.begins: NDArray[np.int64] = firsts[:, :-1]
        self.besides: NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)])
        self.node_offsets: tuple[int, ...] = tuple(starts[:: sizes.shape[1]].tolist())
        self.own_offsets: NDArray[np.int64] = starts[:: sizes.shape[1]] - self.besides
        self._base[self.regions] = self.begins - source.regions[:-1][self.regions]
        numbers = np.empty(len(away), np.int64)
        shifts = np.repeat(firsts[:, -1] - self.besides[:-1], counts)
        numbers[by_kind] = np.arange(len(away)) + shifts
        order = np.argsort(ids[away])
        self._extra, self._numbers = ids[away[order]], numbers[order]

    def besides_of(self, kind: int, first: int, end: int) -> tuple[NDArray[np.int64], slice]:
        """Of ``ids[first:end]`` the places of those of a type that are in no part of the group; their numbers in it."""
        which = self.which[self.besides[kind] : self.besides[kind + 1]]
        start = self.node_offsets[kind + 1] - len(which)
        low, high = np.searchsorted(which, (first, end)).tolist()
        return which[low:high], slice(start + low, start + high)

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of nodes of the parts, by their numbers in the source."""
        shifted: NDArray[np.int64] = ids + self._base[np.searchsorted(self._cuts, ids, "right")]
        return shifted

    def entries(
        self, offsets: NDArray[np.int64], sources: NDArray[np.integer]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]:
        """The entries with a source in the group, in its numbers, the offsets of rows among them, which they are."""
        kept: list[NDArray[np.int32]] = []
        chosen = [np.empty(0, np.bool_)]
        inner = np.zeros(len(offsets), np.int64)
        before = 0
        cuts = self._cuts.astype(sources.dtype)
        for first in range(0, len(sources), _PIECE):
            piece = sources[first : first + _PIECE]
            part = np.searchsorted(cuts, piece, "right")
            keep, new = self._member[part], piece + self._base[part]
            if len(self._extra):
                place = np.minimum(np.searchsorted(self._extra, piece), len(self._extra) - 1)
                pinned = self._extra[place] == piece
                new[pinned] = self._numbers[place[pinned]]
                keep |= pinned
            kept.append(new[keep].astype(np.int32))
            chosen.append(keep)
            count = np.cumsum(keep)
            rows = slice(*np.searchsorted(offsets, (first, first + len(piece)), "right").tolist())
            inner[rows] = before + count[offsets[rows] - first - 1]
            before += int(count[-1])
        return np.concatenate([np.empty(0, np.int32), *kept]), inner, np.concatenate(chosen)


__all__ = ["GroupLayout"]
