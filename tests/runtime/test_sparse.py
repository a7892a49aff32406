"""spmm against SciPy and NumPy in float64."""

import numpy as np
import pytest
import torch
from adjacencies import Layout
from zoo import ZOO, power_law_edges, random_edges

from graphweft._errors import DtypeError, ShapeError
from graphweft.graph.adjacency import Adjacency
from graphweft.runtime import sparse
from graphweft.runtime.epilogue import Epilogue

WIDTHS = [0, 1, 3, 16, 31, 32, 33, 47, 64, 100, 602]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}


def features(rows, width, dtype=torch.float32, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected_sum(layout, x, *, reduce="sum", weight=None, src_scale=None, self_coef=0.0):
    x = x.double().numpy()
    scale = np.ones(layout.num_cols) if src_scale is None else src_scale.double().numpy()
    y = layout.matrix(None if weight is None else weight.double().numpy()) @ (scale[:, None] * x)
    if reduce == "mean":
        y = y / np.maximum(layout.degrees(), 1)[:, None]
    return y + (self_coef * scale[:, None] * x if self_coef else 0)


def assert_close(actual, expected, dtype=None):
    tolerance = TOLERANCE[dtype or actual.dtype]
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", ZOO)
def test_spmm_equals_scipy_on_the_zoo(name, wide):
    layout = Layout.of(ZOO[name], wide=wide)
    weight, scale = (
        features(layout.num_edges, 1)[:, 0].contiguous(),
        features(layout.num_cols, 1, seed=1)[:, 0].contiguous(),
    )
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        x = features(layout.num_cols, 33, dtype, seed=2)
        for options in (
            {},
            {"reduce": "mean"},
            {"weight": weight.to(kind)},
            {"src_scale": scale.to(kind), "reduce": "mean"},
            {"weight": weight.to(kind), "src_scale": scale.to(kind), "self_coef": 1.5},
        ):
            assert_close(sparse.spmm(layout, x, **options), expected_sum(layout, x, **options))


def test_weights_of_no_edges():
    """NumPy's arrays of no elements come with a stride of 0."""
    empty = Layout([], [], 5, 5)
    weight = torch.from_numpy(np.empty(0, np.float32))
    x = features(5, 3)
    for reduce in ("sum", "mean"):
        assert_close(sparse.spmm(empty, x, weight=weight, reduce=reduce, self_coef=1.5), 1.5 * x.double().numpy())


@pytest.mark.parametrize("wide", [False, True], ids=["more-columns", "more-rows"])
def test_own_rows_count_where_there_is_one_of_their_number(wide):
    """A block has more sources than destinations, its reverse fewer: rows beyond the last of x have no self term."""
    rows, columns = (40, 25) if wide else (25, 40)
    random = torch.Generator().manual_seed(0)
    edges = [torch.randint(0, count, (300,), generator=random) for count in (rows, columns)]
    layout = Adjacency.from_coo(*edges, rows, columns)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        for width in (1, 33, 200):
            x, scale = features(columns, width, dtype, seed=1), features(columns, 1, seed=2)[:, 0].to(kind)
            matrix = np.zeros((rows, columns))
            np.add.at(matrix, (edges[0].numpy(), edges[1].numpy()), 1.0)
            np.einsum("ii->i", matrix[:25, :25])[:] += 1.5
            got = sparse.spmm(layout, x, src_scale=scale, self_coef=1.5)
            assert_close(got, matrix @ (scale.double()[:, None] * x.double()).numpy())


@pytest.mark.parametrize("width", [1, 16, 33, 200])
def test_the_factor_of_own_rows_is_read_in_the_call(width):
    layout = Layout.of(power_law_edges(300, 4000, seed=3))
    x, factor = features(300, width), torch.zeros(())
    for number in (1.25, 0.0, -3.0):
        factor.fill_(number)
        for options in ({}, {"reduce": "mean"}, {"rounds": True}):
            got = sparse.spmm(layout, x, self_coef=1.0, self_factor=factor, **options)
            again = sparse.spmm(layout, x, self_coef=number, **options)
            assert torch.equal(got, again)
            if "rounds" not in options:
                assert_close(got, expected_sum(layout, x, self_coef=number, **options))
    for wrong in (torch.zeros(2), torch.zeros((), dtype=torch.float64)):
        with pytest.raises(ShapeError, match="expected one float32 number for self_factor"):
            sparse.spmm(layout, x, self_coef=1.0, self_factor=wrong)
    with pytest.raises(ShapeError, match="expected one float32 number for self_factor"):
        sparse.spmm(layout, x.double(), self_coef=1.0, self_factor=factor)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_spmm_equals_scipy_at_every_width(width, dtype):
    layout = Layout.of(power_law_edges(300, 4000, seed=3), ids=False)
    x = features(300, width, dtype)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    weight = features(layout.num_edges, 1, kind)[:, 0].contiguous()
    for options in ({}, {"weight": weight, "reduce": "mean"}):
        assert_close(sparse.spmm(layout, x, **options), expected_sum(layout, x, **options))


def test_rows_may_be_strided_and_unaligned_and_nothing_beyond_them_is_written():
    layout = Layout.of(ZOO["random"])
    for width in (1, 5, 16, 31, 48):
        store = torch.full((40, width + 7), float("nan"))
        store[:, 3 : 3 + width] = features(40, width)
        x = store[:, 3 : 3 + width]
        target = torch.full((40, width + 5), 7.0)
        out = sparse.spmm(layout, x, out=target[:, 1 : 1 + width])
        assert_close(out, expected_sum(layout, x))
        assert (target[:, 0] == 7).all() and (target[:, 1 + width :] == 7).all()


def test_a_transposed_input_is_taken():
    layout = Layout.of(ZOO["random"])
    x = features(8, 40).t()
    assert_close(sparse.spmm(layout, x), expected_sum(layout, x))


def test_rectangular_adjacencies():
    rng = np.random.default_rng(0)
    layout = Layout(rng.integers(0, 20, 90), rng.integers(0, 50, 90), 20, 50)
    x = features(50, 17)
    assert_close(sparse.spmm(layout, x, reduce="mean"), expected_sum(layout, x, reduce="mean"))


@pytest.mark.parametrize("width", [4, 40])
def test_nan_and_infinity_stay_in_their_rows(width):
    layout = Layout.of(ZOO["path"])
    x = torch.ones(7, width)
    x[1, 0], x[3, 1] = float("nan"), float("inf")
    y = sparse.spmm(layout, x)
    assert torch.isnan(y).nonzero().tolist() == [[2, 0]]
    assert torch.isinf(y).nonzero().tolist() == [[4, 1]]


def test_bfloat16_sums_are_held_in_float32():
    layout = Layout(np.zeros(10_000, int), np.arange(10_000), 1, 10_000)
    y = sparse.spmm(layout, torch.ones(10_000, 3, dtype=torch.bfloat16))
    assert (y == torch.tensor(10_000.0).bfloat16()).all()


STAGES = ["row_scale", "bias", "addend", "relu", "mask", "col_sum", "post_scale"]


def make_epilogue(names, rows, width):
    stages = {
        "row_scale": features(rows, 1, seed=1)[:, 0].contiguous(),
        "bias": features(1, width, seed=2)[0],
        "addend": features(rows, width + 3, seed=3)[:, :width],
        "relu": True,
        "mask": features(rows, width + 1, seed=4)[:, 1:],
        "col_sum": torch.full((width,), float("nan")),
        "post_scale": features(rows, 1, seed=5)[:, 0].contiguous(),
    }
    return Epilogue(**{name: stages[name] for name in names})


def expected_epilogue(epilogue, y):
    """The stages in NumPy float64, and the column sums."""

    def wide(t):
        return t.double().numpy()

    if epilogue.row_scale is not None:
        y = y * wide(epilogue.row_scale)[:, None]
    if epilogue.bias is not None:
        y = y + wide(epilogue.bias)
    if epilogue.addend is not None:
        y = y + wide(epilogue.addend)
    if epilogue.relu:
        y = np.where(y < 0, 0, y)
    if epilogue.mask is not None:
        y = np.where(wide(epilogue.mask) > 0, y, 0)
    sums = y.sum(0)
    if epilogue.post_scale is not None:
        y = y * wide(epilogue.post_scale)[:, None]
    return y, sums


@pytest.mark.parametrize("width", [1, 31, 32, 150])
@pytest.mark.parametrize("names", [[], *([s] for s in STAGES), STAGES, STAGES[:4], STAGES[4:]], ids="-".join)
def test_epilogue_stages(names, width):
    layout = Layout.of(ZOO["power_law"])
    x = features(200, width)
    epilogue = make_epilogue(names, 200, width)
    y, sums = expected_epilogue(epilogue, expected_sum(layout, x, reduce="mean", self_coef=0.5))
    assert_close(sparse.spmm(layout, x, reduce="mean", self_coef=0.5, epilogue=epilogue), y)
    if epilogue.col_sum is not None:
        np.testing.assert_allclose(epilogue.col_sum.double().numpy(), sums, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["empty", "no_edges", "star", "multi_edges"])
def test_epilogue_on_the_zoo(name):
    layout = Layout.of(ZOO[name])
    n = layout.num_rows
    epilogue = make_epilogue(STAGES, n, 20)
    x = features(n, 20)
    y, sums = expected_epilogue(epilogue, expected_sum(layout, x))
    assert_close(sparse.spmm(layout, x, epilogue=epilogue), y)
    np.testing.assert_allclose(epilogue.col_sum.double().numpy(), sums, rtol=1e-4, atol=1e-4)


def test_other_dtypes_take_an_epilogue_too():
    layout = Layout.of(ZOO["power_law"])
    x = features(200, 9, torch.float64)
    epilogue = make_epilogue(STAGES, 200, 9)
    y, sums = expected_epilogue(epilogue, expected_sum(layout, x))
    assert_close(sparse.spmm(layout, x, epilogue=epilogue), y)
    np.testing.assert_allclose(epilogue.col_sum.double().numpy(), sums, rtol=1e-5, atol=1e-5)


@pytest.fixture
def big_layouts():
    """Graphs large enough to be shared out, one with rows that several pieces must share."""
    skewed = power_law_edges(4000, 120_000, seed=5)
    star = random_edges(30_000, 1000, seed=6)
    src = np.concatenate([star.src, np.arange(30_000), np.arange(30_000)])
    dst = np.concatenate([star.dst, np.full(30_000, 7), np.full(30_000, 29_999)])
    return [Layout.of(skewed), Layout(dst, src, 30_000, 30_000)]


@pytest.mark.parametrize("width", [8, 96, 200])
def test_same_bits_for_any_number_of_threads(big_layouts, width):
    for layout in big_layouts:
        x = features(layout.num_cols, width)
        results = []
        threads = torch.get_num_threads()
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                epilogue = make_epilogue(STAGES, layout.num_rows, width)
                y = sparse.spmm(layout, x, reduce="mean", self_coef=1.0, epilogue=epilogue)
                results.append((y, epilogue.col_sum))
        finally:
            torch.set_num_threads(threads)
        expected, sums = expected_epilogue(
            make_epilogue(STAGES, layout.num_rows, width), expected_sum(layout, x, reduce="mean", self_coef=1.0)
        )
        assert_close(results[0][0], expected)
        np.testing.assert_allclose(results[0][1].double().numpy(), sums, rtol=1e-4, atol=1e-2)
        for y, total in results[1:]:
            assert torch.equal(y, results[0][0]) and torch.equal(total, results[0][1])


def test_prefetching_changes_no_bit(big_layouts):
    x = features(30_000, 32)
    y = [sparse.spmm(big_layouts[1], x, prefetch=distance) for distance in (0, 3, 8, 500_000)]
    assert all(torch.equal(other, y[0]) for other in y[1:])


@pytest.mark.parametrize(
    ("options", "failure", "text"),
    [
        ({"reduce": "max"}, ShapeError, "expected reduce sum or mean, got 'max'"),
        ({"x": torch.zeros(39, 2)}, ShapeError, r"expected x of 40 rows, one per column, got shape \(39, 2\)"),
        ({"x": torch.zeros(40, 2, dtype=torch.int32)}, DtypeError, "got torch.int32"),
        ({"weight": torch.zeros(3)}, ShapeError, r"weight of shape \(200,\)"),
        ({"weight": torch.zeros(200, dtype=torch.float64)}, DtypeError, "weight of dtype torch.float32"),
        ({"src_scale": torch.zeros(200)}, ShapeError, r"src_scale of shape \(40,\)"),
        ({"out": torch.zeros(40, 3)}, ShapeError, r"expected out as torch.float32 of shape \(40, 2\)"),
        ({"epilogue": Epilogue(bias=torch.zeros(3))}, ShapeError, r"bias of shape \(2,\)"),
    ],
)
def test_what_is_wrong_is_said(options, failure, text):
    with pytest.raises(failure, match=text):
        sparse.spmm(Layout.of(ZOO["random"]), **{"x": torch.zeros(40, 2), **options})
