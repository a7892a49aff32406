"""ChebConv against PyTorch Geometric."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft._errors import ConfigError
from graphweft.nn import ChebConv

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_results_and_gradients(order: int) -> None:
    """A directed graph with loops, parallel edges and nodes without edges, in float64."""
    made = torch.Generator().manual_seed(order)
    edges = torch.randint(0, 30, (2, 150), generator=made)
    edges[:, :5] = edges[:, 5:10]
    edges[0, 10:14] = edges[1, 10:14]
    ours, theirs = ChebConv(12, 5, order).double(), pyg.ChebConv(12, 5, K=order).double()
    with torch.no_grad():
        theirs.bias.normal_()
        ours.bias.copy_(theirs.bias)
        for mine, other in zip(ours.weights, theirs.lins, strict=True):
            mine.copy_(other.weight.t())
    x = torch.randn(34, 12, generator=made, dtype=torch.float64).requires_grad_()
    one, other = ours(gw.Graph(*edges, num_nodes=34), x), theirs(x, edges)
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    sign = torch.linspace(-1, 1, one.numel(), dtype=torch.float64).view(one.shape)
    got = torch.autograd.grad((one * sign).sum(), [x, ours.bias, *ours.weights])
    wanted = torch.autograd.grad((other * sign).sum(), [x, theirs.bias, *(lin.weight for lin in theirs.lins)])
    for mine, want in zip(got, [*wanted[:2], *(w.t() for w in wanted[2:])], strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-9, atol=1e-10)


def test_wrong_use_is_one_line() -> None:
    graph = gw.Graph([0, 1, 2], [1, 2, 0])
    block = gw.sampling.NeighborSampler(graph, [2]).sample([0, 1]).blocks[0]
    with pytest.raises(ConfigError, match="ChebConv: expected the whole graph, got a sampled block"):
        ChebConv(3, 2)(block, torch.ones(block.num_src, 3))
    with pytest.raises(ConfigError, match="ChebConv: expected order >= 1, got 0"):
        ChebConv(3, 2, order=0)
