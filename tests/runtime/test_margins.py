"""Margins between in-edges against all pairs in NumPy, with ties and scores that are not finite; bits over threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from zoo import CASES, Case, power_law_edges

from graphweft._errors import DtypeError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.runtime.sparse import edge_margins, edge_margins_grad


def _pairs(case: Case, scores: np.ndarray) -> np.ndarray:
    out = np.zeros_like(scores)
    dst = case.dst.numpy()
    for node in range(case.num_dst):
        mine = np.flatnonzero(dst == node)
        with np.errstate(invalid="ignore"):
            out[mine] = np.maximum(0, scores[mine][:, None] - scores[mine][None]).sum(1)
    return out


def _pairs_grad(case: Case, scores: np.ndarray, dout: np.ndarray, closed: bool) -> np.ndarray:
    grad = np.zeros_like(scores)
    dst = case.dst.numpy()
    for node in range(case.num_dst):
        mine = np.flatnonzero(dst == node)
        s, d = scores[mine], dout[mine]
        above = s[:, None] >= s[None] if closed else s[:, None] > s[None]
        grad[mine] = (above * d[:, None]).sum(1) - (above * d[:, None]).sum(0)
    return grad


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("dims", [(), (1,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_margins_and_gradient_are_those_of_all_pairs(case: Case, dtype: torch.dtype, dims: tuple, ties: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn((case.num_edges, *dims), generator=generator)
    scores = scores.mul(2).round().div(2) if ties else scores
    dout = torch.randn((case.num_edges, *dims), generator=generator)
    adj = case.graph().csc
    exact, slope = scores.double().numpy(), dout.double().numpy()
    tolerance = 1e-4 if dtype is torch.float32 else 1e-11
    got = edge_margins(adj, scores.to(dtype))
    np.testing.assert_allclose(got.double().numpy(), _pairs(case, exact), rtol=tolerance, atol=tolerance)
    for closed in (False, True):
        grad = edge_margins_grad(adj, scores.to(dtype), dout.to(dtype), closed=closed)
        expected = _pairs_grad(case, exact, slope, closed)
        np.testing.assert_allclose(grad.double().numpy(), expected, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("closed", [False, True])
def test_rows_of_any_length_compare_all_of_their_pairs(closed: bool, heads: int) -> None:
    dst = torch.repeat_interleave(torch.arange(120), torch.arange(120))
    case = Case("lengths", dst * 7 % 120, dst, 120, 120)
    scores = torch.randn((dst.numel(), heads), generator=torch.Generator().manual_seed(3))
    scores[::3] = scores[::3].mul(2).round().div(2)
    dout = torch.randn(scores.shape, generator=torch.Generator().manual_seed(4))
    exact, slope = scores.double().numpy(), dout.double().numpy()
    adj = Graph(case.src, dst, num_nodes=120).csc
    np.testing.assert_allclose(edge_margins(adj, scores).numpy(), _pairs(case, exact), rtol=1e-5, atol=1e-5)
    grad = edge_margins_grad(adj, scores, dout, closed=closed)
    np.testing.assert_allclose(grad.numpy(), _pairs_grad(case, exact, slope, closed), rtol=1e-4, atol=1e-4)


def test_scores_that_are_not_finite_stay_in_their_head() -> None:
    case = Case("one row", torch.arange(5), torch.zeros(5, dtype=torch.int64), 5, 5)
    scores = torch.randn((5, 4), generator=torch.Generator().manual_seed(3))
    scores[2, 1] = torch.nan
    scores[3, 2] = torch.inf
    adj, sound = case.graph().csc, scores.numpy()[:, [0, 3]]
    got, grad = edge_margins(adj, scores), edge_margins_grad(adj, scores, torch.ones(5, 4), closed=False).numpy()
    np.testing.assert_allclose(got.numpy()[:, [0, 3]], _pairs(case, sound), rtol=1e-6)
    np.testing.assert_allclose(grad[:, [0, 3]], _pairs_grad(case, sound, np.ones((5, 2)), False), rtol=1e-6)
    assert np.isnan(got.numpy()[:, 1]).all() and np.isnan(grad[:, [1, 2]]).all()
    finite = [0, 1, 2, 4]
    expected = _pairs(case, scores.double().numpy()[:, [2]])[finite, 0]
    np.testing.assert_allclose(got.numpy()[finite, 2], expected, rtol=1e-6)


def test_scores_that_are_not_finite_stay_in_their_row() -> None:
    graph = Graph(range(9), [0, 0, 0, 1, 1, 1, 2, 2, 2], num_nodes=9)
    inf, nan = torch.inf, torch.nan
    scores = torch.tensor([1.0, nan, 2.0, inf, 3.0, 1.0, -inf, 0.0, 4.0])
    got = edge_margins(graph.csc, scores)
    expected = torch.tensor([nan, nan, nan, nan, 2.0, 0.0, nan, inf, inf])
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert edge_margins_grad(graph.csc, scores, torch.ones(9), closed=False).isnan().all()


def _rows_of_all_lengths(most: int) -> Case:
    """Node i has i in-edges, in an order that is not that of their ids."""
    dst = torch.arange(most).repeat_interleave(torch.arange(most))
    dst = dst[torch.randperm(dst.numel(), generator=torch.Generator().manual_seed(4))]
    return Case("lengths", torch.zeros_like(dst), dst, most, most)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_short_and_long_rows_with_ties_and_both_zeros(dtype: torch.dtype) -> None:
    case = _rows_of_all_lengths(150)
    generator = torch.Generator().manual_seed(2)
    scores = torch.randint(-6, 7, (case.num_edges, 2), generator=generator, dtype=dtype) / 4
    scores = torch.where((scores == 0) & (torch.rand(scores.shape, generator=generator) < 0.5), -0.0, scores)
    dout = torch.randint(-8, 9, scores.shape, generator=generator, dtype=dtype)  # sums are exact
    adj = case.graph().csc
    exact, slope = scores.double().numpy(), dout.double().numpy()
    assert torch.equal(edge_margins(adj, scores).double(), torch.from_numpy(_pairs(case, exact)))
    for closed in (False, True):
        grad = edge_margins_grad(adj, scores, dout, closed=closed)
        assert torch.equal(grad.double(), torch.from_numpy(_pairs_grad(case, exact, slope, closed)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("strange", [(torch.nan,), (torch.inf,), (-torch.inf,), (torch.inf, -torch.inf, torch.nan)])
def test_long_rows_with_scores_that_are_not_finite(dtype: torch.dtype, strange: tuple[float, ...]) -> None:
    case = _rows_of_all_lengths(130)
    scores = torch.randn(case.num_edges, generator=torch.Generator().manual_seed(3), dtype=dtype)
    scores[:: case.num_edges // 40] = torch.tensor(strange, dtype=dtype).repeat(50)[:41]
    with np.errstate(invalid="ignore"):
        expected = _pairs(case, scores.double().numpy())
    got = edge_margins(case.graph().csc, scores).double().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5 if dtype is torch.float32 else 1e-12)
    grad = edge_margins_grad(case.graph().csc, scores, torch.ones_like(scores), closed=False)
    hit = torch.zeros(case.num_dst, dtype=torch.bool).index_put((case.dst[~scores.isfinite()],), torch.tensor(True))
    assert torch.equal(grad.isnan(), hit[case.dst])


def test_large_scores_keep_small_margins() -> None:
    graph = Graph(range(3), [0, 0, 0], num_nodes=3)
    got = edge_margins(graph.csc, torch.tensor([1e6, 1e6 + 0.5, 1e6 + 1.0]))
    assert got.tolist() == [0.0, 0.5, 1.5]


def test_any_number_of_threads_gives_the_same_bits() -> None:
    edges = power_law_edges(500, 60_000, seed=3)
    adj = Graph(edges.src, edges.dst, num_nodes=500).csc
    scores, dout = torch.randn(60_000, 4), torch.randn(60_000, 4)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append((edge_margins(adj, scores), edge_margins_grad(adj, scores, dout, closed=False)))
    finally:
        torch.set_num_threads(before)
    for margins, grad in results[1:]:
        assert torch.equal(margins, results[0][0]) and torch.equal(grad, results[0][1])


def test_wrong_operands_are_named() -> None:
    adj = Graph([0, 1], [1, 1]).csc
    with pytest.raises(ShapeError, match=r"edge_margins: expected scores of 2 rows, got shape \(3,\)"):
        edge_margins(adj, torch.ones(3))
    with pytest.raises(DtypeError, match=r"expected scores of dtype float32, float64, got torch.bfloat16"):
        edge_margins(adj, torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(ShapeError, match=r"edge_margins_grad: expected dout as torch.float32 of shape \(2,\)"):
        edge_margins_grad(adj, torch.ones(2), torch.ones(3), closed=False)
