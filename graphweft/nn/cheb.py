"""Chebyshev graph convolution (Defferrard et al., NeurIPS 2016).

``h' = sum over k < K of T_k(L) h W_k + b`` with the Chebyshev polynomials ``T_0 = I``, ``T_1 = L``, ``T_k = 2 L T_{k-1}
- T_{k-2}`` of the scaled Laplacian ``L = 2 / lambda_max (I - D^-1/2 A D^-1/2) - I``, A without self-loops, D its
out-degrees, and ``lambda_max = 2``. It runs on whole graphs; a sampled block has one hop.
"""

from __future__ import annotations

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot


class ChebConv(CompiledModule):
    """One Chebyshev graph convolution.

    Shape: (nodes, in_features) -> (nodes, out_features); every one of ``weights`` is (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        order: Number K of polynomials; a result depends on the nodes within K - 1 hops.
        bias: Adds a learned vector.

    Raises: ConfigError for a size out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> ChebConv(4, 2, order=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, in_features: int, out_features: int, order: int = 3, bias: bool = True) -> None:
        sizes = {"in_features": in_features, "out_features": out_features, "order": order}
        check_model("ChebConv", sizes, 0.0, "sum")
        super().__init__(in_features)
        self.weights = nn.ParameterList(glorot(in_features, out_features) for _ in range(order))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def needs_whole_graph(self) -> bool:
        """Its hops are one program, and it reads out-degrees."""
        return True

    def define(self, frame: Frame, x: Value) -> Value:
        """The polynomials of the rows, each times its matrix."""
        if frame.on_block:
            raise ConfigError(
                "ChebConv: expected the whole graph, got a sampled block, which has one hop; use mode='full'"
            )
        first, *others = self.weights
        out = frame.matmul(x, first)
        if not others:
            return frame.bias(out, self.bias)
        graph = frame.add(Op.WITHOUT_LOOPS, frame.graph)
        scale = frame.degree_power(frame.add(Op.REVERSE, graph), -0.5, out)

        def laplacian(h: Value, factor: float) -> Value:
            """``factor`` times L h."""
            total = frame.aggregate(frame.add(Op.ROW_SCALE, h, scale), "sum", graph)
            return frame.add(Op.SCALE, frame.add(Op.ROW_SCALE, total, scale), factor=-factor)

        # Clenshaw's recurrence on rows that are multiplied already: as wide as the result, which is mostly narrower
        later: list[Value] = []
        for weight in reversed(others):
            row = frame.matmul(x, weight)
            if later:
                row = frame.add(Op.ADD, row, laplacian(later[-1], 2.0))
            if len(later) > 1:
                row = frame.add(Op.ADD, row, frame.add(Op.SCALE, later[-2], factor=-1.0))
            later.append(row)
        out = frame.add(Op.ADD, out, laplacian(later[-1], 1.0))
        if len(later) > 1:
            out = frame.add(Op.ADD, out, frame.add(Op.SCALE, later[-2], factor=-1.0))
        return frame.bias(out, self.bias)


__all__ = ["ChebConv"]
