import itertools

import pytest
import torch

from graphweft._errors import DtypeError, ShapeError
from graphweft.runtime.dense import matmul, matmul_tn
from graphweft.runtime.epilogue import Epilogue

SIZES_N = [0, 1, 3, 25, 97, 900]
SIZES_K = [0, 1, 2, 17, 100, 800]
SIZES_M = [0, 1, 3, 8, 9, 16, 24, 32, 33, 47, 70, 121]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def assert_product(got, exact, terms):
    """Rounding of `terms` products of standard normals stays well inside this."""
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=2e-6 * (terms + 1) ** 0.5)


@pytest.mark.parametrize("n", SIZES_N)
def test_matmul_equals_float64(n):
    for k, m in itertools.product(SIZES_K, SIZES_M):
        x, w = normal(n, k), normal(k, m, seed=1)
        exact = x.double() @ w.double()
        got = matmul(x, w)
        assert_product(got, exact, k)
        assert torch.equal(matmul(x, w.t().contiguous(), transposed=True), got)
        assert torch.equal(matmul(x, w.t().contiguous().t()), got)


@pytest.mark.parametrize("n", SIZES_N)
def test_matmul_tn_equals_float64(n):
    for k, m in itertools.product(SIZES_K, SIZES_M):
        x, g, scale = normal(n, k), normal(n, m, seed=1), torch.rand(n)
        sums = torch.full((m,), float("nan"))
        assert_product(matmul_tn(x, g), x.double().t() @ g.double(), n)
        got = matmul_tn(x, g, row_scale=scale, col_sum=sums)
        assert_product(got, x.double().t() @ (scale.double()[:, None] * g.double()), n)
        assert_product(sums, g.double().sum(0), n)


def test_long_inner_dimension_and_many_slabs():
    x, w = normal(130, 4000), normal(4000, 33, seed=1)
    assert_product(matmul(x, w), x.double() @ w.double(), 4000)
    assert_product(matmul_tn(x.t().contiguous(), w), x.double() @ w.double(), 4000)
    wide, narrow = normal(400, 9000), normal(400, 35, seed=2)
    assert_product(matmul_tn(wide, narrow), wide.double().t() @ narrow.double(), 400)


def test_matmul_reads_rows_with_strides_and_odd_addresses():
    whole, weight = normal(70, 120), normal(60, 90, seed=1)
    x, w = whole[3:, 7:58], weight[5:56, 3:44]
    out = torch.full((67, 50), 9.0)
    matmul(x, w, out=out[:, 1:42])
    assert_product(out[:, 1:42], x.double() @ w.double(), 51)
    assert bool((out[:, 0] == 9.0).all()) and bool((out[:, 42:] == 9.0).all())
    g = whole[3:, 61:98]
    dw = torch.full((60, 50), 9.0)
    matmul_tn(x, g, out=dw[4:55, 2:39])
    assert_product(dw[4:55, 2:39], x.double().t() @ g.double(), 67)
    assert bool((dw[:4] == 9.0).all()) and bool((dw[4:55, 39:] == 9.0).all())
    columns = normal(40, 30).t()
    assert_product(matmul(columns, normal(40, 5)), columns.double() @ normal(40, 5).double(), 40)


@pytest.mark.parametrize("stages", range(128))
def test_epilogue_stages_in_every_combination(stages):
    wants = [bool(stages >> bit & 1) for bit in range(7)]
    k = 19
    for n, m in ((61, 7), (61, 32), (25, 41), (61, 70), (1, 16), (0, 5)):
        parts = (torch.rand(n), normal(m), normal(n, m), True, normal(n, m, seed=3), torch.empty(m), torch.rand(n))
        chosen = [part if want else None for part, want in zip(parts, wants, strict=True)]
        chosen[3] = wants[3]
        epilogue = Epilogue(*chosen)
        x, w = normal(n, k), normal(k, m, seed=1)
        exact = x.double() @ w.double()
        got = matmul(x, w, epilogue=epilogue)
        assert_product(got, epilogue.reference(exact), 4 * k)
        if epilogue.col_sum is not None:
            before = Epilogue(*parts_before_sum(epilogue)).reference(exact)
            assert_product(epilogue.col_sum, before.sum(0), n * k)


def parts_before_sum(epilogue):
    return epilogue.row_scale, epilogue.bias, epilogue.addend, epilogue.relu, epilogue.mask


def test_addend_may_be_the_output():
    x, w, y = normal(50, 20), normal(20, 37, seed=1), normal(50, 37, seed=2)
    exact = y.double() + x.double() @ w.double()
    matmul(x, w, epilogue=Epilogue(addend=y), out=y)
    assert_product(y, exact, 20)


def test_not_a_number_and_infinity_go_where_they_belong():
    x, w = torch.ones(30, 20), torch.ones(20, 18)
    x[4, 7], x[9, 0] = float("nan"), float("inf")
    y = matmul(x, w, epilogue=Epilogue(relu=True))
    assert bool(y[4].isnan().all()) and bool(y[9].isinf().all())
    rest = [i for i in range(30) if i not in (4, 9)]
    assert bool((y[rest] == 20.0).all())
    dw = matmul_tn(x, torch.ones(30, 18))
    assert bool(dw[7].isnan().all()) and bool(dw[0].isinf().all()) and bool((dw[1] == 30.0).all())


def test_same_bits_for_any_number_of_threads():
    x, w, g = normal(5000, 70), normal(70, 41, seed=1), normal(5000, 41, seed=2)
    deep = normal(3000, 900)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            sums, more = torch.empty(41), torch.empty(41)
            products = [
                matmul(x, w, epilogue=Epilogue(relu=True, col_sum=sums)),
                matmul_tn(x, g, col_sum=more),
                matmul_tn(deep, g[:3000]),
                matmul(deep, normal(900, 20)),
            ]
            results.append([*products, sums, more])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_have_the_same_meaning(dtype):
    x, w, g = normal(9, 4).to(dtype), normal(4, 3).to(dtype), normal(9, 3).to(dtype)
    sums = torch.empty(3)
    epilogue = Epilogue(bias=normal(3), relu=True, col_sum=sums, post_scale=torch.full((9,), 2.0))
    got = matmul(x, w, epilogue=epilogue)
    relu = torch.relu(x @ w + epilogue.bias.to(dtype))
    assert got.dtype == dtype and torch.equal(got, relu * 2)
    torch.testing.assert_close(sums, relu.sum(0).float())
    torch.testing.assert_close(matmul_tn(x, g, row_scale=torch.full((9,), 2.0)), x.t() @ (g * 2))


def test_errors_name_the_sizes():
    x, w = torch.zeros(4, 3), torch.zeros(2, 5)
    with pytest.raises(ShapeError, match="expected a weight with 3 rows, got"):
        matmul(x, w)
    with pytest.raises(ShapeError, match="expected a weight with 3 columns"):
        matmul(x, w, transposed=True)
    with pytest.raises(ShapeError, match="expected a weight with 3 rows"):
        matmul(x, torch.zeros(3))
    with pytest.raises(ShapeError, match="expected 4 rows of g"):
        matmul_tn(x, torch.zeros(5, 2))
    with pytest.raises(ShapeError, match="expected out"):
        matmul(x, torch.zeros(3, 2), out=torch.zeros(4, 3))
    with pytest.raises(DtypeError, match="one dtype"):
        matmul(x, torch.zeros(3, 2, dtype=torch.float64))
    with pytest.raises(ShapeError, match="bias"):
        matmul(x, torch.zeros(3, 2), epilogue=Epilogue(bias=torch.zeros(3)))
