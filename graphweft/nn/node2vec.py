"""node2vec: a learned row for every node, such that nodes that random walks visit together have rows alike.

Comes in: a graph. Goes out: rows of its nodes, and the loss to train them by. Walks are native and keyed. Source:
Grover and Leskovec, node2vec, KDD 2016.
"""

from __future__ import annotations

import hashlib

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft._keywords import says_what_was_meant
from graphweft.graph.graph import Graph
from graphweft.graph.ids import Ids
from graphweft.graph.select import as_selection
from graphweft.nn.loss import contrast
from graphweft.sample.walk import random_walk


class Node2Vec(nn.Module):
    """Node embeddings from biased random walks. ``model()`` returns all rows, and ``model.loss(nodes)`` is the training
    loss.

    Args:
        graph: A square graph; walks follow its edges from source to destination.
        width: Columns of the rows.
        walk_length: Steps of a walk.
        context_size: Nodes of a window of a walk; pairs of the first node with each other are positives.
        walks_per_node: Walks from each node of a batch.
        negatives: Walks of uniformly drawn nodes for each walk.
        p: A step back to the previous node has weight 1 / p.
        q: A step to a node without an edge from the previous node has weight 1 / q.
        sparse: Whether gradients are sparse, for ``torch.optim.SparseAdam``.

    Raises: ConfigError for a size out of range.

    Example:
        >>> model = Node2Vec(Graph([0, 1, 2], [1, 2, 0]), width=4, walk_length=5, context_size=3)
        >>> model().shape, model.loss([0, 1], seed=0).shape
        (torch.Size([3, 4]), torch.Size([]))
    """

    @says_what_was_meant(
        embedding_dim="width", dim="width", walks="walks_per_node", num_negative_samples="negatives", edge_index="graph"
    )
    def __init__(
        self,
        graph: Graph,
        width: int = 128,
        walk_length: int = 20,
        context_size: int = 10,
        walks_per_node: int = 10,
        negatives: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        given = {"width": width, "walk_length": walk_length, "walks_per_node": walks_per_node, "negatives": negatives}
        for name, size in given.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError(f"Node2Vec: expected {name} >= 1, got {size!r}")
        if not 2 <= context_size <= walk_length + 1:
            raise ConfigError(f"Node2Vec: expected context_size from 2 to {walk_length + 1}, got {context_size!r}")
        self.graph, self.walk_length, self.context_size = graph, walk_length, context_size
        self.walks_per_node, self.negatives, self.p, self.q = walks_per_node, negatives, p, q
        self.rows = nn.Embedding(graph.num_nodes, width, sparse=sparse)

    def forward(self, nodes: Ids | None = None) -> Float[Tensor, "nodes width"]:
        """Embeddings of ``nodes``, (n, width); None: of all nodes."""
        if nodes is None:
            return self.rows.weight
        out: Tensor = self.rows(as_selection("Node2Vec", "node", nodes, self.graph.num_nodes))
        return out

    def walks(
        self, nodes: Ids, seed: int = 0, epoch: int = 0, stage: int = 0
    ) -> tuple[Int64[Tensor, "windows context"], Int64[Tensor, "negatives context"]]:
        """Windows of walks from ``nodes`` and of negatives, int64 (windows, context_size); -1 after a dead end.

        Draws are keyed by (seed, epoch, stage); each batch of an epoch has its own stage.
        """
        starts = as_selection("Node2Vec", "node", nodes, self.graph.num_nodes).repeat(self.walks_per_node)
        walked = random_walk(
            self.graph, starts, self.walk_length, p=self.p, q=self.q, seed=seed, epoch=epoch, stage=stage
        )
        key = hashlib.sha256(f"{seed} {epoch} {stage}".encode()).digest()
        drawn = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
        starts = starts.repeat(self.negatives)
        size = (starts.numel(), self.walk_length)
        others = torch.randint(self.graph.num_nodes, size, generator=drawn)
        return self._windows(walked), self._windows(torch.cat([starts.unsqueeze(1), others], dim=1))

    def loss(self, nodes: Ids, seed: int = 0, epoch: int = 0, stage: int = 0) -> Float[Tensor, ""]:
        """The loss of walks from ``nodes`` and their negatives, shape (); draws as in :meth:`walks`."""
        return self.contrast(*self.walks(nodes, seed, epoch, stage))

    def contrast(
        self, positive: Int64[Tensor, "windows context"], negative: Int64[Tensor, "negatives context"]
    ) -> Float[Tensor, ""]:
        """Cross-entropy of the pairs of a window's first node with each other node, the sum of the means over positives
        and negatives, shape ().

        Shape: positive and negative (windows, context_size) int64; pairs with -1 do not count.
        """
        together, apart = self._scores(positive), self._scores(negative)
        return contrast(together, apart)

    def _scores(self, windows: Tensor) -> Tensor:
        """Dot products of the first node of every window with the others, those that are none left out."""
        first = windows[:, :1].expand(-1, windows.shape[1] - 1).reshape(-1)
        others = windows[:, 1:].reshape(-1)
        there = (first >= 0) & (others >= 0)
        out: Tensor = (self.rows(first[there]) * self.rows(others[there])).sum(1)
        return out

    def _windows(self, walks: Tensor) -> Tensor:
        """All stretches of ``context_size`` nodes."""
        return torch.cat([walks[:, i : i + self.context_size] for i in range(walks.shape[1] - self.context_size + 1)])
