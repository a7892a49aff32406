"""Sparse features against SciPy and NumPy in float64."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphweft._errors import DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft._memory import POOL, Pool
from graphweft.storage.feature import SparseFeatures, sparsity

SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (7, 3), (300, 90), (70_000, 4), (3, 20_000)]


def sparse(rows: int, width: int, seed: int = 0) -> sp.csr_array:
    return sp.random_array((rows, width), density=0.1, format="csr", rng=np.random.default_rng(seed))


def features(matrix: sp.csr_array, dtype: torch.dtype = torch.float32) -> SparseFeatures:
    return SparseFeatures.from_scipy(matrix, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trips(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = sparse(*shape)
    x = features(matrix, dtype)
    dense = matrix.toarray().astype(np.float32 if dtype == torch.float32 else np.float64)
    assert (x.shape, x.nnz, x.dtype) == (shape, matrix.nnz, dtype)
    assert np.array_equal(x.to_dense().numpy(), dense)
    assert np.array_equal(x.to_scipy().toarray(), dense)
    again = SparseFeatures.from_dense(x.to_dense())
    assert torch.equal(again.indptr, x.indptr)
    assert torch.equal(again.indices, x.indices)
    assert torch.equal(again.values, x.values)
    assert again.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES)
def test_transposed_lists_columns(shape: tuple[int, int]) -> None:
    x = features(sparse(*shape))
    structure, values = x.transposed
    parts = (values.numpy(), structure.indices.numpy(), structure.indptr.numpy())
    assert np.array_equal(sp.csr_array(parts, shape=shape[::-1]).toarray(), x.to_scipy().toarray().T)
    assert x.transposed is x.transposed


@pytest.mark.parametrize("shape", SHAPES)
def test_sparsity_is_the_exact_share_of_zeros(shape: tuple[int, int]) -> None:
    dense = sparse(*shape).toarray()
    expected = 1 - np.count_nonzero(dense) / dense.size if dense.size else 0.0
    for x in (dense, dense.astype(np.float32), torch.from_numpy(dense).T.contiguous().T, features(sparse(*shape))):
        assert sparsity(x) == pytest.approx(expected, abs=1e-15)


def test_sparsity_at_the_edges() -> None:
    assert sparsity(torch.tensor([[float("nan"), -0.0, 0.0, 1.0]])) == 0.5
    assert sparsity(torch.ones(3, 8)[:, ::2]) == 0.0
    assert sparsity(torch.tensor([[0, 3]])) == 0.5
    with pytest.raises(ShapeError, match="expected a matrix"):
        sparsity(torch.ones(3))
    with pytest.raises(DtypeError, match="expected a dense matrix"):
        sparsity(torch.eye(2).to_sparse())


def test_zeros_of_many_rows_are_counted_without_memory_of_the_pool() -> None:
    """It is done before a budget is in force, which the page of a count for every row would exceed."""
    x, pool = torch.ones(20_001, 4), Pool()
    x[5_000:, 1:] = 0.0
    with POOL.within(pool):
        assert sparsity(x) == pytest.approx(3 * 15_001 / x.numel(), abs=1e-15)
    assert pool.stats().maps == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_row_normalized_rows_have_absolute_sum_one(shape: tuple[int, int]) -> None:
    matrix = sparse(*shape)
    matrix.data -= 0.3
    x = features(matrix)
    dense = x.to_dense().double().numpy()
    total = np.abs(dense).sum(axis=1, keepdims=True)
    expected = np.divide(dense, total, out=dense.copy(), where=total != 0)
    got = x.row_normalized()
    assert np.allclose(got.to_dense().numpy(), expected, rtol=1e-6, atol=0)
    assert got.adjacency is x.adjacency


def test_take_rows_takes_ids_masks_and_slices() -> None:
    matrix = sparse(50, 9)
    x = features(matrix, torch.float64)
    for rows in ([3, 3, 0, 49], torch.arange(50) % 2 == 0, slice(10, 20), []):
        index = np.array(rows, dtype=int) if isinstance(rows, list) else rows
        assert np.array_equal(x.take_rows(rows).to_dense().numpy(), matrix.toarray()[index])


def test_repeated_places_add_up_and_zeros_are_not_stored() -> None:
    x = SparseFeatures([0, 5, 7], [2, 0, 2, 1, 1, 0, 2], [1.0, 2.0, 4.0, 3.0, -3.0, 0.0, 5.0], (2, 3))
    assert x.to_dense().tolist() == [[2.0, 0.0, 5.0], [0.0, 0.0, 5.0]]
    assert x.indices.tolist() == [0, 2, 2]
    assert x.nnz == 3


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(0, 6)), elements=st.sampled_from([0.0, 1.0, -2.5]))
)
def test_any_small_matrix(dense: np.ndarray) -> None:
    x = SparseFeatures.from_dense(dense)
    assert np.array_equal(x.to_dense().numpy(), dense)
    assert x.nnz == np.count_nonzero(dense)
    assert np.array_equal(x.to_scipy().toarray(), sp.csr_array(dense).toarray())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(-2, 2)), max_size=30))
def test_any_order_with_repeats_is_what_scipy_reads(entries: list[tuple[int, int, int]]) -> None:
    entries.sort(key=lambda entry: entry[0])
    rows, cols, values = (np.array([entry[k] for entry in entries], dtype=np.int64) for k in range(3))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=5))])
    x = SparseFeatures(indptr, cols, values.astype(np.int8), (5, 7))
    assert np.array_equal(x.to_dense().numpy(), sp.coo_array((values, (rows, cols)), shape=(5, 7)).toarray())
    assert x.adjacency.columns_ascend(strictly=True)


def test_canonical_arrays_are_kept() -> None:
    indices, values = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([1.0, 2.0])
    x = SparseFeatures(torch.tensor([0, 2]), indices, values, (1, 3))
    assert x.indices.data_ptr() == indices.data_ptr()
    assert x.values.data_ptr() == values.data_ptr()
    assert x.to(torch.float64).adjacency is x.adjacency
    assert SparseFeatures([0, 1], [1], None, (1, 2)).to_dense().tolist() == [[0.0, 1.0]]


def test_copies() -> None:
    x = features(sparse(20, 6))
    _ = x.transposed
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert torch.equal(twin.to_dense(), x.to_dense())
    assert repr(x).startswith("SparseFeatures(20 x 6, 12 values")


def test_same_bits_for_one_and_two_threads(threads_restored: None) -> None:
    matrix = sparse(50_000, 60)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        x = features(matrix)
        back = SparseFeatures.from_dense(x.to_dense())
        results.append([x.transposed[1], x.transposed[0].indices, back.values, x.row_normalized().values])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


BAD = {
    "start": (lambda: SparseFeatures([1, 1], [], [], (1, 2)), GraphError, "start at 0, got 1"),
    "falls": (lambda: SparseFeatures([0, 2, 1], [0], [1.0], (2, 2)), GraphError, "ascend, got 1 at position 2 after 2"),
    "end": (
        lambda: SparseFeatures([0, 1], [0, 1], [1, 1], (1, 2)),
        GraphError,
        "end at the number of indices, 2, got 1",
    ),
    "rows": (lambda: SparseFeatures([0, 1], [0], [1.0], (2, 2)), ShapeError, "expected 3 offsets for 2 rows, got 2"),
    "column": (lambda: SparseFeatures([0, 1], [2], [1.0], (1, 2)), IndexRangeError, r"\[0, 2\), got 2 at position 0"),
    "negative": (lambda: SparseFeatures([0, 1], [-1], [1.0], (1, 2)), IndexRangeError, "got -1 at position 0"),
    "nan": (lambda: SparseFeatures([0, 1], [1], [np.nan], (1, 2)), GraphError, "finite values, got nan at position 0"),
    "inf": (
        lambda: SparseFeatures([0, 1], [1], [-np.inf], (1, 2)),
        GraphError,
        "finite values, got -inf at position 0",
    ),
    "over": (lambda: SparseFeatures([0, 1], [1], [1e300], (1, 2)), GraphError, "finite values, got inf at position 0"),
    "dense_nan": (lambda: SparseFeatures.from_dense([[np.nan]]), GraphError, "finite values, got nan"),
    "length": (lambda: SparseFeatures([0, 1], [1], [], (1, 2)), ShapeError, "one value per index, 1, got 0"),
    "complex": (lambda: SparseFeatures([0, 1], [1], np.array([1j]), (1, 2)), DtypeError, "real numbers"),
    "text": (lambda: SparseFeatures([0, 1], [1], ["a"], (1, 2)), DtypeError, "real numbers"),
    "object": (lambda: SparseFeatures([0, 1], [1], np.array([None]), (1, 2)), DtypeError, "got object"),
    "float_ids": (lambda: SparseFeatures([0, 1], [1.0], [1.0], (1, 2)), DtypeError, "indices of integers"),
    "shape": (lambda: SparseFeatures([0, 1], [1], [1.0], 3), ShapeError, r"expected shape \(rows, width\)"),
    "huge": (lambda: SparseFeatures([0, 1], [1], [1.0], (2**40, 2)), GraphError, "the number of rows <="),
    "half": (lambda: SparseFeatures([0], [], [], (0, 2), dtype=torch.float16), DtypeError, "float32 or float64"),
    "scipy": (lambda: SparseFeatures.from_scipy(np.eye(2)), DtypeError, "a SciPy sparse matrix, got ndarray"),
    "take": (
        lambda: features(sparse(3, 3)).take_rows([3]),
        IndexRangeError,
        r"row ids in \[0, 3\), got 3 at position 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_clear_line(name: str) -> None:
    make, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_features_of_a_scipy_matrix_do_not_follow_its_changes():
    matrix = sp.random(20, 6, 0.3, format="csr", dtype=np.float32, random_state=0)
    x = SparseFeatures.from_scipy(matrix)
    before = matrix.toarray()
    matrix.data *= 2
    matrix.indices[:] = 0
    assert np.array_equal(x.to_dense().numpy(), before)
