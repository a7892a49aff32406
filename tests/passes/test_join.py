"""Products that are added up become one call: golden texts before and after, and what is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from zoo import random_edges

from graphweft._config import config
from graphweft.graph.graph import Graph
from graphweft.nn import GAT, GCN, SAGE
from graphweft.nn.stack import Stack
from graphweft.runtime.compile import Standing
from graphweft.runtime.plan import Plan
from graphweft.sample.neighbor import NeighborSampler

GOLDEN = Path(__file__).parent / "golden"


def world() -> tuple[Graph, torch.Tensor]:
    made = random_edges(400, 4000, seed=5)
    return Graph(made.src, made.dst, 400), torch.randn(400, 16, generator=torch.Generator().manual_seed(6))


def batch_plan(model: Stack, disabled: str = "") -> Plan:
    graph, x = world()
    sampler = NeighborSampler(graph, [4, 3])
    with config(disabled_passes=disabled):
        tensors = dict(model.named_parameters())
        return model.staged(sampler, x).compile(tensors, True, sampler.sample(torch.arange(30))).plan


def labels(plan: Plan) -> list[str]:
    return [call.label for call in (*plan.forward, *plan.backward)]


def test_calls_of_a_batch_before_and_after_are_as_recorded() -> None:
    """Delete the golden file to record it anew."""
    torch.manual_seed(0)
    model = SAGE(16, 8, 4, num_layers=2)
    parts = [(title, batch_plan(model, off)) for title, off in (("before", "join"), ("after", ""))]
    text = "\n\n".join(f"-- {title} --\n" + "\n".join(labels(plan)) for title, plan in parts) + "\n"
    path = GOLDEN / "join_sage_batch.txt"
    if not path.exists():
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("kind", [SAGE, GCN])
def test_a_full_batch_gives_the_same_joined_and_apart(kind: Any) -> None:
    graph, x = world()
    torch.manual_seed(1)
    model = kind(16, 40, 40, num_layers=3)
    results = []
    for off in ("", "join"):
        with config(disabled_passes=off):
            for _ in range(3):
                model.zero_grad()
                out = model(graph, x)
                out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def test_an_aggregation_over_a_whole_graph_stays_a_call_of_its_own() -> None:
    """Rows of a whole graph may have any number of edges: those are shared out evenly, not by rows."""
    graph, x = world()
    model = SAGE(16, 40, 40, num_layers=2)
    plan = model.function.compile(model.arguments(graph, x), Standing(("x",)))
    assert any(label.startswith("matmul of rows and rows") for label in labels(plan))
    assert any(label.startswith("spmm") for label in labels(plan))


def test_rows_by_head_are_added_without_their_zeros() -> None:
    """Own rows of a block reach the gradient of all rows by a kernel that reads them as they are."""
    plan = batch_plan(GAT(16, 32, 4, num_layers=2, heads=4))
    kernels = [call.kernel for call in plan.backward]
    assert "pad_rows" not in kernels
    assert sum(bool(call.get("short_addend")) for call in plan.backward) == 2
    assert not any(call.kernel == "add" and call.value.tensor.rows for call in plan.backward)
