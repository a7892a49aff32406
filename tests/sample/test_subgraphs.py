"""Subgraph samplers against torch_geometric, on bad input, in pickles, and the same bits for any number of threads."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from zoo import SQUARE, Case, random_edges

from graphweft._errors import ConfigError, GraphError, IndexRangeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.sample.cluster import ClusterSampler
from graphweft.sample.induced import InducedSampler
from graphweft.sample.layer_wise import LayerSampler
from graphweft.sample.neighbor import NeighborSampler
from graphweft.sample.primitives import collective_sample, compact, individual_sample
from graphweft.sample.saint import SaintEdgeSampler, SaintNodeSampler, SaintWalkSampler
from graphweft.sample.sampler import GroupSampler, Sample
from graphweft.sample.shadow import ShadowSampler
from graphweft.sample.walk import WalkSampler, random_walk

pyg = pytest.importorskip("torch_geometric.utils", reason="torch_geometric is the peer of this test")

SEEDED: dict[str, Any] = {
    "layer": lambda g: LayerSampler(g, [30, 20]),
    "fastgcn": lambda g: LayerSampler(g, [30, 20], "fastgcn", replace=True),
    "walk": lambda g: WalkSampler(g, 3, 2, p=0.5, q=2.0, restart=0.1),
    "shadow": lambda g: ShadowSampler(g, [4, 3]),
    "induced": lambda g: InducedSampler(NeighborSampler(g, [4, 3])),
}
GROUPED: dict[str, Any] = {
    "saint-node": SaintNodeSampler,
    "saint-edge": SaintEdgeSampler,
    "saint-walk": lambda g: SaintWalkSampler(g, 2, coverage=2),
    "cluster": lambda g: ClusterSampler(g, torch.arange(g.num_nodes) % 7),
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    edges = random_edges(800, 12_000, seed=3)
    return Graph(edges.src, edges.dst, edges.num_nodes)


def made(kind: str, graph: Graph, count: int = 40, **key: int) -> Sample:
    if kind in SEEDED:
        return SEEDED[kind](graph).sample(torch.arange(count) * 3, **key)
    sampler: GroupSampler = GROUPED[kind](graph)
    items = torch.arange(min(count, sampler.num_items))
    return sampler.draw(items, torch.arange(graph.num_nodes) % 2 == 0, **key)


def pieces(sample: Sample) -> list[torch.Tensor]:
    found = [sample.n_id, sample.edge_index, sample.e_id, sample.node_norm, sample.edge_norm, sample.owner]
    blocks = [t for b in sample.blocks for t in (b.csc.indptr, b.csc.indices, b.e_id, b.edge_norm)]
    return [t for t in (*found, *blocks) if t is not None]


def same(one: Sample, other: Sample) -> bool:
    return all(torch.equal(a, b) for a, b in zip(pieces(one), pieces(other), strict=True))


@pytest.mark.parametrize("kind", [*SEEDED, *GROUPED])
def test_the_same_bits_for_any_number_of_threads(kind: str, graph: Graph, threads_restored: None) -> None:
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(made(kind, graph, 200, seed=5, epoch=2))
    assert found[0].num_edges > 50
    assert same(found[0], found[1]) and same(found[0], found[2])


@pytest.mark.parametrize("kind", [*SEEDED, *GROUPED])
def test_numbers_are_a_bijection_with_the_seeds_in_front(kind: str, graph: Graph) -> None:
    sample = made(kind, graph)
    src, dst = graph.edges()
    assert torch.equal(src[sample.e_id], sample.n_id[sample.edge_index[0]])
    assert torch.equal(dst[sample.e_id], sample.n_id[sample.edge_index[1]])
    assert bool((sample.edge_index[1].diff() >= 0).all()) and sample.num_edges == sample.e_id.numel()
    pairs = sample.n_id if sample.owner is None else sample.owner * graph.num_nodes + sample.n_id
    assert pairs.unique().numel() == sample.num_nodes
    if kind in SEEDED:
        assert sample.n_id[: sample.batch_size].tolist() == list(range(0, 120, 3))
    else:
        wanted = sample.n_id % 2 == 0
        assert bool(wanted[: sample.batch_size].all()) and not bool(wanted[sample.batch_size :].any())
    assert [t.tolist() for t in sample.subgraph.edges()] == sample.edge_index.tolist()
    assert sum(sample.num_sampled_nodes) == sample.num_nodes


@pytest.mark.parametrize("kind", [*SEEDED, *GROUPED])
def test_keys_change_the_draws_and_pickles_do_not(kind: str, graph: Graph) -> None:
    base = made(kind, graph, seed=1)
    if kind != "cluster":
        assert not same_nodes(base, made(kind, graph, seed=2)) and not same_nodes(
            base, made(kind, graph, seed=1, epoch=1)
        )
    sampler = (SEEDED | GROUPED)[kind](graph)
    again = pickle.loads(pickle.dumps(sampler))
    assert again.identity() == sampler.identity()
    if kind in SEEDED:
        assert same(sampler.sample([1, 5], seed=9), again.sample([1, 5], seed=9))


def same_nodes(one: Sample, other: Sample) -> bool:
    return torch.equal(one.n_id, other.n_id)


@pytest.mark.parametrize("case", SQUARE, ids=str)
@pytest.mark.parametrize("kind", ["saint-node", "saint-walk", "cluster"])
def test_induced_subgraphs_are_those_of_torch_geometric(case: Case, kind: str) -> None:
    graph = case.graph()
    if case.num_dst == 0:
        with pytest.raises(ConfigError):
            GROUPED[kind](graph)
        return
    sample = made(kind, graph, 3)
    index = torch.stack([case.src, case.dst])
    expected, _, kept = pyg.subgraph(sample.n_id.sort().values, index, num_nodes=case.num_dst, return_edge_mask=True)
    assert torch.equal(sample.e_id.sort().values, kept.nonzero().reshape(-1))
    assert torch.equal(index[:, sample.e_id.sort().values], expected)


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_drawn_nodes_with_all_edges_between_them(case: Case) -> None:
    inner = NeighborSampler(case.graph(), [2, 1])
    seeds = torch.arange(min(3, case.num_dst))
    drawn, sample = inner.sample(seeds, seed=4, epoch=1), InducedSampler(inner).sample(seeds, seed=4, epoch=1)
    assert torch.equal(drawn.n_id, sample.n_id) and sample.batch_size == seeds.numel()
    index = torch.stack([case.src, case.dst])
    _, _, kept = pyg.subgraph(sample.n_id, index, num_nodes=case.num_dst, return_edge_mask=True)
    assert torch.equal(sample.e_id.sort().values, kept.nonzero().reshape(-1))


@pytest.mark.parametrize("case", SQUARE, ids=str)
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_whole_neighbourhoods_are_those_of_torch_geometric(case: Case, hops: int) -> None:
    if case.num_dst == 0:
        return
    index = torch.stack([case.src, case.dst])
    sampler = ShadowSampler(case.graph(), [-1] * hops)
    roots = torch.arange(min(case.num_dst, 12))
    sample = sampler.sample(roots)
    assert sample.owner is not None
    for root in roots.tolist():
        nodes, _, _, kept = pyg.k_hop_subgraph(root, hops, index, num_nodes=case.num_dst)
        mine = sample.owner == root
        assert torch.equal(sample.n_id[mine].sort().values, nodes)
        assert torch.equal(sample.e_id[mine[sample.edge_index[1]]].sort().values, kept.nonzero().reshape(-1))


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_all_nodes_of_every_layer_give_whole_sums(case: Case) -> None:
    graph = case.graph()
    seeds = list(range(0, case.num_dst, 2))
    for importance in ("ladies", "fastgcn", "uniform"):
        sample = LayerSampler(graph, [-1, -1], importance).sample(seeds)
        x = torch.randn(case.num_src, 3, dtype=torch.float64)
        for block in sample.blocks:
            s, d = block.edges()
            assert block.edge_norm is not None and bool((block.edge_norm == 1).all())
            sums = torch.zeros(block.num_dst, 3, dtype=torch.float64).index_add_(0, d, x[block.src_ids[s]])
            assert np.allclose(sums.numpy(), (case.scipy() @ x.numpy())[block.dst_ids.numpy()])


def test_primitives_compose_as_in_the_table() -> None:
    """Slice, draw, compact: a hop of a sampler in three lines, as table 5.3 of the thesis lowers it."""
    edges = random_edges(50, 600, seed=1)
    graph = Graph(edges.src, edges.dst, 50)
    seeds = torch.tensor([4, 9, 30])
    drawn = compact(individual_sample(graph[:, seeds], 5, nodes=seeds))
    src, dst = graph.edges()
    ids = graph.in_edge_ids(seeds)[drawn.e_id]
    s, d = drawn.graph.edges()
    assert drawn.graph.in_degrees().tolist() == [5, 5, 5]
    assert torch.equal(drawn.src_ids[s], src[ids]) and torch.equal(seeds[d], dst[ids])
    assert drawn.graph.out_degrees().min() > 0
    layer = compact(collective_sample(graph[:, seeds], 4, seed=3), keep_dst=False)
    assert layer.graph.num_src <= 4 and layer.graph.in_degrees().min() > 0
    alone = individual_sample(graph[:, seeds[1:2]], 5, nodes=seeds[1:2])
    assert torch.equal(graph.in_edge_ids(seeds[1:2])[alone.e_id], ids[d == 1])  # a row does not notice its neighbours


def test_primitives_on_nothing() -> None:
    for graph in (Graph([], [], 0), Graph([], [], 3), Graph([0], [1], 2)[:, []]):
        for draw in (individual_sample, collective_sample):
            for k in (0, 2, -1):
                assert draw(graph, k).graph.num_edges == 0
            assert draw(graph, 2, replace=True).graph.num_edges == 0
    graph = Graph([0, 1], [1, 1], 2)
    assert individual_sample(graph, 0).graph.num_edges == collective_sample(graph, 0).graph.num_edges == 0
    assert individual_sample(graph, 2, [0.0, 0.0]).graph.num_edges == 0
    assert collective_sample(graph, 2, [0.0, 0.0]).graph.num_edges == 0
    assert compact(individual_sample(graph, 0), keep_dst=False).graph.num_dst == 0
    assert random_walk(graph, [], 3).shape == (0, 4) and random_walk(graph, [1, 1], 0).tolist() == [[1], [1]]


SMALL = Graph([0, 1, 2], [1, 2, 0], 3)
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: individual_sample(SMALL, -2), ConfigError, "individual_sample: expected k >= 0, or -1 for all, got -2"),
    (lambda: individual_sample(SMALL, 1.5), ConfigError, "got 1.5"),
    (lambda: individual_sample(SMALL, -1, replace=True), ConfigError, "with replacement, got -1"),
    (lambda: individual_sample(SMALL, 1, [1.0]), ShapeError, "expected 3 rows, one per edge, got 1 rows"),
    (
        lambda: individual_sample(SMALL, 1, [1.0, -1.0, 1.0]),
        ConfigError,
        "expected weights >= 0, got -1.0 at position 1",
    ),
    (lambda: individual_sample(SMALL, 1, [1.0, 1.0, float("nan")]), ConfigError, "got nan at position 2"),
    (lambda: individual_sample(SMALL, 1, [1.0, float("inf"), 1.0]), ConfigError, "got inf at position 1"),
    (lambda: individual_sample(SMALL, 1, nodes=[0]), ConfigError, "expected 3 nodes, one per destination, got 1"),
    (lambda: collective_sample(SMALL, 1, [1.0, 1.0]), ShapeError, "expected 3 rows, one per source, got 2 rows"),
    (lambda: collective_sample(SMALL, 1, [1.0, 1.0, -2.0]), ConfigError, "got -2.0 at position 2"),
    (lambda: LayerSampler(SMALL, [0]), ConfigError, "LayerSampler: expected fanouts >= 1, or -1 for all, got 0"),
    (lambda: LayerSampler(SMALL, [2, -1], replace=True), ConfigError, "expected sizes >= 1"),
    (lambda: LayerSampler(SMALL, [2], "best"), ConfigError, "expected importance among ladies, fastgcn, uniform"),
    (lambda: LayerSampler(SMALL, [2], [1.0]), ShapeError, "one per node"),
    (lambda: LayerSampler(Graph([0], [1], (2, 3)), [2]), GraphError, "one set of nodes"),
    (lambda: LayerSampler(SMALL, [2]).sample([1, 1]), ConfigError, "distinct seeds, got 1 at positions 0 and 1"),
    (lambda: LayerSampler(SMALL, [2]).sample([3]), IndexRangeError, "expected seed ids in [0, 3), got 3"),
    (lambda: WalkSampler(SMALL, -1), ConfigError, "expected length as an integer >= 0, got -1"),
    (lambda: WalkSampler(SMALL, walks=0), ConfigError, "expected walks as an integer >= 1, got 0"),
    (lambda: WalkSampler(SMALL, p=0.0), ConfigError, "expected p > 0, got 0.0"),
    (lambda: WalkSampler(SMALL, q=float("nan")), ConfigError, "expected q > 0, got nan"),
    (lambda: WalkSampler(SMALL, restart=1.5), ConfigError, "expected restart in [0, 1], got 1.5"),
    (lambda: WalkSampler(SMALL).sample([0, 0]), ConfigError, "distinct seeds"),
    (lambda: random_walk(SMALL, [0, 5], 2), IndexRangeError, "expected start ids in [0, 3), got 5 at position 1"),
    (lambda: random_walk(Graph([0], [0], (1, 2)), [0], 2), GraphError, "one set of nodes"),
    (lambda: ShadowSampler(SMALL, [0]), ConfigError, "expected fanouts >= 1"),
    (lambda: ShadowSampler(SMALL, [-1], replace=True), ConfigError, "with replacement"),
    (lambda: ShadowSampler(SMALL, [2], weight=[1.0, 1.0]), ShapeError, "one per edge"),
    (lambda: ShadowSampler(SMALL, [2]).sample([-1]), IndexRangeError, "got -1 at position 0"),
    (lambda: ClusterSampler(SMALL, [0, 1]), ShapeError, "expected 3 rows, one per node, got 2 rows"),
    (lambda: ClusterSampler(SMALL, [0, -1, 1]), IndexRangeError, "got -1 at position 1"),
    (lambda: SaintNodeSampler(SMALL, [0.0, 0.0, 0.0]), ConfigError, "expected a positive weight among 3, got none"),
    (lambda: SaintNodeSampler(SMALL, "big"), ConfigError, "expected importance norm, uniform or weights, got 'big'"),
    (lambda: SaintEdgeSampler(Graph([], [], 3)), ConfigError, "expected a positive weight among 0, got none"),
    (lambda: SaintNodeSampler(SMALL, num_items=-1), ConfigError, "expected num_items as an integer >= 0, got -1"),
    (lambda: SaintWalkSampler(SMALL, 2, coverage=0), ConfigError, "expected coverage as an integer >= 1, got 0"),
    (lambda: SaintWalkSampler(SMALL, -2), ConfigError, "expected length as an integer >= 0, got -2"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[text for _, _, text in BAD])
def test_bad_input_is_one_line(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as failure:
        call()
    assert text in str(failure.value) and "\n" not in str(failure.value)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_what_is_known_of_the_whole_holds_for_its_parts(both: bool, loops: bool) -> None:
    edges = random_edges(60, 300, seed=5)
    src, dst = (np.asarray(ends)[np.asarray(edges.src) != np.asarray(edges.dst)] for ends in (edges.src, edges.dst))
    src, dst = (np.concatenate([src, dst]), np.concatenate([dst, src])) if both else (src, dst)
    src, dst = (np.concatenate([ends, [40]]) for ends in (src, dst)) if loops else (src, dst)
    whole = Graph(src, dst, 60)
    for nodes in (torch.arange(0, 60, 2), torch.arange(50, 60), torch.tensor([3])):
        sample = InducedSampler(NeighborSampler(whole, [1])).sample(nodes)
        dense = np.zeros((60, 60), dtype=np.int64)
        np.add.at(dense, (src, dst), 1)
        ids, part = sample.n_id.numpy(), sample.subgraph
        inside = dense[np.ix_(ids, ids)]
        assert part.is_symmetric == bool((inside == inside.T).all())
        assert part.has_self_loops == bool(inside.trace())
