"""The split of links: a partition of the pairs, no held-out pair in the training graph in any form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from zoo import SQUARE, Case, random_edges

from graphweft._errors import ConfigError, DataError, GraphError
from graphweft.data.link_split import LinkSplit, split_links
from graphweft.graph.graph import Graph


def check(graph: Graph, split: LinkSplit) -> None:
    edges = list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    name = (lambda u, v: (min(u, v), max(u, v))) if split.undirected else (lambda u, v: (u, v))
    parts = [set(zip(*part.tolist(), strict=True)) for part in (split.train, split.val, split.test)]
    assert sum(map(len, parts)) == sum(part.shape[1] for part in (split.train, split.val, split.test))
    assert set.union(*parts) == {name(u, v) for u, v in edges if u != v}
    assert sum(map(len, parts)) == len(set.union(*parts))
    held = parts[1] | parts[2]
    left = list(zip(*(ends.tolist() for ends in split.graph.edges()), strict=True))
    assert left == [(u, v) for u, v in edges if name(u, v) not in held]
    assert split.graph.num_nodes == graph.num_nodes and split.known is graph


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_leaks(data: Any) -> None:
    nodes = data.draw(st.integers(2, 20))
    ends = random_edges(nodes, data.draw(st.integers(2, 120)), data.draw(st.integers(0, 10**6)))
    graph = Graph(ends.src, ends.dst, nodes)
    if data.draw(st.booleans()):
        graph = graph + graph.reverse()
    if not bool((graph.edges()[0] != graph.edges()[1]).any()):
        return
    undirected = data.draw(st.sampled_from([None, True, False]))
    split = split_links(graph, 0.2, 0.3, data.draw(st.integers(0, 99)), undirected)
    assert undirected is None or split.undirected == undirected
    check(graph, split)


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_the_zoo(case: Case) -> None:
    graph = case.graph()
    if not bool((case.src != case.dst).any()):
        with pytest.raises(DataError, match="expected edges between different nodes, got none"):
            split_links(graph)
    else:
        check(graph, split_links(graph, 0.25, 0.25))


@pytest.mark.parametrize("seed", range(3))
def test_parallel_edges_one_way_leave_a_graph_undirected(seed: int) -> None:
    ends = random_edges(30, 150, seed)
    simple = Graph(ends.src, ends.dst, 30).to_bidirected(reduce="drop").without_self_loops()
    src, dst = simple.edges()
    copies = torch.randint(1, 4, src.shape, generator=torch.Generator().manual_seed(seed))
    graph = Graph(src.repeat_interleave(copies), dst.repeat_interleave(copies), 30)
    assert not graph.is_symmetric  # as often one way as the other is not asked for
    split = split_links(graph, 0.2, 0.3)
    check(graph, split)
    pyg = pytest.importorskip("torch_geometric", reason="the peer of this test")
    both = pyg.transforms.RandomLinkSplit(num_val=0.2, num_test=0.3, is_undirected=True)
    theirs = both(pyg.data.Data(edge_index=torch.stack([src, dst]), num_nodes=30))
    wanted = [int(part.edge_label.sum()) for part in theirs]
    assert split.undirected and [part.shape[1] for part in (split.train, split.val, split.test)] == wanted
    assert not split_links(Graph([0, 1, 1], [1, 0, 2], 3), test=0.4).undirected


def test_pairs_are_held_out_alike_and_by_seed() -> None:
    graph = Graph(torch.arange(10), (torch.arange(10) + 1) % 10, 10)
    held = [split_links(graph, 0.0, 0.1, seed).test[0].item() for seed in range(4000)]
    assert stats.chisquare(np.bincount(held, minlength=10)).pvalue > 1e-4
    one, same = split_links(graph, 0.3, 0.3, 5), split_links(graph, 0.3, 0.3, 5)
    assert torch.equal(one.test, same.test) and torch.equal(one.val, same.val) and torch.equal(one.train, same.train)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"val": -0.1}, "expected val as a share in [0, 1), got -0.1"),
        ({"test": 1.0}, "expected test as a share in [0, 1), got 1.0"),
        ({"val": 0.5, "test": 0.5}, "expected shares that leave something to train on, got 0.5 and 0.5"),
        ({"val": float("nan")}, "expected val as a share"),
        ({"val": True}, "expected val as a share"),
    ],
)
def test_bad_shares_are_one_line(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        split_links(Graph([0], [1]), **options)
    assert text in str(failure.value)
    with pytest.raises(GraphError, match="expected a graph over one set of nodes"):
        split_links(Graph([0], [0], (1, 2)))
