"""Models that smooth rows over many hops: SGC, APPNP and GCNII.

All use the operator of GCN, ``S = D^-1/2 (A + I) D^-1/2`` with exactly one self-loop at every node and D the in-degrees
of A + I. They run on whole graphs, and hop by hop on graphs that processes share; a sampled block has one hop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import ConfigError
from graphweft.graph.block import Block
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.graph.shared import SharedGraph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.edges import OWN_SCALE, SCALE, EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.gcn import with_factors
from graphweft.nn.module import CompiledModule, check_model, glorot
from graphweft.nn.node_data import SizedByData
from graphweft.runtime.compile import Arguments
from graphweft.storage.feature import Features


class _Smooth(CompiledModule):
    """What the models here share."""

    def adds_loops(self) -> bool:
        """As published."""
        return True

    def _smooth_over(self, graph: SharedGraph, width: int) -> Callable[[Tensor], Tensor]:
        """The product with S of own rows, on a graph that processes share."""
        hop = derived(self, _hop_of, width)
        return lambda h: torch.cat(graph.over(h, hop))


class SGConv(_Smooth):
    """Simplified graph convolution: ``S^hops X W + b`` (Wu et al., ICML 2019).

    If the features are constant, the smoothed rows are computed once, and an epoch is one product.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        hops: Number of smoothing steps.
        bias: Adds a learned vector.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> SGConv(4, 2, hops=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, in_features: int, out_features: int, hops: int = 2, bias: bool = True) -> None:
        sizes = {"in_features": in_features, "out_features": out_features, "hops": hops}
        check_model("SGConv", sizes, 0.0, "sum")
        super().__init__(in_features)
        self.weight = glorot(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.hops = hops

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, then smooth; the compiler may turn the two around."""
        smooth = _Smoothing(frame, "SGConv")
        h = frame.matmul(x, self.weight)
        for _ in range(self.hops):
            h = smooth(h)
        return frame.bias(h, self.bias)

    def over_shared(self, graph: SharedGraph, x: Features | None, edges: EdgeInputs | None = None) -> Tensor:
        """As ``define``, hop by hop."""
        h = _whole(x) @ self.weight
        smooth = self._smooth_over(graph, h.shape[1])
        for _ in range(self.hops):
            h = smooth(h)
        return h if self.bias is None else h + self.bias


class APPNP(SizedByData, _Smooth):
    """Predict, then propagate: ``Z <- (1 - alpha) S Z + alpha H``, starting from ``Z = H``, the rows of a perceptron
    (Gasteiger et al., ICLR 2019).

    Args:
        in_features: Width of the node features.
        hidden: Width between the perceptron's layers.
        out_features: Width of the result.
        num_layers: Layers of the perceptron.
        dropout: Probability to drop an element of a layer's input in training.
        hops: Number of propagation steps.
        alpha: Share of the node's own prediction in every hop.
        bias: Whether layers add a learned vector.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> APPNP(4, 8, 2)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        hops: int = 10,
        alpha: float = 0.1,
        bias: bool = True,
    ) -> None:
        sizes = {"in_features": in_features, "hidden": hidden, "out_features": out_features}
        check_model("APPNP", sizes | {"num_layers": num_layers, "hops": hops}, dropout, "sum")
        _check_share("APPNP", alpha)
        super().__init__(in_features)
        self.dropout, self.hops, self.alpha = dropout, hops, alpha
        widths = [in_features, *[hidden] * (num_layers - 1), out_features]
        pairs = list(itertools.pairwise(widths))
        self.weights = nn.ParameterList(glorot(a, b) for a, b in pairs)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(b)) for _, b in pairs if bias)

    def define(self, frame: Frame, x: Value) -> Value:
        """The perceptron, then all hops."""
        smooth = _Smoothing(frame, "APPNP")
        for index, weight in enumerate(self.weights):
            x = frame.matmul(frame.dropout(x, self.dropout), weight)
            x = frame.bias(x, self.biases[index] if len(self.biases) else None)
            x = x if index == len(self.weights) - 1 else frame.relu(x)
        own, z = frame.add(Op.SCALE, x, factor=self.alpha), x
        for _ in range(self.hops):
            z = frame.add(Op.ADD, frame.add(Op.SCALE, smooth(z), factor=1.0 - self.alpha), own)
        return z

    def over_shared(self, graph: SharedGraph, x: Features | None, edges: EdgeInputs | None = None) -> Tensor:
        """As ``define``, hop by hop."""
        h = _whole(x)
        for index, weight in enumerate(self.weights):
            h = functional.dropout(h, self.dropout, self.training) @ weight
            h = h + self.biases[index] if len(self.biases) else h
            h = h if index == len(self.weights) - 1 else torch.relu(h)
        smooth, z = self._smooth_over(graph, h.shape[1]), h
        for _ in range(self.hops):
            z = (1.0 - self.alpha) * smooth(z) + self.alpha * h
        return z


