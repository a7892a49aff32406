"""Graph transformer (Shi et al., IJCAI 2021): attention by products of queries and keys.

``h'_i = W_skip h_i + sum over in-neighbours j of a_ij (W_value h_j + e_ij)`` with ``a`` the softmax over the in-edges
of ``<W_query h_i, W_key h_j + e_ij> / sqrt(channels)``, head by head, and ``e_ij`` a product of the edge's features.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.attention import AttentionConv, AttentionStack
from graphweft.nn.edges import ATTR
from graphweft.nn.frame import Frame
from graphweft.nn.module import as_widths, glorot
from graphweft.nn.node_data import NodeData, edge_columns


class TransformerConv(AttentionConv):
    """One layer of a graph transformer.

    Shape: (nodes, in_features) -> (nodes, out_features); ``query``, ``key`` and ``value`` are (in_features, heads *
    channels), ``skip`` is (in_features, out_features), ``edge_projection`` (edge_dim, heads * channels).

    Args:
        in_features: Width of the input rows; a pair for features (x_src, x_dst) of two sets of nodes.
        out_features: Width of the output rows.
        heads: Number of attention heads; a divisor of ``out_features`` if they are joined.
        concat: Whether the results of the heads are joined; else they are averaged, each ``out_features`` wide.
        bias: Adds learned vectors to queries, keys, values and the skip connection.
        dropout: Probability to drop an attention weight in training.
        root_weight: Adds the node's own rows times ``skip``.
        edge_dim: Columns of edge features.
        reduce: ``"sum"``, weighted by attention.
        aggr: Another name for ``reduce``.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> TransformerConv(4, 6, heads=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    takes_pairs = True

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        heads: int = 1,
        concat: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        *,
        root_weight: bool = True,
        edge_dim: int | None = None,
        reduce: str = "sum",
        aggr: str | None = None,
    ) -> None:
        own = bias and root_weight
        options: dict[str, Any] = {"bias": own, "dropout": dropout, "add_self_loops": False, "reduce": reduce}
        super().__init__(in_features, out_features, heads, concat, **options, aggr=aggr)
        self.take_edges(edge_dim, "mean")
        source, own_width = as_widths(in_features)
        width, sizes = heads * self.channels, (own_width, source, source)
        self.query, self.key, self.value = (glorot(size, width, fans=size + self.channels) for size in sizes)
        self.query_bias, self.key_bias, self.value_bias = (
            nn.Parameter(torch.zeros(width)) if bias else None for _ in range(3)
        )
        self.skip = glorot(own_width, out_features) if root_weight else None

    def define(self, frame: Frame, x: Value) -> Value:
        """Score by products, attend, add what is skipped."""
        graph, channels = self.looped(frame), self.channels
        query = self.by_head(frame, frame.bias(frame.own_product(x, self.query), self.query_bias))
        key = self.by_head(frame, frame.bias(frame.matmul(x, self.key), self.key_bias))
        value = self.by_head(frame, frame.bias(frame.matmul(x, self.value), self.value_bias))
        keys, values = frame.add(Op.BROADCAST_SRC, graph, key), frame.add(Op.BROADCAST_SRC, graph, value)
        rows = frame.of_edges(ATTR)
        if rows is not None and self.edge_projection is not None:
            edges = self.by_head(frame, frame.matmul(rows, self.edge_projection))
            keys, values = frame.apply("add", keys, edges), frame.apply("add", values, edges)
        products = frame.apply("mul", keys, frame.add(Op.BROADCAST_DST, graph, query))
        score = frame.add(Op.SCALE, frame.add(Op.SUM_DIMS, products, axes=(1,)), factor=1.0 / math.sqrt(channels))
        frame.attention = frame.add(Op.EDGE_SOFTMAX, graph, score)  # in PyTorch Geometric, too, before the dropout
        weights = frame.dropout(frame.attention, self.dropout, self.training)
        per_row = frame.reshape(weights, self.heads, 1)
        out = frame.add(Op.REDUCE, graph, frame.apply("mul", per_row, values), kind="sum")
        if self.skip is None:
            return self.finish(frame, out)
        return frame.add(Op.ADD, self.finish(frame, out), frame.own_product(x, self.skip))


class Transformer(AttentionStack):
    """A stack of :class:`TransformerConv`; arguments as :class:`graphweft.nn.GAT`, the activation is ReLU.

    Example:
        >>> [layer.heads for layer in Transformer(64, 32, 8, heads=4).layers]
        [4, 1]
    """

    layer = TransformerConv
    usual_activation = "relu"

    @classmethod
    def sizes_of(cls, ds: NodeData) -> dict[str, Any]:
        """With ``edge_dim``, where the edges of ``ds`` have weights or features."""
        return {**super().sizes_of(ds), "edge_dim": edge_columns(ds)}


__all__ = ["Transformer", "TransformerConv"]
