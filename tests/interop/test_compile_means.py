"""``gw.compile`` on means over neighbours: counts are kept once a node and divide within the sum."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn.compiled import calls_of

pytestmark = pytest.mark.filterwarnings("ignore")


class Means(nn.Module):
    """Layers that divide sums by counts laid over the features, as ``torch_scatter`` does, or by learned numbers."""

    def __init__(self, width: int = 24, learned: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = nn.Linear(width, 1) if learned else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Two layers of means and a residual."""
        src, dst = edge_index
        for layer in (self.first, self.second):
            h = layer(x).relu()
            total = h.new_zeros(h.shape).scatter_add_(0, dst[:, None].expand(-1, h.shape[1]), h[src])
            if self.scale is None:
                count = h.new_zeros(len(x)).scatter_add_(0, dst, torch.ones_like(dst, dtype=h.dtype)).clamp(min=1)
                over = count[:, None].expand_as(total)
            else:
                over = self.scale(x).exp() + 1
            x = x + total / over
        return x


def _case(nodes: int, edges: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 24, generator=made, dtype=dtype, requires_grad=True)
    return x, torch.randint(0, nodes, (2, edges), generator=made)


def _check(model: nn.Module, compiled: Any, x: Tensor, edge_index: Tensor) -> None:
    """Outputs and all gradients are those of the model as it stands."""
    found, expected = (
        (out, *torch.autograd.grad(out.square().sum(), (x, *one.parameters())))
        for one in (compiled, model)
        for out in (one(x, edge_index),)
    )
    assert calls_of(compiled).last is not None
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("learned", [False, True])
def test_means_are_those_of_the_model_as_it_stands(learned: bool) -> None:
    """Counts of the structure, and numbers that follow from features and have gradients; batch after batch."""
    torch.manual_seed(0)
    model = Means(learned=learned).double()
    compiled = gw.compile(copy.deepcopy(model))
    for seed, (nodes, edges) in enumerate([(50, 300), (61, 280), (50, 300), (20, 7)]):
        _check(model, compiled, *_case(nodes, edges, seed))


def test_a_mean_is_a_stage_of_its_sum() -> None:
    """No pass of its own over rows, which torch would run."""
    x, edge_index = _case(3000, 20000, 1, torch.float32)
    text = str(gw.explain(gw.compile(Means()), x, edge_index))
    calls = text.split("forward calls --")[1].split("\n\n")[0]
    assert calls.count("row_scale") == 2
    assert "ewise" not in calls


def test_a_count_laid_over_features_is_kept_once_a_node() -> None:
    """Tensors of structure that a recording keeps have a number a node, not one a feature."""
    compiled = gw.compile(Means())
    x, edge_index = _case(500, 3000, 2, torch.float32)
    compiled(x, edge_index)
    last = calls_of(compiled).last
    assert last is not None
    kept = [tensor for run in last.regions for tensor, _ in run._kept.values()]
    assert kept
    assert max(tensor.numel() for tensor in kept) == len(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_zeros_that_forward_makes_are_zeros(dtype: torch.dtype) -> None:
    """Read, written into, and returned as they are."""

    class Made(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            base = torch.zeros_like(x, dtype=dtype)
            base[0, 0] = 3
            sums = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
            return base, sums + base.to(x.dtype)

    x, edge_index = _case(30, 100, 3)
    for found, expected in zip(gw.compile(Made())(x, edge_index), Made()(x, edge_index), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
