"""Modules of ``gw.compile`` against themselves as they stand, over graphs of several shapes in turn.

Used by the tests of compiled code: results, which of them want gradients, and gradients of arguments and parameters are
compared in float64, on a graph, on it again, on others, and on the first once more, with other parameters each time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn.compiled import calls_of

Code = Callable[..., Any]
A64 = torch.float64


def total(x: Tensor, edge_index: Tensor) -> Tensor:
    """The sum over in-edges."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


class Module(nn.Module):
    """A forward with a matrix as its parameter."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36, dtype=A64).sin().view(6, 6))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.code(x, edge_index, self.weight)


def graphs() -> Iterator[tuple[int, Tensor]]:
    """Nodes and edges: plain, the same again, others, parallel edges and loops, one node, none."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 13, (2, 40), generator=generator)
    yield 13, first
    yield 13, first.clone()
    yield 20, torch.randint(0, 20, (2, 70), generator=generator)
    yield 7, torch.tensor([[0, 1, 1, 1, 2, 2, 5], [0, 3, 3, 3, 2, 1, 6]])
    yield 1, torch.zeros(2, 2, dtype=torch.int64)
    yield 4, torch.zeros(2, 0, dtype=torch.int64)
    yield 13, first.clone()


def results(module: nn.Module, x: Tensor, edge_index: Tensor) -> list[Any]:
    """What a module gives, which of it wants gradients, and the gradients of a weighted sum of it."""
    x = x.clone().requires_grad_()
    made = torch.utils._pytree.tree_leaves(module(x, edge_index))
    made = [one.to_dense() if one.layout != torch.strided else one for one in made]
    leaves = [x, *module.parameters()]
    sums = [
        (one.abs() if one.is_complex() else one).mul(torch.linspace(0.5, 1.5, one.numel()).view(one.shape)).sum()
        for one in made
        if one.requires_grad
    ]
    slopes = torch.autograd.grad(torch.stack(sums).sum(), leaves, allow_unused=True)
    asked = torch.tensor([one.requires_grad for one in made])
    return [*(one.detach().clone() for one in made), asked, *slopes]


def check(code: Code, of: Callable[[], Iterable[tuple[int, Tensor]]] = graphs, whole: bool = False) -> None:
    """Compares a function of features, edges and a matrix, as a module, with itself compiled.

    Args:
        code: The function.
        of: Gives nodes and edges.
        whole: Whether the last call must run a recording.
    """
    check_module(Module(code), of, whole)


def check_module(plain: nn.Module, of: Any = graphs, whole: bool = False) -> None:
    """Compares a module in float64 with itself compiled."""
    plain = plain.double()
    compiled = gw.compile(copy.deepcopy(plain))
    generator = torch.Generator().manual_seed(1)
    for nodes, edge_index in of():
        x = torch.randn(nodes, 6, dtype=A64, generator=generator)
        x[: nodes // 3] = x[: nodes // 3].round()
        torch.manual_seed(nodes)
        expected = results(plain, x, edge_index)
        torch.manual_seed(nodes)
        found = results(compiled, x, edge_index)
        assert len(expected) == len(found)
        for at, (one, other) in enumerate(zip(expected, found, strict=True)):
            assert (one is None) == (other is None), at
            if one is not None:
                close = torch.allclose(other.to_dense(), one.to_dense(), rtol=1e-9, atol=1e-9, equal_nan=True)
                assert other.dtype == one.dtype and other.shape == one.shape and close, (at, nodes)
        for one, other in zip(plain.buffers(), compiled.buffers(), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)
        with torch.no_grad():
            for one in (*plain.parameters(), *compiled.parameters()):
                one.mul_(0.9).add_(0.01)
    assert calls_of(compiled).last is not None or not whole, calls_of(compiled).reason
