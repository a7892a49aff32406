"""Which sets of nodes or edges a batch holds, how often: chi-square against chances added up outcome by outcome.

Uniform and weighted draws of rows are in ``test_neighbor.py``, times and windows in ``test_segment.py``, ShaDow and
steps of walks in ``test_chances.py``, clusters in ``loader/test_samplers.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from sample.test_chances import check_counts, successive

from graphweft.graph.graph import Graph
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
from graphweft.sample.segment import SegmentSampler
from graphweft.sample.walk import WalkSampler

GRAPH = Graph([0, 1, 2, 3, 0, 2, 1, 4, 4], [1, 0, 1, 2, 2, 0, 3, 4, 0], 5)
SRC, DST = (ends.tolist() for ends in GRAPH.edges())
Outcomes = dict[tuple[int, ...], float]
DRAWS = 3000


def gathered(outcomes: Iterable[tuple[Iterable[int], float]]) -> Outcomes:
    """Chances by the set of what an outcome holds."""
    chances: Outcomes = {}
    for held, chance in outcomes:
        once = tuple(sorted(set(held)))
        chances[once] = chances.get(once, 0.0) + chance
    return chances


def drawn_again(single: Outcomes, draws: int) -> Outcomes:
    """The union of so many independent draws."""
    sequences = itertools.product(single.items(), repeat=draws)
    return gathered(
        (itertools.chain(*(held for held, _ in sequence)), float(np.prod([p for _, p in sequence])))
        for sequence in sequences
    )


def walks_from(start: int, length: int) -> Outcomes:
    """Nodes of a walk over in-edges; a node without any ends it."""
    walks: list[tuple[tuple[int, ...], float]] = [((start,), 1.0)]
    for _ in range(length):
        longer = []
        for nodes, chance in walks:
            on = [s for s, d in zip(SRC, DST, strict=True) if d == nodes[-1]]
            longer += [((*nodes, node), chance / len(on)) for node in on] or [(nodes, chance)]
        walks = longer
    return gathered(walks)


def saint_draw(kind: str) -> tuple[Any, Outcomes]:
    """A sampler, and the chances of one of its draws."""
    if kind == "node":
        weights = [1.0, 2.0, 0.5, 4.0, 1.0]
        return SaintNodeSampler(GRAPH, weights), {(v,): w / sum(weights) for v, w in enumerate(weights)}
    if kind == "edge":
        out, into = np.bincount(SRC, minlength=5), np.bincount(DST, minlength=5)
        share = [1 / out[s] + 1 / into[d] for s, d in zip(SRC, DST, strict=True)]
        ends = zip(SRC, DST, strict=True)
        return SaintEdgeSampler(GRAPH), gathered((end, w / sum(share)) for end, w in zip(ends, share, strict=True))
    every = [(held, chance / 5) for root in range(5) for held, chance in walks_from(root, 2).items()]
    return SaintWalkSampler(GRAPH, 2, coverage=1), gathered(every)


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("kind", ["node", "edge", "walk"])
def test_saint_subgraphs(kind: str, draws: int) -> None:
    sampler, single = saint_draw(kind)
    wanted = torch.ones(5, dtype=torch.bool)
    seen = (sampler.draw(torch.arange(draws), wanted, epoch=epoch).n_id.tolist() for epoch in range(DRAWS))
    check_counts((tuple(sorted(nodes)) for nodes in seen), drawn_again(single, draws))


@pytest.mark.parametrize(("length", "times"), [(1, 1), (2, 2), (3, 1)])
def test_what_walks_from_a_seed_reach(length: int, times: int) -> None:
    sampler = WalkSampler(GRAPH, length, times)
    seen = (sampler.sample([0], epoch=epoch).n_id.tolist() for epoch in range(DRAWS))
    check_counts((tuple(sorted(nodes)) for nodes in seen), drawn_again(walks_from(0, length), times))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("importance", ["ladies", "fastgcn", "uniform", [1.0, 2.0, 0.5, 4.0, 1.0]], ids=str)
def test_layers(importance: Any, replace: bool) -> None:
    seeds, size = [1, 2], 2
    degree = np.bincount(DST, minlength=5)
    weights = np.zeros(5)
    for s, d in zip(SRC, DST, strict=True):
        if importance == "fastgcn" or d in seeds:
            weights[s] += degree[d] ** -2.0
    near = {s for s, d in zip(SRC, DST, strict=True) if d in seeds}
    if not isinstance(importance, str):
        weights = np.array(importance) * (weights > 0)
    elif importance == "uniform":
        weights = (weights > 0).astype(float)
    if replace:
        chances = drawn_again({(v,): w for v, w in enumerate(weights / weights.sum()) if w > 0}, size)
    else:
        chances = successive(weights.tolist(), size)
    visible = gathered(((v for v in held if v in near or v not in seeds), p) for held, p in chances.items())

    sampler, seen = LayerSampler(GRAPH, [size], importance, replace), []
    for epoch in range(DRAWS):
        sample = sampler.sample(seeds, epoch=epoch)
        sources = sample.n_id[sample.edge_index[0]].tolist()
        seen.append(tuple(sorted({*sample.n_id[2:].tolist(), *sources})))
    check_counts(seen, visible)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_every_relation_by_its_own_fan_out(replace: bool, window: int | None) -> None:
    """Two of one relation's edges and one of the other's, together; with a window some are out of sight."""
    graph = Graph.hetero({("n", "p", "n"): ([1, 2, 3, 4, 5], [0] * 5), ("n", "q", "n"): ([1, 2, 3], [0] * 3)}, {"n": 6})
    time = None if window is None else [0, 1, 2, 3, 4, 3, 2, 9]
    able = [range(5), range(5, 8)] if window is None else [[1, 2, 3], [5, 6]]
    sampler = SegmentSampler(graph, {("n", "p", "n"): [2], ("n", "q", "n"): [1]}, replace, time=time, window=window)
    pairs = list(itertools.product(able[0], repeat=2) if replace else itertools.combinations(able[0], 2))
    chances: Outcomes = {}
    for pair, other in itertools.product(pairs, able[1]):
        outcome = (*sorted(pair), other)
        chances[outcome] = chances.get(outcome, 0.0) + 1 / (len(pairs) * len(able[1]))
    call: dict[str, Any] = {} if window is None else {"time": [3]}
    check_counts(
        (tuple(sorted(sampler.sample([0], epoch=epoch, **call).e_id.tolist())) for epoch in range(DRAWS)), chances
    )
