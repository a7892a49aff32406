"""``gw.compile``: a node's own row, times a number, is added by the kernel that sums over its neighbours."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft.nn.compiled import calls_of

pyg: Any = pytest.importorskip("torch_geometric.nn")
NODES, EDGES, WIDTH = 300, 2500, 32


def arguments() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, WIDTH, generator=generator, requires_grad=True)
    return x, torch.randint(0, NODES, (2, EDGES), generator=generator)


def check(plain: nn.Module, compiled: nn.Module) -> None:
    """Result and gradients are those of the model as it stands in float64."""
    found = []
    for module, kind in ((copy.deepcopy(plain).double(), torch.float64), (compiled, torch.float32)):
        x, edge_index = arguments()
        x = x.detach().to(kind).requires_grad_()
        out = module(x, edge_index)
        weight = torch.linspace(0.5, 1.5, out.numel(), dtype=kind).view_as(out)
        found.append([out.detach(), *torch.autograd.grad((out * weight).sum(), [x, *module.parameters()])])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize("learned", [False, True])
def test_own_rows_of_gin(learned: bool) -> None:
    """No pass over rows for them, in either direction; the number is read in every call."""
    torch.manual_seed(0)
    plain = pyg.GIN(WIDTH, 64, 3, 8, train_eps=learned, eps=0.3)
    compiled = gw.compile(copy.deepcopy(plain))
    for eps in (0.3, -1.0, 2.0):
        for model in (plain, compiled):
            for conv in model.convs:
                with torch.no_grad():
                    conv.eps.fill_(eps)
        check(plain, compiled)
    last = calls_of(compiled).last
    assert last is not None
    plans = [plan for plan in last.regions[0].function.plans() if plan.backward]
    assert plans
    for plan in plans:
        assert [call.kernel for call in plan.forward].count("spmm_self") == 3
        assert [call.kernel for call in plan.backward].count("spmm_self") == 3
        passes = [call for call in (*plan.forward, *plan.backward) if call.value.tensor.rows is not None]
        assert not {"spmm", "ewise", "mul_scalar", "add", "rows", "row_nest"} & {call.kernel for call in passes}


def test_biases_cost_no_pass_over_rows() -> None:
    """Gradients of biases come out of the calls that give those of the weights beside them."""
    torch.manual_seed(0)
    plain = pyg.GIN(WIDTH, 64, 2, 8)
    compiled = gw.compile(copy.deepcopy(plain))
    check(plain, compiled)
    last = calls_of(compiled).last
    assert last is not None
    (plan,) = [plan for plan in last.regions[0].function.plans() if plan.backward]
    assert "col_sum" not in {call.kernel for call in plan.backward}
    assert sum(slot.role == "col_sum" for call in plan.backward for slot in call.writes) == 4


def test_parts_of_a_bias_cost_no_pass_over_rows() -> None:
    """Nor do those of a bias whose halves are added to different rows, as FiLM's."""
    torch.manual_seed(0)
    plain = pyg.FiLMConv(WIDTH, 48)
    compiled = gw.compile(copy.deepcopy(plain))
    check(plain, compiled)
    last = calls_of(compiled).last
    assert last is not None
    plans = [plan for plan in last.regions[0].function.plans() if plan.backward]
    assert plans
    for plan in plans:
        assert "col_sum" not in {call.kernel for call in plan.backward}


class Mixed(nn.Module):
    """Own rows and sums that look alike and are not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.lin, self.scale, self.kind = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(0.7)), kind

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Sums over edges of one matrix, and another one, or the same twice."""
        h = self.lin(x)
        total = torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])
        if self.kind == "other":
            return total + self.scale * x
        if self.kind == "read again":
            own = self.scale * h
            return (total + own) * own
        if self.kind == "mean":
            return total / torch.arange(1, NODES + 1, dtype=x.dtype)[:, None] + self.scale * h
        return (total + self.scale * h + x).relu()


@pytest.mark.parametrize("kind", ["other", "read again", "mean", "two"])
def test_what_looks_alike(kind: str) -> None:
    """Rows of another matrix, rows that are read again, and sums that are scaled first."""
    torch.manual_seed(0)
    plain = Mixed(kind)
    check(plain, gw.compile(copy.deepcopy(plain)))
