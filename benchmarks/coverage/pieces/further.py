"""Message passing in forms that tutorials and papers' code have: in place, by hand, over heads, with counted sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HIDDEN, OUT, EDGE, TYPES, HEADS = 16, 8, 4, 4, 3, 2


class IncludedSelf(nn.Module):
    """A maximum and a product-free mean that begin with the node's own row."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        index = dst[:, None].expand(-1, x.shape[1])
        top = x.clone().scatter_reduce_(0, index, x[src], reduce="amax", include_self=True)
        mean = torch.zeros_like(x).scatter_reduce(0, index, x[src], reduce="mean", include_self=False)
        return self.lin(torch.cat([top, mean], dim=-1))


class SoftmaxByHand(nn.Module):
    """A softmax over in-edges with every step spelled out, over heads one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(HEADS))
        self.att = nn.ParameterList(nn.Parameter(torch.randn(2 * HIDDEN) / 3) for _ in range(HEADS))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index[0], edge_index[1]
        n = x.size(0)
        outs = []
        for lin, att in zip(self.lins, self.att, strict=True):
            h = lin(x)
            score = F.leaky_relu(torch.cat([h[src], h[dst]], dim=1) @ att, 0.2)
            top = torch.full((n,), float("-inf"), dtype=x.dtype)
            top = top.scatter_reduce(0, dst, score, reduce="amax", include_self=True)
            exp = (score - top[dst]).exp()
            norm = torch.zeros(n, dtype=x.dtype).index_add_(0, dst, exp)
            alpha = exp / (norm[dst] + 1e-16)
            outs.append(torch.zeros_like(h).index_add_(0, dst, alpha.unsqueeze(1) * h[src]))
        return torch.cat(outs, dim=1)


class TypedAttributes(nn.Module):
    """Attributes of edges scaled and shifted by rows picked by the edge's type."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Embedding(TYPES, WIDTH)
        self.shift = nn.Parameter(torch.randn(TYPES, WIDTH))
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        src, dst = edge_index
        message = x[src] * self.scale(edge_type).sigmoid() + torch.index_select(self.shift, 0, edge_type)
        out = x.new_zeros(x.shape)
        out.scatter_add_(0, dst.unsqueeze(-1).expand_as(message), message)
        return self.lin(out)


class SparsePower(nn.Module):
    """A normalised sparse matrix made in forward, applied several times."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.shape[0]
        loops = torch.arange(n).repeat(2, 1)
        both = torch.cat([edge_index, loops], dim=1)
        adj = torch.sparse_coo_tensor(both, torch.ones(both.shape[1], dtype=x.dtype), (n, n)).coalesce()
        deg = torch.sparse.sum(adj, dim=1).to_dense()
        h = self.lin(x)
        total = h
        for _ in range(3):
            h = torch.sparse.mm(adj, h) / deg[:, None]
            total = total + 0.5 * h
        return total


class Masked(nn.Module):
    """Nodes without in-edges keep their features, by a mask and ``torch.where``."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.own = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        reached = torch.zeros(x.size(0), dtype=torch.bool)
        reached[dst] = True
        total = torch.zeros(x.size(0), OUT, dtype=x.dtype).index_add(0, dst, self.lin(x)[src])
        return torch.where(reached.unsqueeze(1), total, self.own(x))


class InPlace(nn.Module):
    """Rows and columns written in place between sums."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.lin(x)
        h.add_(0.25)
        h[:, :2] *= 0.5
        h += torch.zeros_like(h).index_add_(0, dst, h[src])
        h.div_(1.0 + torch.bincount(dst, minlength=h.shape[0]).to(h.dtype).unsqueeze(1))
        h[:, -1] = 1.0
        out = torch.empty_like(h).fill_(0)
        out.index_add_(0, src, h[dst])
        return out.sub_(h.mean(dim=0))


class Cumulative(nn.Module):
    """Sums over sorted edges as differences of a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        order = edge_index[1].argsort(stable=True)
        src, dst = edge_index[:, order]
        ends = torch.bincount(dst, minlength=x.size(0)).cumsum(0)
        running = torch.cat([x.new_zeros(1, OUT), self.lin(x)[src].cumsum(0)])
        return running[ends] - running[torch.cat([ends.new_zeros(1), ends[:-1]])]


class Shapes(nn.Module):
    """Python numbers from shapes: means over all nodes, a scale by the mean degree, a budget of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n, m = x.shape[0], edge_index.shape[1]
        half = self.lin.out_features // 2
        h = self.lin(x) * (n / m) ** 0.5
        first, second = h.split([half, HIDDEN - half], dim=-1)
        out = torch.zeros(n, half, dtype=x.dtype)
        out.index_add_(0, edge_index[1], first[edge_index[0]])
        return torch.cat([out / max(m // n, 1), second - second.sum(0, keepdim=True) / n], dim=-1)


class DroppedEdges(nn.Module):
    """Edges masked by random numbers of their own in training, from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        if self.training:
            kept = (torch.rand(edge_weight.shape, dtype=edge_weight.dtype) > 0.3).to(x.dtype)
            edge_weight = edge_weight * kept / 0.7
        message = self.lin(x)[edge_index[0]] * edge_weight.view(-1, 1)
        return torch.zeros(len(x), OUT, dtype=x.dtype).index_add_(0, edge_index[1], message)


class NoisyNodes(nn.Module):
    """Noise on the features, and a fixed share of nodes whose rows are replaced by a learned one."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(WIDTH))
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = x + 0.1 * torch.randn_like(x)
        hidden = torch.arange(len(x)) % 4 == 1
        h[hidden] = self.token
        h[~hidden] *= 1.5
        src, dst = edge_index
        return self.lin(torch.zeros_like(h).index_add_(0, dst, h[src]))


class GroupedNorm(nn.Module):
    """Scores normalised over each graph of a batch, and a sum of each graph at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.last = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        graphs = int(batch.max()) + 1
        h = torch.zeros(len(x), HIDDEN, dtype=x.dtype).index_add(0, edge_index[1], self.lin(x)[edge_index[0]])
        size = torch.bincount(batch, minlength=graphs).to(x.dtype).unsqueeze(1)
        mean = torch.zeros(graphs, HIDDEN, dtype=x.dtype).index_add(0, batch, h) / size
        spread = torch.zeros(graphs, HIDDEN, dtype=x.dtype).index_add(0, batch, (h - mean[batch]).square()) / size
        h = torch.tanh((h - mean[batch]) / (spread[batch] + 1e-5).sqrt())
        return self.last(torch.zeros(graphs, HIDDEN, dtype=x.dtype).index_add(0, batch, h))


class BufferedEdges(nn.Module):
    """The graph kept as a buffer of the module."""

    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(3)
        self.register_buffer("edges", torch.randint(0, 31, (2, 90), generator=made))
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = self.edges
        h = self.lin(x)
        h = h + torch.zeros_like(h).index_add(0, dst, h[src])
        return h + torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])


CASES: list[tuple[Any, str]] = [
    *((kind, "x") for kind in (IncludedSelf, SoftmaxByHand, SparsePower, Masked, InPlace, Cumulative, Shapes)),
    *((kind, "x") for kind in (NoisyNodes, BufferedEdges)),
    (TypedAttributes, "type"),
    (DroppedEdges, "weight"),
    (GroupedNorm, "batch"),
]
