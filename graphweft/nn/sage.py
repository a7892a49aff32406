"""GraphSAGE (Hamilton, Ying, Leskovec, NeurIPS 2017).

``h' = reduce(h_j over in-neighbours j) W_neigh + h W_self + b`` with reduce mean, sum or max.
"""

from __future__ import annotations

import torch
from torch import nn

from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.edges import WEIGHT
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot, reducer
from graphweft.nn.stack import Stack


class SAGEConv(CompiledModule):
    """One GraphSAGE layer.

    Shape: (nodes, in_features) -> (nodes, out_features); ``neighbor_weight`` and ``self_weight`` are
    (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        bias: Adds a learned vector.
        reduce: ``"mean"``, ``"sum"`` or ``"max"`` over the in-neighbours.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> SAGEConv(4, 2)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    takes_edge_weight = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        reduce: str = "mean",
        *,
        aggr: str | None = None,
    ) -> None:
        reduce = reducer("SAGEConv", reduce, aggr, "mean")
        check_model("SAGEConv", {"in_features": in_features, "out_features": out_features}, 0.0, reduce)
        super().__init__(in_features)
        self.neighbor_weight = glorot(in_features, out_features)
        self.self_weight = glorot(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reduce = reduce

    def define(self, frame: Frame, x: Value) -> Value:
        """Neighbours and self, each with its own weight."""
        weight = frame.of_edges(WEIGHT)
        own = frame.bias(frame.own_product(x, self.self_weight), self.bias)
        if self.reduce == "max":
            return frame.add(Op.ADD, frame.matmul(frame.aggregate(x, "max", weight=weight), self.neighbor_weight), own)
        # written transform first, which sparse features need; the compiler may turn the two around
        h = frame.aggregate(frame.matmul(x, self.neighbor_weight), self.reduce, weight=weight)
        return frame.add(Op.ADD, h, own)


class SAGE(Stack):
    """A stack of :class:`SAGEConv`; arguments as :class:`graphweft.nn.stack.Stack`."""

    layer = SAGEConv
    usual_reduce = "mean"
