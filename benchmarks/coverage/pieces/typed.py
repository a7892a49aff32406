"""Models over several relations, node types, batches of graphs and recurrent states, as people write them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN, OUT, EDGE, TYPES = 16, 8, 4, 4, 3


class RelationMasks(nn.Module):
    """A loop over relations with masks on the edges, each with a mean and a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(TYPES, WIDTH, OUT) / 4)
        self.root = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out = self.root(x)
        for r in range(TYPES):
            src, dst = edge_index[:, edge_type == r]
            agg = torch.zeros_like(x).index_add_(0, dst, x[src])
            deg = torch.bincount(dst, minlength=x.size(0)).clamp(min=1).unsqueeze(1)
            out = out + (agg / deg) @ self.weight[r]
        return out


class RelationLayers(nn.Module):
    """Two layers of a loop over relations, a linear layer each, features first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(TYPES))
        self.second = nn.ModuleList(nn.Linear(HIDDEN, OUT, bias=False) for _ in range(TYPES))

    def layer(self, x: Tensor, lins: nn.ModuleList, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out = 0
        for r, lin in enumerate(lins):
            sub = edge_index[:, edge_type == r]
            h = lin(x)
            out = out + torch.zeros_like(h).index_add(0, sub[1], h[sub[0]])
        return out

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h = F.relu(self.layer(x, self.first, edge_index, edge_type))
        return self.layer(h, self.second, edge_index, edge_type)


class RelationWeights(nn.Module):
    """A weight matrix gathered for every edge."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(TYPES, WIDTH, OUT) / 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        m = torch.bmm(x[edge_index[0]].unsqueeze(1), self.weight[edge_type]).squeeze(1)
        return torch.zeros(x.size(0), OUT, dtype=x.dtype).index_add_(0, edge_index[1], m)


