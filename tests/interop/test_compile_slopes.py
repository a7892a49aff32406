"""``gw.compile`` where messages depend on both ends: a walk over the edges less in the backward pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import graphweft as gw
from graphweft._config import config
from graphweft.nn.compiled import calls_of
from graphweft.passes import pipeline
from graphweft.passes.groups import EdgeWalk
from graphweft.runtime import build

pyg: Any = pytest.importorskip("torch_geometric.nn")
pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler on this machine")


def _walks(compiled: nn.Module, *args: Any) -> list[int]:
    """Walks over edges, forward and backward, of the plans that a step runs."""
    compiled(*args).square().sum().backward()
    last = calls_of(compiled).last
    assert last is not None
    plans = {id(region.function): region.function.plans()[-1] for region in last.regions}.values()
    counts = [0, 0]
    for plan in plans:
        for group in plan.compiled.groups:
            counts[plan.compiled.phase[group.result]] += isinstance(group, EdgeWalk)
    return counts


@pytest.mark.parametrize("kind", ["ResGatedGraphConv", "FiLMConv"])
def test_numbers_and_walks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients are PyG's in float64, with nodes that no edge reaches; the walk of the in-edges is gone."""
    monkeypatch.setattr(pipeline, "WORTH_A_KERNEL", 0)
    torch.manual_seed(0)
    plain = getattr(pyg, kind)(16, 12).double()
    x = torch.randn(60, 16, dtype=torch.float64, requires_grad=True)
    edge_index = torch.randint(0, 50, (2, 400))
    compiled = gw.compile(copy.deepcopy(plain))
    found, expected = (
        (out, *torch.autograd.grad(out.square().sum(), (x, *module.parameters())))
        for module in (compiled, plain)
        for out in (module(x, edge_index),)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert _walks(compiled, x, edge_index) == [1, 1]
    with config(disabled_passes="slopes"):
        assert _walks(gw.compile(copy.deepcopy(plain)), x, edge_index) == [1, 2]
