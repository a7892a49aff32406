"""``gw.compile`` on graphs that are large enough for generated kernels, which no small graph runs.

The reference is the plain module in float64. A compiled one in float32 may be as far from it as the plain one in
float32 is, and a little more: sums over the edges of a hub are made one after the other.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphweft as gw

pytest.importorskip("torch_geometric")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage" / "pyg_convs.py"
_SPEC = importlib.util.spec_from_file_location("pyg_convs_large", SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
coverage = importlib.util.module_from_spec(_SPEC)
sys.modules["pyg_convs_large"] = coverage
_SPEC.loader.exec_module(coverage)

NODES, EDGES, WIDTH = 9_000, 60_000, 64
SOON = ("GATConv edges", "ResGatedGraphConv", "GENConv", "EdgeConv")  # the others are slow tests
CASES = [
    pytest.param(
        case,
        graded,
        id=f"{case.name}-{'inputs with gradients' if graded else 'parameters only'}",
        marks=() if case.name in SOON else pytest.mark.slow,
    )
    for case in coverage.CASES
    for graded in (True, False)
    if graded or case.name in SOON
]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Layers of the width at which kernels are generated."""
    monkeypatch.setattr(coverage, "WIDTH", WIDTH)
    yield


def large_inputs(seed: int) -> Any:
    """A graph with hubs, loops, parallel edges and nodes without edges; float32."""
    made = torch.Generator().manual_seed(seed)
    inputs = coverage.random_inputs(seed, NODES, EDGES, torch.float32)
    ends = (torch.rand(2, EDGES, generator=made) ** torch.tensor([[2.0], [3.0]]) * (NODES - 4)).long()
    ends[:, :100] = ends[:, 100:200]
    ends[1, 200:300] = ends[0, 200:300]
    return coverage.replace(inputs, edge_index=ends[:, torch.randperm(EDGES, generator=made)])


def doubled(inputs: Any) -> Any:
    """The same in float64."""
    names = inputs.__dataclass_fields__
    tensors = {name: getattr(inputs, name) for name in names}
    floats = {
        name: t.detach().double().requires_grad_(t.requires_grad)
        for name, t in tensors.items()
        if t.is_floating_point()
    }
    return coverage.replace(inputs, **floats)


def run(case: Any, module: nn.Module, inputs: Any) -> list[Tensor | None]:
    """Outputs, and gradients of a random sum of them."""
    torch.manual_seed(5)
    result = pytree.tree_leaves(module(*case.args(inputs)))
    outputs = [t for t in result if isinstance(t, Tensor)]
    torch.manual_seed(6)
    total = sum((t * torch.randn(t.shape, dtype=torch.float32)).sum() for t in outputs if t.requires_grad)
    if not isinstance(total, Tensor):
        return list(outputs)
    leaves = [t for t in (getattr(inputs, name) for name in inputs.__dataclass_fields__) if t.requires_grad]
    wanted = [*leaves, *(p for p in module.parameters() if p.requires_grad)]
    return [*outputs, *torch.autograd.grad(total, wanted, allow_unused=True)]


def distance(found: Tensor | None, wanted: Tensor | None) -> float:
    """The norm of the difference over that of what is wanted; None is zero."""
    if found is None or wanted is None:
        return sum(float(t.norm()) for t in (found, wanted) if t is not None)
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm()) / (float(wanted.norm()) or 1.0)


@pytest.mark.parametrize(("case", "graded"), CASES)
def test_generated_kernels(case: Any, graded: bool) -> None:
    """Outputs and all gradients, also in a second call, where what follows from equal inputs was kept."""
    torch.manual_seed(0)
    plain = case.make()
    compiled = gw.compile(copy.deepcopy(plain))
    inputs = large_inputs(3)
    inputs = inputs if graded else inputs.without_gradients()
    exact = run(case, copy.deepcopy(plain).double(), doubled(inputs))
    near = run(case, plain, inputs)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        calls = [run(case, compiled, inputs) for _ in range(2)]
    assert not [w for w in told if w.category is gw.FallbackWarning and "as it stands" not in str(w.message)]
    for found in calls:
        assert len(exact) == len(near) == len(found)
        for at, (want, alike, got) in enumerate(zip(exact, near, found, strict=True)):
            assert got is None or want is None or got.shape == want.shape, at
            assert distance(got, want) <= 4 * distance(alike, want) + 2e-5, at
