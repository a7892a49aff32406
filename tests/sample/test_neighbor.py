"""Neighbour sampling against the definition, exact probabilities, and itself on other numbers of threads."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample.reference import check_sample, same
from scipy import stats
from zoo import SQUARE, Case, random_edges

from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.sample import neighbor
from graphweft.sample.neighbor import NeighborSampler

FANOUTS = [(1,), (3,), (-1,), (3, 2), (2, 3), (-1, 2), (2, -1), (5, 3, 1), (1, 4, 2), (3, 3), (70, 100), (-1, -1, -1)]


@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_a_batch_is_what_it_must_be_on_the_zoo(case: Case, fanouts: tuple[int, ...]) -> None:
    graph = case.graph()
    rng = np.random.default_rng(0)
    for replace, epoch in itertools.product((False,) if -1 in fanouts else (False, True), range(2)):
        seeds = rng.permutation(case.num_dst)[: rng.integers(0, case.num_dst + 1)].tolist()
        sample = NeighborSampler(graph, fanouts, replace).sample(seeds, epoch=epoch)
        check_sample(graph, seeds, fanouts, sample, replace)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_random_calls_satisfy_the_definition(data: Any) -> None:
    nodes = data.draw(st.integers(1, 60))
    edges = random_edges(nodes, data.draw(st.integers(0, 300)), data.draw(st.integers(0, 10**6)))
    graph = Graph(edges.src, edges.dst, nodes)
    fanouts = data.draw(st.lists(st.one_of(st.just(-1), st.integers(1, 12)), min_size=1, max_size=4))
    seeds = data.draw(st.lists(st.integers(0, nodes - 1), unique=True, max_size=nodes))
    replace = data.draw(st.booleans()) and -1 not in fanouts
    weighted = data.draw(st.booleans())
    weight = None
    if weighted:
        rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
        weight = rng.random(graph.num_edges) * (rng.random(graph.num_edges) < 0.8)
    sampler = NeighborSampler(graph, fanouts, replace, None if weight is None else torch.from_numpy(weight))
    key = {"seed": data.draw(st.integers(0, 2**63 - 1)), "epoch": data.draw(st.integers(0, 5)), "stage": 1}
    sample = sampler.sample(seeds, **key)
    check_sample(graph, seeds, fanouts, sample, replace, weight)
    assert same(sample, sampler.sample(seeds, **key))


@pytest.mark.slow
def test_thousands_of_random_calls_satisfy_the_definition() -> None:
    rng = np.random.default_rng(7)
    for trial in range(4000):
        nodes = int(rng.integers(1, 30))
        edges = random_edges(nodes, int(rng.integers(0, 120)), trial)
        graph = Graph(edges.src, edges.dst, nodes)
        fanouts = [int(k) if k else -1 for k in rng.integers(0, 6, rng.integers(1, 4))]
        seeds = rng.permutation(nodes)[: rng.integers(0, nodes + 1)].tolist()
        replace = bool(rng.integers(2)) and -1 not in fanouts
        weight = rng.random(graph.num_edges) if rng.integers(2) else None
        sampler = NeighborSampler(graph, fanouts, replace, None if weight is None else torch.from_numpy(weight))
        check_sample(graph, seeds, fanouts, sampler.sample(seeds, seed=trial), replace, weight)


def _star(degree: int) -> Graph:
    return Graph(torch.arange(1, degree + 1), torch.zeros(degree, dtype=torch.int64), degree + 1)


def _draws(sampler: NeighborSampler, rounds: int, block: int = -1) -> np.ndarray:
    """Edge ids drawn for node 0, one row an epoch."""
    return np.array([sampler.sample([0], epoch=e).blocks[block].e_id.numpy() for e in range(rounds)])


def _subset_index(rows: np.ndarray, degree: int, k: int) -> np.ndarray:
    subsets = {subset: i for i, subset in enumerate(itertools.combinations(range(degree), k))}
    return np.bincount([subsets[tuple(sorted(row))] for row in rows.tolist()], minlength=len(subsets))


@pytest.mark.parametrize(("degree", "k"), [(5, 1), (5, 2), (6, 3), (7, 6)])
def test_every_subset_is_equally_likely(degree: int, k: int) -> None:
    counts = _subset_index(_draws(NeighborSampler(_star(degree), [k]), 20_000), degree, k)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("degree", "first", "then"), [(6, 4, 2), (5, -1, 2), (5, 3, 3), (90, 80, 1)])
def test_what_a_later_hop_reads_is_uniform_too(degree: int, first: int, then: int) -> None:
    rows = _draws(NeighborSampler(_star(degree), [first, then]), 20_000, block=0)
    assert stats.chisquare(_subset_index(rows, degree, then)).pvalue > 1e-4


@pytest.mark.parametrize(("degree", "k"), [(100_000, 3), (100_000, 100), (1000, 300), (300, 65), (70_000, 65_000)])
def test_inclusion_is_uniform_on_long_rows(degree: int, k: int) -> None:
    rows = _draws(NeighborSampler(_star(degree), [k]), max(20, 200_000 // k))
    assert all(len(set(row)) == k for row in rows.tolist())
    bins = np.histogram(rows, bins=20, range=(0, degree))[0]
    expected = rows.size / 20
    variance = expected * (1 - k / degree)  # draws without replacement spread less
    assert stats.chi2.sf(((bins - expected) ** 2).sum() / max(variance, 1e-9), 19) > 1e-4


def test_with_replacement_every_sequence_is_equally_likely() -> None:
    rows = _draws(NeighborSampler(_star(4), [3], replace=True), 20_000)
    counts = np.bincount(rows @ [16, 4, 1], minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-4


WEIGHT = torch.tensor([1.0, 0.0, 2.0, 4.0, 0.5])


def test_weighted_with_replacement_follows_the_weights() -> None:
    rows = _draws(NeighborSampler(_star(5), [2], True, WEIGHT), 20_000)
    p = (WEIGHT.double() / WEIGHT.double().sum()).numpy()
    counts = np.bincount(rows @ [5, 1], minlength=25)
    expected = np.outer(p, p).ravel()
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    assert stats.chisquare(counts[kept], expected[kept] * len(rows)).pvalue > 1e-4


def test_weighted_without_replacement_is_one_draw_after_the_other() -> None:
    rows = _draws(NeighborSampler(_star(5), [2], False, WEIGHT), 30_000)
    weight = WEIGHT.double().numpy()
    expected = {}
    for a, b in itertools.combinations([0, 2, 3, 4], 2):
        total = weight.sum()
        expected[a, b] = weight[a] / total * weight[b] / (total - weight[a])
        expected[a, b] += weight[b] / total * weight[a] / (total - weight[b])
    counts = {pair: 0 for pair in expected}
    for row in rows.tolist():
        counts[tuple(sorted(row))] += 1
    observed = [counts[pair] for pair in expected]
    assert stats.chisquare(observed, [p * len(rows) for p in expected.values()]).pvalue > 1e-4


def test_weights_belong_to_edge_ids() -> None:
    graph = Graph([1, 2, 3, 4], [5, 0, 5, 0], 6)  # not in order of destination
    sampler = NeighborSampler(graph, [1], weight=torch.tensor([1.0, 0.0, 0.0, 1.0]))
    for epoch in range(20):
        sample = sampler.sample([5, 0], epoch=epoch)
        assert sample.e_id.tolist() == [0, 3]


@pytest.fixture(scope="module")
def large() -> Graph:
    edges = random_edges(30_000, 1_500_000, seed=3)
    return Graph(edges.src, edges.dst, edges.num_nodes)


@pytest.mark.parametrize("fanouts", [(15, 10, 5), (5, 10), (-1, 3), (70,)], ids=str)
def test_the_same_bits_for_any_number_of_threads_and_either_numbering(
    large: Graph, fanouts: tuple[int, ...], threads_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = torch.randperm(large.num_nodes)[:3000]
    samples = []
    for threads, dense in itertools.product((1, 2, 4), (True, False)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(neighbor, "_DENSE_MOST", 1 << 30 if dense else 0)
        samples.append(NeighborSampler(large, fanouts).sample(seeds, seed=5, epoch=2))
    assert samples[0].num_edges > 100_000  # enough for the parallel numbering
    assert all(same(samples[0], other) for other in samples[1:])


def test_a_nodes_sample_does_not_depend_on_its_batch(large: Graph) -> None:
    sampler = NeighborSampler(large, [5])
    alone = sampler.sample([17]).e_id
    among = sampler.sample([3, 17, 99])
    rows = among.edge_index[1] == 1
    assert torch.equal(among.e_id[rows], alone)


def test_keys_change_the_draws(large: Graph) -> None:
    sampler = NeighborSampler(large, [5, 5])
    base = sampler.sample(range(50))
    for key in ({"seed": 1}, {"epoch": 1}, {"stage": 1}):
        assert not torch.equal(sampler.sample(range(50), **key).n_id, base.n_id)


def test_threads_may_share_a_sampler(large: Graph) -> None:
    sampler = NeighborSampler(large, (10, 5))
    batches = torch.randperm(large.num_nodes)[:8000].view(16, 500)
    alone = [sampler.sample(batch) for batch in batches]
    together: dict[int, Any] = {}

    def work(start: int) -> None:
        for i in range(start, 16, 4):
            together[i] = sampler.sample(batches[i])

    team = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert all(same(alone[i], together[i]) for i in range(16))


@pytest.mark.parametrize(
    ("seeds", "error", "text"),
    [
        ([0, 3], IndexRangeError, "expected seed ids in [0, 3), got 3 at position 1"),
        ([-1], IndexRangeError, "got -1 at position 0"),
        ([2, 0, 2], ConfigError, "expected distinct seeds, got 2 at positions 0 and 2"),
        (torch.tensor([True]), ShapeError, "expected a mask of 3"),
    ],
)
def test_bad_seeds_are_refused_with_one_line(seeds: Any, error: type[Exception], text: str) -> None:
    sampler = NeighborSampler(Graph([0, 1], [1, 2], 3), [2])
    with pytest.raises(error) as failure:
        sampler.sample(seeds)
    assert text in str(failure.value) and "\n" not in str(failure.value)
    assert sampler.sample([2]).n_id.tolist() == [2, 1]  # nothing is left behind


@pytest.mark.parametrize("fanouts", [[], [0], [3, -2], [1.5], [True], 5, "15", [2**31]], ids=str)
def test_bad_fanouts_are_refused(fanouts: Any) -> None:
    with pytest.raises(ConfigError, match="NeighborSampler: expected fanouts"):
        NeighborSampler(Graph([0], [1]), fanouts)


def test_other_bad_arguments_are_refused() -> None:
    graph = Graph([0, 1], [1, 0])
    with pytest.raises(GraphError, match="one set of nodes"):
        NeighborSampler(Graph([0], [1], (2, 3)), [1])
    with pytest.raises(ShapeError, match="expected 2 rows, one per edge"):
        NeighborSampler(graph, [1], weight=torch.ones(3))
    with pytest.raises(ConfigError, match="when drawing with replacement"):
        NeighborSampler(graph, [3, -1], replace=True)
    with pytest.raises(ConfigError, match=r"got -1\.0 at position 1"):
        NeighborSampler(graph, [1], weight=torch.tensor([1.0, -1.0]))
    with pytest.raises(ConfigError, match="got nan at position 0"):
        NeighborSampler(graph, [1], weight=torch.tensor([float("nan"), 1.0]))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("fanouts", [[3], [4, 2], [2, 4], [-1, 3], [5, 3, 2]])
def test_an_open_hop_has_the_edges_of_the_numbered_one(fanouts: list[int], wide: bool) -> None:
    ends = random_edges(300, 4000, seed=6)
    graph = Graph(ends.src, ends.dst, 300)
    if wide:
        csc = graph.csc
        graph = Graph.from_adjacency(Adjacency(csc.indptr, csc.indices.long(), csc.edge_ids, 300))
    sampler, seeds = NeighborSampler(graph, fanouts), torch.randperm(300)[:40]
    key = {"seed": 1, "epoch": 2, "stage": 3}
    numbered, opened = sampler.sample(seeds, **key), sampler.sample_open(seeds, **key)
    first, block = numbered.blocks[0], opened.blocks[0]
    assert torch.equal(block.csc.indptr, first.csc.indptr)
    assert torch.equal(block.csc.indices.long(), numbered.n_id[first.csc.indices.long()])
    assert torch.equal(opened.n_id, numbered.n_id[: first.num_dst])
    for inner, other in zip(opened.blocks[1:], numbered.blocks[1:], strict=True):
        assert torch.equal(inner.csc.indices, other.csc.indices) and torch.equal(inner.csc.indptr, other.csc.indptr)
    for change in ("without_self_loops", "with_one_loop"):
        mine, theirs = getattr(block, change)(), getattr(first, change)()
        assert torch.equal(mine.csc.indptr, theirs.csc.indptr)
        assert torch.equal(mine.csc.indices.long(), numbered.n_id[theirs.csc.indices.long()])