class RelationBases(nn.Module):
    """Bases shared by relations, mixed by coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.bases = nn.Parameter(torch.randn(2, WIDTH, OUT) / 4)
        self.comp = nn.Parameter(torch.randn(TYPES, 2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h = torch.einsum("nf,bfo->nbo", x, self.bases)
        m = (h[edge_index[0]] * self.comp[edge_type].unsqueeze(-1)).sum(1)
        return torch.zeros(x.size(0), OUT, dtype=x.dtype).index_add_(0, edge_index[1], m)


class RelationEmbedding(nn.Module):
    """Vectors of relations taken off the source, with a weight for either direction."""

    def __init__(self) -> None:
        super().__init__()
        self.rel = nn.Embedding(TYPES, WIDTH)
        self.w_in, self.w_out = nn.Linear(WIDTH, OUT, bias=False), nn.Linear(WIDTH, OUT, bias=False)
        self.w_rel = nn.Linear(WIDTH, OUT, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        r = self.rel(edge_type)
        zeros = torch.zeros(x.size(0), OUT, dtype=x.dtype)
        ahead = zeros.index_add(0, dst, self.w_in(x[src] - r))
        back = zeros.index_add(0, src, self.w_out(x[dst] - r))
        return torch.tanh((ahead + back) / 2), self.w_rel(self.rel.weight)


class TypedDicts(nn.Module):
    """Dicts by node type and by relation."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.ModuleDict({"a": nn.Linear(WIDTH, HIDDEN), "b": nn.Linear(WIDTH, HIDDEN)})
        self.rel = nn.ModuleDict({"into": nn.Linear(HIDDEN, OUT), "back": nn.Linear(HIDDEN, OUT)})
        self.skip = nn.ModuleDict({"a": nn.Linear(HIDDEN, OUT), "b": nn.Linear(HIDDEN, OUT)})

    def forward(self, xs: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        h = {k: F.relu(self.lin[k](v)) for k, v in xs.items()}
        out = {k: self.skip[k](v) for k, v in h.items()}
        for (s, name, d), (src, dst) in edges.items():
            m = self.rel[name](h[s])[src]
            deg = torch.bincount(dst, minlength=len(h[d])).clamp(min=1)
            out[d] = out[d] + torch.zeros_like(out[d]).index_add_(0, dst, m) / deg.unsqueeze(-1)
        return out


class Bipartite(nn.Module):
    """Rows of two sets as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.r = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)

    def forward(self, xs: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        x_src, x_dst = xs
        n = x_dst.size(0)
        agg = x_src.new_zeros(n, x_src.size(1)).index_add_(0, edge_index[1], x_src[edge_index[0]])
        deg = torch.bincount(edge_index[1], minlength=n).clamp_(min=1).view(-1, 1)
        out = self.l(agg / deg) + self.r(x_dst)
        return F.normalize(out, dim=-1)


class UsersItems(nn.Module):
    """Embeddings of two sets, joined, propagated and averaged over layers."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(20, HIDDEN), nn.Embedding(20, HIDDEN)

    def forward(self, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.cat([self.user.weight, self.item.weight])
        src, dst = edge_index[0] % 20, edge_index[1] % 20 + 20
        row, col = torch.cat([src, dst]), torch.cat([dst, src])
        deg = torch.bincount(col, minlength=40).to(e.dtype)
        norm = (deg[row].clamp(min=1) * deg[col].clamp(min=1)).rsqrt()
        out = [e]
        for _ in range(2):
            out.append(torch.zeros_like(e).index_add_(0, col, out[-1][row] * norm[:, None]))
        final = torch.stack(out, 1).mean(1)
        u, i = torch.split(final, [20, 20])
        return u, i


class GatedRecurrent(nn.Module):
    """Steps of a GRU cell with shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.msg = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.gru = nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.enc(x)
        for _ in range(3):
            m = torch.zeros_like(h).index_add_(0, edge_index[1], self.msg(h)[edge_index[0]])
            h = self.gru(m, h)
        return h


class EdgeRecurrent(nn.Module):
    """A GRU by hand with edge features in the message."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.msg = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN + EDGE, HIDDEN)
        self.z, self.r, self.n = (nn.Linear(2 * HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = torch.tanh(self.enc(x))
        for _ in range(2):
            m = self.msg(torch.cat([h[edge_index[0]], edge_attr], -1))
            a = torch.zeros_like(h).index_add_(0, edge_index[1], m)
            z = torch.sigmoid(self.z(torch.cat([a, h], 1)))
            r = torch.sigmoid(self.r(torch.cat([a, h], 1)))
            h = (1 - z) * h + z * torch.tanh(self.n(torch.cat([a, r * h], 1)))
        return h


class LongMemory(nn.Module):
    """An LSTM cell whose state is carried over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.enc = nn.LSTMCell(HIDDEN, HIDDEN), nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.enc(x)
        c = torch.zeros_like(h)
        for _ in range(2):
            m = torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]])
            h, c = self.cell(m, (h, c))
        return h


class Readout(nn.Module):
    """Mean and largest of every graph of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.head = nn.Linear(WIDTH, HIDDEN), nn.Linear(2 * HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.lin(x)
        h = F.relu(h + torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]]))
        size = int(batch.max()) + 1
        n = torch.bincount(batch, minlength=size).unsqueeze(1)
        mean = torch.zeros(size, HIDDEN, dtype=x.dtype).index_add_(0, batch, h) / n
        top = torch.zeros(size, HIDDEN, dtype=x.dtype)
        top = top.scatter_reduce(0, batch[:, None].expand_as(h), h, "amax", include_self=False)
        return self.head(torch.cat([mean, top], dim=1))


class GatedReadout(nn.Module):
    """A softmax over the nodes of every graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.gate = nn.Linear(WIDTH, OUT), nn.Linear(OUT, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.lin(x)
        h = torch.tanh(h + torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]]))
        g = self.gate(h).exp()
        size = batch[-1].item() + 1
        below = torch.zeros(size, 1, dtype=x.dtype).index_add_(0, batch, g)
        return torch.zeros(size, OUT, dtype=x.dtype).index_add_(0, batch, g / below[batch] * h)


class VirtualNode(nn.Module):
    """A node per graph that all its nodes send to and read from."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Linear(WIDTH, HIDDEN), nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))
        self.vn = nn.Embedding(1, HIDDEN)
        self.up = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU())

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.enc(x)
        size = int(batch[-1]) + 1
        v = self.vn(torch.zeros(size, dtype=batch.dtype))
        for lin in self.lin:
            h = h + v[batch]
            m = torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]])
            v = self.up(v + torch.zeros_like(v).index_add_(0, batch, h))
            h = F.relu(lin(m + h))
        return h


class GraphNorm(nn.Module):
    """Means and variances of every graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)
        self.alpha, self.gamma = nn.Parameter(torch.ones(OUT)), nn.Parameter(torch.ones(OUT))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.lin(x)
        h = torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]])
        size = int(batch.max().item() + 1)
        count = torch.zeros(size, dtype=x.dtype).index_add_(0, batch, torch.ones_like(batch, dtype=x.dtype))[:, None]
        mean = torch.zeros(size, OUT, dtype=x.dtype).index_add_(0, batch, h) / count
        sub = h - mean[batch] * self.alpha
        var = torch.zeros(size, OUT, dtype=x.dtype).index_add_(0, batch, sub.pow(2)) / count
        return self.gamma * sub / (var + 1e-5).sqrt()[batch]


class TopK(nn.Module):
    """The best half of the nodes kept, the edges among them kept: Python follows from values."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.p, self.out = nn.Linear(WIDTH, HIDDEN), nn.Parameter(torch.randn(HIDDEN)), nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        h = torch.relu(torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]]))
        score = torch.tanh(h @ self.p / self.p.norm())
        k = h.size(0) // 2
        top, perm = torch.topk(score, k)
        h = h[perm] * top.unsqueeze(1)
        new = torch.full((x.size(0),), -1, dtype=torch.long)
        new[perm] = torch.arange(k)
        e = new[edge_index]
        e = e[:, (e >= 0).all(0)]
        h = self.out(h)
        return (h + torch.zeros_like(h).index_add_(0, e[1], h[e[0]])).mean(0)


