"""Draws by weight from segments of in-edges: of a relation, up to a time, in a seed's own tree.

Comes in: the plan of a SegmentSampler that has weights, seeds and keys. Goes out: a :class:`Sample`. Called by
SegmentSampler. Written in NumPy over all in-edges of a hop's rows, so a batch costs the sum of their in-degrees; draws
without weights are native. Without replacement the k smallest of -log(u) / w are taken (Efraimidis and Spirakis, 2006).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import distinct
from graphweft._errors import ConfigError
from graphweft.graph.block import Block, DrawnEdges
from graphweft.graph.graph import Graph
from graphweft.sample.in_edges import Ints, in_edges
from graphweft.sample.keyed import keyed_uniforms
from graphweft.sample.sampler import Sample


class Asked(NamedTuple):
    """What one batch is drawn for.

    ``seeds`` and ``keys`` are int64 (n,). ``low`` and ``high`` bound the keys of times, None without times.
    ``left_out`` has tree, relation, source and destination of edges that are not to be drawn.
    """

    seeds: Tensor
    keys: Tensor
    key: tuple[int, int, int]
    low: Tensor | None
    high: Tensor | None
    left_out: tuple[Tensor, Tensor, Tensor, Tensor] | None


class _Entries(NamedTuple):
    """Edges of rows: the row's number, the relation, the place in the graph's rows, and the rank in (row, relation)."""

    row: Ints
    relation: Ints
    place: Ints
    rank: Ints

    def where(self, chosen: Any) -> _Entries:
        return _Entries(*(part[chosen] for part in self))


class WeightedSegments:
    """Draws batches by weight; a function of its arguments, so threads may share one.

    Args:
        graph: A square graph.
        fanouts: By hop, then by relation.
        weight: float32 (E,) by place in the graph's rows.
        bounds: First edge id of every relation, and the number of edges.
        times: int64 (E,) keys of times by edge id; None without.
        replace: Draw with replacement.
        recent: Take the latest edges with a weight above 0.
        disjoint: Every seed has a tree of its own.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: tuple[tuple[int, ...], ...],
        weight: Tensor,
        bounds: Tensor,
        times: Tensor | None,
        replace: bool,
        recent: bool,
        disjoint: bool,
    ) -> None:
        csc = graph.csc
        self._graph, self._replace, self._recent, self._disjoint = graph, replace, recent, disjoint
        self._fanouts = np.array(fanouts, np.int64).reshape(len(fanouts), -1)
        self._indptr, self._indices = csc.indptr.numpy(), csc.indices.numpy()
        self._edge_ids = None if csc.edge_ids is None else csc.edge_ids.numpy()
        self._weight, self._bounds = weight.double().numpy(), bounds.numpy()
        self._times = None if times is None else times.numpy()

    def draw(self, asked: Asked) -> Sample:
        """The batch. Raises: ConfigError for a seed that comes twice where seeds share nodes."""
        seeds = asked.seeds.numpy()
        trees = np.arange(len(seeds)) if self._disjoint else np.zeros(len(seeds), np.int64)
        nodes, owner = seeds, trees
        if not self._disjoint:
            _check_distinct(seeds)
        drawn: list[_Entries] = []
        parts, ends, before = [], [len(seeds)], 0
        for hop in range(len(self._fanouts)):
            drawn.append(self._drawn(asked, hop, nodes[before:], owner[before:], before))
            every = _Entries(*map(np.concatenate, zip(*drawn, strict=True)))
            before = len(nodes)
            limit = self._fanouts[hop][every.relation]
            kept = every.where((limit == -1) | (every.rank < limit))
            nodes, owner = self._grown(kept, nodes, owner)
            parts.append(kept)
            ends.append(len(nodes))
        return self._sample(parts, _Entries(*map(np.concatenate, zip(*drawn, strict=True))), nodes, owner, ends)

    def _drawn(self, asked: Asked, hop: int, nodes: Ints, owner: Ints, first: int) -> _Entries:
        """What the rows from ``first`` on draw: for this hop and all later ones, in the order of ranks."""
        local, _, place, _ = in_edges(self._graph, nodes)
        ids = place if self._edge_ids is None else self._edge_ids[place].astype(np.int64)
        relation = np.searchsorted(self._bounds, ids, "right") - 1
        later = self._fanouts[hop:]
        widest = np.where((later == -1).any(axis=0), -1, later.max(axis=0))
        able = (self._weight[place] > 0) & (widest[relation] != 0)
        if self._times is not None:
            assert asked.low is not None and asked.high is not None  # seeds have times where edges do
            time, tree = self._times[ids], owner[local]
            able &= (time >= asked.low.numpy()[tree]) & (time <= asked.high.numpy()[tree])
        if asked.left_out is not None:
            able &= ~self._is_left_out(asked, nodes, owner, (local, relation, place, ids))
        local, relation, place, ids = (part[able] for part in (local, relation, place, ids))
        group = local * len(widest) + relation
        owners = asked.keys.numpy()[owner] if self._disjoint else np.zeros(len(nodes), np.int64)
        names = (owners[local], relation, nodes[local], np.full(len(local), hop), place - self._indptr[nodes[local]])
        if self._recent:
            assert self._times is not None  # SegmentSampler asks for times with this strategy
            order = np.lexsort((-ids, -self._times[ids], group))
        elif self._replace:
            return self._with_replacement(asked.key, names, (group, local + first, relation, place), widest)
        else:
            order = np.lexsort((-np.log(keyed_uniforms(asked.key, *names)) / self._weight[place], group))
        rank = _ranks(group[order])
        made = _Entries(local[order] + first, relation[order], place[order], rank)
        limit = widest[made.relation]
        return made.where((limit == -1) | (rank < limit))

    def _with_replacement(
        self, key: tuple[int, ...], names: tuple[Ints, ...], found: tuple[Ints, ...], widest: Ints
    ) -> _Entries:
        """``widest`` draws of every (row, relation) that has edges."""
        group, row, relation, place = found
        if not len(group):
            return _Entries(row, relation, place, row)
        first = np.flatnonzero(np.diff(group, prepend=-1))
        last = np.append(first[1:], len(group)) - 1
        total = np.cumsum(self._weight[place])
        below = total[first] - self._weight[place[first]]
        counts = widest[relation[first]]
        of = np.repeat(np.arange(len(first)), counts)
        rank = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        share = keyed_uniforms(key, *(name[first][of] for name in names[:4]), rank)
        goal = below[of] + share * (total[last] - below)[of]
        chosen = np.clip(np.searchsorted(total, goal, "right"), first[of], last[of])
        return _Entries(row[chosen], relation[chosen], place[chosen], rank)

    def _is_left_out(self, asked: Asked, nodes: Ints, owner: Ints, found: tuple[Ints, ...]) -> NDArray[np.bool_]:
        """Which of the found in-edges are among those to leave out."""
        assert asked.left_out is not None
        local, relation, place, ids = found
        tree, of, src, dst = (part.numpy() for part in asked.left_out)
        size, kinds = max(self._graph.num_nodes, 1), self._fanouts.shape[1]
        known = np.argsort(owner * size + nodes, kind="stable")
        codes = (owner * size + nodes)[known]
        at = np.minimum(np.searchsorted(codes, tree * size + dst), max(len(codes) - 1, 0))
        here = codes[at] == tree * size + dst if len(codes) else np.zeros(len(tree), np.bool_)
        unwanted = (known[at[here]] * kinds + of[here]) * size + src[here]
        hit = np.isin((local * kinds + relation) * size + self._indices[place], unwanted)
        if self._times is not None:
            assert asked.high is not None
            hit &= self._times[ids] >= asked.high.numpy()[owner[local]]
        return hit

    def _grown(self, kept: _Entries, nodes: Ints, owner: Ints) -> tuple[Ints, Ints]:
        """The nodes so far, then what the edges add, tree by tree in ascending order of the ids."""
        size = max(self._graph.num_nodes, 1)
        reached = distinct(owner[kept.row] * size + self._indices[kept.place])
        new = np.setdiff1d(reached, owner * size + nodes, assume_unique=True)
        return np.concatenate([nodes, new % size]), np.concatenate([owner, new // size])

    def _sample(self, parts: list[_Entries], every: _Entries, nodes: Ints, owner: Ints, ends: list[int]) -> Sample:
        n_id = torch.from_numpy(nodes)
        made = [Block.of(self._edges(part, n_id, owner, ends[hop]), ends[hop + 1]) for hop, part in enumerate(parts)]
        whole = self._edges(every, n_id, owner, ends[-2])
        sample = Sample(n_id, ends[0], tuple(reversed(made)), (whole,))
        if self._disjoint:
            sample.owner = torch.from_numpy(owner)
        return sample

    def _edges(self, part: _Entries, n_id: Tensor, owner: Ints, rows: int) -> DrawnEdges:
        """Edges of the first ``rows`` nodes in batch numbering, row by row, by place."""
        size = max(self._graph.num_nodes, 1)
        part = part.where(np.lexsort((part.place, part.row)))
        nodes = n_id.numpy()
        codes = owner * size + nodes
        known = np.argsort(codes, kind="stable")
        wanted = owner[part.row] * size + self._indices[part.place]
        numbers = known[np.searchsorted(codes[known], wanted)]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(part.row, minlength=rows))])
        offsets = part.place - self._indptr[nodes[part.row]]
        indices, places = torch.from_numpy(numbers.astype(np.int32)), torch.from_numpy(offsets.astype(np.int32))
        return DrawnEdges(self._graph, n_id, torch.from_numpy(indptr.astype(np.int64)), indices, places)


def _ranks(group: Ints) -> Ints:
    """Places within stretches of equal numbers.

    Example:
        >>> _ranks(np.array([0, 0, 3, 3, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    first = np.flatnonzero(np.diff(group, prepend=-1))
    counts = np.diff(np.append(first, len(group)))
    return np.arange(len(group)) - np.repeat(first, counts)


def _check_distinct(seeds: Ints) -> None:
    order = np.argsort(seeds, kind="stable")
    again = np.flatnonzero(np.diff(seeds[order]) == 0)
    if len(again):
        places = order[again[0]], order[again[0] + 1]
        raise ConfigError(
            f"sample: expected distinct seeds, got {seeds[places[0]]} at positions {places[0]} and {places[1]}"
        )
