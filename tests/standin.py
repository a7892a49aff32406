"""A small node task and a model made of plain torch, for tests of what surrounds kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import DataError


@dataclass(frozen=True)
class Task:
    """What the trainer reads of a dataset; the graph is a dense normalised adjacency."""

    name: str
    graph: Any
    x: Tensor
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int

    def labelled(self, part: str) -> Tensor:
        idx = getattr(self, f"{part}_idx")
        return idx[self.y[idx] >= 0] if self.y.dim() == 1 else idx

    def check_trainable(self) -> None:
        if self.labelled("train").numel() == 0:
            raise DataError(f"{self.name}: expected at least one training node with a label, got none")

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_edges(self) -> int:
        return int((self.graph != 0).sum())


class DenseGCN(nn.Module):
    """Two graph convolutions with dropout on the input of both."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(features, hidden), nn.Linear(hidden, classes)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = graph @ layer(self.dropout(x))
            x = torch.relu(x) if place == 0 else x
        return x


def make_task(seed: int = 0, num_nodes: int = 60, classes: int = 3, multi_label: bool = False) -> Task:
    """Planted communities: neighbours mostly share a class, features hint at it."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (num_nodes,), generator=rng)
    same = (y[:, None] == y[None, :]).float()
    dense = (torch.rand(num_nodes, num_nodes, generator=rng) < 0.02 + 0.15 * same).float()
    dense = ((dense + dense.T + torch.eye(num_nodes)) > 0).float()
    scale = dense.sum(1).rsqrt()
    x = torch.eye(classes)[y] + torch.randn(num_nodes, classes, generator=rng)
    order = torch.randperm(num_nodes, generator=rng)
    third = num_nodes // 3
    labels = torch.eye(classes)[y] if multi_label else y
    return Task(
        "planted", scale[:, None] * dense * scale, x, labels, order[:third], order[third : 2 * third],
        order[2 * third :], classes,
    )  # fmt: skip


def make_model(task: Task, seed: int = 0, dropout: float = 0.5) -> DenseGCN:
    """The model with parameters drawn from ``seed``, leaving the caller's generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DenseGCN(task.num_features, 8, task.num_classes, dropout)
