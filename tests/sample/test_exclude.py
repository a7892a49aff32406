"""Edges taken out of a batch: it is the batch of the graph without them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample.reference import check_sample, same
from scipy import stats
from zoo import random_edges

from graphweft.graph.graph import Graph
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.sampler import Sample


def without(graph: Graph, src: torch.Tensor, dst: torch.Tensor) -> tuple[Graph, torch.Tensor]:
    """The graph less every edge that joins one of the pairs, and the ids of what is left."""
    taken = set(zip(src.tolist(), dst.tolist(), strict=True))
    sources, targets = graph.edges()
    kept = torch.tensor(
        [i for i, pair in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)) if pair not in taken],
        dtype=torch.int64,
    )
    return Graph(sources[kept], targets[kept], graph.num_nodes), kept


class _Renamed:
    """A sample whose edge ids are places among the edges that are left."""

    def __init__(self, sample: Sample, kept: torch.Tensor) -> None:
        self._sample, self._kept = sample, kept
        self.blocks = [_RenamedBlock(block, kept) for block in sample.blocks]

    @property
    def e_id(self) -> torch.Tensor:
        return torch.searchsorted(self._kept, self._sample.e_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sample, name)


class _RenamedBlock:
    def __init__(self, block: Any, kept: torch.Tensor) -> None:
        self._block, self._kept = block, kept

    @property
    def e_id(self) -> torch.Tensor:
        return torch.searchsorted(self._kept, self._block.e_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_a_batch_is_one_of_the_graph_without_the_edges(data: Any) -> None:
    nodes = data.draw(st.integers(1, 25))
    edges = random_edges(nodes, data.draw(st.integers(1, 150)), data.draw(st.integers(0, 10**6)))
    graph = Graph(edges.src, edges.dst, nodes)
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    targets = torch.from_numpy(rng.integers(0, graph.num_edges, data.draw(st.integers(1, 12))))
    src, dst = (ends[targets] for ends in graph.edges())
    seeds = torch.unique(torch.cat([src, dst]))
    fanouts = data.draw(st.lists(st.one_of(st.just(-1), st.integers(1, 6)), min_size=1, max_size=3))
    replace = data.draw(st.booleans()) and -1 not in fanouts
    weight = torch.from_numpy(rng.random(graph.num_edges) * (rng.random(graph.num_edges) < 0.8))
    weight = weight if data.draw(st.booleans()) else None
    sample = NeighborSampler(graph, fanouts, replace, weight).sample(seeds, exclude=(src, dst))
    left, kept = without(graph, src, dst)
    assert set(sample.e_id.tolist()) <= set(kept.tolist())
    renamed: Any = _Renamed(sample, kept)
    check_sample(left, seeds.tolist(), fanouts, renamed, replace, None if weight is None else weight[kept].numpy())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("taken", [[0], [5], [2, 3], [0, 1, 4], [1, 5]], ids=str)
def test_what_is_left_is_drawn_as_if_the_rest_had_never_been(taken: list[int], weighted: bool) -> None:
    """In-edges of node 0 come from 1 .. 6; pairs of those left, against exact probabilities."""
    graph = Graph(torch.arange(1, 7), torch.zeros(6, dtype=torch.int64), 7)
    weight = torch.tensor([1.0, 2.0, 0.5, 4.0, 1.0, 3.0]) if weighted else None
    sampler = NeighborSampler(graph, [2], weight=weight)
    src = torch.tensor(taken) + 1
    able = [i for i in range(6) if i not in taken]
    w = np.ones(6) if weight is None else weight.double().numpy()
    total = w[able].sum()
    expected = {
        (a, b): w[a] / total * w[b] / (total - w[a]) + w[b] / total * w[a] / (total - w[b])
        for a, b in itertools.combinations(able, 2)
    }
    counts = dict.fromkeys(expected, 0)
    rounds = 8000
    for epoch in range(rounds):
        drawn = sampler.sample([0], epoch=epoch, exclude=(src, torch.zeros_like(src))).e_id
        counts[tuple(sorted(drawn.tolist()))] += 1
    probabilities = np.array(list(expected.values()))
    assert probabilities.sum() == pytest.approx(1)
    assert stats.chisquare(list(counts.values()), probabilities * rounds).pvalue > 1e-4


def test_exclusion_ends_with_its_batch_and_does_not_depend_on_threads(threads_restored: None) -> None:
    edges = random_edges(5000, 300_000, seed=2)
    graph = Graph(edges.src, edges.dst, 5000)
    src, dst = (ends[:2000] for ends in graph.edges())
    seeds = torch.unique(torch.cat([src, dst]))
    samples = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        sampler = NeighborSampler(graph, [10, 5])
        plain = sampler.sample(seeds)
        samples.append(sampler.sample(seeds, exclude=(src, dst)))
        assert same(plain, sampler.sample(seeds))
    assert all(same(samples[0], other) for other in samples[1:])
    assert not same(samples[0], plain)
