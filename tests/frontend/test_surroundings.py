"""Message passing under what torch has around a call: transforms, hooks, checkpoints, default devices, lazy modules.

Compared with the same sums in plain torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint
from zoo import random_edges

import graphweft as gw

F64 = torch.float64
EDGES = random_edges(12, 40, seed=3)
SRC, DST = torch.from_numpy(EDGES.src), torch.from_numpy(EDGES.dst)


def new_graph(turned: bool = False) -> gw.Graph:
    """One of which nothing is known yet."""
    return gw.Graph(DST, SRC, num_nodes=12).reverse() if turned else gw.Graph(SRC, DST, num_nodes=12)


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def total(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].sum(1)}


def summed(sent: Tensor) -> Tensor:
    """Messages added up at their destinations, in plain torch."""
    return sent.new_zeros(12, *sent.shape[1:]).index_add(0, DST, sent)


class Projected(gw.MessagePassing):
    """Sums of projected rows."""

    def __init__(self, linear: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=F64) if linear is None else linear

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": torch.tanh(self.linear(edges.src["h"]))}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return total(nodes)

    def forward(self, graph: gw.Graph, h: Tensor) -> Tensor:
        return self.propagate(graph, ndata={"h": h})["h"]


def plain(layer: Projected, h: Tensor, factor: float = 1.0) -> Tensor:
    """What :class:`Projected` is to give, with the result of its linear module times ``factor``."""
    return summed(torch.tanh(factor * (h @ layer.linear.weight.t() + layer.linear.bias))[SRC])


def calls() -> dict[str, Callable[[gw.Graph], Callable[[Tensor], Tensor]]]:
    torch.manual_seed(0)
    layer, weight = Projected(), rows(40, seed=1)
    gcn, gat, sage = gw.nn.GCNConv(3, 2).double(), gw.nn.GATConv(3, 2).double(), gw.nn.SAGEConv(3, 2).double()
    return {
        "user functions": lambda graph: lambda x: layer(graph, x),
        "extrema": lambda graph: (
            lambda x: gw.update_all(
                graph, lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].amax(1)}, ndata={"h": x}
            )["h"]
        ),
        "weighted": lambda graph: lambda x: gw.pull(graph, x, weight, weight="mul", reduce="mean"),
        "dot": lambda graph: lambda x: gw.neighbor_apply(graph, x, "dot"),
        "gcn": lambda graph: lambda x: gcn(graph, x),
        "gat": lambda graph: lambda x: gat(graph, x),
        "sage": lambda graph: lambda x: sage(graph, x),
    }


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).square().sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda f, x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", calls())
def test_the_first_call_with_a_graph_may_be_inside_a_transform(name: str, transform: str, turned: bool) -> None:
    """Structure that follows from the graph alone is made there, and kept for later calls."""
    x, run = rows(12, 3), TRANSFORMS[transform]
    graph = new_graph(turned)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)  # of torch's own jvp
        found = run(calls()[name](graph), x)
    if transform == "vmap":
        expected = torch.stack([calls()[name](new_graph())(y) for y in (x, 2 * x)])
    else:
        leaf = x.clone().requires_grad_()
        out = calls()[name](new_graph())(leaf)
        if transform == "grad":
            (expected,) = torch.autograd.grad(out.square().sum(), leaf)
        else:
            seed = torch.ones_like(out, requires_grad=True)
            (slope,) = torch.autograd.grad(out, leaf, seed, create_graph=True)
            (expected,) = torch.autograd.grad(slope.sum(), seed)
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-9, atol=1e-9)
    again = calls()[name](graph)(x.clone().requires_grad_())
    torch.testing.assert_close(again, calls()[name](new_graph())(x), rtol=1e-9, atol=1e-9)


def test_a_hook_that_is_set_after_a_call_runs_and_one_that_is_removed_does_not() -> None:
    layer, graph, x = Projected(), new_graph(), rows(12, 3)
    torch.testing.assert_close(layer(graph, x), plain(layer, x))
    handle = layer.linear.register_forward_hook(lambda module, given, out: out * 1.5)
    with pytest.warns(gw.FallbackWarning, match="Linear has hooks"):
        torch.testing.assert_close(layer(graph, x), plain(layer, x, 1.5))
    handle.remove()
    torch.testing.assert_close(layer(graph, x), plain(layer, x))


def test_a_hook_on_all_modules_runs_as_long_as_it_is_set() -> None:
    layer, graph, x = Projected(), new_graph(), rows(12, 3)
    torch.testing.assert_close(layer(graph, x), plain(layer, x))
    handle = register_module_forward_hook(
        lambda module, given, out: out * 1.5 if isinstance(module, nn.Linear) else None
    )
    try:
        with pytest.warns(gw.FallbackWarning, match="every module has hooks"):
            torch.testing.assert_close(layer(graph, x), plain(layer, x, 1.5))
    finally:
        handle.remove()
    torch.testing.assert_close(layer(graph, x), plain(layer, x))


def test_checkpointing_begins_with_the_first_call() -> None:
    """Programs are compared with others when they are made; what that saves is not the call's."""

    def attention(edges: Any) -> dict[str, Tensor]:
        both = torch.sin(edges.src["h"]) * edges.dst["h"]
        return {"m": both, "e": both.sum(-1, keepdim=True)}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"h": (nodes.mailbox["e"].softmax(1) * nodes.mailbox["m"]).sum(1)}

    def run(x: Tensor) -> Tensor:
        return gw.update_all(new_graph(), attention, reduce, ndata={"h": x})["h"]

    x = rows(12, 3).requires_grad_()
    found = checkpoint(run, x, use_reentrant=False)
    slope = torch.autograd.grad(found.square().sum(), x)[0]
    expected = run(x)
    assert torch.equal(found, expected)
    assert torch.equal(slope, torch.autograd.grad(expected.square().sum(), x)[0])


