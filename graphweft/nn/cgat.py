"""Constrained attention, C-GAT: an in-edge weighs as much as its score exceeds those of the edges beside it.

``h'_i = sum_j w_ij W h_j`` with ``w_ij = sum_k max(0, e_ij - e_ik)`` over all pairs j, k of in-neighbours of i (i
itself among them), for every head, and ``e_ij = leaky(<a_src, W h_j> + <a_dst, W h_i>)``. This normalisation compares
edges with edges, which no primitive over single edges says. Pairs are never made: scores are sorted per destination.
Sources: Wang et al., arXiv 1910.11945 (margins between neighbours); Graphiler, MLSys 2022, section 5.2 (the layer
timed there).
"""

from __future__ import annotations

from typing import Any

from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.attention import AdditiveConv, AttentionStack
from graphweft.nn.frame import Frame


class CGATConv(AdditiveConv):
    """One layer of constrained attention; arguments as :class:`graphweft.nn.GATConv`, except for ``reduce``.

    ``reduce="sum"`` is the formula above; ``"mean"`` divides both sums by the number of in-edges, so that rows do not
    grow with the degree. The edge with the lowest score of a node has weight 0, so a node with one in-edge gets only
    the bias.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, heads * channels); ``att_src``,
    ``att_dst`` are (heads, channels).

    Raises: ConfigError for a value out of range.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> CGATConv(4, 6, heads=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    reducers = ("sum", "mean")

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, score both ends, compare the edges of a node, sum."""
        graph = self.looped(frame)
        score, values = self.scored(frame, graph, x)
        weights = frame.add(Op.EDGE_MARGIN, graph, score)
        if self.reduce == "mean":
            share = frame.reshape(frame.degree_power(graph, -1.0, values), 1)
            weights = frame.apply("mul", weights, frame.add(Op.BROADCAST_DST, graph, share))
        weights = frame.attention = frame.dropout(weights, self.dropout, self.training)
        if self.heads > 1:
            return self.finish(frame, frame.weigh(graph, weights, values, self.reduce), x)
        row = frame.weigh(graph, frame.reshape(weights), frame.reshape(values, self.channels), self.reduce)
        return self.finish(frame, frame.reshape(row, 1, self.channels), x)  # one head is a sparse product


class CGAT(AttentionStack):
    """A stack of :class:`CGATConv`; arguments as :class:`graphweft.nn.GAT`, except for ``v2``.

    Takes means over in-edges by default. ``reduce="sum"`` takes the sums of the formula, which grow with the square of
    the degree.

    Example:
        >>> model = CGAT(64, 32, 8, heads=4)
        >>> [layer.heads for layer in model.layers]
        [4, 1]
    """

    layer = CGATConv
    usual_reduce = "mean"

    def __init__(self, in_features: int, hidden: int, out_features: int, num_layers: int = 2, **options: Any) -> None:
        super().__init__(in_features, hidden, out_features, num_layers, **options)
