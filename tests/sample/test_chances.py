"""Who is drawn how often, against exact probabilities; and sums whose expectation is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from zoo import random_edges

from graphweft.graph.graph import Graph
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.primitives import collective_sample, individual_sample
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintSampler, SaintWalkSampler
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.walk import random_walk

LEAST = 1e-4  # of a p-value: draws are keyed, so a test that passes once passes always
WEIGHTS = [[1.0, 2.0, 0.0, 4.0, 0.5], [1.0, 1.0, 1.0, 1.0, 1.0], [100.0, 1.0, 1.0, 1.0, 1.0], [1e-3, 2e-3, 5e-4, 0, 1]]


def successive(weights: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """Chance of every set of k when one after the other is drawn by the weights that are left: all orders summed."""
    able = [i for i, w in enumerate(weights) if w > 0]
    chances: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(able, min(k, len(able))):
        left, chance = sum(weights), 1.0
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        chances[tuple(sorted(order))] = chances.get(tuple(sorted(order)), 0.0) + chance
    return chances


def check_counts(seen: Iterable[tuple[int, ...]], chances: dict[Any, float]) -> None:
    """Chi-square over outcomes; those expected fewer than five times are taken together."""
    counts = dict.fromkeys(chances, 0)
    for outcome in seen:
        counts[outcome] += 1
    total = sum(counts.values())
    often = [o for o in chances if chances[o] * total >= 5]
    observed, expected = [counts[o] for o in often], [chances[o] * total for o in often]
    if total - sum(expected) > 1e-6 * total:
        observed.append(total - sum(observed))
        expected.append(total - sum(expected))
    if len(expected) > 1:
        assert stats.chisquare(observed, np.array(expected) * (sum(observed) / sum(expected))).pvalue > LEAST


def copies(degree: int, rows: int) -> Graph:
    """Rows that all have the in-edges 0 .. degree - 1: one call draws for each, independently."""
    return Graph.from_csc(torch.arange(rows + 1) * degree, torch.arange(degree).repeat(rows), num_src=degree)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_rows_draw_by_weight_one_after_the_other(weights: list[float], k: int) -> None:
    rows = 30_000
    drawn = individual_sample(copies(5, rows), k, torch.tensor(weights).repeat(rows), seed=k)
    picks = drawn.graph.edges()[0].view(rows, -1).tolist()
    check_counts((tuple(row) for row in picks), successive(weights, k))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_rows_draw_uniformly(k: int) -> None:
    rows = 30_000
    drawn = individual_sample(copies(6, rows), k)
    subsets = {s: 1 / len(list(itertools.combinations(range(6), k))) for s in itertools.combinations(range(6), k)}
    check_counts((tuple(row) for row in drawn.graph.edges()[0].view(rows, -1).tolist()), subsets)


@pytest.mark.parametrize("weights", [None, WEIGHTS[0]], ids=str)
def test_rows_draw_with_replacement(weights: list[float] | None) -> None:
    rows, given = 30_000, weights or [1.0] * 5
    probs = None if weights is None else torch.tensor(weights).repeat(rows)
    drawn = individual_sample(copies(5, rows), 2, probs, replace=True)
    p = np.array(given) / sum(given)
    chances = {(i, j): p[i] * p[j] * (1 if i == j else 2) for i in range(5) for j in range(i, 5) if p[i] * p[j] > 0}
    check_counts((tuple(row) for row in drawn.graph.edges()[0].view(rows, -1).tolist()), chances)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("weights", [None, *WEIGHTS[:3]], ids=str)
def test_norms_make_sums_over_rows_unbiased(weights: list[float] | None, k: int, replace: bool) -> None:
    rows, values = 40_000, torch.tensor([3.0, -1.0, 7.0, 2.0, 10.0], dtype=torch.float64)
    probs = None if weights is None else torch.tensor(weights).repeat(rows)
    drawn = individual_sample(copies(5, rows), k, probs, replace=replace, seed=7)
    src, dst = drawn.graph.edges()
    sums = torch.zeros(rows, dtype=torch.float64).index_add_(0, dst, drawn.edge_norm.double() * values[src])
    able = values if weights is None else values[torch.tensor(weights) > 0]
    error = (sums.mean() - able.sum()) / (sums.std() / rows**0.5)
    assert abs(float(error)) < 4 or float(sums.std()) < 1e-5


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 4.0, 1.0, 0.2]], ids=str)
def test_layers_draw_by_weight(weights: list[float] | None, replace: bool) -> None:
    graph = copies(6, 2)
    calls = [collective_sample(graph, 3, weights, replace=replace, epoch=e) for e in range(6000)]
    given = weights or [1.0] * 6
    if replace:
        p = np.array(given) / sum(given)
        once = {}
        for order in itertools.product(range(6), repeat=3):
            chosen = tuple(sorted(set(order)))
            once[chosen] = once.get(chosen, 0.0) + float(np.prod(p[list(order)]))
    else:
        once = successive(given, 3)
    check_counts((tuple(sorted(set(c.graph.edges()[0].tolist()))) for c in calls), once)
    values = torch.tensor([3.0, -1.0, 7.0, 2.0, 10.0, 1.0], dtype=torch.float64)
    sums = torch.stack([(c.edge_norm.double() * values[c.graph.edges()[0]]).sum() / 2 for c in calls])
    assert abs(float((sums.mean() - values.sum()) / (sums.std() / len(calls) ** 0.5))) < 4


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "importance", ["ladies", "fastgcn", "uniform", [1.0, 2.0, 0.5, 4.0, 1.0, 0.2, 1.0, 3.0]], ids=str
)
def test_layer_wise_sums_are_unbiased(importance: Any, replace: bool) -> None:
    rng = np.random.default_rng(1)
    graph = Graph(rng.integers(0, 8, 30), rng.integers(0, 8, 30), 8)
    src, dst = graph.edges()
    values = torch.from_numpy(rng.random(8))
    exact = torch.zeros(8, dtype=torch.float64).index_add_(0, dst, values[src])[[2, 5]]
    sampler = LayerSampler(graph, [3], importance, replace)
    found = []
    for epoch in range(6000):
        block = sampler.sample([2, 5], epoch=epoch).blocks[0]
        s, d = block.edges()
        assert block.edge_norm is not None
        found.append(
            torch.zeros(2, dtype=torch.float64).index_add_(0, d, block.edge_norm.double() * values[block.src_ids[s]])
        )
    sums = torch.stack(found)
    error = (sums.mean(0) - exact) / (sums.std(0) / len(found) ** 0.5)
    assert float(error.abs().max()) < 4.5


GRAPH = Graph([0, 1, 2, 3, 0, 2, 1, 4, 4], [1, 0, 1, 2, 2, 0, 3, 4, 0], 5)


def exact_draws(single: list[tuple[tuple[int, ...], float]], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Chance that a node, and that both ends of an edge, are among n draws: every sequence of draws looked at."""
    src, dst = (ends.tolist() for ends in GRAPH.edges())
    node, edge = np.zeros(GRAPH.num_nodes), np.zeros(GRAPH.num_edges)
    for sequence in itertools.product(single, repeat=draws):
        chance = float(np.prod([p for _, p in sequence]))
        inside = {v for nodes, _ in sequence for v in nodes}
        for v in inside:
            node[v] += chance
        for e, (s, d) in enumerate(zip(src, dst, strict=True)):
            edge[e] += chance * (s in inside and d in inside)
    return node, edge


