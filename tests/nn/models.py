"""Every model, built in and written as a user would, small and alike to call: ``MODELS[name]()(graph, x)``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from zoo import random_edges

import graphweft as gw
from graphweft.nn import APPNP, CGAT, GAT, GCN, GCNII, GIN, NGCF, SAGE, Transformer
from graphweft.nn.message_passing import MessagePassing

IN, HIDDEN, OUT = 6, 8, 4


class UserGCN(MessagePassing):
    """Mean of transformed neighbours, then a bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def message(self, edges):
        return {"m": self.linear(edges.src["h"])}

    def reduce(self, nodes):
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph, h):
        return self.propagate(graph, ndata={"h": h})["h"]


class UserGAT(MessagePassing):
    """Multi-head attention, in plain tensor code."""

    def __init__(self, in_features: int, out_features: int, heads: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, heads * out_features, bias=False)
        self.a = nn.Parameter(torch.randn(heads, 2 * out_features) * 0.3)
        self.heads = heads

    def message(self, edges):
        ends = [self.linear(side["h"]).view(-1, self.heads, self.a.shape[1] // 2) for side in (edges.src, edges.dst)]
        score = (torch.cat(ends, -1) * self.a).sum(-1)
        return {"m": ends[0], "e": torch.nn.functional.leaky_relu(score, 0.2)}

    def reduce(self, nodes):
        weights = torch.softmax(nodes.mailbox["e"], 1)
        return {"h": (weights.unsqueeze(-1) * nodes.mailbox["m"]).sum(1).mean(1)}

    def forward(self, graph, h):
        return self.propagate(graph, ndata={"h": h})["h"]


class UserModel(nn.Module):
    """Two user layers with a ReLU between."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer(IN, HIDDEN), layer(HIDDEN, OUT)])

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.layers[1](graph, torch.relu(self.layers[0](graph, x)))


BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "gcn": functools.partial(GCN, IN, HIDDEN, OUT),
    "sage": functools.partial(SAGE, IN, HIDDEN, OUT),
    "sage_max": functools.partial(SAGE, IN, HIDDEN, OUT, reduce="max"),
    "gin": functools.partial(GIN, IN, HIDDEN, OUT, train_eps=True),
    "gat": functools.partial(GAT, IN, HIDDEN, OUT, heads=2),
    "gatv2": functools.partial(GAT, IN, HIDDEN, OUT, heads=2, v2=True),
    "cgat": functools.partial(CGAT, IN, HIDDEN, OUT, heads=2),
    "ngcf": functools.partial(NGCF, IN, HIDDEN, OUT),
    "appnp": functools.partial(APPNP, IN, HIDDEN, OUT, hops=3),
    "gcnii": functools.partial(GCNII, IN, HIDDEN, OUT, num_layers=2),
    "transformer": functools.partial(Transformer, IN, HIDDEN, OUT, heads=2),
}
MODELS: dict[str, Callable[..., nn.Module]] = {
    **BUILT_IN,
    "user_gcn": functools.partial(UserModel, UserGCN),
    "user_gat": functools.partial(UserModel, UserGAT),
}


def make(name: str, seed: int = 0) -> nn.Module:
    """The model called ``name`` with parameters from ``seed``."""
    torch.manual_seed(seed)
    return MODELS[name]()


def random_graph(seed: int = 0, nodes: int = 40, edges: int = 200) -> gw.Graph:
    """A graph with self-loops, parallel edges and, the last, a node without in-edges."""
    drawn = random_edges(nodes - 1, edges, seed)
    return gw.Graph(drawn.src, drawn.dst, num_nodes=nodes)


def features(seed: int = 0, nodes: int = 40) -> Tensor:
    """Standard normal rows."""
    return torch.randn(nodes, IN, generator=torch.Generator().manual_seed(seed))
