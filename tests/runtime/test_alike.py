"""Batches of several classes of sizes share a plan where sizes change nothing in it."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw

SIZES = (40, 90, 200, 500, 1100)


def _drawn(nodes: int) -> tuple[gw.Graph, torch.Tensor]:
    rng = torch.Generator().manual_seed(nodes)
    src, dst = torch.randint(0, nodes, (2, 6 * nodes), generator=rng)
    return gw.Graph(src, dst, num_nodes=nodes).as_drawn(), torch.randn(nodes, 8, generator=rng)


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv"])
def test_sizes_that_change_nothing_have_one_plan(kind: str) -> None:
    torch.manual_seed(0)
    layer = getattr(gw.nn, kind)(8, 8)
    for nodes in SIZES:
        graph, x = _drawn(nodes)
        found = layer(graph, x)
        assert torch.equal(found, _anew(layer)(graph, x))  # as one that has seen no other sizes
    plans = layer.function.plans()
    assert len(layer.function._plans) == len(SIZES) > len(plans)
    assert len({plan.text for plan in plans}) == len(plans)


def test_what_is_asked_for_otherwise_has_a_plan_of_its_own() -> None:
    layer = gw.nn.GCNConv(8, 8)
    graph, x = _drawn(SIZES[0])
    layer(graph, x)
    with torch.no_grad():
        layer(graph, x)
    assert len(layer.function.plans()) == 2


def _anew(layer: gw.nn.GCNConv) -> gw.nn.GCNConv:
    made = type(layer)(8, 8)
    made.load_state_dict(layer.state_dict())
    return made
