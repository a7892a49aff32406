"""``gw.compile`` on forwards in the style of published models, each with a form that the other tests have not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compiled_check import check_module, graphs, total
from torch import Tensor, nn
from torch.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore")


def weighted(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum over in-edges."""
    rows = x[edge_index[0]] * weight.view(-1, *[1] * (x.dim() - 1))
    return torch.zeros_like(x).index_add(0, edge_index[1], rows)


def normalised(edge_index: Tensor, nodes: int) -> Tensor:
    """One over the root of the degrees of both ends."""
    degree = torch.bincount(edge_index[1], minlength=nodes).clamp(min=1).double().rsqrt()
    return degree[edge_index[0]] * degree[edge_index[1]]


def shares(score: Tensor, ids: Tensor, nodes: int) -> Tensor:
    """The softmax of scores by id."""
    most = torch.full((nodes,), -torch.inf, dtype=score.dtype).scatter_reduce(0, ids, score, "amax").detach()
    power = (score - most[ids]).exp()
    return power / torch.zeros(nodes, dtype=score.dtype).index_add(0, ids, power)[ids]


class Layers(nn.Module):
    """Two products for the models below."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)


class Oscillators(Layers):
    """A second-order equation in time: two rows a node that move each other."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        place, speed, weight = self.one(x), x.clone(), normalised(edge_index, len(x))
        for _ in range(3):
            speed = speed + 0.5 * (self.two(weighted(place, edge_index, weight)).relu() - 0.3 * speed - place)
            place = place + 0.5 * speed
        return place, speed


class Rates(Layers):
    """Each channel moves as fast as its neighbours differ from it."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        for _ in range(2):
            gate = total(self.two(x), edge_index).relu()
            differ = (gate[src] - gate[dst]).abs().pow(2.5)
            rate = torch.zeros_like(x).index_reduce(0, src, differ, "mean", include_self=False).tanh()
            x = (1 - rate) * x + rate * total(self.one(x), edge_index).relu()
        return x


class Hyperbolic(Layers):
    """Means in the tangent space of a ball of learned curvature, and distances of the ends of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.curvature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        root = F.softplus(self.curvature).sqrt()
        norm = x.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        ball = torch.tanh(root * norm) * x / (root * norm)
        norm = ball.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        flat = self.one(torch.atanh((root * norm).clamp(max=1 - 1e-7)) * ball / (root * norm))
        out = weighted(flat, edge_index, normalised(edge_index, len(x))).relu()
        apart = (flat[edge_index[0]] - flat[edge_index[1]]).norm(dim=-1).clamp_min(1e-9)
        return out, 1 / (((apart - 2) / root).exp() + 1)


class Diffusion(Layers):
    """Attention that is computed anew at the middle of every step of time."""

    def _slope(self, x: Tensor, edge_index: Tensor) -> Tensor:
        score = (self.one(x)[edge_index[1]] * self.two(x)[edge_index[0]]).sum(-1)
        return weighted(x, edge_index, shares(score, edge_index[1], len(x))) - x

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for _ in range(2):
            x = x + 0.25 * self._slope(x + 0.125 * self._slope(x, edge_index), edge_index)
        return x


class HardEdges(Layers):
    """Edges that are taken or left, by a straight-through estimator with drawn noise."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        score = self.one(x)[edge_index[0], :2] + self.two(x)[edge_index[1], :2]
        noise = torch.rand_like(score) if self.training else torch.full_like(score, 0.5)
        soft = (2 * (score - (-(noise + 1e-10).log() + 1e-10).log())).softmax(-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        return weighted(x, edge_index, (hard - soft.detach() + soft)[:, 1])


class Codes(Layers):
    """Rows that are rounded, then replaced by the nearest of a table, both with the gradient passed through."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = total(self.one(x), edge_index)
        step = h.abs().amax(0, keepdim=True).clamp(min=1e-8) / 7
        h = h + (torch.round(h / step) * step - h).detach()
        apart = h.pow(2).sum(1, keepdim=True) + self.table.weight.pow(2).sum(1) - 2 * h @ self.table.weight.t()
        code = self.table(apart.argmin(1))
        return h + (code - h).detach(), F.mse_loss(code, h.detach()) + 0.25 * F.mse_loss(h, code.detach())


