"""Native batch norms against torch's in double precision, and the plans that use them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphweft as gw
from graphweft.runtime.norms import Tracked, batch_norm, batch_norm_grad, normalise

EPS = 1e-5
SIZES = [(1, 1), (2, 3), (7, 16), (255, 33), (256, 64), (257, 70), (5000, 32), (1, 20)]


def _rows(n: int, f: int) -> list[torch.Tensor]:
    torch.manual_seed(n + f)
    x = torch.randn(n, f) * torch.rand(f) * 3 + torch.randn(f) * 20  # means far from zero
    return [x, torch.randn(f), torch.randn(f), torch.randn(n, f)]


@pytest.mark.parametrize(("n", "f"), SIZES)
def test_forward_and_gradients_are_those_of_torch(n: int, f: int) -> None:
    x, weight, bias, dy = _rows(n, f)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    wide, w, b = leaves
    variance, mean = torch.var_mean(wide, 0, unbiased=False)
    wanted = (wide - mean) / (variance + EPS).sqrt() * w + b
    if n > 1:  # torch refuses one row
        torch.testing.assert_close(wanted, functional.batch_norm(wide, None, None, w, b, training=True, eps=EPS))
    out, stats = batch_norm(x, weight, bias, EPS)
    torch.testing.assert_close(stats.double(), torch.stack([mean, variance]).detach(), rtol=3e-6, atol=1e-10)
    torch.testing.assert_close(out.double(), wanted.detach(), rtol=1e-4, atol=1e-3)  # a column that varies little
    assert torch.equal(batch_norm(x, weight, bias, EPS, relu=True)[0], out.relu())
    assert torch.equal(normalise(x, stats[0], stats[1], weight, bias, EPS, False), out)
    expected = torch.autograd.grad(wanted, leaves, dy.double())
    found = batch_norm_grad(x, stats, dy, weight, EPS)
    for got, want in zip(found, expected, strict=True):
        scale = float(want.abs().max()) if n > 2 else max(float(want.abs().max()), 400.0)  # cancels for few rows
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-5 * scale)
    given = dy.clone()
    over = batch_norm_grad(x, stats, given, weight, EPS, over=True)
    assert over[0].data_ptr() == given.data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(over, found, strict=True))


def test_learned_numbers_may_lie_apart() -> None:
    x, weight, bias, dy = _rows(300, 64)
    spread = torch.stack([weight, bias], dim=1)
    w, b = spread[:, 0], spread[:, 1]
    out, stats = batch_norm(x, weight, bias, EPS)
    assert torch.equal(batch_norm(x, w, b, EPS)[0], out)
    assert torch.equal(normalise(x, stats[0], stats[1], w, b, EPS, False), out)
    for found, wanted in zip(
        batch_norm_grad(x, stats, dy, w, EPS), batch_norm_grad(x, stats, dy, weight, EPS), strict=True
    ):
        assert torch.equal(found, wanted)


def test_without_learned_numbers_and_without_rows() -> None:
    x, _, _, dy = _rows(300, 5)
    out, stats = batch_norm(x, None, None, EPS)
    torch.testing.assert_close(out, functional.batch_norm(x, None, None, training=True, eps=EPS), rtol=1e-4, atol=1e-4)
    dx, dweight, dbias = batch_norm_grad(x, stats, dy, None, EPS)
    assert dx.shape == x.shape and dweight.shape == dbias.shape == (5,)
    out, stats = batch_norm(torch.empty(0, 5), None, None, EPS)
    assert out.shape == (0, 5) and stats.tolist() == [[0.0] * 5] * 2


def test_the_number_of_threads_does_not_show() -> None:
    x, weight, bias, dy = _rows(20_000, 37)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, stats = batch_norm(x, weight, bias, EPS)
            found.append((out, stats, *batch_norm_grad(x, stats, dy, weight, EPS)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_running_statistics_are_those_of_torch() -> None:
    """Several norms at once, one of them counted and not learned; replaced numbers are noticed."""
    mine, theirs = (
        [nn.BatchNorm1d(5), nn.BatchNorm1d(3, momentum=0.3, affine=False), nn.BatchNorm1d(4, track_running_stats=False)]
        for _ in range(2)
    )
    stats = [torch.empty(2, norm.num_features) for norm in mine]
    tracked = Tracked.of(list(zip(mine, stats, strict=True)))
    assert tracked is not None
    for rows in (2, 700):
        for norm, other, kept in zip(mine, theirs, stats, strict=True):
            x = torch.randn(rows, norm.num_features) * 4 + 7
            kept.copy_(batch_norm(x, None, None, EPS)[1])
            other(x)
        assert tracked.serves()
        tracked.move(rows)
        for norm, other in zip(mine[:2], theirs[:2], strict=True):
            for name, wanted in other.named_buffers():
                torch.testing.assert_close(dict(norm.named_buffers())[name], wanted, rtol=1e-5, atol=1e-5)
    mine[0].running_mean = torch.zeros(5)
    assert not tracked.serves()
    assert Tracked.of([(nn.BatchNorm1d(5, momentum=None), stats[0])]) is None


def test_not_a_number_stays() -> None:
    x = torch.ones(4, 2)
    x[1, 0] = torch.nan
    out, _ = batch_norm(x, None, None, EPS, relu=True)
    assert out[:, 0].isnan().all() and not out[:, 1].isnan().any()


def test_a_model_makes_two_calls_of_each_norm() -> None:
    torch.manual_seed(0)
    graph = gw.Graph(torch.randint(50, (300,)), torch.randint(50, (300,)), num_nodes=50)
    model, x = gw.nn.GIN(8, 16, 16, num_layers=3, norm="batch", mlp_norm="batch", jumping="cat"), torch.randn(50, 8)
    model(graph, x).sum().backward()
    (plan,) = model.function.plans()
    kernels = [[call.kernel for call in calls] for calls in (plan.forward, plan.backward)]
    assert kernels[0].count("batch_norm") == kernels[1].count("batch_norm_grad") == 6
    assert not {"col_sum", "pow", "col_scale", "fill_rows"} & {*kernels[0], *kernels[1]}
    model.eval()
    model(graph, x)
    assert [call.kernel for call in model.function.plans()[-1].forward].count("normalise") == 6


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_all_levels_of_the_compiler_agree(affine: bool, training: bool) -> None:
    torch.manual_seed(1)
    graph = gw.Graph(torch.randint(40, (200,)), torch.randint(40, (200,)), num_nodes=40)
    model, x = gw.nn.SAGE(6, 9, 3, num_layers=3, norm="batch"), torch.randn(40, 6)
    for index in range(2):
        model.norms[index] = nn.BatchNorm1d(9, affine=affine)
    model.train(training)
    found = []
    for level in (0, 3):
        leaf = x.clone().requires_grad_()
        with gw.config(opt_level=level):
            out = model(graph, leaf)
            found.append((out.detach(), *torch.autograd.grad(out.square().sum(), [leaf, *model.parameters()])))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
