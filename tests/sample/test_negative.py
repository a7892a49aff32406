"""Negative pairs against the list of all pairs that are no edge: none false, none missed, all equally likely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from zoo import SQUARE, Case, random_edges

from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.sample.negative import NegativeSampler


def free_pairs(graph: Graph, loops: bool = False) -> set[tuple[int, int]]:
    """Every pair that is no edge, from a dense matrix."""
    free = np.ones((graph.num_nodes, graph.num_nodes), dtype=bool)
    src, dst = graph.edges()
    free[src.numpy(), dst.numpy()] = False
    if not loops:
        np.fill_diagonal(free, False)
    return set(zip(*(side.tolist() for side in np.nonzero(free)), strict=True))


def complete(nodes: int, missing: list[tuple[int, int]]) -> Graph:
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j and (i, j) not in missing]
    return Graph([i for i, _ in pairs], [j for _, j in pairs], nodes)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_no_edge_is_a_negative_on_the_zoo(case: Case, loops: bool) -> None:
    graph = case.graph()
    free, sampler = free_pairs(graph, loops), NegativeSampler(graph, loops=loops)
    if not free:
        with pytest.raises(GraphError, match=r"NegativeSampler: expected .*, got none"):
            sampler.pairs([0])
    else:
        assert set(zip(*sampler.pairs(torch.arange(500)).tolist(), strict=True)) <= free
    mask = sampler.mask(torch.arange(graph.num_nodes), torch.arange(graph.num_nodes))
    assert set(map(tuple, mask.nonzero().tolist())) == free
    src, dst = graph.edges()
    assert bool(sampler.has_edges(src, dst).all())
    for source in range(graph.num_nodes):
        able = {v for u, v in free if u == source}
        if able:
            assert set(sampler.tails([source], 40).flatten().tolist()) <= able
        else:
            with pytest.raises(GraphError, match=f"expected a node that node {source} has no edge to, got none"):
                sampler.tails([source])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_random_graphs_have_no_false_negative(data: Any) -> None:
    nodes = data.draw(st.integers(2, 25))
    edges = random_edges(nodes, data.draw(st.integers(0, 3 * nodes * nodes)), data.draw(st.integers(0, 10**6)))
    graph = Graph(edges.src, edges.dst, nodes)
    free, sampler = free_pairs(graph), NegativeSampler(graph)
    key = {"seed": data.draw(st.integers(0, 2**63 - 1)), "epoch": data.draw(st.integers(0, 9))}
    if free:
        drawn = sampler.pairs(torch.arange(100), 2, **key)
        assert set(zip(*drawn.tolist(), strict=True)) <= free
        sources = sorted({u for u, _ in free})
        tails = sampler.tails(sources, 5, **key)
        assert {(u, v) for u, row in zip(sources, tails.tolist(), strict=True) for v in row} <= free


@pytest.mark.parametrize("case", ["sparse", "dense", "nearly complete"])
def test_every_pair_without_an_edge_is_equally_likely(case: str) -> None:
    """The nearly complete graph leaves three pairs of 2,450: rejection does not end, the rank decides."""
    graphs = {
        "sparse": Graph([0, 3, 3, 5], [1, 2, 2, 5], 6),
        "dense": Graph(*random_edges(12, 400, 3)[:2], 12),
        "nearly complete": complete(50, [(3, 7), (7, 3), (49, 0)]),
    }
    graph = graphs[case]
    free = sorted(free_pairs(graph))
    drawn = NegativeSampler(graph).pairs(torch.arange(20_000))
    place = {pair: i for i, pair in enumerate(free)}
    counts = np.bincount([place[pair] for pair in zip(*drawn.tolist(), strict=True)], minlength=len(free))
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("nodes", "missing"), [(8, []), (60, [(5, 2), (5, 40), (5, 59)])])
def test_tails_are_equally_likely(nodes: int, missing: list[tuple[int, int]]) -> None:
    graph = complete(nodes, missing) if missing else Graph([5, 5], [0, 3], nodes)
    able = sorted(v for u, v in free_pairs(graph) if u == 5)
    drawn = NegativeSampler(graph).tails(torch.full((10_000,), 5), 2).flatten().numpy()
    counts = np.bincount(np.searchsorted(able, drawn), minlength=len(able))
    assert stats.chisquare(counts).pvalue > 1e-4


def test_draws_follow_from_their_keys_and_not_from_threads(threads_restored: None) -> None:
    edges = random_edges(3000, 60_000, 1)
    sampler = NegativeSampler(Graph(edges.src, edges.dst, 3000))
    keys = torch.randperm(5000)
    runs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        runs.append((sampler.pairs(keys, 3, seed=4, epoch=1), sampler.tails(keys % 3000, 3, keys=keys, seed=4)))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
    some = sampler.pairs(keys[100:200], 3, seed=4, epoch=1)
    assert torch.equal(some, runs[0][0][:, 300:600])
    for key in ({"seed": 5, "epoch": 1}, {"seed": 4, "epoch": 2}, {"seed": 4, "epoch": 1, "stage": 1}):
        assert not torch.equal(sampler.pairs(keys, 3, **key), runs[0][0])


def test_a_relation_has_negatives_of_its_own() -> None:
    likes, made = ("user", "likes", "film"), ("film", "by", "user")
    graph = Graph.hetero({likes: ([0, 0, 1], [0, 1, 1]), made: ([0, 1], [2, 2])}, {"user": 3, "film": 2})
    sampler = NegativeSampler(graph, likes)
    expected = {(1, 3), (2, 3), (2, 4)}  # flat ids: users 0 to 2, films 3 and 4
    assert set(zip(*sampler.pairs(torch.arange(200)).tolist(), strict=True)) == expected
    assert set(sampler.tails([1] * 20).flatten().tolist()) == {3}


def test_further_edges_are_known_too() -> None:
    sampler = NegativeSampler(Graph([0], [1], 3)).with_edges(torch.tensor([1, 2]), torch.tensor([2, 0]))
    assert set(zip(*sampler.pairs(torch.arange(100)).tolist(), strict=True)) == {(0, 2), (1, 0), (2, 1)}


def test_bad_input_is_one_line() -> None:
    sampler = NegativeSampler(Graph([0], [1], 3))
    for call, error, text in (
        (lambda: sampler.tails([0, 3]), IndexRangeError, "expected source ids in [0, 3), got 3 at position 1"),
        (lambda: sampler.mask([0], [-1]), IndexRangeError, "expected destination ids in [0, 3), got -1 at position 0"),
        (lambda: sampler.pairs([0], 0), ConfigError, "expected negatives per edge as an integer >= 1, got 0"),
        (lambda: sampler.tails([0, 1], keys=[1]), ShapeError, "expected one key per source, 2, got 1"),
        (lambda: sampler.has_edges([0], [1, 2]), ShapeError, "expected src and dst of one length, got 1 and 2"),
        (lambda: NegativeSampler(Graph([], [], 0)).pairs([0]), GraphError, "expected nodes to draw pairs from"),
        (lambda: NegativeSampler(Graph([0], [0], (1, 2))), GraphError, "expected a graph over one set of nodes"),
    ):
        with pytest.raises(error) as failure:
            call()
        assert text in str(failure.value) and "\n" not in str(failure.value)
    assert NegativeSampler(Graph([], [], 0)).pairs([]).shape == (2, 0)
