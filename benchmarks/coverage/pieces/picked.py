"""Message passing whose ends are picked: rows of nodes for a loss or a score, rows of tables, graphs of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import scatter, softmax

WIDTH, HIDDEN, OUT, TYPES = 16, 8, 4, 3


def _mean(h: Tensor, edge_index: Tensor) -> Tensor:
    """The mean over in-edges; the sum is written into zeros."""
    src, dst = edge_index
    total = torch.zeros(h.shape[0], h.shape[1], dtype=h.dtype).index_add_(0, dst, h[src])
    return total / torch.bincount(dst, minlength=len(h)).clamp(min=1).unsqueeze(1)


class MaskedLoss(nn.Module):
    """Scores of all nodes, and a weighted cross-entropy of those of a mask, some of them without a label."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, TYPES)
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        scores = _mean(self.lin(x), edge_index)
        nodes = torch.arange(len(x))
        labels = torch.where(nodes % 5 == 1, -100, nodes % TYPES)
        known = nodes % 2 == 0
        loss = F.cross_entropy(scores[known], labels[known], weight=self.weight.to(x.dtype))
        each = F.nll_loss(scores[nodes[:3]].log_softmax(1), labels[:3].clamp(min=0), ignore_index=1, reduction="none")
        return {"scores": scores, "loss": loss, "each": each, "picked": scores[known]}


class Triples(nn.Module):
    """Scores of triples of a knowledge graph; relations are rows of a table that was transformed."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.relation, self.turn = nn.Linear(WIDTH, HIDDEN), nn.Embedding(TYPES, HIDDEN), nn.Linear(HIDDEN, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(_mean(self.lin(x), edge_index))
        head, kind, tail = edge_index[0][:12], edge_type[:12], edge_index[1].flip(0)[:12]
        relation = self.turn(self.relation.weight)
        distance = torch.norm(h[head] + relation[kind] - h[tail], p=1, dim=-1)
        return distance, (h[head] * self.relation(kind) * h[tail]).sum(-1)


class AsManyPairs(nn.Module):
    """A loss of as many pairs as there are edges, half of them drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.mlp = nn.Linear(WIDTH, HIDDEN), nn.Linear(2 * HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = _mean(self.lin(x), edge_index)
        half = edge_index.shape[1] // 2
        pairs = torch.cat([edge_index[:, :half], edge_index[:, half:].flip(1) // 2], 1)
        score = self.mlp(torch.cat([h[pairs[0]], h[pairs[1]]], -1)).view(-1)
        truth = torch.cat([torch.ones(half), torch.zeros(pairs.shape[1] - half)]).to(x.dtype)
        return F.binary_cross_entropy_with_logits(score, truth)


class JoinedTables(nn.Module):
    """Embeddings of users and items, propagated and averaged; scores of pairs by rows of the two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(25, HIDDEN), nn.Embedding(15, HIDDEN)

    def forward(self, edge_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        users, items = edge_index[0] % 25, edge_index[1] % 15
        both = torch.stack([torch.cat([users, items + 25]), torch.cat([items + 25, users])])
        h = torch.cat([self.user.weight, self.item.weight])
        layers = [h]
        for _ in range(2):
            h = _mean(h, both)
            layers.append(h)
        user, item = torch.split(torch.stack(layers, 1).mean(1), [25, 15])
        return (user[users[:20] - 25] * item[items[:20]]).sum(1).sigmoid(), user, item


class GroupExtrema(nn.Module):
    """Sums, means and extrema of the graphs of a batch, and a softmax over their nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.gate = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = torch.relu(_mean(self.lin(x), edge_index))
        size = int(batch.max()) + 2  # the last graph has no nodes
        parts = [scatter(h, batch, 0, size, kind) for kind in ("sum", "mean", "max", "min")]
        share = softmax(self.gate(h), batch, num_nodes=size)
        wide = batch.unsqueeze(1).expand_as(h)
        top = torch.full((size, HIDDEN), -2.0, dtype=h.dtype).scatter_reduce(0, wide, h, "amax", include_self=False)
        return torch.cat([*parts, top, torch.zeros(size, HIDDEN, dtype=h.dtype).index_add(0, batch, share * h)], 1)


class AtomsInGraphs(nn.Module):
    """Nodes and edges by category; the table of atoms is longer than there are nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.atom, self.bond = nn.Embedding(90, HIDDEN), nn.Embedding(TYPES, HIDDEN)
        self.out = nn.Linear(HIDDEN, OUT)

    def forward(self, kind: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h = self.atom(kind * 31 + 5)
        for _ in range(2):
            sent = torch.relu(h[edge_index[0]] + self.bond(edge_type))
            h = h + torch.zeros_like(h).index_add_(0, edge_index[1], sent)
        batch = torch.arange(len(kind)) * 3 // len(kind)
        return self.out(scatter(h, batch, 0, 3, "sum"))


class SparseScores(nn.Module):
    """A sparse matrix of scores of edges, its rows divided by their sums, and the same transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.left, self.right = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n, h = x.shape[0], self.lin(x)
        score = F.leaky_relu(self.left(h)[edge_index[0]] + self.right(h)[edge_index[1]], 0.2).squeeze(-1).exp()
        matrix = torch.sparse_coo_tensor(edge_index, score, torch.Size([n, n])).coalesce()
        total = torch.sparse.mm(matrix, torch.ones(n, 1, dtype=x.dtype))
        return (
            F.elu(matrix @ h / (total + 1e-9))
            + torch.mm(matrix.t(), h)
            + matrix.transpose(0, 1).matmul(h[:, 0])[:, None]
        )


CASES = [
    *((kind, "x") for kind in (MaskedLoss, AsManyPairs, SparseScores)),
    (Triples, "type"),
    (JoinedTables, "edges"),
    (GroupExtrema, "batch"),
    (AtomsInGraphs, "categories"),
]
