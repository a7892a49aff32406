"""Kernels of the products with a matrix per type against float64 einsums, on the typed zoo, for any threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from typed_zoo import TYPED_ZOO, hubs, many

from graphweft._errors import ShapeError
from graphweft.graph.graph import Graph
from graphweft.graph.typed_pairs import TypedPairs, same_type_degrees, typed_nodes, typed_pairs
from graphweft.runtime import sparse, typed

NARROW = [(1, 37, 3), (1, 20, 8), (1, 3, 69), (1, 8, 40)]  # few columns on one side or the other
SHAPES = [(1, 7, 5), (1, 64, 64), (4, 8, 8), (4, 4, 4), (2, 3, 20), (1, 1, 1), *NARROW]


def _numbers(graph: Graph, heads: int, inner: int, outer: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    nodes = graph.num_nodes
    return draw(nodes, heads, inner), draw(len(graph.relations), heads, inner, outer), draw(nodes, heads, outer)


def _weights(graph: Graph, heads: int) -> list[tuple[Tensor | None, Tensor | float]]:
    """None, one number an edge, one per head; each with the factor of (edges, heads, ...) that it is."""
    generator = torch.Generator().manual_seed(4)
    one, each = (
        torch.randn(graph.num_edges, generator=generator),
        torch.randn(graph.num_edges, heads, generator=generator),
    )
    return [(None, 1.0), (one, one.double()[:, None, None]), (each, each.double()[:, :, None])]


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TYPED_ZOO)
def test_edges_times_the_matrix_of_their_relation(name: str, shape: tuple[int, int, int]) -> None:
    graph = TYPED_ZOO[name]()
    x, w, y = _numbers(graph, *shape)
    (src, dst), kind = graph.edges(), graph.edge_type()
    pairs, turned = typed_pairs(graph)
    assert not turned
    matrices = w.double()[kind]
    for weight, factor in _weights(graph, shape[0]):
        forward = torch.einsum("ehi,ehio->eho", x.double()[src], matrices) * factor
        back = torch.einsum("eho,ehio->ehi", y.double()[dst], matrices) * factor
        outer = torch.einsum("ehi,eho->ehio", x.double()[src] * factor, y.double()[dst])
        zeros = torch.zeros(y.shape, dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float64)
        _close(typed.spmm(pairs, False, x, w, False, weight), zeros[0].index_add(0, dst, forward))
        _close(typed.spmm(pairs, True, y, w, True, weight), zeros[1].index_add(0, src, back))
        expected = torch.zeros(w.shape, dtype=torch.float64).index_add(0, kind, outer)
        _close(typed.outer(pairs, x, y, weight), expected)
    dots = (torch.einsum("ehi,ehio->eho", x.double()[src], matrices) * y.double()[dst]).sum(2)
    _close(typed.sddmm(pairs, x, w, False, y, True), dots)
    _close(typed.sddmm(pairs, x, w, False, y, False), dots.sum(1))


@pytest.mark.parametrize("name", TYPED_ZOO)
def test_nodes_times_the_matrix_of_their_type(name: str) -> None:
    graph, generator = TYPED_ZOO[name](), torch.Generator().manual_seed(6)
    types, rows = len(graph.node_types), typed_nodes(graph)
    x, y = torch.randn(graph.num_nodes, 9, generator=generator), torch.randn(graph.num_nodes, 21, generator=generator)
    w, bias = torch.randn(types, 9, 21, generator=generator), torch.randn(types, 21, generator=generator)
    stretches = [slice(begin, end) for begin, end in pairwise(graph.layout.node_offsets)]
    expected = torch.cat([x.double()[s] @ w.double()[t] + bias.double()[t] for t, s in enumerate(stretches)])
    _close(typed.matmul(rows, x, w, False, bias), expected)
    back = torch.cat([y.double()[s] @ w.double()[t].T for t, s in enumerate(stretches)])
    _close(typed.matmul(rows, y, w, True), back)
    _close(typed.outer_rows(rows, x, y), torch.stack([x.double()[s].T @ y.double()[s] for s in stretches]))
    _close(typed.row_sums(rows, x), torch.stack([x.double()[s].sum(0) for s in stretches]))


@pytest.mark.parametrize("name", TYPED_ZOO)
def test_softmax_over_in_edges(name: str) -> None:
    graph, generator = TYPED_ZOO[name](), torch.Generator().manual_seed(8)
    x = torch.randn(graph.num_edges, 3, generator=generator) * 30
    g = torch.randn(graph.num_edges, 3, generator=generator)
    _, dst = graph.edges()
    leaf = x.double().requires_grad_()
    parts = [torch.softmax(leaf[dst == node], 0) for node in range(graph.num_nodes)]
    order = torch.argsort(dst, stable=True)
    expected = torch.empty_like(leaf).index_copy(0, order, torch.cat(parts))
    found = sparse.edge_softmax(graph.csc, x)
    _close(found, expected.detach())
    if graph.num_edges:
        gradient = torch.autograd.grad(expected, leaf, g.double())[0]
        _close(sparse.edge_softmax_grad(graph.csc, found, g), gradient)


def test_a_relation_is_grouped_by_the_end_that_makes_fewer_pairs() -> None:
    graph = hubs()
    pairs, _ = typed_pairs(graph)
    assert pairs.on_dst.tolist() == [1, 0, 1]
    assert pairs.num_pairs == 1 + 1 + 2  # not one per edge
    assert typed_pairs(graph.reverse()) == (pairs, True)
    assert typed_pairs(graph)[0] is pairs


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", TYPED_ZOO)
def test_pairs_are_those_that_numpy_sorts_out(name: str, turned: bool) -> None:
    graph = TYPED_ZOO[name]().reverse() if turned else TYPED_ZOO[name]()
    pairs, kind = TypedPairs.of(graph), graph.edge_type().numpy()
    src, dst = (end.numpy() for end in graph.edges())
    sides = [[len(np.unique(end[kind == r])) for r in range(len(graph.relations))] for end in (dst, src)]
    on_dst = np.less_equal(*sides)
    assert pairs.on_dst.tolist() == on_dst.tolist()
    own, other = (np.where(on_dst[kind], *ends) for ends in ((dst, src), (src, dst)))
    order = np.lexsort((np.arange(len(kind)), own, kind))
    found, first, pair_of = np.unique(np.stack([kind, own]), axis=1, return_index=True, return_inverse=True)
    assert pairs.edge.tolist() == order.tolist()
    assert pairs.other.tolist() == other[order].tolist()
    assert pairs.node.tolist() == found[1].tolist()
    counts = np.bincount(pair_of.ravel(), minlength=len(first))
    assert pairs.entries.tolist() == [0, *np.cumsum(counts)]
    for sums, mine, end in ((pairs.by_dst, on_dst, dst), (pairs.by_src, ~on_dst, src)):
        rows = [[(p, -1) for p in np.flatnonzero(mine[found[0]] & (found[1] == i))] for i in range(graph.num_nodes)]
        for i, row in enumerate(rows):
            row += [(pair_of.ravel()[e], e) for e in np.flatnonzero(~mine[kind] & (end == i))]
        assert sums.indptr.tolist() == [0, *np.cumsum([len(row) for row in rows])]
        assert list(zip(sums.pair.tolist(), sums.edge.tolist(), strict=True)) == [x for row in rows for x in row]


def test_a_softmax_may_take_the_memory_of_its_operand() -> None:
    graph, generator = many(), torch.Generator().manual_seed(8)
    x, g = torch.randn(graph.num_edges, 3, generator=generator), torch.randn(graph.num_edges, 3, generator=generator)
    soft = sparse.edge_softmax(graph.csc, x)
    gradient = sparse.edge_softmax_grad(graph.csc, soft, g)
    assert torch.equal(sparse.edge_softmax(graph.csc, x, over=True), soft) and torch.equal(x, soft)
    assert torch.equal(sparse.edge_softmax_grad(graph.csc, soft, g, over=True), gradient) and torch.equal(g, gradient)


def test_degrees_among_edges_of_the_same_relation() -> None:
    graph = hubs()
    expected = [149] * 149 + [1] * 149 + [3, 3, 3, 1]
    assert same_type_degrees(graph).tolist() == expected
    assert same_type_degrees(graph, torch.float64).dtype == torch.float64
    turned = graph.reverse().reverse().reverse()
    assert same_type_degrees(turned).tolist() == [1] * 149 + [149] * 149 + [3, 3, 3, 1]


@pytest.mark.parametrize("make", [hubs, many])
def test_wide_ids_and_any_number_of_threads_give_the_same_bits(make: object) -> None:
    graph = make()  # type: ignore[operator]
    x, w, y = _numbers(graph, 2, 16, 24)
    weight = _weights(graph, 2)[2][0]
    assert weight is not None
    pairs = TypedPairs.of(graph)
    wide = TypedPairs.of(graph, wide=True)
    assert (pairs.node.dtype, wide.node.dtype) == (torch.int32, torch.int64)
    results = []
    former = torch.get_num_threads()
    for threads, given in ((1, pairs), (2, pairs), (5, pairs), (2, wide)):
        torch.set_num_threads(threads)
        results.append(
            [
                typed.spmm(given, False, x, w, False, weight),
                typed.spmm(given, True, y, w, True, weight),
                typed.outer(given, x, y, weight),
                typed.sddmm(given, x, w, False, y, True),
            ]
        )
    torch.set_num_threads(former)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_rows_and_matrices_must_fit_the_graph() -> None:
    graph = many()
    pairs, _ = typed_pairs(graph)
    x, w, _ = _numbers(graph, 1, 4, 4)
    with pytest.raises(ShapeError, match="expected 200 rows and 40 matrices, got 199 and 40"):
        typed.spmm(pairs, False, x[:-1], w, False, None)
    with pytest.raises(ShapeError, match="expected 200 rows and 1 matrices, got 200 and 40"):
        typed.matmul(typed_nodes(graph), x[:, 0], w[:, 0], False)
