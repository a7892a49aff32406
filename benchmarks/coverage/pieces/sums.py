"""Models by gathers and sums with torch alone, as people write them: sums, means, coefficients, sparse products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN, OUT = 16, 8, 4


class IndexAdd(nn.Module):
    """Two layers of sums, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        for i, layer in enumerate((self.w1, self.w2)):
            h = layer(x)
            out = torch.zeros(x.size(0), h.size(1), dtype=h.dtype, device=h.device)
            out.index_add_(0, dst, h[src])
            x = out if i else F.relu(out)
        return x


class ScatterMean(nn.Module):
    """A mean by two sums of ``scatter_add_``, the count as ones of the features' dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index[0], edge_index[1]
        index = col.view(-1, 1).expand(-1, x.size(1))
        total = torch.zeros_like(x).scatter_add_(0, index, x.index_select(0, row))
        count = x.new_zeros(x.size(0)).scatter_add_(0, col, x.new_ones(col.numel()))
        return self.lin(torch.cat([x, total / count.clamp(min=1).unsqueeze(1)], dim=-1))


class ScatterReduceMax(nn.Module):
    """Largest values with ``scatter_reduce_`` and a fallback for nodes without edges."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.out = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH + HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        m = F.relu(self.pool(x))[edge_index[0]]
        idx = edge_index[1].unsqueeze(-1).expand_as(m)
        top = torch.full((x.shape[0], m.shape[1]), float("-inf"), dtype=x.dtype)
        top = top.scatter_reduce(0, idx, m, reduce="amax", include_self=True)
        top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
        return self.out(torch.cat((x, top), 1))


class ScatterReduceMean(nn.Module):
    """A mean with ``scatter_reduce`` without the old values."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        index = edge_index[1][:, None].repeat(1, h.shape[1])
        return torch.zeros_like(h).scatter_reduce(0, index, h[edge_index[0]], "mean", include_self=False)


class Swapped(nn.Module):
    """Messages against the direction of the edges, beside those along it."""

    def __init__(self) -> None:
        super().__init__()
        self.fwd, self.bwd = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        ahead = torch.zeros(len(x), OUT).to(x).index_add(0, dst, self.fwd(x)[src])
        back = torch.zeros(len(x), OUT).to(x).index_add(0, src, self.bwd(x)[dst])
        return torch.tanh(ahead + 0.5 * back)


class GCNByHand(nn.Module):
    """Self-loops and coefficients made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, OUT) / 4)
        self.bias = nn.Parameter(torch.zeros(OUT))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        loops = torch.arange(n, device=edge_index.device)
        edges = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
        deg = torch.bincount(edges[1], minlength=n).to(x.dtype)
        inv = deg.pow(-0.5)
        norm = inv[edges[0]] * inv[edges[1]]
        out = x.new_zeros(n, self.weight.shape[1])
        out.index_add_(0, edges[1], (x @ self.weight)[edges[0]] * norm.unsqueeze(-1))
        return out + self.bias


class WeightedGCN(nn.Module):
    """Coefficients of edge weights that have gradients, with loops of weight one."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        n = x.size(0)
        loop = torch.arange(n)
        row = torch.cat([edge_index[0], loop])
        col = torch.cat([edge_index[1], loop])
        w = torch.cat([edge_weight, edge_weight.new_ones(n)])
        deg = w.new_zeros(n).scatter_add_(0, col, w)
        dis = deg.pow(-0.5)
        dis[torch.isinf(dis)] = 0
        w = dis[row] * w * dis[col]
        h = self.lin(x)
        return torch.zeros_like(h).index_add_(0, col, w[:, None] * h[row])


class SparseCOO(nn.Module):
    """An adjacency matrix made in forward, multiplied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        ones = torch.ones(edge_index.size(1), dtype=x.dtype)
        adj = torch.sparse_coo_tensor(edge_index.flip(0), ones, (n, n))
        h = torch.sparse.mm(adj, self.lin1(x)).relu()
        return torch.sparse.mm(adj, self.lin2(h))


class SparseWeighted(nn.Module):
    """A sparse matrix of weights with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        adj = torch.sparse_coo_tensor(edge_index, edge_weight, (x.size(0), x.size(0)))
        return torch.sparse.mm(adj.t(), self.lin(x))


class SparseCSR(nn.Module):
    """Rows sorted in forward, a CSR matrix, ``@``."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        order = edge_index[1].argsort(stable=True)
        col = edge_index[0][order]
        ptr = torch.zeros(n + 1, dtype=torch.long)
        ptr[1:] = torch.bincount(edge_index[1], minlength=n).cumsum(0)
        adj = torch.sparse_csr_tensor(ptr, col, torch.ones(len(col), dtype=x.dtype), size=(n, n))
        return adj @ self.lin(x)


class SegmentReduce(nn.Module):
    """Edges sorted by destination, then ``segment_reduce``."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        order = torch.argsort(edge_index[1], stable=True)
        lengths = torch.bincount(edge_index[1], minlength=x.size(0))
        messages = self.lin(x)[edge_index[0][order]]
        return torch.segment_reduce(messages, "mean", lengths=lengths, initial=0)


class Propagate(nn.Module):
    """Personalised propagation over a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))
        self.alpha = 0.1

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = h = self.mlp(x)
        row, col = edge_index
        deg = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, col, torch.ones_like(col, dtype=x.dtype))
        norm = 1.0 / deg.clamp(min=1)[col]
        for _ in range(4):
            z = (1 - self.alpha) * torch.zeros_like(h).index_add(0, col, norm.view(-1, 1) * z[row]) + self.alpha * h
        return F.log_softmax(z, dim=1)


