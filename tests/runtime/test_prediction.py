"""Predicted work of generated walks: counted by hand for nests that are known, and in proportion to edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import random_edges

import graphweft as gw
from graphweft.codegen.edge_nest import EdgeNest, Sink, Source, Step
from graphweft.codegen.loops import Operand
from graphweft.nn.user_call import observing
from graphweft.runtime.prediction import ACROSS, SIMPLE, edge_nanoseconds, predicted
from graphweft.runtime.sizes import measure_sizes


def _nest(*steps: Step) -> EdgeNest:
    last = Operand("result", len(steps) - 1)
    return EdgeNest((Source("far", (32,)), Source("shared", (8, 32))), steps, (Sink("sum", last, steps[-1].dims),))


def test_elements_are_counted_in_whole_vectors_by_their_function() -> None:
    far = Operand("input", 0)
    add = _nest(Step("ewise", (far, far), (32,), (("fn", "add"),)))
    assert edge_nanoseconds(add) == pytest.approx(SIMPLE * (32 + 32))
    tanh = _nest(Step("ewise", (far,), (32,), (("fn", "tanh"),)))
    assert edge_nanoseconds(tanh) > 20 * edge_nanoseconds(add)


def test_a_product_with_a_matrix_pays_every_sum_across_lanes() -> None:
    wide = Step("ewise", (Operand("input", 0), Operand("input", 1)), (8, 32), (("fn", "mul"),))
    total = Step("sum", (Operand("result", 0),), (8,), (("axes", (1,)),))
    assert edge_nanoseconds(_nest(wide, total)) == pytest.approx(SIMPLE * (256 + 256 + 16) + 8 * ACROSS)
    other = Step("sum", (Operand("result", 0),), (32,), (("axes", (0,)),))
    assert edge_nanoseconds(_nest(wide, other)) == pytest.approx(SIMPLE * (256 + 256 + 32))


def _seconds(message: Callable[[Any], dict[str, Tensor]], edges: int, threads: int) -> float:
    drawn = random_edges(500, edges, seed=1)
    graph, x = gw.Graph(drawn.src, drawn.dst, num_nodes=500), torch.randn(500, 64, requires_grad=True)
    with observing() as seen:
        gw.update_all(graph, message, lambda n: {"h": n.mailbox["m"].sum(1)}, ndata={"h": x})
    compiled = seen[0].compiled
    assert compiled is not None
    arguments = compiled.arguments(seen[0].call, seen[0].captured)
    plan = compiled.form(graph).ready(arguments)
    assert plan is not None and plan.walks
    sizes = measure_sizes(plan.compiled.program, arguments.named(), 0)
    return sum(sum(predicted(plan, steps, sizes, threads)) for steps in (plan.forward, plan.backward))


@pytest.mark.parametrize(("width", "times"), [(30, 10), (64, 5)], ids=["in_the_walk", "by_its_own_kernel"])
def test_a_layer_inside_a_message_is_priced_per_edge(width: int, times: int) -> None:
    linear = nn.Linear(64, width)

    def plain(edges: Any) -> dict[str, Tensor]:
        return {"m": torch.relu(edges.src["h"] + edges.dst["h"])}

    def dense(edges: Any) -> dict[str, Tensor]:
        return {"m": linear(torch.tanh(edges.src["h"] * edges.dst["h"]))}

    few, many = (_seconds(dense, edges, 1) for edges in (20_000, 80_000))
    assert few > times * _seconds(plain, 20_000, 1)
    assert 3 < many / few < 5
    assert 1.8 < few / _seconds(dense, 20_000, 2) < 2.2
