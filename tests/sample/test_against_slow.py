"""Ten thousand random calls of every sampler, each compared bit for bit with the slow ones of ``slow.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sample import slow
from zoo import SQUARE, Case, random_edges

from graphweft.graph.graph import Graph
from graphweft.sample import pieces, sampler
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.primitives import collective_sample, individual_sample
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
from graphweft.sample.sampler import Sample
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.walk import WalkSampler, random_walk

Trial = tuple[Graph, np.random.Generator, dict[str, int]]


def trials(count: int, first: int) -> Any:
    """Random graphs, the zoo among them, each with a source of choices and a key."""
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        if number % 10 == 0:
            case: Case = SQUARE[number // 10 % len(SQUARE)]
            graph = case.graph()
        else:
            nodes = int(rng.integers(1, 30))
            edges = random_edges(nodes, int(rng.integers(0, 120)), number)
            graph = Graph(edges.src, edges.dst, nodes)
        key = {"seed": int(rng.integers(2**62)), "epoch": int(rng.integers(4)), "stage": int(rng.integers(3))}
        yield graph, rng, key


def seeds_of(graph: Graph, rng: np.random.Generator) -> list[int]:
    return rng.permutation(graph.num_nodes)[: rng.integers(0, min(graph.num_nodes, 12) + 1)].tolist()


def weights_of(graph: Graph, rng: np.random.Generator) -> list[float] | None:
    """None, or float32 weights by edge id, some of them 0."""
    if rng.integers(2):
        return None
    values = rng.random(graph.num_edges).astype(np.float32) * (rng.random(graph.num_edges) < 0.8)
    return [float(v) for v in values]


def fanouts_of(rng: np.random.Generator, most: int, replace: bool) -> list[int]:
    least = 1 if replace else 0
    return [int(k) or -1 for k in rng.integers(least, most, rng.integers(1, 4))]


def key_of(key: dict[str, int]) -> slow.Key:
    return key["seed"], key["epoch"], key["stage"]


def as_tensor(weights: list[float] | None) -> torch.Tensor | None:
    return None if weights is None else torch.tensor(weights, dtype=torch.float32)


def rows_of(sample: Sample) -> list[list[tuple[int, int]]]:
    rows: list[list[tuple[int, int]]] = [[] for _ in range(sample.num_nodes)]
    for s, d, e in zip(*sample.edge_index.tolist(), sample.e_id.tolist(), strict=True):
        rows[d].append((s, e))
    return rows


def check_blocks(sample: Sample, nodes: list[int], layers: list[slow.Layer]) -> None:
    assert sample.n_id.tolist() == nodes
    for block, layer in zip(reversed(sample.blocks), layers, strict=True):
        assert (block.num_dst, block.num_src) == (len(layer.rows), layer.num_src)
        s, d = (ends.tolist() for ends in block.edges())
        found: list[list[tuple[int, int]]] = [[] for _ in layer.rows]
        for source, row, edge in zip(s, d, block.e_id.tolist(), strict=True):
            found[row].append((source, edge))
        assert found == layer.rows
        if layer.norms is not None:
            flat = [norm for row in layer.norms for norm in row]
            assert block.edge_norm is not None
            assert np.allclose(block.edge_norm.numpy(), flat, rtol=1e-6)


def check_induced(graph: Graph, sample: Sample, nodes: list[int]) -> None:
    assert sample.n_id.tolist() == nodes
    assert rows_of(sample) == slow.induced(slow.in_edges(graph), nodes)


def distinct(nodes: list[int], wanted: list[bool] | None = None) -> list[int]:
    once = list(dict.fromkeys(node for node in nodes if node >= 0))
    if wanted is None:
        return once
    return [v for v in once if wanted[v]] + [v for v in once if not wanted[v]]


def neighbor_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    replace = bool(rng.integers(2))
    fanouts, seeds, weights = fanouts_of(rng, 7, replace), seeds_of(graph, rng), weights_of(graph, rng)
    sample = NeighborSampler(graph, fanouts, replace, as_tensor(weights)).sample(seeds, **key)
    check_blocks(sample, *slow.neighbor(graph, seeds, fanouts, replace, weights, key_of(key)))


def individual_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    replace, hop = bool(rng.integers(2)), int(rng.integers(3))
    k = int(rng.integers(0 if replace else -1, 7))
    weights = weights_of(graph, rng)
    drawn = individual_sample(graph, k, as_tensor(weights), replace=replace, hop=hop, **key)
    into, ids, norms = slow.in_edges(graph), [], []
    for node in range(graph.num_nodes):
        here = None if weights is None else [weights[e] for _, e in into[node]]
        offsets, factors = slow.row_draws(len(into[node]), k, replace, here, slow.key_of(*key_of(key)), hop, node)
        ids += [into[node][offset][1] for offset in offsets]
        norms += factors
    assert drawn.e_id.tolist() == ids
    assert np.allclose(drawn.edge_norm.numpy(), norms, rtol=1e-5)
    src, dst = graph.edges()
    assert torch.equal(drawn.graph.edges()[0], src[drawn.e_id])
    assert torch.equal(drawn.graph.edges()[1], dst[drawn.e_id])


def collective_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    replace, hop = bool(rng.integers(2)), int(rng.integers(3))
    k = int(rng.integers(0 if replace else -1, 9))
    weights = (rng.random(graph.num_nodes) * (rng.random(graph.num_nodes) < 0.8)).tolist() if rng.integers(2) else None
    drawn = collective_sample(graph, k, weights, replace=replace, hop=hop, **key)
    into = slow.in_edges(graph)
    ids = sorted({s for row in into for s, _ in row})
    here = None if weights is None else [weights[i] for i in ids]
    chosen = {ids[p]: norm for p, norm in slow.node_draws(ids, here, k, replace, key_of(key), hop).items()}
    assert drawn.e_id.tolist() == [e for row in into for s, e in row if s in chosen]
    assert np.allclose(drawn.edge_norm.numpy(), [chosen[s] for row in into for s, _ in row if s in chosen], rtol=1e-6)


def layer_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    replace = bool(rng.integers(2))
    sizes, seeds = fanouts_of(rng, 9, replace), seeds_of(graph, rng)
    given = rng.random(graph.num_nodes).tolist()
    importance: Any = ["ladies", "fastgcn", "uniform", given][rng.integers(4)]
    sample = LayerSampler(graph, sizes, importance, replace).sample(seeds, **key)
    nodes, layers = slow.layer_wise(graph, seeds, sizes, importance, replace, key_of(key))
    check_blocks(sample, nodes, layers)
    union = {(row, *entry) for layer in layers for row, entries in enumerate(layer.rows) for entry in entries}
    assert {(d, *entry) for d, row in enumerate(rows_of(sample)) for entry in row} == union
    assert sample.num_edges == len(union)


def walk_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    length, weights = int(rng.integers(0, 6)), weights_of(graph, rng)
    p, q = ([0.25, 1.0, 4.0][i] for i in rng.integers(0, 3, 2))
    restart = [0.0, 0.3][rng.integers(2)]
    options: Any = {"p": p, "q": q, "restart": restart}
    starts = rng.integers(0, graph.num_nodes, 4).tolist() if graph.num_nodes else []
    found = random_walk(graph, starts, length, weight=as_tensor(weights), **options, **key)
    onto = slow.out_edges(graph)
    walks = [slow.walk(onto, v, i, length, p, q, restart, weights, key_of(key)) for i, v in enumerate(starts)]
    assert found.tolist() == walks


def walk_sampler_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    length, times, seeds = int(rng.integers(0, 4)), int(rng.integers(1, 4)), seeds_of(graph, rng)
    q = [1.0, 2.0][rng.integers(2)]
    sample = WalkSampler(graph, length, times, q=q).sample(seeds, **key)
    into = slow.in_edges(graph)
    nodes = list(seeds)
    for v in seeds:
        for number in range(times):
            nodes += slow.walk(into, v, v * times + number, length, 1.0, q, 0.0, None, key_of(key))
    check_induced(graph, sample, distinct(nodes))
    assert sample.batch_size == len(seeds)


def shadow_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    replace = bool(rng.integers(2))
    fanouts, seeds, weights = fanouts_of(rng, 5, replace), seeds_of(graph, rng), weights_of(graph, rng)
    sample = ShadowSampler(graph, fanouts, replace, as_tensor(weights)).sample(seeds, **key)
    nodes, owners, rows = slow.shadow(graph, seeds, fanouts, replace, weights, key_of(key))
    assert sample.n_id.tolist() == nodes
    assert sample.owner is not None and sample.owner.tolist() == owners
    assert rows_of(sample) == rows


def saint_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    kind = int(rng.integers(3))
    if graph.num_nodes == 0 or (kind == 1 and graph.num_edges == 0):
        return
    numbers = rng.permutation(50)[: rng.integers(1, 8)].tolist()
    wanted = (rng.random(graph.num_nodes) < 0.5).tolist()
    place = (key["seed"], key["epoch"], 0)
    into = slow.in_edges(graph)
    made: Any
    if kind == 0:
        given = rng.random(graph.num_nodes).tolist()
        made = SaintNodeSampler(graph, given)
        nodes = slow.items(numbers, given, 0, place)
    elif kind == 1:
        given = rng.random(graph.num_edges).tolist()
        made = SaintEdgeSampler(graph, given)
        src, dst = (ends.tolist() for ends in graph.edges())
        nodes = [end for e in slow.items(numbers, given, 0, place) for end in (src[e], dst[e])]
    else:
        made = SaintWalkSampler(graph, 2, coverage=1)
        roots = slow.items(numbers, None, graph.num_nodes, place)
        nodes = []
        for root, item in zip(roots, numbers, strict=True):
            nodes += slow.walk(into, root, item, 2, 1.0, 1.0, 0.0, None, place)
    sample = made.draw(torch.tensor(numbers), torch.tensor(wanted), seed=key["seed"], epoch=key["epoch"])
    check_induced(graph, sample, distinct(nodes, wanted))
    assert sample.batch_size == sum(wanted[v] for v in set(sample.n_id.tolist()))


def cluster_trial(graph: Graph, rng: np.random.Generator, key: dict[str, int]) -> None:
    if graph.num_nodes == 0:
        return
    part = rng.integers(0, rng.integers(1, 8), graph.num_nodes)
    wanted = (rng.random(graph.num_nodes) < 0.5).tolist()
    made = ClusterSampler(graph, part)
    items = rng.permutation(made.num_items)[: rng.integers(0, made.num_items + 1)].tolist()
    sample = made.draw(torch.tensor(items, dtype=torch.int64), torch.tensor(wanted), **{"seed": key["seed"]})
    check_induced(graph, sample, distinct([v for i in items for v in np.nonzero(part == i)[0].tolist()], wanted))


TRIALS = {
    "neighbor": neighbor_trial,
    "individual": individual_trial,
    "collective": collective_trial,
    "layer": layer_trial,
    "walk": walk_trial,
    "walk_sampler": walk_sampler_trial,
    "shadow": shadow_trial,
    "saint": saint_trial,
    "cluster": cluster_trial,
}


@pytest.mark.parametrize("name", TRIALS)
def test_some_random_calls_equal_the_slow_samplers(name: str) -> None:
    for trial in trials(200, 0):
        TRIALS[name](*trial)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_ten_thousand_random_calls_equal_the_slow_samplers(name: str) -> None:
    for trial in trials(10_000, 10_000):
        TRIALS[name](*trial)


@pytest.mark.parametrize("name", TRIALS)
def test_numbers_in_a_hash_table_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces, sampler):
        monkeypatch.setattr(module, "DENSE_MOST", 0)
    monkeypatch.setattr("graphweft.sample.shadow.DENSE_MOST", 0)
    monkeypatch.setattr("graphweft.sample.neighbor._DENSE_MOST", 0)
    for trial in trials(60, 500):
        TRIALS[name](*trial)


def test_long_rows_are_searched_by_bisection_to_the_same_end() -> None:
    """A hub with far more in-edges than a group has nodes, columns ascending and not."""
    count = 3000
    for order in (np.arange(1, count), np.random.default_rng(0).permutation(np.arange(1, count))):
        graph = Graph(np.concatenate([order, [0, 0, 5]]), np.concatenate([np.zeros(count - 1, int), [3, 5, 3]]), count)
        sample = ShadowSampler(graph, [3, 2]).sample([0, 3])
        nodes, _, rows = slow.shadow(graph, [0, 3], [3, 2], False, None, (0, 0, 0))
        assert (sample.n_id.tolist(), rows_of(sample)) == (nodes, rows)