class FixedPoint(Layers):
    """Solved without gradients, then one step with them."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        weight = normalised(edge_index, len(x))
        with torch.no_grad():
            found = torch.zeros_like(x)
            for _ in range(6):
                found = (0.3 * weighted(self.one(found), edge_index, weight) + x).tanh()
        return (0.3 * weighted(self.one(found), edge_index, weight) + x).tanh()


class Experts(nn.Module):
    """The two best of three layers for each node, and how evenly they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = total(x, edge_index)
        best, which = self.gate(h).softmax(-1).topk(2, -1)
        gate = torch.zeros(len(x), 3, dtype=x.dtype).scatter(-1, which, best)
        made = torch.stack([expert(h) for expert in self.experts], 1)
        used = gate.sum(0)
        return (gate[..., None] * made).sum(1), used.var(correction=0) / (used.mean() ** 2 + 1e-10)


class Bonds(Layers):
    """Messages between directed bonds, less that of the bond back."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        both = torch.cat([edge_index, edge_index.flip(0)], 1)
        back = torch.arange(both.shape[1]).view(2, -1).flip(0).flatten()
        first = self.one(x)[both[0]]
        h = first.relu()
        for _ in range(2):
            atoms = torch.zeros(len(x), 6, dtype=x.dtype).index_add(0, both[1], h)
            h = (first + self.two(atoms[both[0]] - h[back])).relu()
        return torch.zeros(len(x), 6, dtype=x.dtype).index_add(0, both[1], h)


class Signs(nn.Module):
    """Encodings whose signs do not count, one layer for all columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(24, 5)

    def _of(self, rows: Tensor, edge_index: Tensor) -> Tensor:
        h = rows[..., None]
        for layer in (self.first, self.second):
            h = layer(h)
            h = (h + total(h, edge_index)).relu()
        return h

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        made: Tensor = self.last((self._of(x, edge_index) + self._of(-x, edge_index)).flatten(1))
        return made


class Corrected(Layers):
    """Errors on some nodes that are spread without gradients, and scale what was predicted."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        known = torch.arange(len(x)) % 3 == 0
        made = self.one(x).softmax(-1)
        error = torch.zeros_like(made)
        error[known] = F.one_hot(torch.arange(len(x)) % 6, 6).to(made)[known] - made[known]
        with torch.no_grad():
            weight, spread = normalised(edge_index, len(x)), error
            for _ in range(3):
                spread = (0.8 * weighted(spread, edge_index, weight) + 0.2 * error).clamp_(-1.0, 1.0)
        return made + spread[known].abs().mean() * spread / (spread.abs().sum(-1, keepdim=True) + 1e-9)


class History(Layers):
    """A table of rows that some nodes write and the others read, kept between calls."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(32, 6))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        fresh, nodes = torch.arange(len(x)) % 2 == 0, len(x)
        h = total(self.one(x), edge_index).tanh()
        h = torch.where(fresh[:, None], h, self.table[:nodes])
        self.table[:nodes][fresh] = h[fresh].detach()
        return total(self.two(h), edge_index)


class Aggregates(Layers):
    """Products, log-sum-exp and cube roots of third moments over in-edges."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, ids = self.one(x)[edge_index[0]], edge_index[1][:, None].expand(-1, 6)
        product = torch.ones_like(x).scatter_reduce(0, ids, 1 + h.tanh() / 3, "prod")
        most = torch.full_like(x, -1e3).scatter_reduce(0, ids, h, "amax")
        power = torch.zeros_like(x).index_add(0, edge_index[1], (h - most[edge_index[1]]).exp())
        count = torch.bincount(edge_index[1], minlength=len(x)).clamp(min=1)[:, None]
        mean = torch.zeros_like(x).index_add(0, edge_index[1], h) / count
        third = torch.zeros_like(x).index_add(0, edge_index[1], (h - mean[edge_index[1]]).pow(3)) / count
        return product, (power + 1e-12).log() + most, third.sign() * (third.abs() + 1e-4).pow(1 / 3)


MODELS: tuple[Any, ...] = (Oscillators, Rates, Hyperbolic, Diffusion, HardEdges, Codes, FixedPoint, Experts, Bonds)
MODELS += (Signs, Corrected, History, Aggregates)


def few_graphs() -> Iterator[tuple[int, Tensor]]:
    """Some of the usual ones, and as many edges as nodes."""
    yield from itertools.islice(graphs(), 3)
    yield 6, torch.tensor([[0, 1, 2, 3, 4, 5], [1, 5, 1, 3, 0, 0]])


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_models(kind: Any) -> None:
    torch.manual_seed(0)
    check_module(kind(), few_graphs)
