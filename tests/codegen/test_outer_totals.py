"""Totals over all edges of outer products, which walks add for several edges at once, against torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zoo import power_law_edges

import graphweft as gw
from graphweft import _native
from graphweft.passes import pipeline
from graphweft.runtime import build, edge_kernels

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")
WIDTHS = [(16, 64), (20, 13), (37, 9), (5, 70)]  # whole vectors and tiles, and rests of both


class Messages(nn.Module):
    """Rows of sources and a product of edge rows, rectified and summed: its weight's gradient is such a total."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inner, outer)

    def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor) -> Tensor:
        message = torch.relu(x[edge_index[0]] + self.lin(attr))
        return torch.zeros_like(x).index_add_(0, edge_index[1], message)


def _case(inner: int, outer: int, dtype: torch.dtype) -> tuple[Messages, tuple[Tensor, ...]]:
    torch.manual_seed(inner)
    edges = power_law_edges(60, 900, seed=4)
    edge_index = torch.stack([torch.as_tensor(edges.src), torch.as_tensor(edges.dst)]).long()
    x, attr = torch.randn(60, outer), torch.randn(edge_index.shape[1], inner)
    return Messages(inner, outer).to(dtype), (x.to(dtype), edge_index, attr.to(dtype))


def _gradients(module: nn.Module, args: tuple[Tensor, ...]) -> list[Tensor]:
    out = module(*args)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return list(torch.autograd.grad((out * weights).sum(), list(module.parameters())))


@pytest.fixture(autouse=True)
def texts(monkeypatch):
    """The text of every unit that is compiled; kernels are made for small graphs, too."""
    seen: list[str] = []
    render = edge_kernels.render_unit
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    monkeypatch.setattr(edge_kernels, "render_unit", lambda nests: (seen.append(render(nests)), seen[-1])[1])
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_gradients_are_those_of_torch_and_the_same_bits_for_any_number_of_threads(widths, dtype, texts):
    module, args = _case(*widths, dtype)
    compiled, before = gw.compile(module), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        got = _gradients(compiled, args)
        torch.set_num_threads(3)
        again = _gradients(compiled, args)
    finally:
        torch.set_num_threads(before)
    assert any("gw::outer_sums<" in text for text in texts)
    wanted = _gradients(module.double(), tuple(a.double() if a.is_floating_point() else a for a in args))
    for a, b, expected in zip(got, again, wanted, strict=True):
        assert torch.equal(a, b)
        tolerance = 1e-11 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(a.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("level", [level for level in _native.LEVELS if level != "avx512"])
def test_narrower_vectors(level, monkeypatch, texts):
    if _native.LEVELS.index(level) > _native.LEVELS.index(_native.LEVEL):
        pytest.skip("this processor does not run it")
    monkeypatch.setattr(_native, "LEVEL", level)
    build.load.cache_clear()
    module, args = _case(33 + _native.LEVELS.index(level), 9, torch.float32)  # a program of its own: others are at hand
    got = _gradients(gw.compile(module), args)
    wanted = _gradients(module.double(), tuple(a.double() if a.is_floating_point() else a for a in args))
    build.load.cache_clear()
    assert any("gw::outer_sums<" in text for text in texts)
    for a, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.double(), expected, rtol=2e-5, atol=2e-5 * float(expected.abs().max()))
