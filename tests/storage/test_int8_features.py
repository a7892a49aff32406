"""Features in 8 bits against the matrix that they were made of, and what torch's functions do with them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from graphweft._errors import DataError, DenseFeaturesWarning, DtypeError, GraphError, IndexRangeError, ShapeError
from graphweft.storage.feature import is_dense, kind_of, sparsity
from graphweft.storage.gather import gather_rows
from graphweft.storage.int8_features import Int8Features


def matrix(rows: int = 300, width: int = 37) -> Tensor:
    """Columns of very different ranges and means; one is constant, one binary, one has zeros and positive numbers."""
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
    drawn = drawn * torch.logspace(-3, 3, width) + torch.linspace(-5, 5, width) * torch.logspace(-3, 3, width)
    drawn[:, 0], drawn[:, 1] = 7.25, (drawn[:, 1] > drawn[:, 1].median()).float()
    drawn[:, 2] = drawn[:, 2].relu()
    return drawn


def test_a_number_moves_by_half_a_step_of_its_column_at_most() -> None:
    x = matrix()
    found = Int8Features.from_dense(x).to_dense()
    step = (x.amax(0) - x.amin(0)).double() / 254
    assert ((found.double() - x.double()).abs() <= 0.501 * step + 1e-6 * x.abs().amax(0)).all()
    assert torch.equal(found[:, 0], x[:, 0])


def test_zero_stays_zero_within_the_range_of_a_column() -> None:
    x = matrix()
    x[::3, 3:] = 0.0
    found = Int8Features.from_dense(x).to_dense()
    assert (found[x == 0] == 0).all()
    assert sparsity(Int8Features.from_dense(x)) == (found == 0).double().mean().item()


def test_levels_and_columns_are_what_a_number_is_made_of() -> None:
    x = Int8Features.from_dense(matrix())
    wanted = x.levels.double() * x.scale.double() + x.offset.double()  # exact: the product has at most 24 bits
    assert torch.equal(x.to_dense(), wanted.float())


def test_memory_is_a_quarter() -> None:
    x = torch.randn(4096, 256)
    small = Int8Features.from_dense(x)
    assert small.levels.untyped_storage().nbytes() == x.untyped_storage().nbytes() // 4
    assert small.nbytes == x.nbytes // 4 + 2 * 4 * 256


@pytest.mark.parametrize("width", [1, 3, 16, 31, 64, 130])
@pytest.mark.parametrize("threads", [1, 2])
def test_gathered_rows_are_those_of_the_dense_matrix(width: int, threads: int) -> None:
    x = Int8Features.from_dense(torch.randn(500, width))
    ids = torch.randint(0, 500, (2000,))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(gather_rows(x, ids), x.to_dense()[ids])
    finally:
        torch.set_num_threads(before)


def test_picked_rows_are_dense() -> None:
    x = Int8Features.from_dense(matrix())
    dense = x.to_dense()
    mask = dense[:, 4] > 0
    assert torch.equal(x[torch.tensor([3, -1])], dense[[3, -1]])
    assert torch.equal(x[5], dense[5])
    assert torch.equal(x[-1], dense[-1])
    assert torch.equal(x[2:9:2], dense[2:9:2])
    assert torch.equal(x[mask], dense[mask])
    assert torch.equal(x.index_select(0, torch.tensor([1, 2])), dense[1:3])
    assert is_dense(x[2:3])


def test_they_are_a_float32_matrix_to_torch() -> None:
    x = Int8Features.from_dense(matrix(10, 4))
    assert (tuple(x.shape), x.dtype, x.dim(), x.numel(), x.device.type) == ((10, 4), torch.float32, 2, 40, "cpu")
    assert not x.requires_grad
    assert kind_of(x) == "int8"
    assert not is_dense(x)
    assert repr(x) == "Int8Features(10 x 4, 0.0 MB)"


def test_other_functions_warn_and_get_dense_rows() -> None:
    x = Int8Features.from_dense(matrix())
    weight = torch.randn(37, 5)
    with pytest.warns(DenseFeaturesWarning, match="Int8Features 300 x 37"):
        product = x @ weight
    assert torch.equal(product, x.to_dense() @ weight)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_named(bad: float) -> None:
    x = torch.zeros(20_000, 3)  # more rows than are looked at in one go
    x[17_001, 2] = bad
    with pytest.raises(DataError, match=f"expected finite values, got {bad} at row 17001, column 2"):
        Int8Features.from_dense(x)


def test_what_does_not_fit_is_refused() -> None:
    x = Int8Features.from_dense(torch.ones(4, 2))
    with pytest.raises(ShapeError, match="expected a matrix, got shape"):
        Int8Features.from_dense(torch.ones(4))
    with pytest.raises(DtypeError, match="expected a dense matrix of real numbers"):
        Int8Features.from_dense(torch.ones(4, 2, dtype=torch.complex64))
    with pytest.raises(DtypeError, match="expected int8, float32 and float32"):
        Int8Features(torch.ones(4, 2), x.scale, x.offset)
    with pytest.raises(ShapeError, match=r"expected levels \(N, F\)"):
        Int8Features(x.levels, x.scale[:1], x.offset)
    with pytest.raises(DataError, match="expected scale finite, got nan at column 1"):
        Int8Features(x.levels, torch.tensor([1.0, float("nan")]), x.offset)
    with pytest.raises(IndexRangeError, match="got 4 at position 1"):
        gather_rows(x, torch.tensor([0, 4]))
    with pytest.raises(GraphError, match="have no dense memory"):
        x.data_ptr()
    with pytest.raises(GraphError, match="cannot be changed"):
        x.mul_(2)
    with pytest.raises(GraphError, match="expected requires_grad=False"):
        x.requires_grad_()


def test_no_rows_and_one_row() -> None:
    assert Int8Features.from_dense(torch.empty(0, 3)).to_dense().shape == (0, 3)
    assert torch.equal(Int8Features.from_dense(torch.tensor([[1.5, -2.0]])).to_dense(), torch.tensor([[1.5, -2.0]]))


def test_copies_are_equal() -> None:
    x = Int8Features.from_dense(matrix())
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert torch.equal(other.to_dense(), x.to_dense())
