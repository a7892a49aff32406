"""Graph algebra as matrix algebra: A[dst, src] counts the edges src -> dst. The laws are SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import CASES, SQUARE, Case

from graphweft._errors import GraphError, IndexRangeError
from graphweft.graph.graph import Graph

Edges = tuple[list[int], list[int]]
SIDE = 6


def matrix(graph: Graph) -> np.ndarray:
    src, dst = graph.edges()
    ends = (np.ones(src.numel()), (dst.numpy(), src.numpy()))
    return sp.coo_array(ends, shape=(graph.num_dst, graph.num_src)).toarray()


def pairs() -> st.SearchStrategy[Edges]:
    ends = st.tuples(st.integers(0, SIDE - 1), st.integers(0, SIDE - 1))
    return st.lists(ends, max_size=14).map(lambda items: ([s for s, _ in items], [d for _, d in items]))


def build(edges: Edges) -> Graph:
    return Graph(*edges, num_nodes=SIDE)


@settings(max_examples=60, deadline=None)
@given(pairs(), pairs())
def test_sum_and_difference_are_those_of_matrices(one: Edges, two: Edges) -> None:
    g, h = build(one), build(two)
    both, rest = g + h, g - h
    assert np.array_equal(matrix(both), matrix(g) + matrix(h))
    assert np.array_equal(matrix(rest), np.maximum(matrix(g) - matrix(h), 0))
    assert [t.tolist() for t in both.edges()] == [one[0] + two[0], one[1] + two[1]]
    back = both - h
    assert [t.tolist() for t in back.edges()] == list(one)
    assert (g - g).num_edges == 0
    for graph in (both, rest, back):
        assert graph.csc.edge_ids_ascend()


@settings(max_examples=60, deadline=None)
@given(pairs(), pairs())
def test_reversal_distributes_over_sum_difference_and_selection(one: Edges, two: Edges) -> None:
    g, h = build(one), build(two)
    assert np.array_equal(matrix((g + h).reverse()), matrix(g.reverse() + h.reverse()))
    assert np.array_equal(matrix((g - h).reverse()), matrix(g.reverse() - h.reverse()))
    assert np.array_equal(matrix(g.reverse()), matrix(g).T)
    assert np.array_equal(matrix(g[[1, 4], :].reverse()), matrix(g.reverse()[:, [1, 4]]))


@settings(max_examples=60, deadline=None)
@given(pairs(), st.lists(st.integers(0, SIDE - 1), max_size=9), st.lists(st.integers(0, SIDE - 1), max_size=9))
def test_selection_is_that_of_a_matrix(edges: Edges, srcs: list[int], dsts: list[int]) -> None:
    g = build(edges)
    a = matrix(g)
    assert np.array_equal(matrix(g[srcs, :]), a[:, np.array(srcs, int)])
    assert np.array_equal(matrix(g[:, dsts]), a[np.array(dsts, int)])
    assert np.array_equal(matrix(g[srcs, dsts]), a[np.array(dsts, int)][:, np.array(srcs, int)])
    src, _ = g[srcs, :].edges()
    ids = g.out_edge_ids(srcs)
    assert (
        torch.tensor(srcs, dtype=torch.int64)[src].tolist() == torch.tensor(edges[0], dtype=torch.int64)[ids].tolist()
    )


@settings(max_examples=60, deadline=None)
@given(pairs())
def test_symmetric_and_simple_forms(edges: Edges) -> None:
    g = build(edges)
    a = matrix(g)
    assert g.is_symmetric == np.array_equal(a, a.T)
    assert np.array_equal(matrix(g.to_simple()), np.minimum(a, 1))
    assert np.array_equal(matrix(g.to_bidirected()), ((a + a.T) > 0).astype(float))
    assert (g + g.reverse()).is_symmetric


@pytest.mark.parametrize("case", CASES, ids=str)
def test_laws_hold_on_the_zoo(case: Case) -> None:
    g = case.graph()
    a = matrix(g)
    assert g[:, :] is g
    assert np.array_equal(matrix(g[g.srcs(), :]), a)
    assert np.array_equal(matrix(g[:, g.dsts()]), a)
    assert np.array_equal(matrix(g[: case.num_src // 2, ::2]), a[::2, : case.num_src // 2])
    assert np.array_equal(matrix(g + g), 2 * a)
    assert (g - g).num_edges == 0
    assert [t.tolist() for t in ((g + g) - g).edges()] == [t.tolist() for t in g.edges()]
    assert np.array_equal(matrix((g + g).to_simple()), np.minimum(a, 1))


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_edge_subgraph_keeps_order(case: Case) -> None:
    keep = torch.arange(case.num_edges) % 3 != 1
    part = case.graph().edge_subgraph(keep)
    assert torch.equal(part.edges()[0], case.src[keep])
    assert torch.equal(part.edges()[1], case.dst[keep])


def test_graphs_of_different_nodes_do_not_add() -> None:
    with pytest.raises(GraphError, match="expected the same nodes"):
        Graph([0], [1]) + Graph([0], [2])
    with pytest.raises(GraphError, match="expected the same nodes"):
        Graph([0], [1]) - Graph([0], [1], num_nodes=(2, 2))
    with pytest.raises(TypeError):
        Graph([0], [1]) + 1
    with pytest.raises(GraphError, match="expected two selections"):
        Graph([0], [1])[0]
    with pytest.raises(IndexRangeError, match=r"src ids in \[0, 2\), got -1 at position 1"):
        Graph([0], [1])[[0, -1], :]
