"""GCN, GraphSAGE, GIN and GAT written as a user writes them: the kernels of the built-in layers, in every order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import graphweft as gw
from graphweft.nn import GATConv, GCNConv, GINConv, SAGEConv, user_call
from graphweft.nn.message_passing import MessagePassing


class Wrapped(MessagePassing):
    """User functions over the parameters of a built-in layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def message(self, edges: Any) -> dict[str, torch.Tensor]:
        return {"m": edges.src["h"]}

    def reduce(self, nodes: Any) -> dict[str, torch.Tensor]:
        return {"n": nodes.mailbox["m"].sum(1)}

    def forward(self, graph: gw.Graph, h: torch.Tensor, **fields: torch.Tensor) -> torch.Tensor:
        return self.propagate(graph, ndata={"h": h, **fields})["h"]


class SAGEForm(Wrapped):
    def reduce(self, nodes: Any) -> dict[str, torch.Tensor]:
        return {"n": nodes.mailbox["m"].mean(1)}

    def update(self, nodes: Any) -> dict[str, torch.Tensor]:
        mine = nodes.data["h"] @ self.layer.self_weight + self.layer.bias
        return {"h": nodes.data["n"] @ self.layer.neighbor_weight + mine}


class GINForm(Wrapped):
    def update(self, nodes: Any) -> dict[str, torch.Tensor]:
        z = nodes.data["n"] + (1.0 + self.layer.eps) * nodes.data["h"]
        hidden = torch.relu(z @ self.layer.weight1 + self.layer.bias1)
        return {"h": hidden @ self.layer.weight2 + self.layer.bias2}


class GCNForm(Wrapped):
    """With the normalisation as a field, and self-loops in the graph, as in DGL's tutorials."""

    def message(self, edges: Any) -> dict[str, torch.Tensor]:
        return {"m": edges.src["h"] * edges.src["norm"]}

    def update(self, nodes: Any) -> dict[str, torch.Tensor]:
        return {"h": (nodes.data["n"] * nodes.data["norm"]) @ self.layer.weight + self.layer.bias}


class GATForm(Wrapped):
    def message(self, edges: Any) -> dict[str, torch.Tensor]:
        layer = self.layer
        src, dst = ((side["h"] @ layer.weight).view(-1, layer.heads, layer.channels) for side in (edges.src, edges.dst))
        score = (src * layer.att_src).sum(-1) + (dst * layer.att_dst).sum(-1)
        return {"m": src, "e": nn.functional.leaky_relu(score, 0.2)}

    def reduce(self, nodes: Any) -> dict[str, torch.Tensor]:
        weights = torch.softmax(nodes.mailbox["e"], 1).unsqueeze(-1)
        return {"h": (weights * nodes.mailbox["m"]).sum(1).flatten(1)}

    def update(self, nodes: Any) -> dict[str, torch.Tensor]:
        return {"h": nodes.data["h"] + self.layer.bias}


FORMS: dict[str, tuple[Any, Any]] = {
    "sage": (SAGEConv, SAGEForm),
    "gin": (GINConv, GINForm),
    "gcn": (GCNConv, GCNForm),
    "gat": (lambda a, b: GATConv(a, b, 4, add_self_loops=False), GATForm),
}
# what reads or writes rows: the calls that cost time
HEAVY = ("spmm", "matmul", "attention", "sddmm", "reduce", "broadcast", "edge")


def _kernels(function: Any) -> Counter[str]:
    plan = function.plans()[-1]
    names = [call.label.split(" + ")[0] for call in (*plan.forward, *plan.backward)]
    return Counter(name for name in names if name.startswith(HEAVY))


@pytest.mark.parametrize("needs", [False, True], ids=["features", "hidden"])
@pytest.mark.parametrize(("wide", "narrow"), [(96, 16), (16, 96)], ids=["narrowing", "widening"])
@pytest.mark.parametrize("name", FORMS)
def test_user_functions_run_the_kernels_of_the_layer(name: str, wide: int, narrow: int, needs: bool) -> None:
    make_layer, form = FORMS[name]
    torch.manual_seed(0)
    layer = make_layer(wide, narrow)
    nodes = 3000
    src, dst = torch.randint(0, nodes, (2, 40_000))
    keep = src != dst
    graph = gw.Graph(torch.cat([src[keep], dst[keep]]), torch.cat([dst[keep], src[keep]]), num_nodes=nodes)
    x = torch.randn(nodes, wide).requires_grad_(needs)
    mine, fields, users = graph, {}, form(layer)
    if name == "gcn":
        mine = graph.add_self_loops()
        fields = {"norm": mine.in_degrees().float().pow(-0.5)[:, None]}
    results = []
    for call in (lambda: layer(graph, x), lambda: users(mine, x, **fields)):
        for _ in range(3):
            layer.zero_grad()
            out = call()
            out.square().mean().backward()
        results.append([out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    compiled = next(reversed(user_call._CALLS.values()))
    assert compiled is not None
    found, expected = _kernels(compiled.form(mine)), _kernels(layer.function)
    if (name, needs) == ("gin", False):
        assert not found - expected  # written sum first, it may keep the sum of constant features
    else:
        assert found == expected
