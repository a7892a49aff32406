"""A call without ndata or edata reads the fields that the graph itself holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft._errors import FieldError
from graphweft.nn.user_call import observing


def message(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"] * edges.data["w"]}


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1) + nodes.data["h"]}


class Layer(gw.MessagePassing):
    def message(self, edges: Any) -> dict[str, Tensor]:
        return message(edges)

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].sum(1)}

    def forward(self, graph: gw.Graph) -> Tensor:
        return self.propagate(graph)["h"]


def graph() -> gw.Graph:
    edges = random_edges(30, 90, seed=1)
    made = gw.Graph(edges.src, edges.dst, num_nodes=30)
    made.ndata["h"] = torch.randn(30, 3, dtype=torch.float64, requires_grad=True)
    made.edata["w"] = torch.rand(90, 1, dtype=torch.float64, requires_grad=True)
    return made


@pytest.mark.parametrize("level", [0, 3])
def test_fields_of_the_graph_are_read_and_receive_gradients(level: int) -> None:
    g = graph()
    h, w = g.ndata["h"], g.edata["w"]
    src, dst = g.edges()
    expected = torch.zeros(30, 3, dtype=torch.float64).index_add(0, dst, h[src] * w)
    with gw.config(opt_level=level):
        out = Layer()(g)
    torch.testing.assert_close(out, expected)
    weights = torch.randn(30, 3, dtype=torch.float64)
    mine = torch.autograd.grad((out * weights).sum(), [h, w])
    theirs = torch.autograd.grad((expected * weights).sum(), [h, w])
    for one, two in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, two)


def test_new_contents_are_seen() -> None:
    g = graph()
    before = Layer()(g)
    g.ndata["h"] = g.ndata["h"] * 2
    torch.testing.assert_close(Layer()(g), 2 * before)
    with torch.no_grad():
        g.edata["w"].mul_(3)
    torch.testing.assert_close(Layer()(g), 6 * before)


def test_a_bipartite_graph() -> None:
    g = gw.Graph([0, 1, 2], [0, 0, 1], num_nodes=(3, 2))
    g.srcdata["h"], g.dstdata["b"] = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [20.0]])
    out = gw.update_all(
        g,
        lambda edges: {"m": edges.src["h"] + edges.dst["b"]},
        lambda nodes: {"h": nodes.mailbox["m"].sum(1)},
    )
    assert out["h"].flatten().tolist() == [23.0, 23.0]


def test_edges_and_nodes_alone() -> None:
    g = graph()
    src, dst = g.edges()
    h = g.ndata["h"]
    torch.testing.assert_close(gw.apply_edges(g, "u_sub_v")["e"], h[src] - h[dst])
    torch.testing.assert_close(gw.apply_edges(g, lambda e: {"e": e.dst["h"]})["e"], h[dst])
    torch.testing.assert_close(gw.apply_nodes(g, "relu")["h"], torch.relu(h))


def test_what_is_given_stands_alone() -> None:
    g = graph()
    with pytest.raises(FieldError, match=r"graph.ndata has it, which a call reads only without ndata="):
        gw.update_all(g, message, total, ndata={"x": g.ndata["h"]})
    with pytest.raises(FieldError, match=r"give ndata=\{'z': ...\} or set graph.ndata\['z'\]"):
        gw.update_all(g, lambda e: {"m": e.src["z"]}, total)


def test_a_field_that_nobody_reads_changes_nothing() -> None:
    """Not even one of a dtype that the kernels lack."""
    g = graph()
    g.ndata["mask"], g.ndata["half"] = torch.ones(30, dtype=torch.bool), torch.ones(30, dtype=torch.float16)
    expected = Layer()(graph())
    with observing() as seen:
        assert Layer()(g).shape == expected.shape
    call, compiled = seen[0].call, seen[0].compiled
    assert compiled is not None and set(call.src) == {"h", "mask", "half"}
    assert set(compiled.arguments(call, seen[0].captured).fields) == {"node:h", "edge:w"}
