"""Models with weights, gates and values on edges, with torch alone, as people write them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN, OUT, EDGE = 16, 8, 4, 4


def edge_softmax(score: Tensor, index: Tensor, n: int) -> Tensor:
    """Softmax over the edges into each node."""
    idx = index.view(-1, *([1] * (score.dim() - 1))).expand_as(score)
    top = torch.full((n, *score.shape[1:]), -1e9, dtype=score.dtype).scatter_reduce(0, idx, score, "amax")
    e = torch.exp(score - top[index].detach())
    total = torch.zeros((n, *score.shape[1:]), dtype=score.dtype).scatter_add(0, idx, e)
    return e / (total[index] + 1e-16)


class GATByHand(nn.Module):
    """Several heads as views, scores added of both ends."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(WIDTH, heads * OUT, bias=False)
        self.a_src = nn.Parameter(torch.randn(1, heads, OUT) / 2)
        self.a_dst = nn.Parameter(torch.randn(1, heads, OUT) / 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.lin(x).view(-1, self.heads, OUT)
        score = (h * self.a_src).sum(-1)[src] + (h * self.a_dst).sum(-1)[dst]
        alpha = edge_softmax(F.leaky_relu(score, 0.2), dst, x.size(0))
        out = torch.zeros_like(h).index_add_(0, dst, h[src] * alpha.unsqueeze(-1))
        return out.flatten(1)


class GATConcat(nn.Module):
    """Scores of joined ends, as in the first public code; no largest value taken off."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(WIDTH, OUT) / 4)
        self.a = nn.Parameter(torch.randn(1, 2 * OUT) / 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        h = torch.mm(x, self.W)
        edge_h = torch.cat((h[edge_index[0, :], :], h[edge_index[1, :], :]), dim=1).t()
        edge_e = torch.exp(-F.leaky_relu(self.a.mm(edge_h).squeeze(), 0.2))
        ones = torch.ones(size=(n, 1), dtype=x.dtype)
        adj = torch.sparse_coo_tensor(edge_index, edge_e, (n, n))
        rowsum = torch.sparse.mm(adj, ones)
        out = torch.sparse.mm(adj, h)
        return F.elu(out.div(rowsum + 1e-9))


class GATv2ByHand(nn.Module):
    """Scores after the non-linearity."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, OUT * 2), nn.Linear(WIDTH, OUT * 2)
        self.att = nn.Parameter(torch.randn(2, OUT))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        left, right = self.left(x).view(-1, 2, OUT), self.right(x).view(-1, 2, OUT)
        e = F.leaky_relu(left[edge_index[0]] + right[edge_index[1]], 0.2)
        alpha = edge_softmax(torch.einsum("ehd,hd->eh", e, self.att), edge_index[1], x.size(0))
        out = left.new_zeros(left.shape)
        out.index_add_(0, edge_index[1], alpha[..., None] * left[edge_index[0]])
        return out.mean(dim=1)


class DotAttention(nn.Module):
    """Queries, keys and values with edge features added to the keys."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.h, self.d = heads, HIDDEN // heads
        self.q, self.k, self.v = (nn.Linear(WIDTH, HIDDEN) for _ in range(3))
        self.e = nn.Linear(EDGE, HIDDEN)
        self.o = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        src, dst = edge_index.unbind(0)
        shape = (-1, self.h, self.d)
        q, k, v = self.q(x).reshape(shape), self.k(x).reshape(shape), self.v(x).reshape(shape)
        e = self.e(edge_attr).reshape(shape)
        score = (q[dst] * (k[src] + e)).sum(-1) / math.sqrt(self.d)
        alpha = F.dropout(edge_softmax(score, dst, len(x)), 0.0, self.training)
        out = torch.zeros_like(v).index_add(0, dst, (v[src] + e) * alpha[:, :, None])
        return self.o(out.reshape(len(x), -1))


class EdgeGates(nn.Module):
    """Gates of both ends and the edge; the edge's own features are updated, too."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.node, self.edge = nn.Linear(WIDTH, HIDDEN), nn.Linear(EDGE, HIDDEN)
        self.E = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        h, e = self.node(x), self.edge(edge_attr)
        i, j = edge_index[1], edge_index[0]
        for _ in range(2):
            e_new = self.C(e) + self.D(h)[i] + self.E(h)[j]
            gate = torch.sigmoid(e_new)
            num = torch.zeros_like(h).index_add_(0, i, gate * self.B(h)[j])
            den = torch.zeros_like(h).index_add_(0, i, gate)
            h = h + F.relu(self.A(h) + num / (den + 1e-6))
            e = e + F.relu(e_new)
        return self.out(h), e


class EdgeMLP(nn.Module):
    """A network on both ends and their difference, then the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x_j, x_i = x[edge_index[0]], x[edge_index[1]]
        m = self.net(torch.cat([x_i, x_j - x_i], dim=-1))
        idx = edge_index[1].unsqueeze(-1).expand(-1, m.size(-1))
        return torch.zeros(x.size(0), m.size(-1), dtype=x.dtype).scatter_reduce(0, idx, m, "amax", include_self=False)


class EdgeWeights(nn.Module):
    """A scalar of edge features multiplies each message."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(EDGE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1), nn.Sigmoid())
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.lin(x)
        w = self.gate(edge_attr).squeeze(-1)
        out = h.clone()
        out = out.index_add(0, edge_index[1], torch.einsum("e,ef->ef", w, h[edge_index[0]]))
        return F.gelu(out)


class Equivariant(nn.Module):
    """Positions and features updated together by distances."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * WIDTH + 1, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU())
        self.coord = nn.Linear(HIDDEN, 1, bias=False)
        self.node = nn.Sequential(nn.Linear(WIDTH + HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, OUT))

    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        row, col = edge_index
        diff = pos[row] - pos[col]
        radial = torch.sum(diff**2, 1).unsqueeze(1)
        m = self.edge(torch.cat([x[row], x[col], radial], dim=1))
        trans = diff * self.coord(m)
        count = torch.zeros_like(pos).scatter_add_(0, row[:, None].expand(-1, 3), torch.ones_like(trans))
        moved = torch.zeros_like(pos).scatter_add_(0, row[:, None].expand(-1, 3), trans) / count.clamp(min=1)
        agg = m.new_zeros((x.size(0), m.size(1))).index_add_(0, row, m)
        return self.node(torch.cat([x, agg], 1)), pos + moved


class Filters(nn.Module):
    """Radial basis functions of distances make filters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(0, 4, 6))
        self.filter = nn.Sequential(nn.Linear(6, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN))
        self.inn, self.out = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        d = (pos[edge_index[0]] - pos[edge_index[1]]).pow(2).sum(-1, keepdim=True).add(1e-6).sqrt()
        rbf = torch.exp(-0.5 * (d - self.centers.view(1, -1)) ** 2)
        cut = 0.5 * (torch.cos(d * math.pi / 10.0) + 1.0)
        w = self.filter(rbf) * cut
        h = self.inn(x)
        agg = torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]] * w)
        return x.mean(1, keepdim=True) + self.out(F.softplus(agg) - math.log(2.0))


