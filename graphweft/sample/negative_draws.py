"""Pairs without an edge drawn by weight, or without repeats.

Comes in: which pairs are edges, weights of nodes and keys. Goes out: pairs. Called by NegativeSampler, whose uniform
and independent draws are native. Draws that hit an edge, or with ``distinct`` a pair that was taken, are drawn again,
so the chances of the others stay in proportion; what is still missing after some rounds is found among all that remain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._checks import checksum
from graphweft._distinct import distinct
from graphweft._errors import ConfigError, GraphError
from graphweft.sample.keyed import keyed_uniforms
from graphweft.sample.weights import as_weights

_ROUNDS = 32
_SOURCES = 1 << 34  # draws of sources are keyed apart from those of destinations
_LAST = 1 << 35
Has = Callable[[Tensor, Tensor], Tensor]
Ints = NDArray[np.int64]


class WeightedPairs:
    """How pairs are drawn.

    Args:
        limits: First source, one past the last, and the same of destinations.
        loops: A node and itself make a pair too.
        weight: Weights >= 0 of destinations, or a pair of those of sources and destinations; None for either: uniform.
        distinct: The pairs of a call are distinct, or the destinations of a source.

    Raises: ConfigError, DtypeError, ShapeError.
    """

    def __init__(self, limits: tuple[int, int, int, int], loops: bool, weight: Any, distinct: bool) -> None:
        src, dst = weight if isinstance(weight, tuple) and len(weight) == 2 else (None, weight)
        self._first = (limits[0], limits[2])
        self._loops, self._distinct = loops, distinct
        self._weights = [
            _as_weight(f"NegativeSampler {name}s", given, stop - start)
            for name, given, start, stop in (("source", src, *limits[:2]), ("destination", dst, *limits[2:]))
        ]
        self._running = [np.cumsum(values) for values in self._weights]

    def identity(self) -> dict[str, Any]:
        """Whether draws are distinct, and checksums of the weights."""
        sums = [checksum(torch.from_numpy(values)) for values in self._weights]
        return {"distinct": self._distinct, "negative_weight_checksums": sums}

    def pairs(self, has: Has, edges: tuple[Tensor, Tensor], keys: Tensor, per: int, key: tuple[int, ...]) -> Tensor:
        """int64 (2, len(keys) * per). ``edges``: ends of the known edges. Raises: GraphError where too few remain."""
        rows, places = np.repeat(keys.numpy(), per), np.tile(np.arange(per), keys.numel())
        ends = np.full((2, len(rows)), -1)
        codes = np.zeros(0, np.int64)
        for attempt in range(_ROUNDS):
            open_ = np.flatnonzero(ends[0] < 0)
            if not len(open_):
                return torch.from_numpy(ends)
            named = (rows[open_], places[open_])
            src = self._drawn(0, keyed_uniforms((*key, _SOURCES, attempt), *named))
            dst = self._drawn(1, keyed_uniforms((*key, attempt), *named))
            kept, codes = self._kept(has, src, dst, codes)
            ends[0, open_[kept]], ends[1, open_[kept]] = src[kept], dst[kept]
        return torch.from_numpy(self._last_pairs(has, edges, ends, (rows, places), key))

    def tails(self, has: Has, src: Tensor, keys: Tensor, per: int, key: tuple[int, ...]) -> Tensor:
        """int64 (len(src), per). Raises: GraphError for a source with fewer possible destinations."""
        shape = (src.numel(), per)
        rows, places = np.repeat(keys.numpy(), per), np.tile(np.arange(per), src.numel())
        sources, of = np.repeat(src.numpy(), per), np.repeat(np.arange(src.numel()), per)
        out, codes = np.full(len(rows), -1), np.zeros(0, np.int64)
        for attempt in range(_ROUNDS):
            open_ = np.flatnonzero(out < 0)
            if not len(open_):
                return torch.from_numpy(out.reshape(shape))
            dst = self._drawn(1, keyed_uniforms((*key, attempt), rows[open_], places[open_]))
            kept, codes = self._kept(has, sources[open_], dst, codes, of[open_])
            out[open_[kept]] = dst[kept]
        out = out.reshape(shape)
        for row in np.flatnonzero((out < 0).any(axis=1)):
            taken = out[row][out[row] >= 0] if self._distinct else out[row][:0]
            for place in np.flatnonzero(out[row] < 0):
                mark = keyed_uniforms((*key, _LAST), rows[row * per : row * per + 1], int(place))[0]
                out[row, place] = self._remaining(has, int(src[row]), taken, mark)
                taken = np.append(taken, out[row, place]) if self._distinct else taken
        return torch.from_numpy(out)

    def _drawn(self, side: int, marks: NDArray[np.float64]) -> Ints:
        """Nodes of one side by their weights."""
        running = self._running[side]
        found = np.searchsorted(running, marks * running[-1], "right")
        nodes: Ints = np.minimum(found, len(running) - 1) + self._first[side]
        return nodes

    def _kept(
        self, has: Has, src: Ints, dst: Ints, codes: Ints, of: Ints | None = None
    ) -> tuple[NDArray[np.bool_], Ints]:
        """Which draws stand, and the codes of all that were taken. ``of``: whose draws must differ, None: all."""
        size = max(self._first[1] + len(self._weights[1]), 1)
        able = ~has(torch.from_numpy(src), torch.from_numpy(dst)).numpy()
        able &= self._weights[0][src - self._first[0]] > 0 if of is None else True
        able &= self._weights[1][dst - self._first[1]] > 0
        if not self._loops:
            able &= src != dst
        if not self._distinct:
            return able, codes
        mine = (src if of is None else of) * size + dst
        able &= ~np.isin(mine, codes)
        standing = np.flatnonzero(able)
        _, first = np.unique(mine[standing], return_index=True)
        once = np.zeros(len(src), np.bool_)
        once[standing[first]] = True
        return once, np.concatenate([codes, mine[once]])

    def _remaining(self, has: Has, source: int, taken: Ints, mark: float) -> int:
        """One of the destinations that are left for a source. Raises: GraphError where there is none."""
        chances = self._left(has, source, taken)
        running = np.cumsum(chances)
        if running[-1] <= 0:
            kind = "another node" if self._distinct else "a node"
            raise GraphError(
                f"NegativeSampler: expected {kind} of weight above 0 that {source} has no edge to, got none"
            )
        return (
            int(min(np.searchsorted(running, mark * running[-1], "right"), np.flatnonzero(chances)[-1]))
            + self._first[1]
        )

    def _left(self, has: Has, source: int, taken: Ints) -> NDArray[np.float64]:
        """Weights of all destinations, 0 for those that a source cannot have."""
        nodes = torch.arange(len(self._weights[1])) + self._first[1]
        chances = np.where(has(torch.full_like(nodes, source), nodes).numpy(), 0.0, self._weights[1])
        chances[taken - self._first[1]] = 0.0
        if not self._loops and 0 <= source - self._first[1] < len(chances):
            chances[source - self._first[1]] = 0.0
        return chances

    def _last_pairs(
        self, has: Has, edges: tuple[Tensor, Tensor], ends: Ints, named: tuple[Ints, Ints], key: tuple[int, ...]
    ) -> Ints:
        """The pairs that rejection did not find: a source by what it has left, then one of its destinations."""
        (low, first), width = self._first, len(self._weights[1])
        src, dst = (side.numpy() for side in edges)
        codes = distinct((src - low) * width + (dst - first))
        left = np.full(len(self._weights[0]), self._weights[1].sum())
        np.subtract.at(left, codes // width, self._weights[1][codes % width])
        if not self._loops:
            both = np.arange(max(low, first), min(low + len(left), first + width))
            free = both[~np.isin((both - low) * width + both - first, codes)]
            left[free - low] -= self._weights[1][free - first]
        for place in np.flatnonzero(ends[0] < 0):
            self._last_pair(
                has, ends, place, left, keyed_uniforms((*key, _LAST), *(name[place : place + 1] for name in named))[0]
            )
        return ends

    def _last_pair(self, has: Has, ends: Ints, place: Any, left: NDArray[np.float64], mark: float) -> None:
        low, first = self._first
        while True:
            chances = self._weights[0] * np.maximum(left, 0.0)
            running = np.cumsum(chances)
            if running[-1] <= 0:
                kind = "another pair" if self._distinct else "a pair"
                raise GraphError(f"NegativeSampler: expected {kind} of nodes without an edge, got none")
            at = int(np.searchsorted(running, mark * running[-1], "right"))
            source = min(at, int(np.flatnonzero(chances)[-1]))
            taken = ends[1][ends[0] == source + low] if self._distinct else ends[1][:0]
            if self._left(has, source + low, taken).sum() > 0:
                break
            left[source] = 0.0  # rounding had left something
        share = (mark * running[-1] - (running[source] - chances[source])) / chances[source]
        target = self._remaining(has, source + low, taken, min(max(share, 0.0), 1.0))
        ends[0, place], ends[1, place] = source + low, target
        if self._distinct:
            left[source] -= self._weights[1][target - first]


def _as_weight(name: str, given: Any, count: int) -> NDArray[np.float64]:
    """(count,) float64, all 1 where nothing is given. Raises: ConfigError, DtypeError, ShapeError."""
    if given is None:
        return np.ones(count)
    values: NDArray[np.float64] = as_weights(name, given, count, "node").double().numpy()
    if not (values > 0).any():
        raise ConfigError(f"{name}: expected a weight above 0, got none")
    return values
