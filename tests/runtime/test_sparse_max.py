"""Maximum, minimum and their gradient against NumPy by row."""

import numpy as np
import pytest
import torch
from adjacencies import Layout
from zoo import ZOO, power_law_edges

import graphweft as gw
from graphweft._errors import DtypeError, ShapeError
from graphweft.cost import winners_pay
from graphweft.runtime import sparse

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def features(rows, width, dtype=torch.float32, seed=0):
    # few distinct values, so that ties are common
    return (torch.randint(-4, 5, (rows, width), generator=torch.Generator().manual_seed(seed)) / 2).to(dtype)


def expected(layout, x, minimum):
    """Extremum and the first column that attains it, row by row in float64."""
    x = x.double().numpy()
    y = np.zeros((layout.num_rows, x.shape[1]))
    arg = np.full(y.shape, -1)
    indptr, indices = layout.indptr.numpy(), layout.indices.numpy()
    for i in range(layout.num_rows):
        columns = indices[indptr[i] : indptr[i + 1]]
        if len(columns) and x.shape[1]:
            best = (np.argmin if minimum else np.argmax)(x[columns], axis=0)
            arg[i] = columns[best]
            y[i] = x[columns].min(0) if minimum else x[columns].max(0)
    return y, arg


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", ZOO)
def test_extremum_on_the_zoo(name, wide, dtype):
    layout = Layout.of(ZOO[name], wide=wide)
    for width in (3, 40):
        x = features(layout.num_cols, width, dtype)
        for minimum in (False, True):
            y, arg = sparse.spmm_max(layout, x, minimum=minimum)
            want, want_arg = expected(layout, x, minimum)
            np.testing.assert_array_equal(y.double().numpy(), want)
            np.testing.assert_array_equal(arg.numpy(), want_arg)
            assert arg.dtype == layout.indices.dtype
            without, none = sparse.spmm_max(layout, x, minimum=minimum, want_arg=False)
            assert none is None and torch.equal(without, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [300, 417])
def test_extremum_of_wide_rows_that_are_copied_part_by_part(width, dtype):
    layout = Layout.of(power_law_edges(8000, 200_000, seed=5))
    assert sparse.wants_panel(layout.num_cols, layout.num_edges, width * dtype.itemsize, extrema=True)
    x = features(8000, width, dtype)
    x[torch.arange(0, 8000, 7), torch.arange(0, 8000, 7) % width] = float("nan")
    for minimum in (False, True):
        y, arg = sparse.spmm_max(layout, x, minimum=minimum)
        want, want_arg = expected(layout, x, minimum)
        np.testing.assert_array_equal(y.double().numpy(), want)
        np.testing.assert_array_equal(arg.numpy(), want_arg)
        without, _ = sparse.spmm_max(layout, x, minimum=minimum, want_arg=False)
        assert torch.equal(without.nan_to_num(9e9), y.nan_to_num(9e9))


@pytest.mark.parametrize("width", [0, 1, 16, 31, 32, 33, 64, 100, 201])
def test_extremum_at_every_width(width):
    layout = Layout.of(power_law_edges(300, 4000, seed=3))
    x = features(300, width)
    y, arg = sparse.spmm_max(layout, x)
    want, want_arg = expected(layout, x, False)
    np.testing.assert_array_equal(y.numpy(), want)
    np.testing.assert_array_equal(arg.numpy(), want_arg)


