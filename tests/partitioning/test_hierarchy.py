"""Morphling's hierarchy: packing by hand and against its bound, greedy's balance, which phase takes over; reports."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
import torch
from zoo import SQUARE, Case

import graphweft as gw
from graphweft._errors import GraphError
from graphweft.partitioning.hierarchy import hierarchical
from graphweft.partitioning.packing import components, greedy, packed_components
from graphweft.partitioning.partition import undirected
from graphweft.partitioning.report import Exchange, Rates, halo_pairs, predict, row_bytes


def rings(sizes):
    """A ring of each size, side by side."""
    src, dst, first = [], [], 0
    for size in sizes:
        ids = np.arange(first, first + size)
        src.append(ids)
        dst.append(np.roll(ids, 1))
        first += size
    return gw.Graph(np.concatenate(src), np.concatenate(dst), num_nodes=first).to_bidirected()


def fails(graph, k, tolerance, recursive):
    raise RuntimeError("no result")


def test_a_thousand_components_are_packed_within_the_bound_and_none_is_split() -> None:
    sizes = np.random.default_rng(0).integers(1, 40, 1000)
    made = gw.partition(rings(sizes), 7, "components")
    ends = np.concatenate([[0], np.cumsum(sizes)])
    for first, last in itertools.pairwise(ends):
        assert len(set(made.part[first:last].tolist())) == 1
    best = max(int(sizes.max()), -(-int(sizes.sum()) // 7))  # no packing is below
    assert int(made.sizes.max()) <= 4 / 3 * best


@pytest.mark.parametrize("sizes", [[5, 4, 3, 3, 3], [7, 6, 5, 4, 3], [3, 3, 3, 1]])
def test_packing_against_all_packings(sizes) -> None:
    made = gw.partition(rings(sizes), 2, "components")
    best = min(
        max(sum(s for s, b in zip(sizes, bins, strict=True) if b == side) for side in (0, 1))
        for bins in itertools.product((0, 1), repeat=len(sizes))
    )
    assert int(made.sizes.max()) <= (4 / 3 - 1 / 6) * best  # Graham's bound for two


def test_components_are_those_of_a_search() -> None:
    src, dst = np.random.default_rng(1).integers(0, 300, (2, 260))
    graph = gw.Graph(src, dst, num_nodes=300)
    count, of_node = components(graph)
    label = np.arange(300)
    while True:  # the smallest id spreads along edges
        before = label.copy()
        np.minimum.at(label, dst, label[src])
        np.minimum.at(label, src, label[dst])
        if (label == before).all():
            break
    assert count == len(set(label.tolist()))
    assert len({(a, b) for a, b in zip(label.tolist(), of_node.tolist(), strict=True)}) == count
    assert packed_components(of_node, count, 3).shape == (300,)


def test_greedy_balances_the_work_of_hubs_and_stars() -> None:
    degrees = torch.cat([torch.full((8,), 5000), torch.ones(40_000, dtype=torch.int64)])
    part = greedy(degrees, 4).long()
    load = torch.zeros(4, dtype=torch.int64).index_add_(0, part, degrees)
    assert float(load.max()) / float(load.double().mean()) <= 1.05
    star = greedy(torch.tensor([1000, *[1] * 1000]), 2).long()
    weight = torch.zeros(2, dtype=torch.int64).index_add_(0, star, torch.tensor([1001, *[2] * 1000]))
    assert float(weight.max()) / float(weight.double().mean()) <= 1.05
    ends = (2000 * np.random.default_rng(0).random((2, 20_000)) ** 3).astype(np.int64)  # hubs have low ids
    graph = gw.Graph(*ends, num_nodes=2000)
    made = gw.partition(graph, 4, "greedy")
    load = torch.zeros(4, dtype=torch.int64).index_add_(0, made.part.long(), undirected(graph).in_degrees().long())
    assert float(load.max()) / float(load.double().mean()) <= 1.05
    assert greedy(torch.zeros(9, dtype=torch.int64), 3).bincount().tolist() == [3, 3, 3]  # nodes without edges


def test_each_phase_is_taken_where_those_before_fail(caplog) -> None:
    two, one = rings([30, 20, 10]), rings([60])
    with caplog.at_level(logging.INFO, "graphweft.partition"):
        packed = hierarchical(two, 2, fails)
        dealt = hierarchical(one, 2, fails)
    assert packed.method == "components" and packed.part.bincount().tolist() == [30, 30]
    assert dealt.method == "greedy" and [name for name, _ in dealt.phases] == ["metis", "components", "greedy"]
    assert "greedy takes over" in caplog.text and "metis-kway failed: no result" in caplog.text
    kept = hierarchical(one, 2, lambda graph, k, tolerance, recursive: (torch.arange(60) // 30).int())
    assert kept.method == "metis-kway" and all(seconds >= 0 for _, seconds in kept.phases)
    uneven = hierarchical(two, 2, lambda graph, k, tolerance, recursive: (torch.arange(60) // 50).int())
    assert uneven.method == "components"  # METIS was content, but 50 to 10 is out of balance
    with pytest.raises(GraphError, match="at least 2 connected components"):
        gw.partition(one, 2, "components")


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_the_report_counts_what_sets_count(case: Case) -> None:
    graph = case.graph()
    nodes, k = graph.num_nodes, 3
    part = torch.randint(k, (nodes,), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(nodes)[::2]
    src, dst = (end.tolist() for end in graph.edges())
    owner, counted = part.tolist(), set(rows.tolist())
    for chosen, wanted in ((None, set(range(nodes))), (rows, counted)):
        crossing = {(s, owner[d]) for s, d in zip(src, dst, strict=True) if owner[s] != owner[d] and d in wanted}
        pairs = [[sum(1 for s, p in crossing if p == a and owner[s] == b) for b in range(k)] for a in range(k)]
        assert halo_pairs(graph, part, k, chosen).tolist() == pairs
    found = predict(graph, part, k, Exchange((5, 8, 4), sums=(100, 40), rows=rows))
    everywhere = {(s, owner[d]) for s, d in zip(src, dst, strict=True) if owner[s] != owner[d]}
    sent = 2 * (len(everywhere) * 4 * 8 + sum(map(sum, pairs)) * 4 * 4)
    assert found.bytes_sent == sent + k * (2 * 2 * 100 // 3 + 2 * 2 * 40 // 3)
    assert sum(found.ghosts) == len(everywhere)


def test_sums_are_longer_where_a_rank_has_nothing_to_compute() -> None:
    graph, halves = rings([4]), torch.tensor([0, 0, 1, 1])
    apart = gw.Graph([0, 1], [1, 0], num_nodes=4)  # no edge leads to the nodes of rank 1
    both, first = torch.tensor([0, 2]), torch.tensor([0, 1])
    for given, train, more in ((graph, both, 0), (graph, first, 12), (apart, both, 12)):
        epoch = Exchange((3,), sums=(100, 4), train=train, marks=(12, 0))
        assert predict(given, halves, 2, epoch).bytes_sent == 2 * (100 + more + 4)


def test_seconds_follow_the_formula() -> None:
    graph, part = rings([4]), torch.tensor([0, 0, 1, 1])  # every node has a neighbour on the other side
    rates = Rates(latency=1.0, seconds_per_byte=0.5, entry=0.25, table=0.5, multiply=0.125, fixed=0.0, row=0.0625)
    found = predict(graph, part, 2, Exchange((3, 2), (6, 4), (8,)), rates)
    compute = 2 * 0.125 * 6 * 2 + 2 * 0.25 * 2 * 4 + 3 * 0.125 * 4 * 2  # edges and products
    compute += 2 * 0.5 * 2 * (2 + 2 + 2)  # rows written, own rows and ghosts read
    compute += 0.0625 * 2 * 2 + 2 * 0.0625 * 2 * 2  # gradients that come home, and the loss of two classes
    halo = 2 * (1.0 + 0.5 * 2 * row_bytes("exact", 2))
    gradients = 2 * 1.0 + 0.5 * 8
    assert found.compute == (compute, compute) and found.halo == (halo, halo) and found.gradients == gradients
    assert found.seconds == compute + halo + gradients


def test_auto_takes_the_best_prediction() -> None:
    made = gw.partition(rings([40, 30, 20, 10, 50, 50]), 4, "auto", epoch=Exchange((8, 8)))
    assert made.comparison is not None
    seconds = {name: one.seconds for name, one in made.comparison.found.items()}
    assert set(seconds) <= {"metis", "multilevel", "components", "greedy", "gap", "random"} and len(seconds) >= 4
    assert seconds[made.comparison.chosen] == min(seconds.values()) == made.predict(Exchange((8, 8))).seconds
    assert seconds["components"] < seconds["random"]  # nothing crosses
