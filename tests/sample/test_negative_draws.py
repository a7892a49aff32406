"""Negatives by weight and without repeats: chances, all pairs that remain, keys, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import graphweft as gw

EVERY = torch.arange(6000)


def _graph() -> gw.Graph:
    draw = torch.Generator().manual_seed(0)
    return gw.Graph(*torch.randint(0, 7, (2, 20), generator=draw), num_nodes=7)


def _free(graph: gw.Graph) -> np.ndarray:
    """(N, N): 1 where a pair is no edge and no loop."""
    table = np.ones((graph.num_nodes, graph.num_nodes)) - np.eye(graph.num_nodes)
    table[tuple(ends.numpy() for ends in graph.edges())] = 0
    return table


def _fits(seen: np.ndarray, chances: np.ndarray) -> bool:
    able = chances > 0
    assert not seen[~able].any()
    return bool(stats.chisquare(seen[able], seen.sum() * chances[able] / chances.sum()).pvalue > 1e-3)


def test_pairs_and_tails_come_in_proportion_to_the_weights() -> None:
    graph = _graph()
    src, dst = np.arange(1.0, 8.0), np.array([1.0, 0.0, 3.0, 1.0, 0.5, 2.0, 4.0])
    sampler = gw.sampling.NegativeSampler(graph, weight=(src, dst))
    seen = np.zeros((7, 7))
    np.add.at(seen, tuple(sampler.pairs(EVERY, seed=1).numpy()), 1)
    assert _fits(seen, _free(graph) * np.outer(src, dst))
    tails = gw.sampling.NegativeSampler(graph, weight=dst).tails([2] * 3000, 2, seed=2)
    assert _fits(np.bincount(tails.reshape(-1).numpy(), minlength=7), _free(graph)[2] * dst)


def test_distinct_draws_give_every_pair_that_remains_once() -> None:
    graph = _graph()
    free = _free(graph)
    sampler = gw.sampling.NegativeSampler(graph, distinct=True)
    pairs = sampler.pairs(torch.arange(int(free.sum())))
    assert sorted(map(tuple, pairs.T.tolist())) == sorted(map(tuple, np.argwhere(free).tolist()))
    with pytest.raises(gw.errors.GraphError, match="another pair of nodes without an edge, got none"):
        sampler.pairs(torch.arange(int(free.sum()) + 1))
    for source in range(7):
        count = int(free[source].sum())
        tails = sampler.tails([source], count)
        assert sorted(tails[0].tolist()) == np.flatnonzero(free[source]).tolist()
        with pytest.raises(gw.errors.GraphError, match=f"that {source} has no edge to, got none"):
            sampler.tails([source], count + 1)


def test_two_distinct_tails_have_the_chances_of_successive_draws() -> None:
    graph, weight = gw.Graph([0], [1], num_nodes=5), [0.0, 9.0, 1.0, 2.0, 3.0]
    tails = gw.sampling.NegativeSampler(graph, weight=weight, distinct=True).tails([0] * 4000, 2, seed=3)
    assert bool((tails[:, 0] != tails[:, 1]).all())
    seen = np.zeros((5, 5))
    np.add.at(seen, tuple(tails.sort(dim=1).values.T.numpy()), 1)
    chances, w = np.zeros((5, 5)), {2: 1.0, 3: 2.0, 4: 3.0}
    for a, b in [(2, 3), (2, 4), (3, 4)]:
        chances[a, b] = w[a] / 6 * w[b] / (6 - w[a]) + w[b] / 6 * w[a] / (6 - w[b])
    assert _fits(seen, chances)


def test_rare_destinations_are_found_without_luck() -> None:
    ids = torch.arange(300)
    graph = gw.Graph(ids.repeat_interleave(299), torch.cat([ids[ids != 7] for _ in range(300)]), num_nodes=300)
    sampler = gw.sampling.NegativeSampler(graph, weight=np.full(300, 1.0))  # only pairs into node 7 are left
    src, dst = sampler.pairs(torch.arange(2000))
    assert set(dst.tolist()) == {7} and 7 not in src.tolist()
    assert stats.chisquare(np.bincount(src.numpy(), minlength=300)[ids.numpy() != 7]).pvalue > 1e-3
    assert sampler.tails([3, 4]).tolist() == [[7], [7]]


def test_a_draw_follows_from_its_key_and_relations_keep_to_their_types() -> None:
    graph = _graph()
    sampler = gw.sampling.NegativeSampler(graph, weight=graph.in_degrees() ** 0.75)
    whole = sampler.tails([0, 1, 2, 3], 3, seed=5)
    assert torch.equal(sampler.tails([2, 3], 3, keys=[2, 3], seed=5), whole[2:])
    rates = ("user", "rates", "film")
    typed = gw.Graph.hetero({rates: ([0, 1, 2], [0, 1, 1])}, {"user": 3, "film": 4})
    known = gw.sampling.NegativeSampler(typed, rates, weight=[0.0, 1.0, 1.0, 2.0], distinct=True)
    pairs = known.pairs(torch.arange(7))
    local = sorted(map(tuple, (pairs - torch.tensor([[0], [3]])).T.tolist()))
    assert local == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3)]


def test_mistakes_are_one_line() -> None:
    with pytest.raises(gw.errors.ShapeError, match="NegativeSampler destinations weight"):
        gw.sampling.NegativeSampler(_graph(), weight=[1.0])
    with pytest.raises(gw.errors.ConfigError, match="expected a weight above 0, got none"):
        gw.sampling.NegativeSampler(_graph(), weight=[0.0] * 7)
    with pytest.raises(gw.errors.IndexRangeError, match="got 9"):
        gw.sampling.NegativeSampler(_graph(), distinct=True).tails([9])
