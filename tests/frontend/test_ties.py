"""Gradients where a function of torch has none in mathematics: at bounds, at ties, at zero. Torch decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import graphweft as gw

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(0, 1),
    "clamp from below": lambda x: x.clamp(min=0),
    "clamp from above": lambda x: x.clamp(max=1),
    "clamp_min": lambda x: torch.clamp_min(x, -1.0),
    "clamp_max": lambda x: torch.clamp_max(x, 3.0),
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh from 0": lambda x: F.hardtanh(x, 0.0, 1.0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": lambda x: F.hardshrink(x, 1.0),
    "softshrink": lambda x: F.softshrink(x, 1.0),
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 1.0, 0.0),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, threshold=3.0),
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "abs": torch.abs,
    "sign": torch.sign,
    "maximum": lambda x: torch.maximum(x, torch.ones_like(x)),
    "minimum": lambda x: torch.minimum(x, torch.ones_like(x)),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "square root of square": lambda x: (x * x).sqrt(),
    "norm": lambda x: x.unsqueeze(-1).norm(dim=-1),
}
VALUES = [0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, -0.5, 2.5]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_at_ties_are_those_of_torch(name: str) -> None:
    function, graph = FUNCTIONS[name], gw.Graph([0, 1, 2, 0], [1, 2, 0, 2])
    src, dst = graph.edges()
    x = torch.tensor([VALUES] * 3, dtype=torch.float64, requires_grad=True)
    weights = torch.linspace(1.0, 2.0, x.numel(), dtype=torch.float64).view_as(x)

    def message(edges):
        return {"m": function(edges.src["h"])}

    def reduce(nodes):
        return {"h": nodes.mailbox["m"].sum(1)}

    out = gw.update_all(graph, message, reduce, ndata={"h": x})["h"]
    (found,) = torch.autograd.grad((out * weights).sum(), x, allow_unused=True, materialize_grads=True)
    plain = torch.zeros_like(x).index_add(0, dst, function(x[src]))
    (expected,) = torch.autograd.grad((plain * weights).sum(), x)
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_margins_at_ties_are_those_of_torch() -> None:
    graph = gw.Graph([0, 1, 2, 0, 1], [2, 2, 2, 1, 1])
    scores = torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0], dtype=torch.float64, requires_grad=True)

    def message(edges):
        return {"e": edges.data["e"]}

    def total(cut):
        def reduce(nodes):
            e = nodes.mailbox["e"]
            return {"h": cut(e.unsqueeze(1) - e.unsqueeze(2)).sum(2).sum(1)}

        return reduce

    for cut in (F.relu, lambda x: x.clamp(min=0)):
        out = gw.update_all(graph, message, total(cut), edata={"e": scores})["h"]
        (found,) = torch.autograd.grad((out * torch.tensor([1.0, 2.0, 3.0])).sum(), scores)
        rows = [cut(e.unsqueeze(0) - e.unsqueeze(1)).sum() for e in (scores[3:], scores[:3])]
        (expected,) = torch.autograd.grad(2 * rows[0] + 3 * rows[1], scores)
        torch.testing.assert_close(found, expected)


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], self.function(x[edge_index[0]]))


@pytest.mark.parametrize("name", ["clamp", "relu6", "hardswish", "hardsigmoid", "softplus", "celu"])
def test_compiled_modules_have_them_too(name: str) -> None:
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    x = torch.tensor([VALUES] * 3, dtype=torch.float64, requires_grad=True)
    plain = Net(FUNCTIONS[name])
    (expected,) = torch.autograd.grad(plain(x, edges).sum(), x)
    (found,) = torch.autograd.grad(gw.compile(plain)(x, edges).sum(), x)
    torch.testing.assert_close(found, expected)