class NodeTypes(nn.Module):
    """A projection by node type, with rows written by masks."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(WIDTH, OUT) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), OUT, dtype=x.dtype)
        for t, lin in enumerate(self.lins):
            mask = node_type == t
            h[mask] = lin(x[mask])
        return h + torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]])


class Categories(nn.Module):
    """Embeddings of integer features of nodes and edges."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.edge = nn.Embedding(2, HIDDEN), nn.Embedding(TYPES, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))

    def forward(self, node_type: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h, e = self.node(node_type), self.edge(edge_type)
        m = F.relu(h[edge_index[0]] + e)
        return self.mlp(h + torch.zeros_like(h).index_add_(0, edge_index[1], m))


class Undirected(nn.Module):
    """Edges made symmetric and unique in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        both = torch.unique(both, dim=1)
        row, col = both[:, both[0] != both[1]]
        deg = torch.bincount(col, minlength=x.size(0)).clamp(min=1).to(x.dtype)
        h = self.lin(x)
        return torch.zeros_like(h).index_add_(0, col, h[row] / deg[col].unsqueeze(-1))


class Hyperedges(nn.Module):
    """From nodes to hyperedges and back."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        node, hyper = edge_index[0], edge_index[1] // 3
        m = int(hyper.max()) + 1
        h = self.lin(x)
        b = torch.bincount(hyper, minlength=m).clamp(min=1).to(x.dtype)
        d = torch.bincount(node, minlength=x.size(0)).clamp(min=1).to(x.dtype)
        e = h.new_zeros(m, OUT).index_add_(0, hyper, h[node]) / b[:, None]
        return h.new_zeros(x.size(0), OUT).index_add_(0, node, e[hyper]) / d[:, None]


class Snapshots(nn.Module):
    """A list of edge lists, one a time step, with a recurrent state."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.rnn = nn.Linear(WIDTH, HIDDEN), nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, snapshots: list[Tensor]) -> Tensor:
        state = torch.zeros(x.size(0), HIDDEN, dtype=x.dtype)
        for edges in snapshots:
            h = self.lin(x)
            h = torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])
            state = self.rnn(F.relu(h), state)
        return state


class StaticGraph(nn.Module):
    """A batch of features over one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)  # batch, nodes, features
        out = torch.zeros_like(h)
        out = out.index_add(1, edge_index[1], h[:, edge_index[0]])
        return torch.relu(out + h)


class Temporal(nn.Module):
    """A convolution over time, then a sum over neighbours, in the layout (batch, channels, nodes, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, HIDDEN, (1, 3))
        self.out = nn.Conv2d(HIDDEN, 2, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.relu(self.conv(x.unsqueeze(1)))
        h = torch.zeros_like(h).index_add(2, edge_index[1], h.index_select(2, edge_index[0]))
        return self.out(h).squeeze(1)


class DenseToo(nn.Module):
    """Attention over all nodes beside the sum over edges."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.lin = (nn.Linear(WIDTH, OUT) for _ in range(4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        att = torch.softmax(self.q(x) @ self.k(x).t() / 2.0, dim=-1)
        h = self.lin(x)
        return att @ self.v(x) + torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]])


CASES: list[tuple[Any, str]] = [
    *((kind, "type") for kind in (RelationMasks, RelationLayers, RelationWeights, RelationBases, RelationEmbedding)),
    (TypedDicts, "dicts"),
    (Bipartite, "pair"),
    (UsersItems, "edges"),
    *((kind, "x") for kind in (GatedRecurrent, LongMemory, TopK, Undirected, Hyperedges, DenseToo)),
    (EdgeRecurrent, "attr"),
    *((kind, "batch") for kind in (Readout, GatedReadout, VirtualNode, GraphNorm)),
    (NodeTypes, "node_type"),
    (Categories, "categories"),
    (Snapshots, "snapshots"),
    (StaticGraph, "static"),
    (Temporal, "static"),
]