def check_norms(sampler: SaintSampler, node: np.ndarray, edge: np.ndarray, draws: int, rtol: float = 1e-5) -> None:
    dst = GRAPH.edges()[1].numpy()
    wanted = torch.tensor([True, False, True, True, True])
    for epoch in range(60):
        sample = sampler.draw(torch.arange(draws) + epoch * draws, wanted, epoch=epoch)
        assert sample.node_norm is not None and sample.edge_norm is not None
        n_id, e_id = sample.n_id.numpy(), sample.e_id.numpy()
        assert np.allclose(sample.node_norm.numpy(), 1 / (4 * node[n_id]), rtol=rtol)
        assert np.allclose(sample.edge_norm.numpy(), node[dst[e_id]] / edge[e_id], rtol=rtol)


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_factors_of_node_draws_are_exact(draws: int) -> None:
    weights = [1.0, 2.0, 0.5, 4.0, 1.0]
    single = [((v,), w / sum(weights)) for v, w in enumerate(weights)]
    check_norms(SaintNodeSampler(GRAPH, weights), *exact_draws(single, draws), draws)
    src, dst = (ends.tolist() for ends in GRAPH.edges())
    degree = np.bincount(dst, minlength=5)
    norms = np.array([sum(1.0 / degree[d] ** 2 for s, d in zip(src, dst, strict=True) if s == v) for v in range(5)])
    single = [((v,), p) for v, p in enumerate(norms / norms.sum())]
    check_norms(SaintNodeSampler(GRAPH), *exact_draws(single, draws), draws)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_factors_of_edge_draws_are_exact(draws: int) -> None:
    src, dst = (ends.tolist() for ends in GRAPH.edges())
    out, into = np.bincount(src, minlength=5), np.bincount(dst, minlength=5)
    weight = [1 / out[s] + 1 / into[d] for s, d in zip(src, dst, strict=True)]
    single = [((s, d), w / sum(weight)) for s, d, w in zip(src, dst, weight, strict=True)]
    check_norms(SaintEdgeSampler(GRAPH), *exact_draws(single, draws), draws)


