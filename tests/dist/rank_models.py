"""Models of a user that ranks train in the tests of this folder, by name in :data:`OWN`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import graphweft as gw


class MeanLayer(gw.MessagePassing):
    """A user function: means of transformed rows, next to the node's own."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(a, b), nn.Linear(a, b)

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"]}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph: Any, h: Tensor) -> Tensor:
        rows: Tensor = self.propagate(graph, ndata={"h": self.other(h)})["h"]
        return rows + self.own(h)


class UserModel(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.first, self.second = MeanLayer(a, 8), MeanLayer(8, b)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        out: Tensor = self.second(graph, torch.relu(self.first(graph, x)))
        return out


class Attention(gw.MessagePassing):
    """A user's attention: several fields at the sources, one at the destinations, a softmax, an update."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.map, self.key, self.query = (nn.Linear(n, m, bias=False) for n, m in ((a, b), (b, 1), (b, 1)))

    def message(self, edges: Any) -> dict[str, Tensor]:
        score = nn.functional.leaky_relu(edges.src["k"] + edges.dst["q"], 0.2)
        return {"m": edges.src["h"] * edges.data["w"].unsqueeze(1), "e": score}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": (torch.softmax(nodes.mailbox["e"], 1) * nodes.mailbox["m"]).sum(1)}

    def update(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.data["h"] + nodes.data["q"]}

    def forward(self, graph: Any, x: Tensor, weight: Tensor) -> Tensor:
        h = self.map(x)
        fields = {"h": h, "k": self.key(h), "q": self.query(h)}
        rows: Tensor = self.propagate(graph, ndata=fields, edata={"w": weight})["h"]
        return rows


class Attending(nn.Module):
    """Edge weights, batch norm between the layers, dropped for none."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = Attention(a, 8), nn.BatchNorm1d(8), Attention(8, b)

    def forward(self, graph: Any, x: Tensor, edge_weight: Any = None) -> Tensor:
        out: Tensor = self.second(graph, torch.relu(self.norm(self.first(graph, x, edge_weight))), edge_weight)
        return out


class Marked(nn.Module):
    """Raw features in the first call, and whole numbers beside rows in the second."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.first, self.second, self.unread = nn.Linear(a, 8), nn.Linear(8, b), nn.Linear(3, 3)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        mean = gw.update_all(graph, _sent, _mean, ndata={"h": x})["h"]
        h = torch.relu(self.first(mean))
        degree = graph.in_degrees()
        shared = gw.update_all(graph, _shared, _mean, ndata={"h": h, "d": degree})["h"]
        out: Tensor = self.second(shared + h)
        return out


def _sent(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"]}


def _shared(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["h"] / (edges.src["d"] + 1).unsqueeze(1)}


def _mean(nodes: Any) -> dict[str, Tensor]:
    return {"h": nodes.mailbox["m"].mean(1)}


class Mixed(nn.Module):
    """A layer and a model of ``gw.nn`` with a batch norm, called by the user."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.first, self.norm = gw.nn.GCNConv(a, 8, bias=False), nn.BatchNorm1d(8)
        self.second, self.last = gw.nn.SAGE(8, 8, 4, jumping="cat"), nn.Linear(12, b)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.second(graph, torch.relu(self.norm(self.first(graph, x)))))
        return out


class Smoothed(nn.Module):
    """Models of several hops, called by the user, with a propagation before and after a function of rows."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.first, self.second = gw.nn.SGConv(a, 8, hops=3), gw.nn.APPNP(8, 8, b, hops=4)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        out: Tensor = self.second(graph, torch.tanh(self.first(graph, x)))
        return out


class ByDegree(nn.Module):
    """Plain torch on an edge index, whose messages are divided by the degrees of both ends."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(a, 8), nn.Linear(8, b)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self._passed(torch.relu(self._passed(self.first(x), edge_index)), edge_index, self.second)

    def _passed(self, h: Tensor, edge_index: Tensor, mapped: nn.Module | None = None) -> Tensor:
        src, dst = edge_index
        h = h if mapped is None else mapped(h)
        scale = (torch.bincount(dst, minlength=h.shape[0]).float() + 1).rsqrt().unsqueeze(1)
        return scale * (h * scale + torch.zeros_like(h).index_add(0, dst, (h * scale)[src]))


OWN = {"user": UserModel, "attending": Attending, "marked": Marked, "mixed": Mixed, "smoothed": Smoothed}