class JumpingCat(nn.Module):
    """All layers' results joined."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)])
        self.out = nn.Linear(3 * HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = []
        for layer in self.layers:
            h = layer(x)
            x = F.elu(h + h.new_zeros(h.shape).index_add_(0, edge_index[1], h[edge_index[0]]))
            states.append(x)
        return self.out(torch.cat(states, dim=-1))


class JumpingMax(JumpingCat):
    """The largest of all layers' results."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = []
        for layer in self.layers:
            m = layer(x)
            x = F.leaky_relu(m.new_zeros(m.shape).index_add_(0, edge_index[1], m[edge_index[0]]), 0.1)
            states.append(x)
        return self.out(torch.stack(states, dim=0).max(dim=0)[0])


class ResidualNorm(nn.Module):
    """Skip connections, layer norm, in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(WIDTH, HIDDEN)
        self.lins = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(3))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, norm in zip(self.lins, self.norms, strict=True):
            h = self.act(norm(x))
            agg = torch.zeros_like(h)
            agg.scatter_add_(0, edge_index[1].unsqueeze(1).expand_as(h[edge_index[0]]), h[edge_index[0]])
            x = x + lin(agg)
        return x


class GINByHand(nn.Module):
    """Sums, a learned epsilon, batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        agg = torch.zeros_like(x)
        agg = agg.index_add(0, edge_index[1], torch.index_select(x, 0, edge_index[0]))
        return self.mlp((1 + self.eps) * x + agg)


class Statistics(nn.Module):
    """Mean, standard deviation, largest and smallest, scaled by degree."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.Linear(WIDTH, HIDDEN)
        self.post = nn.Linear(8 * HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.pre(x)
        src, dst = edge_index
        msg, n = h[src], h.size(0)
        idx = dst[:, None].expand_as(msg)
        deg = torch.bincount(dst, minlength=n).clamp(min=1).to(h.dtype).unsqueeze(1)
        mean = h.new_zeros(h.shape).scatter_add(0, idx, msg) / deg
        square = h.new_zeros(h.shape).scatter_add(0, idx, msg * msg) / deg
        std = (F.relu(square - mean**2) + 1e-5).sqrt()
        high = h.new_zeros(h.shape).scatter_reduce(0, idx, msg, "amax", include_self=False)
        low = h.new_zeros(h.shape).scatter_reduce(0, idx, msg, "amin", include_self=False)
        all_ = torch.cat([mean, std, high, low], dim=1)
        return self.post(torch.cat([all_, all_ * torch.log(deg + 1)], dim=1))


class Chebyshev(nn.Module):
    """Polynomials of the scaled Laplacian."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(WIDTH, OUT, bias=False) for _ in range(4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        keep = edge_index[0] != edge_index[1]
        row, col = edge_index[:, keep]
        deg = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, row, torch.ones(row.size(0), dtype=x.dtype))
        dis = torch.where(deg > 0, deg.rsqrt(), torch.zeros_like(deg))
        norm = -(dis[row] * dis[col])

        def lap(v: Tensor) -> Tensor:
            return torch.zeros_like(v).index_add_(0, col, norm[:, None] * v[row])

        t0, t1 = x, lap(x)
        out = self.lins[0](t0) + self.lins[1](t1)
        for lin in list(self.lins)[2:]:
            t0, t1 = t1, 2.0 * lap(t1) - t0
            out = out + lin(t1)
        return out


class EdgeDropout(nn.Module):
    """Dropout on messages; only in training, so that eval can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.p = nn.Linear(WIDTH, OUT), 0.0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        m = F.dropout(self.lin(x)[edge_index[0]], p=self.p, training=self.training)
        return torch.zeros(x.size(0), OUT, dtype=x.dtype).index_add_(0, edge_index[1], m)


class MultiHop(nn.Module):
    """Features of several hops, joined and weighted by a softmax of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hops = nn.Parameter(torch.randn(4))
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        w = torch.softmax(self.hops, dim=0)
        out = x * w[0]
        h = x
        for k in range(1, 4):
            h = torch.zeros_like(x).index_add(0, edge_index[1], h[edge_index[0]] * 0.3)
            out += w[k] * h
        return self.lin(out)


class IndexPut(nn.Module):
    """``index_put_`` with accumulation."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return torch.zeros_like(h).index_put_((edge_index[1],), h[edge_index[0]], accumulate=True).sigmoid()


class Transposed(nn.Module):
    """Features first, nodes last."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(OUT, WIDTH) / 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.weight @ x.t()
        out = torch.zeros_like(h).index_add_(1, edge_index[1], h[:, edge_index[0]])
        return out.t().contiguous()


class Loss(nn.Module):
    """A model that returns its loss: labels picked by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor) -> tuple[Tensor, Tensor]:
        h = self.lin(x)
        out = h + torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])
        mask = node_type > 0
        return F.cross_entropy(out[mask], node_type[mask]), out


class LinkScores(nn.Module):
    """An encoder, then scores of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        h = self.lin(x)
        z = torch.relu(h.new_zeros(h.shape).index_add_(0, edge_index[1], h[edge_index[0]]))
        return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)


CASES: list[tuple[Any, str]] = [
    *((kind, "x") for kind in (IndexAdd, ScatterMean, ScatterReduceMax, ScatterReduceMean, Swapped, GCNByHand)),
    *((kind, "weight") for kind in (WeightedGCN, SparseWeighted)),
    *((kind, "x") for kind in (SparseCOO, SparseCSR, SegmentReduce, Propagate, JumpingCat, JumpingMax, ResidualNorm)),
    *((kind, "x") for kind in (GINByHand, Statistics, Chebyshev, EdgeDropout, MultiHop, IndexPut, Transposed)),
    (Loss, "node_type"),
    (LinkScores, "other"),
]