def test_lazy_modules_get_their_parameters_in_the_first_call() -> None:
    layer, graph, x = Projected(nn.LazyLinear(2, dtype=F64)), new_graph(), rows(12, 3).requires_grad_()
    for _ in range(2):
        out = layer(graph, x)
        assert type(layer.linear) is nn.Linear and layer.linear.weight.shape == (2, 3)
        bound = layer.linear.weight.detach().abs().max()
        assert 0 < bound < 1  # drawn as nn.Linear draws them
        torch.testing.assert_close(out, plain(layer, x))
        leaves = [x, *layer.parameters()]
        slopes = [torch.autograd.grad(y.square().sum(), leaves) for y in (out, plain(layer, x))]
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("level", [0, 3])
def test_another_default_device_makes_no_difference(level: int) -> None:
    layer, gcn, x = Projected(), gw.nn.GCN(3, 4, 2, num_layers=2, dropout=0.0).double(), rows(12, 3).requires_grad_()
    weights = [x, *layer.parameters()]
    expected = torch.autograd.grad(plain(layer, x).square().sum(), weights)
    scores = gcn(new_graph(), x)
    slopes = torch.autograd.grad(scores.square().sum(), x)
    with torch.device("meta"), gw.config(opt_level=level):
        graph = gw.Graph(SRC.tolist(), DST.tolist(), num_nodes=12)
        assert torch.equal(torch.stack(graph.edges()), torch.stack([SRC, DST]))
        assert graph.add_self_loops().num_edges >= 40 and graph.reverse().in_degrees().sum() == 40
        assert graph.edge_subgraph([0, 2]).num_edges == 2
        typed = gw.Graph.hetero({("a", "r", "b"): ([0, 1], [0, 0])}, {"a": 2, "b": 1})
        assert typed.in_degrees().tolist() == [0, 0, 2]
        torch.testing.assert_close(torch.autograd.grad(layer(graph, x).square().sum(), weights), expected)
        there = gcn(graph, x)
        torch.testing.assert_close(there, scores)
        torch.testing.assert_close(torch.autograd.grad(there.square().sum(), x), slopes)


def test_data_and_batches_come_under_another_default_device() -> None:
    ds = gw.synthetic("cora", scale=0.05)
    loader = gw.Loader(ds, ds.train_idx, fanouts=[2], batch_size=8)
    with torch.device("meta"):
        again = gw.synthetic("cora", scale=0.05)
        assert torch.equal(torch.stack(again.graph.edges()), torch.stack(ds.graph.edges()))
        assert again.train_idx.device.type == "cpu"
        found = [next(iter(one)) for one in (loader, gw.Loader(ds, ds.train_idx, fanouts=[2], batch_size=8))]
        model = gw.nn.GCN(ds.num_features, 4, ds.num_classes, num_layers=2)  # has no numbers
        with pytest.raises(gw.errors.ConfigError, match=r"expected .*, got .*meta"):
            gw.Trainer(model, ds, lr=0.01, mode="full").fit(1)
    assert torch.equal(found[0].n_id, found[1].n_id) and found[0].n_id.device.type == "cpu"
