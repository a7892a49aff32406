"""Draws by weight on typed graphs and beside times: probabilities, masks, trees, threads, loaders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import graphweft as gw

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def _typed() -> gw.Graph:
    draw = torch.Generator().manual_seed(0)
    return gw.Graph.hetero(
        {
            WRITES: (torch.randint(0, 20, (80,), generator=draw), torch.randint(0, 30, (80,), generator=draw)),
            CITES: (torch.randint(0, 30, (90,), generator=draw), torch.randint(0, 30, (90,), generator=draw)),
        },
        {"author": 20, "paper": 30},
    )


def _chances(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """Chance of every set that ``count`` draws without replacement give, one after the other by the weights left."""
    found: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(weights)), count):
        chance, left = 1.0, sum(weights)
        for item in order:
            chance, left = chance * weights[item] / left, left - weights[item]
        key = tuple(sorted(order))
        found[key] = found.get(key, 0.0) + chance
    return {key: chance for key, chance in found.items() if chance > 0}


@pytest.mark.parametrize("timed", [False, True])
def test_sets_come_with_the_chances_of_successive_draws(timed: bool) -> None:
    weights, trials = [1.0, 2.0, 3.0, 0.0, 4.0], 3000
    graph = gw.Graph([1, 2, 3, 4, 5], [0] * 5)
    options: dict[str, Any] = {"time": [1, 2, 3, 4, 9]} if timed else {"disjoint": True}
    sampler = gw.sampling.SegmentSampler(graph, [2], weight=weights, **options)
    given = {"time": [5] * trials} if timed else {}
    sample = sampler.sample(torch.zeros(trials, dtype=torch.int64), seed=3, **given)
    seen: dict[tuple[int, ...], int] = {}
    rows = sample.blocks[0].edges()[1]
    for row in range(trials):
        key = tuple(sorted(sample.blocks[0].e_id[rows == row].tolist()))
        seen[key] = seen.get(key, 0) + 1
    expected = _chances(weights[:4] if timed else weights, 2)  # the last edge is later than the seeds
    assert set(seen) == set(expected)
    counts = [seen[key] for key in expected]
    assert stats.chisquare(counts, [chance * trials for chance in expected.values()]).pvalue > 1e-3


def test_draws_with_replacement_have_the_chances_of_the_weights() -> None:
    weights = np.array([1.0, 0.0, 2.0, 5.0])
    sampler = gw.sampling.SegmentSampler(gw.Graph([1, 2, 3, 4], [0] * 4), [4000], True, weight=weights)
    counts = np.bincount(sampler.sample([0], seed=1).e_id.numpy(), minlength=4)
    assert counts[1] == 0 and counts.sum() == 4000
    kept = weights > 0
    assert stats.chisquare(counts[kept], 4000 * weights[kept] / weights.sum()).pvalue > 1e-3


def test_a_mask_by_relation_leaves_edges_out_and_draws_the_others_uniformly() -> None:
    graph = _typed()
    mask = torch.rand(90, generator=torch.Generator().manual_seed(1)) < 0.5
    sampler = gw.sampling.SegmentSampler(graph, [-1, -1], weight={CITES: mask})
    kept = graph.edge_subgraph(torch.cat([torch.ones(80, dtype=torch.bool), mask]))
    seeds = torch.arange(20, 50)
    mine, theirs = sampler.sample(seeds), gw.sampling.SegmentSampler(kept, [-1, -1]).sample(seeds)
    assert torch.equal(mine.n_id.sort().values, theirs.n_id.sort().values)
    ids = torch.cat([torch.arange(80), 80 + mask.nonzero().reshape(-1)])
    assert torch.equal(mine.e_id.sort().values, ids[theirs.e_id].sort().values)


def test_the_latest_edges_of_positive_weight() -> None:
    graph = gw.Graph([1, 2, 3, 4], [0] * 4)
    sampler = gw.sampling.SegmentSampler(graph, [2], time=[1, 2, 3, 4], strategy="recent", weight=[1, 1, 0, 1])
    assert sorted(sampler.sample([0], time=[4]).e_id.tolist()) == [1, 3]


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_the_same_for_any_number_of_threads(workers: int) -> None:
    graph = _typed()
    weight = torch.rand(170, generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 7, "shuffle": True, "seed": 5, "weight": weight}
    alone = gw.Loader(graph, ("paper", torch.arange(30)), workers=0, **options)
    beside = gw.Loader(graph, ("paper", torch.arange(30)), workers=workers, **options)
    for _ in range(2):
        for one, other in zip(alone, beside, strict=True):
            assert torch.equal(one.n_id, other.n_id) and torch.equal(one.e_id, other.e_id)
            assert torch.equal(one.edge_index, other.edge_index)
    state = alone.state_dict()
    weight[0] += 1
    with pytest.raises(gw.errors.CheckpointError, match="weights_checksum"):
        gw.Loader(graph, ("paper", torch.arange(30)), **options).load_state_dict(state)


def test_link_batches_by_weight_do_without_their_own_edges() -> None:
    graph = _typed()
    weight = torch.arange(170) % 3
    loader = gw.LinkLoader(graph, fanouts=[-1, -1], batch_size=10, relation=CITES, weight=weight, negatives="tail")
    for batch in loader:
        ends = set(zip(*(side.tolist() for side in torch.stack(graph.edges())[:, 80:][:, batch.input_id]), strict=True))
        drawn = batch.e_id[batch.e_id >= 80]
        assert not ends & set(zip(*(side.tolist() for side in torch.stack(graph.edges())[:, drawn]), strict=True))
        assert bool((weight[batch.e_id] > 0).all())
    timed = gw.LinkLoader(graph, fanouts=[2], relation=CITES, weight=weight, time=torch.arange(170))
    for batch in timed:
        assert bool((weight[batch.e_id] > 0).all())


def test_mistakes_are_one_line() -> None:
    graph = _typed()
    with pytest.raises(gw.errors.ConfigError, match=r"expected weights >= 0, got -1\.0 at position 3"):
        gw.sampling.SegmentSampler(graph, [2], weight=[1.0, 1.0, 1.0, -1.0] + [1.0] * 166)
    with pytest.raises(gw.errors.ShapeError, match="writes"):
        gw.sampling.SegmentSampler(graph, [2], weight={WRITES: [1.0]})
    with pytest.raises(gw.errors.GraphError):
        gw.sampling.SegmentSampler(graph, [2], weight={("a", "b", "c"): [1.0]})
    with pytest.raises(gw.errors.ConfigError, match="expected distinct seeds, got 3 at positions 0 and 1"):
        gw.sampling.SegmentSampler(graph, [2], weight=[1.0] * 170).sample([3, 3])
