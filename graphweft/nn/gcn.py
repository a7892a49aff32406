"""Graph convolutional network (Kipf and Welling, ICLR 2017).

``h' = D^-1/2 (A + I) D^-1/2 h W + b`` with exactly one self-loop at every node and D the in-degrees of A + I.
"""

from __future__ import annotations

import torch
from torch import nn

from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot
from graphweft.nn.stack import Stack


class GCNConv(CompiledModule):
    """One graph convolution.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        bias: Adds a learned vector.
        reduce: ``"sum"`` with symmetric normalisation as published; ``"mean"`` or ``"max"`` over the neighbours and the
            node itself.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> layer = GCNConv(4, 2)
        >>> layer(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, reduce: str = "sum") -> None:
        check_model("GCNConv", {"in_features": in_features, "out_features": out_features}, 0.0, reduce)
        super().__init__(in_features)
        self.weight = glorot(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reduce = reduce

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, then aggregate; the compiler may turn the two around."""
        graph = frame.one_loop()
        h = frame.matmul(x, self.weight)
        if self.reduce != "sum":
            return frame.bias(frame.aggregate(h, self.reduce, graph), self.bias)
        scale = frame.degree_power(graph, -0.5, h)
        h = frame.aggregate(frame.add(Op.ROW_SCALE, h, scale), "sum", graph)
        return frame.bias(frame.add(Op.ROW_SCALE, h, scale), self.bias)


class GCN(Stack):
    """A stack of :class:`GCNConv`; arguments as :class:`graphweft.nn.stack.Stack`.

    Example:
        >>> model = GCN(64, 32, 8, num_layers=3, dropout=0.5)
        >>> sum(p.numel() for p in model.parameters())
        3400
    """

    layer = GCNConv
