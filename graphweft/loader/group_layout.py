"""How the nodes of a group of parts are numbered: type after type; in a type part after part, then its hubs.

Comes in: a :class:`PartSource`, numbers of parts, and hubs. Goes out: :class:`GroupLayout`, which finds the entries of
rows that lie in the group. Called by what reads groups, and by their loader for the numbers of seeds. A graph without
types has one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphweft.loader.hubs import Hubs
from graphweft.loader.parts import PartSource

_PIECE = 1 << 18  # entries of a structure that are looked at together


class GroupLayout:
    """Numbers of nodes inside of a group.

    Args:
        source: The parts.
        chosen: Numbers of those of the group, ascending.
        hubs: Nodes that are in it besides.

    Attributes:
        regions: (kinds, parts) regions of the source.
        begins: (kinds, parts) numbers of their first nodes.
        hub_begins: (kinds + 1,) places in ``which`` where the hubs of each type begin.
        which: Places among the hubs of those that are in no part of the group, type after type.
        node_offsets: (kinds + 1,) first number of each type, and the number of nodes.

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

    def __init__(self, source: PartSource, chosen: NDArray[np.int64], hubs: Hubs | None) -> None:
        kinds = 1 if source.types is None else len(source.types.node_types)
        self.regions: NDArray[np.int64] = chosen[None, :] * kinds + np.arange(kinds)[:, None]
        ids = np.empty(0, np.int64) if hubs is None else hubs.ids
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
        self.hub_begins = np.concatenate([[0], np.cumsum(counts)])
        self.node_offsets: tuple[int, ...] = tuple(starts[:: sizes.shape[1]].tolist())
        self._base[self.regions] = self.begins - source.regions[:-1][self.regions]
        self._extra, self._numbers = ids[away], np.empty(len(away), np.int64)
        shifts = np.repeat(firsts[:, -1] - self.hub_begins[:-1], counts)
        self._numbers[by_kind] = np.arange(len(away)) + shifts

    def hubs_of(self, kind: int) -> tuple[NDArray[np.int64], slice]:
        """Places among the hubs of those of a type that are in no part of the group, and their numbers in it."""
        which = self.which[self.hub_begins[kind] : self.hub_begins[kind + 1]]
        end = self.node_offsets[kind + 1]
        return which, slice(end - len(which), end)

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
