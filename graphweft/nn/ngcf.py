"""Neural graph collaborative filtering, NGCF (Wang, He, Wang, Feng, Chua, SIGIR 2019), as layers over node rows.

``h'_i = W1 h_i + sum_j c_ij (W1 h_j + W2 (h_j * h_i)) + b`` over the in-neighbours j of i, ``*`` by element and
``c_ij = 1 / sqrt(d_i d_j)``: a neighbour counts by its own row and by how alike the two ends are. In GraphTensor's
words (IPDPS 2023, section IV): g the element-wise product, h the sum, f the mean. The row of i is written outside the
sum, so no product of an edge is ever stored.
"""

from __future__ import annotations

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.graph.block import Block
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot, reducer
from graphweft.nn.stack import Stack


class NGCFConv(CompiledModule):
    """One NGCF layer, without the activation. Self-loops of the graph are ignored, because the layer has its own terms
    for a node itself.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` (W1) and ``affinity_weight`` (W2) are (in_features,
    out_features). Sparse features are made dense, because the layer multiplies them elementwise.

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        bias: Adds a learned vector.
        reduce: ``"sum"`` with symmetric normalisation, as published, or ``"mean"`` over the neighbours, as in
            GraphTensor.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.

    Raises: ConfigError for a value out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> NGCFConv(4, 2)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    takes_sparse = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        reduce: str = "sum",
        *,
        aggr: str | None = None,
    ) -> None:
        reduce = reducer("NGCFConv", reduce, aggr, "sum")
        check_model("NGCFConv", {"in_features": in_features, "out_features": out_features}, 0.0, reduce)
        if reduce == "max":
            raise ConfigError("NGCFConv: expected reduce 'sum' or 'mean', got 'max'")
        super().__init__(in_features)
        self.weight, self.affinity_weight = glorot(in_features, out_features), glorot(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reduce = reduce

    def block(self, block: Block) -> Block:
        """Without self-loops."""
        return block.without_self_loops()

    def define(self, frame: Frame, x: Value) -> Value:
        """Pull, the product by element, Apply."""
        graph = frame.graph if frame.on_block else frame.add(Op.WITHOUT_LOOPS, frame.graph)
        own = frame.own(x)
        share = frame.degree_power(graph, -1.0, x)
        sent = x
        if self.reduce == "sum":
            sent, share = self._normalised(frame, graph, x, share)
        near = frame.add(Op.ROW_SCALE, frame.aggregate(sent, "sum", graph), share)
        plain = frame.matmul(frame.add(Op.ADD, near, own), self.weight)
        alike = frame.matmul(frame.add(Op.MUL, near, own), self.affinity_weight)
        return frame.bias(frame.add(Op.ADD, plain, alike), self.bias)

    def _normalised(self, frame: Frame, graph: Value, x: Value, share: Value) -> tuple[Value, Value]:
        """Rows over the root of their degree, and the factor of a sum of them.

        On a sampled block degrees are those of the whole graph, and k of d neighbours drawn count d / k.
        """
        if not frame.on_block:
            root = frame.degree_power(graph, -0.5, x)
            return frame.add(Op.ROW_SCALE, x, root), root
        degree = frame.add(Op.SRC_DEGREE, graph, dtype=x.tensor.dtype)
        sent = frame.add(Op.ROW_SCALE, x, frame.add(Op.POW, degree, exponent=-0.5))
        return sent, frame.add(Op.MUL, share, frame.add(Op.POW, frame.own(degree), exponent=0.5))


class NGCF(Stack):
    """A stack of :class:`NGCFConv` with leaky ReLU (slope 0.2) between; arguments as
    :class:`graphweft.nn.stack.Stack`.

    Example:
        >>> model = NGCF(64, 32, 8, num_layers=3)
        >>> model.activation, model.layers[0].affinity_weight.shape
        ('leaky_relu', torch.Size([64, 32]))
    """

    layer = NGCFConv
    usual_activation = "leaky_relu"