def test_nan_and_infinities():
    layout = Layout([0, 0, 0, 1, 1, 2], [0, 1, 2, 3, 4, 3], 3, 5, ids=False)
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan], [nan, nan], [5.0, 0.0], [-inf, inf], [-inf, -inf]])
    y, arg = sparse.spmm_max(layout, x)
    torch.testing.assert_close(y, torch.tensor([[nan, nan], [-inf, inf], [-inf, inf]]), equal_nan=True)
    assert arg.tolist() == [[1, 0], [3, 3], [3, 3]]
    y, arg = sparse.spmm_max(layout, x, minimum=True)
    torch.testing.assert_close(y, torch.tensor([[nan, nan], [-inf, -inf], [-inf, inf]]), equal_nan=True)
    assert arg.tolist() == [[1, 0], [3, 4], [3, 3]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", ZOO)
def test_gradient_goes_to_the_argument(name, wide, dtype):
    layout = Layout.of(ZOO[name], wide=wide)
    for width in (5, 48):
        _, arg = sparse.spmm_max(layout, features(layout.num_cols, width, dtype))
        dy = features(layout.num_rows, width, dtype, seed=1)
        want = np.zeros((layout.num_cols, width))
        rows, columns = np.nonzero(arg.numpy() >= 0)
        np.add.at(want, (arg.numpy()[rows, columns], columns), dy.double().numpy()[rows, columns])
        by_edges = sparse.spmm_max_grad(layout.transposed(), arg, dy)
        for dx in (by_edges, sparse.spmm_max_winners(layout.num_cols, arg, dy)):
            np.testing.assert_allclose(dx.double().numpy(), want, rtol=1e-2 if dtype == torch.bfloat16 else 0)


def test_rows_that_are_cut_give_the_same_for_any_number_of_threads():
    src = np.concatenate([np.arange(30_000), np.arange(30_000)])
    dst = np.concatenate([np.full(30_000, 7), np.full(30_000, 29_999)])
    layout = Layout(dst, src, 30_000, 30_000)
    x = torch.randn(30_000, 40, generator=torch.Generator().manual_seed(0))
    dy = torch.randn(30_000, 40, generator=torch.Generator().manual_seed(1))
    back = layout.transposed()
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            y, arg = sparse.spmm_max(layout, x)
            winners = sparse.spmm_max_winners(30_000, arg, dy)
            results.append((y, arg, sparse.spmm_max_grad(back, arg, dy), winners))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0][7], x.amax(0)) and torch.equal(results[0][1][7].long(), x.argmax(0))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_is_wrong_is_said():
    layout = Layout.of(ZOO["random"])
    with pytest.raises(DtypeError, match=r"x of dtype float32, float64, bfloat16, got torch\.int64"):
        sparse.spmm_max(layout, torch.zeros(40, 2, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"spmm_max: expected x of 40 rows, got shape \(41, 2\)"):
        sparse.spmm_max(layout, torch.zeros(41, 2))
    with pytest.raises(ShapeError, match=r"spmm_max_grad: expected arg as torch.int32 of shape \(40, 2\)"):
        sparse.spmm_max_grad(layout.transposed(), torch.zeros(40, 2, dtype=torch.int64), torch.zeros(40, 2))
    with pytest.raises(ShapeError, match=r"spmm_max_winners: expected arg as int32 or int64 of shape \(40, 2\)"):
        sparse.spmm_max_winners(40, torch.zeros(40, 3, dtype=torch.int64), torch.zeros(40, 2))


@pytest.mark.parametrize("edges", [1_000, 4_000])
def test_gradients_of_rows_with_few_and_with_many_edges(edges: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 40, (2, edges), generator=generator)
    graph = gw.Graph(*ends, num_nodes=40)
    assert winners_pay(graph.num_dst, graph.num_edges) == (edges == 4_000)
    x = torch.randn(40, 21, generator=generator, requires_grad=True)
    weight = torch.randn(40, 21, generator=generator)
    (gw.pull(graph, x, weight="copy", reduce="max") * weight).sum().backward()
    want = torch.zeros(40, 21, dtype=torch.float64)
    for row in range(40):
        sources = ends[0][ends[1] == row]
        want[sources[x.detach()[sources].argmax(0)], torch.arange(21)] += weight[row].double()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), want, rtol=1e-5, atol=1e-5)


def test_half_gradients_are_summed_in_full_precision_over_many_sources() -> None:
    """More sources than sums are kept for at a time, and one that wins more often than bfloat16 counts."""
    generator = torch.Generator().manual_seed(0)
    arg = torch.randint(-1, 40_000, (50_000, 19), generator=generator, dtype=torch.int32)
    arg[:2_000] = 39_999
    dy = torch.rand(50_000, 19, generator=generator).bfloat16()
    dx = sparse.spmm_max_winners(40_000, arg, dy)
    want = np.zeros((40_000, 19))
    rows, columns = np.nonzero(arg.numpy() >= 0)
    np.add.at(want, (arg.numpy()[rows, columns], columns), dy.double().numpy()[rows, columns])
    np.testing.assert_allclose(dx.double().numpy(), want, rtol=1 / 256)
