"""Graph isomorphism network with edge features (Hu et al., ICLR 2020).

``h'_i = MLP((1 + eps) h_i + sum over in-neighbours j of relu(h_j + e_ij W_e + b_e))`` with the two-layer perceptron of
GIN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.edges import ATTR, Carried, EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.gin import GINConv
from graphweft.nn.module import check_model, glorot


class GINEConv(GINConv):
    """One GIN layer whose messages add a linear map of the edge's features to the source row.

    Shape: (nodes, in_features) -> (nodes, out_features); ``edge_projection`` is (edge_dim, in_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows and of the perceptron's hidden layer.
        edge_dim: Columns of edge features.
        bias: Adds learned vectors in the perceptron and to the product of edge features.
        options: ``eps``, ``train_eps`` and ``mlp_norm`` as :class:`GINConv`.

    Raises: ConfigError for a width below 1, or for another reducer than the sum.

    Example:
        >>> layer = GINEConv(4, 2, edge_dim=3)
        >>> layer(Graph([0, 1], [1, 2]), torch.ones(3, 4), edge_attr=torch.ones(2, 3)).shape
        torch.Size([3, 2])
    """

    takes_edge_weight = False

    def __init__(self, in_features: int, out_features: int, edge_dim: int, bias: bool = True, **options: Any) -> None:
        super().__init__(in_features, out_features, bias, **options)
        check_model("GINEConv", {"edge_dim": edge_dim}, 0.0, self.reduce)
        if self.reduce != "sum":
            raise ConfigError(f"GINEConv: expected reduce 'sum', got {self.reduce!r}")
        self.edge_dim, self.takes_sparse = edge_dim, False
        self.edge_projection = glorot(edge_dim, in_features)
        self.edge_bias = nn.Parameter(torch.zeros(in_features)) if bias else None

    def define(self, frame: Frame, x: Value) -> Value:
        """What edges carry, their sum, the node's own share, the perceptron."""
        carried, rows = frame.add(Op.BROADCAST_SRC, frame.graph, x), frame.of_edges(ATTR)
        if rows is not None:
            product = frame.matmul(rows, self.edge_projection)
            if self.edge_bias is not None:
                product = frame.apply("add", product, frame.param(self.edge_bias))
            carried = frame.apply("add", carried, product)
        total = frame.add(Op.REDUCE, frame.graph, frame.apply("relu", carried), kind="sum")
        h = frame.matmul(frame.add(Op.ADD, total, self._own(frame, frame.own(x))), self.weight1)
        h = frame.relu(frame.norm(frame.bias(h, self.bias1), self.norm))
        return frame.bias(frame.matmul(h, self.weight2), self.bias2)

    def edge_columns(self) -> int:
        """``edge_dim``."""
        return self.edge_dim

    def edge_form(self) -> tuple[object, ...]:
        """The width of what edges carry."""
        return (GINEConv, self.edge_dim)

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """The graph as it is, with features of its edges."""
        return edges.features(graph)


__all__ = ["GINEConv"]