class EdgeMatrices(nn.Module):
    """A matrix of its own for every edge, by ``bmm``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(EDGE, 6), nn.ReLU(), nn.Linear(6, WIDTH * OUT))
        self.root = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        W = self.net(edge_attr).view(-1, WIDTH, OUT)
        m = torch.bmm(x[edge_index[0]].unsqueeze(1), W).squeeze(1)
        return self.root(x) + torch.zeros(x.size(0), OUT, dtype=x.dtype).index_add_(0, edge_index[1], m)


class Bilinear(nn.Module):
    """A bilinear score of both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.bil = nn.Bilinear(HIDDEN, HIDDEN, 1)
        self.lin = nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        s = torch.sigmoid(self.bil(h[edge_index[0]], h[edge_index[1]]))
        return h + torch.zeros_like(h).index_add_(0, edge_index[1], s * h[edge_index[0]])


class Cosine(nn.Module):
    """Cosine of both ends, sharpened by a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        unit = F.normalize(x, p=2.0, dim=-1)
        s = self.beta * (unit[edge_index[0]] * unit[edge_index[1]]).sum(dim=-1)
        alpha = edge_softmax(s, edge_index[1], x.size(0))
        return torch.zeros_like(x).index_add_(0, edge_index[1], alpha.view(-1, 1) * x[edge_index[0]])


class CosineSimilarity(nn.Module):
    """torch's own cosine, clamped below as a defence does."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index
        sim = F.cosine_similarity(x[row], x[col], dim=1)
        sim = torch.where(sim < 0.1, torch.zeros_like(sim), sim)
        total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, col, sim)
        att = sim / (total[col] + 1e-8)
        h = self.lin(x)
        return torch.zeros_like(h).index_add_(0, col, att[:, None] * h[row])


