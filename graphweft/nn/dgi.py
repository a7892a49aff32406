"""Deep Graph Infomax: node embeddings that tell the graph from one with its features mixed up.

Comes in: a node model as encoder, a graph, rows of its nodes. Goes out: embeddings, and the loss to train them by.
Source: Velickovic et al., Deep Graph Infomax, ICLR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.nn.loss import contrast
from graphweft.nn.products import product


def mean_summary(z: Float[Tensor, "nodes width"]) -> Float[Tensor, "width"]:
    """The sigmoid of the mean row, as published. Shape: (N, C) -> (C,)."""
    nodes = z.shape[0]
    return torch.sigmoid(product(z.new_ones(1, nodes), z).squeeze(0) / nodes)


class DGI(nn.Module):
    """Deep Graph Infomax: trains ``encoder`` without labels. A bilinear form of a row and a summary of the graph learns
    to tell rows of the graph from rows of the same graph with shuffled features.

    Args:
        encoder: A node model, called as ``encoder(graph, x)``.
        width: Columns of its rows.
        summary: Called with the rows of all nodes, returns one row.

    Raises: ConfigError for an encoder that is no module, or a width below 1.

    Example:
        >>> from graphweft.nn.gcn import GCN
        >>> graph, x = Graph([0, 1, 2, 3], [1, 0, 3, 2]), torch.eye(4)
        >>> model = DGI(GCN(4, 8, 8), width=8)
        >>> model.loss(graph, x).shape, model(graph, x).shape
        (torch.Size([]), torch.Size([4, 8]))
    """

    def __init__(self, encoder: nn.Module, width: int, summary: Callable[[Tensor], Tensor] = mean_summary) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise ConfigError(f"DGI: expected encoder as a module, got {type(encoder).__name__}")
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ConfigError(f"DGI: expected width >= 1, got {width!r}")
        self.encoder, self.summary = encoder, summary
        self.weight = nn.Parameter(torch.empty(width, width))
        nn.init.uniform_(self.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def forward(self, graph: Graph, x: Any, **given: Any) -> Float[Tensor, "nodes width"]:
        """The embeddings. Shape: x (N, F) -> (N, width)."""
        out: Tensor = self.encoder(graph, x, **given)
        return out

    def discriminate(self, z: Float[Tensor, "nodes width"], summary: Float[Tensor, "width"]) -> Float[Tensor, "nodes"]:
        """Logits that rows belong to the graph with its own features. Shape: z (N, width), summary (width,) -> (N,).
        Raises: ShapeError.
        """
        width = self.weight.shape[0]
        if z.dim() != 2 or z.shape[1] != width or summary.shape != (width,):
            got = f"{tuple(z.shape)} and a summary of shape {tuple(summary.shape)}"
            raise ShapeError(f"DGI: expected rows of width={width} from the encoder, got shape {got}")
        return product(z, product(self.weight, summary.unsqueeze(1))).squeeze(1)

    def contrast(
        self, positive: Float[Tensor, "nodes width"], negative: Float[Tensor, "nodes width"]
    ) -> Float[Tensor, ""]:
        """The loss of the rows of the graph and of the shuffled one, (N, C) each; shape ()."""
        summary = self.summary(positive)
        real, mixed = self.discriminate(positive, summary), self.discriminate(negative, summary)
        return contrast(real, mixed)

    def loss(self, graph: Graph, x: Float[Tensor, "nodes f"], **given: Any) -> Float[Tensor, ""]:
        """:meth:`contrast` with ``x`` and with its rows in an order that torch's generator draws."""
        mixed = x[torch.randperm(x.shape[0])]
        return self.contrast(self(graph, x, **given), self(graph, mixed, **given))
