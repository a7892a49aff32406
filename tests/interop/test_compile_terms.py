"""``gw.compile``: sums of many products are one call, compared with the same layers of PyTorch Geometric in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn.compiled import calls_of

pyg: Any = pytest.importorskip("torch_geometric.nn")
NODES, EDGES, WIDTH = 300, 2500, 24

# name -> layer, products that it adds up
CASES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "TAG": (lambda: pyg.TAGConv(WIDTH, 16), 4),
    "Cheb": (lambda: pyg.ChebConv(WIDTH, 16, 4), 4),
}


def arguments() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, WIDTH, generator=generator)
    return x, torch.randint(0, NODES, (2, EDGES), generator=generator)


def outcome(module: nn.Module, args: tuple[Tensor, ...]) -> list[Tensor]:
    out = module(*args)
    weight = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), list(module.parameters()))]


@pytest.mark.parametrize("name", CASES)
def test_products_of_one_sum_are_one_call(name: str) -> None:
    make, products = CASES[name]
    torch.manual_seed(0)
    plain, args = make(), arguments()
    compiled = gw.compile(copy.deepcopy(plain))
    for _ in range(2):  # the second time what depends on constants is at hand
        found = outcome(compiled, args)
    wanted = outcome(copy.deepcopy(plain).double(), (args[0].double(), *args[1:]))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
    calls = calls_of(compiled)
    assert calls.last is not None and len(calls.last.regions) == 1
    (plan,) = [p for p in calls.last.regions[0].function.plans() if p.backward]
    sums = [call for call in plan.forward if call.kernel == "matmul_terms"]
    assert len(sums) == 1 and sum(slot.role.startswith("weight") for slot in sums[0].reads) == products
    assert any(slot.role == "bias" for slot in sums[0].reads), "the bias is part of the call"
    assert not any(call.kernel in ("matmul", "rows") for call in plan.forward)
    assert not any(call.kernel == "unslice" for call in plan.backward), "gradients of slices are joined"


def test_wide_terms_stay_pairs() -> None:
    """Rows of many columns, side by side, would not stay in a core's own cache."""
    torch.manual_seed(0)
    compiled = gw.compile(pyg.TAGConv(400, 400))
    x = torch.randn(NODES, 400)
    for _ in range(2):
        outcome(compiled, (x, arguments()[1]))
    last = calls_of(compiled).last
    assert last is not None
    (plan,) = [p for p in last.regions[0].function.plans() if p.backward]
    weights = [sum(s.role.startswith("weight") for s in c.reads) for c in plan.forward if c.kernel == "matmul_terms"]
    assert weights and max(weights) == 2
