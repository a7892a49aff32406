"""Graph auto-encoders: node embeddings learned from the edges alone, plain and variational.

Comes in: a node model as encoder, a graph, rows of its nodes. Goes out: embeddings, whose dot products say how likely
an edge is, and the losses to train them by. Source: Kipf and Welling, Variational Graph Auto-Encoders (2016).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft._pieces import in_pieces, mean
from graphweft.graph.graph import Graph
from graphweft.nn.loss import contrast
from graphweft.sample.negative import NegativeSampler

_MOST_LOGSTD = 10.0
_exp = in_pieces(torch.exp)


def _pairs(who: str, pairs: Tensor) -> Tensor:
    """Raises: ShapeError for another shape."""
    if pairs.dim() != 2 or pairs.shape[0] != 2:
        raise ShapeError(f"{who}: expected pairs of shape (2, P), got {tuple(pairs.shape)}")
    return pairs


class GAE(nn.Module):
    """A graph auto-encoder: ``sigmoid(z_i . z_j)`` is the probability of an edge from i to j.

    Args:
        encoder: A node model, called as ``encoder(graph, x)``; its rows are the embeddings z.

    Example:
        >>> from graphweft.nn.gcn import GCN
        >>> graph, x = Graph([0, 1, 2, 3], [1, 0, 3, 2]), torch.eye(4)
        >>> model = GAE(GCN(4, 8, 2))
        >>> model.loss(graph, x, seed=1).shape, model.decode(model(graph, x), torch.tensor([[0, 1], [1, 2]])).shape
        (torch.Size([]), torch.Size([2]))
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise ConfigError(f"{type(self).__name__}: expected encoder as a module, got {type(encoder).__name__}")
        self.encoder = encoder

    def forward(self, graph: Graph, x: Any, **given: Any) -> Float[Tensor, "nodes width"]:
        """The embeddings. Shape: x (N, F) -> (N, width of the encoder)."""
        out: Tensor = self.encoder(graph, x, **given)
        return out

    def decode(
        self, z: Float[Tensor, "nodes width"], edge_label_index: Int64[Tensor, "2 pairs"]
    ) -> Float[Tensor, "pairs"]:
        """Logits of pairs, whose sigmoids are probabilities. Shape: z (N, C), edge_label_index (2, P) -> (P,)."""
        src, dst = _pairs(type(self).__name__, edge_label_index)
        return (torch.index_select(z, 0, src) * torch.index_select(z, 0, dst)).sum(1)

    def recon_loss(
        self, z: Float[Tensor, "nodes width"], positive: Int64[Tensor, "2 pairs"], negative: Int64[Tensor, "2 others"]
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy of the edges plus that of the other pairs, shape ().

        Args:
            z: Embeddings, (N, C).
            positive: Edges, (2, P).
            negative: Pairs without an edge, (2, P').
        """
        there, not_there = self.decode(z, positive), self.decode(z, negative)
        return contrast(there, not_there)

    def loss(self, graph: Graph, x: Any, seed: int = 0, **given: Any) -> Float[Tensor, ""]:
        """:meth:`recon_loss` of all edges of ``graph`` and of as many pairs without an edge, drawn by ``seed``."""
        return self.recon_loss(self(graph, x, **given), *self._drawn(graph, seed))

    def _drawn(self, graph: Graph, seed: int) -> tuple[Tensor, Tensor]:
        """All edges, and as many pairs that are none."""
        edges = torch.stack(graph.edges()).long()
        return edges, NegativeSampler(graph).pairs(torch.arange(edges.shape[1]), seed=seed)


class VGAE(GAE):
    """A variational graph auto-encoder. In training, embeddings are drawn with mean ``mu`` and deviation
    ``exp(logstd)``.

    Args:
        encoder: A node model that returns mu and logstd joined, (N, 2 C), or as a pair.

    Example:
        >>> from graphweft.nn.gcn import GCN
        >>> graph, x = Graph([0, 1, 2, 3], [1, 0, 3, 2]), torch.eye(4)
        >>> model = VGAE(GCN(4, 8, 2 * 3))
        >>> model.eval()(graph, x).shape, model.train().loss(graph, x).shape
        (torch.Size([4, 3]), torch.Size([]))
    """

    def moments(
        self, graph: Graph, x: Any, **given: Any
    ) -> tuple[Float[Tensor, "nodes width"], Float[Tensor, "nodes width"]]:
        """Mu and logstd, (N, C) each. Raises: ShapeError for an odd number of columns."""
        out = self.encoder(graph, x, **given)
        if isinstance(out, Tensor):
            if out.shape[1] % 2:
                raise ShapeError(f"VGAE: expected rows of mu and logstd from the encoder, got {out.shape[1]} columns")
            out = out.chunk(2, dim=1)
        mu, logstd = out
        return mu, logstd.clamp(max=_MOST_LOGSTD)

    def forward(self, graph: Graph, x: Any, **given: Any) -> Float[Tensor, "nodes width"]:
        """The embeddings: mu, in training with noise from torch's generator. Shape: x (N, F) -> (N, C)."""
        return self._around(*self.moments(graph, x, **given))

    def kl_loss(self, mu: Float[Tensor, "nodes width"], logstd: Float[Tensor, "nodes width"]) -> Float[Tensor, ""]:
        """Mean over the nodes of the KL divergence from the standard normal distribution, shape ()."""
        return -0.5 * mean((1 + 2 * logstd - mu.square() - _exp(2 * logstd)).sum(1))

    def loss(self, graph: Graph, x: Any, seed: int = 0, **given: Any) -> Float[Tensor, ""]:
        """The loss of :class:`GAE` plus :meth:`kl_loss` divided by the number of nodes."""
        mu, logstd = self.moments(graph, x, **given)
        found = self.recon_loss(self._around(mu, logstd), *self._drawn(graph, seed))
        return found + self.kl_loss(mu, logstd) / graph.num_nodes

    def _around(self, mu: Tensor, logstd: Tensor) -> Tensor:
        return mu + torch.randn_like(logstd) * _exp(logstd) if self.training else mu