@pytest.mark.parametrize("draws", [1, 2])
def test_factors_of_walks_come_near_the_exact_ones(draws: int) -> None:
    src, dst = (ends.tolist() for ends in GRAPH.edges())
    into: list[list[int]] = [[] for _ in range(5)]
    for s, d in zip(src, dst, strict=True):
        into[d].append(s)
    walks = [((v,), 0.2) for v in range(5)]
    for _ in range(2):
        walks = [
            ((*nodes, u), p / len(into[nodes[-1]]))
            for nodes, p in walks
            for u in into[nodes[-1]]
        ]  # fmt: skip
    single: dict[tuple[int, ...], float] = {}
    for nodes, p in walks:
        single[tuple(sorted(set(nodes)))] = single.get(tuple(sorted(set(nodes))), 0.0) + p
    node, edge = exact_draws(list(single.items()), draws)
    check_norms(SaintWalkSampler(GRAPH, 2, coverage=20_000), node, edge, draws, rtol=0.02)


@pytest.mark.parametrize("kind", ["node", "edge"])
def test_saint_losses_and_sums_are_unbiased(kind: str) -> None:
    """The mean over batches of weighted losses is the mean loss; given a node, its weighted sums are the whole sums."""
    sampler = SaintNodeSampler(GRAPH) if kind == "node" else SaintEdgeSampler(GRAPH)
    wanted = torch.tensor([True, True, True, True, False])
    values = torch.tensor([3.0, -1.0, 7.0, 2.0, 5.0], dtype=torch.float64)
    src, dst = GRAPH.edges()
    exact = torch.zeros(5, dtype=torch.float64).index_add_(0, dst, values[src])
    losses, sums = [], [[] for _ in range(5)]
    for epoch in range(6000):
        sample = sampler.draw(torch.arange(4), wanted, epoch=epoch)
        assert sample.node_norm is not None and sample.edge_norm is not None
        here = sample.n_id[: sample.batch_size]
        losses.append(float((sample.node_norm[: sample.batch_size].double() * values[here]).sum()))
        s, d = sample.edge_index
        mine = torch.zeros(sample.num_nodes, dtype=torch.float64)
        mine.index_add_(0, d, sample.edge_norm.double() * values[sample.n_id[s]])
        for v, total in zip(sample.n_id.tolist(), mine.tolist(), strict=True):
            sums[v].append(total)
    assert abs(np.mean(losses) - float(values[:4].mean())) < 4 * np.std(losses) / len(losses) ** 0.5
    for v in range(5):
        assert abs(np.mean(sums[v]) - float(exact[v])) < 4.5 * np.std(sums[v]) / len(sums[v]) ** 0.5 + 1e-6


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.1, 3.0), (5.0, 0.2), (1e6, 1e-6)])
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_have_the_exact_chances_of_node2vec(p: float, q: float, weighted: bool) -> None:
    """From 0 to 1 for certain, then on from 1: back to 0, to a neighbour of 0, or away."""
    src = torch.tensor([0, 1, 1, 1, 1, 2, 3])
    dst = torch.tensor([1, 0, 2, 3, 4, 0, 1])
    graph = Graph(torch.cat([src, torch.tensor([0])]), torch.cat([dst, torch.tensor([2])]), 5)
    weight = torch.tensor([1.0, 2.0, 1.0, 0.5, 3.0, 1.0, 1.0, 1.0]) if weighted else None
    walks = random_walk(graph, torch.zeros(60_000, dtype=torch.int64), 2, p=p, q=q, weight=weight)
    at = walks[walks[:, 1] == 1][:, 2]
    given = np.array([2.0, 1.0, 0.5, 3.0]) if weighted else np.ones(4)
    exact = given * [1 / p, 1.0, 1 / q, 1 / q]  # 0 leads to 2, not to 3 and 4
    chances = {(v,): c for v, c in zip([0, 2, 3, 4], exact / exact.sum(), strict=True)}
    check_counts(((v,) for v in at.tolist()), chances)


