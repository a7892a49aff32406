"""Models of pairs of nodes: a node model, and a decoder of what it says of both ends.

Comes in: a graph with rows of its nodes, or blocks of a batch, and pairs of nodes. Goes out: one row a pair. The node
model is compiled as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.nn.graph_model import CONVS, OnNodeModel
from graphweft.nn.made_with import KeepsArguments
from graphweft.nn.module import CompiledModule
from graphweft.nn.node_data import NodeData, widths_of


class EdgeDecoder(nn.Module):
    """A perceptron over the joined rows of both ends of a pair, with one output row per pair.

    Computes ``last(relu(first([h_src, h_dst])))``. The first product is computed once per node, not once per pair.

    Args:
        width: Columns of the rows of nodes.
        hidden: Width between the two products.
        out_features: Columns of the result.
        pair_dim: Columns of features of the pair itself, such as features of the edge; 0: none.

    Raises: ConfigError for a negative width.

    Example:
        >>> decoder = EdgeDecoder(4, 8, 2)
        >>> decoder(torch.randn(3, 4), torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2]])).shape
        torch.Size([4, 2])
    """

    def __init__(self, width: int, hidden: int, out_features: int, pair_dim: int = 0) -> None:
        super().__init__()
        if isinstance(pair_dim, bool) or not isinstance(pair_dim, int) or pair_dim < 0:
            raise ConfigError(f"EdgeDecoder: expected pair_dim as an integer >= 0, got {pair_dim!r}")
        self.first, self.last = nn.Linear(2 * width, hidden), nn.Linear(hidden, out_features)
        self.of_pair = nn.Linear(pair_dim, hidden, bias=False) if pair_dim else None

    def forward(
        self,
        rows: Float[Tensor, "nodes width"],
        edge_label_index: Int64[Tensor, "2 pairs"],
        pair_attr: Float[Tensor, "pairs pair_dim"] | None = None,
    ) -> Float[Tensor, "pairs out"]:
        """Shape: rows (N, width), edge_label_index (2, P) int64, pair_attr (P, pair_dim) -> (P, out_features)."""
        if edge_label_index.dim() != 2 or edge_label_index.shape[0] != 2:
            got = tuple(edge_label_index.shape)
            raise ShapeError(f"EdgeDecoder: expected edge_label_index of shape (2, P), got {got}")
        src, dst = edge_label_index
        of_src, of_dst = self.first.weight.chunk(2, dim=1)
        sources = functional.linear(rows, of_src, self.first.bias)
        destinations = functional.linear(rows, of_dst)
        both = torch.index_select(sources, 0, src) + torch.index_select(destinations, 0, dst)
        if self.of_pair is not None:
            wanted = (src.numel(), self.of_pair.in_features)
            if pair_attr is None or tuple(pair_attr.shape) != wanted:
                held = "none" if pair_attr is None else f"shape {tuple(pair_attr.shape)}"
                raise ShapeError(f"EdgeDecoder: expected pair_attr of shape {wanted}, got {held}")
            both = both + self.of_pair(pair_attr)
        out: Tensor = self.last(torch.relu(both))
        return out


class EdgeModel(KeepsArguments, OnNodeModel):
    """A model of pairs of nodes: a node model and an :class:`EdgeDecoder` over its rows of both ends.

    Args:
        in_features: Width of the node features.
        hidden: Width of every layer.
        out_features: Classes, labels or values of a pair.
        num_layers: Layers of the node model.
        conv: "sage", "gcn", "gin", "gat", "gatv2" or "transformer"; or a module called as ``conv(graph, x)`` that
            returns rows of width ``hidden`` and replaces the layers.
        pair_dim: Columns of features of the pair itself, which the decoder reads. If the pairs are the edges of the
            graph, the trainer passes the features of the edges.
        options: More arguments of the node model, such as ``dropout``, ``norm``, ``heads``.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = EdgeModel(4, 8, 2)
        >>> graph = Graph([0, 1, 2], [1, 0, 1])
        >>> model(graph, torch.randn(3, 4), torch.tensor([[0, 2], [2, 1]])).shape, model(graph, torch.randn(3, 4)).shape
        (torch.Size([2, 2]), torch.Size([3, 2]))
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        conv: str | nn.Module = "sage",
        pair_dim: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.pair_dim = in_features, out_features, pair_dim
        if isinstance(conv, str):
            if conv not in CONVS:
                raise ConfigError(f"EdgeModel: expected conv among {', '.join(CONVS)}, or a module, got {conv!r}")
            self.encoder: nn.Module = CONVS[conv](in_features, hidden, hidden, num_layers, **options)
        elif options:
            raise ConfigError(f"EdgeModel: {min(options)} cannot be combined with a module as conv, which has its own")
        else:
            self.encoder = conv
        self.decoder = EdgeDecoder(hidden, hidden, out_features, pair_dim)

    @classmethod
    def for_data(cls, ds: NodeData, hidden: int, out_features: int | None = None, **options: Any) -> Self:
        """A model whose sizes are those of a dataset with labels of edges.

        Args:
            ds: The dataset.
            hidden: Width of every layer.
            out_features: Width of the result; None: the number of classes or values.
            options: As the constructor's.

        Raises: ConfigError for a dataset without features or classes.
        """
        given, made = widths_of(cls.__name__, ds, out_features, "degree")
        return cls(given, hidden, made, **options)

    def forward(
        self,
        graph: Graph | Sequence[Any],
        x: Any,
        edge_label_index: Int64[Tensor, "2 pairs"] | None = None,
        edge_weight: Any = None,
        edge_attr: Any = None,
        pair_attr: Float[Tensor, "pairs pair_dim"] | None = None,
    ) -> Float[Tensor, "pairs out"]:
        """Output rows of the pairs.

        Shape: x (N, in_features), edge_label_index (2, P) int64 -> (P, out_features).

        Args:
            graph: The graph, or blocks of a batch.
            x: Rows of its nodes.
            edge_label_index: Pairs of its nodes; with blocks, of the destinations of the last block. None: all edges of
                the graph.
            edge_weight: Weights of the edges, for models that take them.
            edge_attr: Features of the edges, for models that take them.
            pair_attr: Features of the pairs, (P, pair_dim).

        Raises: ShapeError for rows that do not fit.
        """
        named = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        rows = self.encoder(graph, x, **{name: value for name, value in named.items() if value is not None})
        if edge_label_index is None:
            if not isinstance(graph, Graph):
                raise ShapeError("EdgeModel: expected edge_label_index with blocks, got None")
            edge_label_index = torch.stack(graph.edges()).long()
        out: Tensor = self.decoder(rows, edge_label_index, pair_attr)
        return out

    @property
    def takes_blocks(self) -> bool:
        """Whether the node model runs on the blocks of a batch."""
        return isinstance(self.encoder, CompiledModule) or bool(getattr(self.encoder, "takes_blocks", False))