class GCNII(SizedByData, _Smooth):
    """Deep GCN with initial residual and identity mapping (Chen et al., ICML 2020).

    ``h' = relu(((1 - alpha) S h + alpha h0) ((1 - beta) I + beta W))`` with ``beta = log(theta / layer + 1)``, between
    two linear maps.

    Args:
        in_features: Width of the node features.
        hidden: Width of all layers.
        out_features: Width of the result.
        num_layers: Layers between the linear maps.
        dropout: Probability to drop an element of a layer's input in training.
        alpha: Share of the first rows in every layer.
        theta: Factor in ``beta``; a larger value gives larger ``beta``.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> GCNII(4, 8, 2, num_layers=16)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 8,
        dropout: float = 0.0,
        alpha: float = 0.1,
        theta: float = 0.5,
    ) -> None:
        sizes = {"in_features": in_features, "hidden": hidden, "out_features": out_features, "num_layers": num_layers}
        check_model("GCNII", sizes, dropout, "sum")
        _check_share("GCNII", alpha)
        if not theta > 0.0:
            raise ConfigError(f"GCNII: expected theta > 0, got {theta}")
        super().__init__(in_features)
        self.dropout, self.alpha, self.theta = dropout, alpha, theta
        self.first, self.last = glorot(in_features, hidden), glorot(hidden, out_features)
        self.first_bias, self.last_bias = (nn.Parameter(torch.zeros(width)) for width in (hidden, out_features))
        self.weights = nn.ParameterList(glorot(hidden, hidden) for _ in range(num_layers))

    def define(self, frame: Frame, x: Value) -> Value:
        """The first map, all layers, the last map."""
        smooth = _Smoothing(frame, "GCNII")
        h = frame.relu(frame.bias(frame.matmul(frame.dropout(x, self.dropout), self.first), self.first_bias))
        own = frame.add(Op.SCALE, h, factor=self.alpha)
        for layer, weight in enumerate(self.weights, 1):
            beta = math.log(self.theta / layer + 1.0)
            near = frame.add(Op.SCALE, smooth(frame.dropout(h, self.dropout)), factor=1.0 - self.alpha)
            mixed = frame.add(Op.ADD, near, own)
            product = frame.add(Op.SCALE, frame.matmul(mixed, weight), factor=beta)
            h = frame.relu(frame.add(Op.ADD, frame.add(Op.SCALE, mixed, factor=1.0 - beta), product))
        return frame.bias(frame.matmul(frame.dropout(h, self.dropout), self.last), self.last_bias)

    def over_shared(self, graph: SharedGraph, x: Features | None, edges: EdgeInputs | None = None) -> Tensor:
        """As ``define``, hop by hop."""
        first = functional.dropout(_whole(x), self.dropout, self.training) @ self.first
        h = torch.relu(first + self.first_bias)
        smooth, own = self._smooth_over(graph, h.shape[1]), self.alpha * h
        for layer, weight in enumerate(self.weights, 1):
            beta = math.log(self.theta / layer + 1.0)
            mixed = (1.0 - self.alpha) * smooth(functional.dropout(h, self.dropout, self.training)) + own
            h = torch.relu((1.0 - beta) * mixed + beta * (mixed @ weight))
        return functional.dropout(h, self.dropout, self.training) @ self.last + self.last_bias


class _Hop(CompiledModule):
    """The product with S of the rows of the sources of a block that has all in-edges of its destinations."""

    takes_sparse = False

    def adds_loops(self) -> bool:
        """As the models here."""
        return True

    def arguments(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Arguments:
        """With the factors of the rows."""
        assert isinstance(graph, Block)  # as shared graphs give them
        return with_factors(super().arguments(graph, x, rows, edges), graph)

    def define(self, frame: Frame, x: Value) -> Value:
        """Scaled, summed, scaled."""
        scale, own = frame.of_edges(SCALE), frame.of_edges(OWN_SCALE)
        assert scale is not None and own is not None  # as arguments has it
        total = frame.add(Op.SPMM, frame.graph, frame.add(Op.ROW_SCALE, x, scale), self_coef=1.0)
        return frame.add(Op.ROW_SCALE, total, own)


def _hop_of(model: CompiledModule, width: int) -> _Hop:
    return _Hop(width)


def _whole(x: Features | None) -> Tensor:
    """Features, as torch's functions take them, dense or sparse."""
    assert isinstance(x, Tensor)  # checked by the caller of a shared graph
    return x


class _Smoothing:
    """The product with S."""

    def __init__(self, frame: Frame, who: str) -> None:
        if frame.on_block:
            raise ConfigError(
                f"{who}: expected the whole graph, got a sampled block, which has one hop; use mode='full'"
            )
        self._frame, self._graph = frame, frame.one_loop()

    def __call__(self, h: Value) -> Value:
        frame = self._frame
        scale = frame.degree_power(self._graph, -0.5, h)
        total = frame.aggregate(frame.add(Op.ROW_SCALE, h, scale), "sum", self._graph)
        return frame.add(Op.ROW_SCALE, total, scale)


def _check_share(who: str, alpha: float) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"{who}: expected alpha in [0, 1], got {alpha}")


__all__ = ["APPNP", "GCNII", "SGConv"]
