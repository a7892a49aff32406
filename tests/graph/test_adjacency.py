"""Compression and transposition: against NumPy and SciPy, the same bits for any number of threads, no overflow."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import CASES, Case

from graphweft._errors import GraphError, IndexRangeError, ShapeError
from graphweft.graph import edit
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.ids import index_dtype

LARGE = 400_000  # edges: several chunks and several buckets


def large_edges(num_rows: int, num_cols: int, skew: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    rows = np.floor(num_rows * rng.random(LARGE) ** skew).astype(np.int64)
    return torch.from_numpy(rng.permutation(num_rows)[rows]), torch.from_numpy(rng.integers(0, num_cols, LARGE))


SHAPES = [(300, 90_000, 1.0), (90_000, 300, 1.0), (200_000, 200_000, 3.0), (1_000_000, 7, 1.0), (1, 5, 1.0)]


@pytest.mark.parametrize(("num_rows", "num_cols", "skew"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_compression_is_a_stable_sort(num_rows: int, num_cols: int, skew: float, dtype: torch.dtype) -> None:
    rows, cols = large_edges(num_rows, num_cols, skew)
    a = Adjacency.from_coo(rows.to(dtype), cols.to(dtype), num_rows, num_cols)
    order = np.argsort(rows.numpy(), kind="stable")
    assert np.array_equal(a.indices.numpy(), cols.numpy()[order])
    assert a.edge_ids is None or np.array_equal(a.edge_ids.numpy(), order)
    counts = np.bincount(rows.numpy(), minlength=num_rows)
    assert np.array_equal(a.degrees().numpy(), counts)
    assert np.array_equal(a.float_degrees().numpy(), counts.astype(np.float32))
    inverse = np.divide(1, counts, out=np.zeros(num_rows, np.float32), where=counts > 0, dtype=np.float32)
    assert np.array_equal(a.float_degrees(inverse=True).numpy(), inverse)
    back_rows, back_cols = a.to_coo()
    assert torch.equal(back_rows, rows)
    assert torch.equal(back_cols, cols)


@pytest.mark.parametrize(("num_rows", "num_cols", "skew"), SHAPES)
def test_transposition_is_that_of_scipy_and_keeps_ids(num_rows: int, num_cols: int, skew: float) -> None:
    rows, cols = large_edges(num_rows, num_cols, skew)
    turned = Adjacency.from_coo(rows, cols, num_rows, num_cols).transpose()
    order = np.lexsort((np.arange(LARGE), rows.numpy(), cols.numpy()))
    assert np.array_equal(turned.indices.numpy(), rows.numpy()[order])
    assert turned.edge_ids is not None
    assert np.array_equal(turned.edge_ids.numpy(), order)
    assert turned.columns_ascend()
    assert torch.equal(
        turned.transpose(edge_ids=False).indptr, Adjacency.from_coo(rows, cols, num_rows, num_cols).indptr
    )


def every_result(rows: torch.Tensor, cols: torch.Tensor, n: int) -> list[torch.Tensor]:
    a = Adjacency.from_coo(rows, cols, n, n)
    results = [a, a.transpose(), a.widened().transpose(), a.take_rows(torch.arange(0, n, 3))]
    results += [edit.both_directions(a), edit.filter_edges(a, edit.no_loops_mask(a)), edit.without_parallel(a)]
    tensors = [t for r in results for t in (r.indptr, r.indices, r.edge_ids) if t is not None]
    return [*tensors, *a.to_coo(), a.column_counts(), torch.tensor([a.is_symmetric(), a.has_loops()])]


@pytest.mark.parametrize("n", [500, 150_000])
def test_same_bits_for_one_and_two_threads(n: int, threads_restored: None) -> None:
    rows, cols = large_edges(n, n, 2.0)
    torch.set_num_threads(1)
    one = every_result(rows, cols, n)
    torch.set_num_threads(2)
    two = every_result(rows, cols, n)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


def test_edits_of_a_large_graph_are_those_of_scipy() -> None:
    n = 150_000
    rows, cols = large_edges(n, n, 2.0)
    a = Adjacency.from_coo(rows, cols, n, n)
    expected = sp.csr_array((np.ones(LARGE), (rows.numpy(), cols.numpy())), shape=(n, n))
    both = edit.both_directions(a)
    pattern = ((expected + expected.T) > 0).tocsr()
    pattern.sort_indices()
    assert np.array_equal(both.indices.numpy(), pattern.indices)
    assert np.array_equal(both.indptr.numpy(), pattern.indptr)
    assert both.is_symmetric()
    assert not a.is_symmetric()
    keep = rows != cols
    plain = edit.filter_edges(a, edit.no_loops_mask(a))
    assert torch.equal(plain.to_coo()[0], rows[keep])
    assert torch.equal(plain.to_coo()[1], cols[keep])
    assert np.array_equal(a.column_counts().numpy(), np.bincount(cols.numpy(), minlength=n))


def test_one_missing_reverse_edge_is_noticed() -> None:
    both = Graph(*large_edges(1000, 1000, 1.0), num_nodes=1000).to_bidirected()
    assert both.is_symmetric
    drop = torch.ones(both.num_edges, dtype=torch.bool)
    drop[both.num_edges // 2] = False
    src, dst = both.edges()
    assert both.edge_subgraph(drop).is_symmetric == bool(src[both.num_edges // 2] == dst[both.num_edges // 2])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 40)), max_size=60), st.booleans())
def test_any_small_edge_list(pairs: list[tuple[int, int]], wide: bool) -> None:
    rows = torch.tensor([r for r, _ in pairs], dtype=torch.int64 if wide else torch.int32)
    cols = torch.tensor([c for _, c in pairs], dtype=rows.dtype)
    a = Adjacency.from_coo(rows, cols, 71, 41)
    assert [t.tolist() for t in a.to_coo()] == [rows.tolist(), cols.tolist()]
    turned = (a.widened() if wide else a).transpose()
    assert [t.tolist() for t in turned.to_coo()] == [cols.tolist(), rows.tolist()]
    assert turned.is_wide == wide
    merged = a.with_sorted_columns()
    assert merged.columns_ascend()
    assert [t.tolist() for t in merged.to_coo()] == [rows.tolist(), cols.tolist()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transposing_values_moves_them_with_their_entries(case: Case) -> None:
    csc = case.graph().csc
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(csc.num_edges, dtype=dtype)
        turned, moved = csc.transpose_values(values)
        shape = (case.num_dst, case.num_src)
        before = sp.csr_array((values.numpy(), csc.indices.numpy(), csc.indptr.numpy()), shape=shape)
        after = sp.csr_array((moved.numpy(), turned.indices.numpy(), turned.indptr.numpy()), shape=shape[::-1])
        assert np.allclose(after.toarray(), before.toarray().T, atol=1e-6)


def test_ids_are_as_narrow_as_they_fit() -> None:
    most = 2**31 - 1
    assert index_dtype(most, most, most, with_edge_ids=True) == torch.int32
    assert index_dtype(most + 1, 1, 1, with_edge_ids=False) == torch.int64
    assert index_dtype(1, most + 1, 1, with_edge_ids=False) == torch.int64
    assert index_dtype(1, 1, 3 * most, with_edge_ids=False) == torch.int32
    assert index_dtype(1, 1, 3 * most, with_edge_ids=True) == torch.int64


def test_columns_beyond_32_bits_are_kept() -> None:
    big = 2**31
    a = Adjacency.from_coo(torch.tensor([1, 0]), torch.tensor([big, big + 5]), 2, big + 6)
    assert a.is_wide
    assert a.indices.tolist() == [big + 5, big]
    with pytest.raises(IndexRangeError, match=rf"\[0, {big}\), got {big} at position 0"):
        Adjacency.from_coo(torch.tensor([1, 0]), torch.tensor([big, 3]), 2, big)


def test_offsets_beyond_32_bits_are_checked_not_wrapped() -> None:
    huge = torch.tensor([0, 2**33, 2**33])
    with pytest.raises(GraphError, match=f"end at the number of indices, 1, got {2**33} at position 2"):
        Graph.from_csc(huge, torch.tensor([0]))
    with pytest.raises(GraphError, match="ascend"):
        Graph.from_csc(torch.tensor([0, 2**62, -(2**62)]), torch.tensor([0]))


def test_the_constructor_of_raw_pairs_checks_them() -> None:
    with pytest.raises(ShapeError):
        Adjacency.from_coo(torch.tensor([0]), torch.tensor([0, 1]), 1, 2)
    with pytest.raises(IndexRangeError, match=r"expected rows in \[0, 2\), got 2 at position 1"):
        Adjacency.from_coo(torch.tensor([0, 2]), torch.tensor([0, 0]), 2, 1)


def test_pickle_leaves_addresses_behind() -> None:
    a = Graph([0, 1], [1, 0]).csc
    first = a.native.indptr
    twin = pickle.loads(pickle.dumps(a))
    assert twin.native.indptr != first
    assert twin.native.num_edges == 2