def test_factors_of_what_no_counted_walk_met_are_finite() -> None:
    """What a walk gives has at least the chance that it starts there, or starts with that step."""
    ends = random_edges(400, 1200, seed=3)
    graph = Graph(ends.src, ends.dst, 400)
    sampler, wanted = SaintWalkSampler(graph, 1, coverage=1), torch.ones(400, dtype=torch.bool)
    degree = graph.in_degrees().double()
    for item in range(300):
        sample = sampler.draw(torch.tensor([item]), wanted)
        assert bool((sample.node_norm <= 1.0 + 1e-6).all())  # 1 / (N p), p >= 1 / N
        most = sampler._single()[sample.n_id] * 400 * degree[sample.n_id]  # p(v) / p(u, v)
        assert bool((sample.edge_norm <= most[sample.edge_index[1]] * (1 + 1e-6)).all())


def test_restarts_come_as_often_as_asked() -> None:
    ring = Graph(torch.arange(50), (torch.arange(50) + 1) % 50, 50)
    walks = random_walk(ring, torch.zeros(2000, dtype=torch.int64), 20, restart=0.3)
    back = int((walks[:, 1:] == 0).sum())
    assert stats.binomtest(back, 2000 * 20, 0.3).pvalue > LEAST
    assert bool(((walks[:, 1:] == walks[:, :-1] + 1) | (walks[:, 1:] == 0)).all())


def test_a_subgraph_of_its_own_draws_uniformly_and_apart() -> None:
    """Two roots with the same in-neighbours draw independently; each draws every pair equally."""
    graph = Graph(torch.arange(2, 6).repeat(2), torch.tensor([0] * 4 + [1] * 4), 6)
    sampler = ShadowSampler(graph, [2])
    seen = []
    for epoch in range(9000):
        sample = sampler.sample([0, 1], epoch=epoch)
        nodes = sample.n_id[2:].tolist()
        seen.append((*sorted(nodes[:2]), *sorted(nodes[2:])))
    pairs = list(itertools.combinations(range(2, 6), 2))
    check_counts(seen, {(*a, *b): 1 / 36 for a in pairs for b in pairs})