class SignedGate(nn.Module):
    """Gates between minus one and one, with the first features mixed back in."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.lin = nn.Linear(2 * HIDDEN, 1), nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raw = h = torch.relu(self.lin(x))
        row, col = edge_index
        deg = torch.bincount(row, minlength=x.shape[0]).to(x.dtype).clamp(min=1)
        d = torch.pow(deg, -0.5)
        for _ in range(2):
            g = torch.tanh(self.gate(torch.cat([h[col], h[row]], dim=1))).squeeze()
            e = g * d[col] * d[row]
            z = torch.zeros_like(h)
            z.index_add_(0, col, h[row] * e.unsqueeze(1))
            h = 0.3 * raw + z
        return h


class EdgeNorm(nn.Module):
    """Batch norm over the rows of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * WIDTH, 2 * OUT)
        self.bn = nn.BatchNorm1d(2 * OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.bn(self.lin(torch.cat([x[edge_index[1]], x[edge_index[0]]], -1)))
        a, b = z.chunk(2, dim=-1)
        m = a.sigmoid() * F.softplus(b)
        return torch.zeros(x.size(0), OUT, dtype=x.dtype).index_add_(0, edge_index[1], m)


class SoftAggregation(nn.Module):
    """Softmax over neighbours for every channel, with a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.lin = nn.Parameter(torch.tensor(1.0)), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        m = F.relu(x[edge_index[0]]) + 1e-7
        a = edge_softmax(m * self.t, edge_index[1], x.shape[0])
        return self.lin(x + torch.zeros_like(x).index_add_(0, edge_index[1], m * a))


class PowerMean(nn.Module):
    """Means of powers with a learned exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.lin = nn.Parameter(torch.tensor(1.5)), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        m = torch.clamp(x.abs(), 1e-4, 50.0)[edge_index[0]]
        n = torch.bincount(edge_index[1], minlength=x.size(0)).clamp(min=1).to(x.dtype)
        s = torch.zeros_like(x).index_add_(0, edge_index[1], torch.pow(m, self.p)) / n[:, None]
        return self.lin(torch.pow(torch.clamp(s, 1e-4, 50.0), 1 / self.p))


class EdgeToEdge(nn.Module):
    """States of directed edges: sums into nodes, then the edge's own reverse taken off."""

    def __init__(self) -> None:
        super().__init__()
        self.init, self.upd = nn.Linear(WIDTH + EDGE, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(WIDTH + HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        src, dst = edge_index
        h0 = h = torch.relu(self.init(torch.cat([x[src], edge_attr], 1)))
        for _ in range(2):
            into = torch.zeros(x.size(0), HIDDEN, dtype=x.dtype).index_add_(0, dst, h)
            h = torch.relu(h0 + self.upd(into[src] - h))
        return self.out(torch.cat([x, torch.zeros(x.size(0), HIDDEN, dtype=x.dtype).index_add_(0, dst, h)], 1))


CASES: list[tuple[Any, str]] = [
    *((kind, "x") for kind in (GATByHand, GATConcat, GATv2ByHand, EdgeMLP, Bilinear, Cosine, CosineSimilarity)),
    *((kind, "x") for kind in (SignedGate, EdgeNorm, SoftAggregation, PowerMean)),
    *((kind, "attr") for kind in (DotAttention, EdgeGates, EdgeWeights, EdgeMatrices, EdgeToEdge)),
    *((kind, "pos") for kind in (Equivariant, Filters)),
]
