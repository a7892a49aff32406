"""Graph convolutional network (Kipf and Welling, ICLR 2017).

``h' = D^-1/2 (A + I) D^-1/2 h W + b`` with exactly one self-loop at every node and D the in-degrees of A + I. On a
sampled block D holds the degrees of the whole graph, and the sum over the k neighbours drawn of d counts d / k: in
expectation the sum over all of them, and exactly that when all are drawn.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError
from graphweft.graph.block import Block
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import Residency
from graphweft.nn.edges import DEGREE, LOOP, OWN_SCALE, SCALE, WEIGHT, Carried, EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot, reducer
from graphweft.nn.stack import Stack
from graphweft.runtime.compile import Arguments, Features
from graphweft.runtime.constants import constant


class GCNConv(CompiledModule):
    """One graph convolution.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        bias: Adds a learned vector.
        reduce: ``"sum"`` with symmetric normalisation as published; ``"mean"`` or ``"max"`` over the neighbours and the
            node itself.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.

    Example:
        >>> import torch
        >>> from graphweft.graph.graph import Graph
        >>> layer = GCNConv(4, 2)
        >>> layer(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    takes_edge_weight = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        reduce: str = "sum",
        *,
        aggr: str | None = None,
    ) -> None:
        reduce = reducer("GCNConv", reduce, aggr, "sum")
        check_model("GCNConv", {"in_features": in_features, "out_features": out_features}, 0.0, reduce)
        super().__init__(in_features)
        self.weight = glorot(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reduce = reduce

    def arguments(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Arguments:
        """On a block with all in-edges, one with self-loops and the factors of its rows, as on a whole graph."""
        given = super().arguments(graph, x, rows, edges)
        bare = edges is None or (edges.weight is None and edges.attr is None)
        if not bare or self.reduce != "sum" or not isinstance(graph, Block) or not graph.is_whole:
            return given
        assert given.x is not None  # as checked
        looped, scale, own = derived(graph, _looped, given.x.dtype)
        fields = {SCALE: (scale, Residency.SRC), OWN_SCALE: (own, Residency.DST)}
        return replace(given, graph=looped, fields={**given.fields, **fields})

    def block(self, block: Block) -> Block:
        """Without self-loops: the node itself has a term of its own."""
        return block.without_self_loops()

    def sampled(self, frame: Frame, block: Value) -> Value:
        """As :meth:`block`."""
        return frame.add(Op.WITHOUT_LOOPS, block)

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, then aggregate; the compiler may turn the two around."""
        if frame.of_edges(WEIGHT) is not None:
            return self._define_weighted(frame, x)
        scale, own = frame.of_edges(SCALE), frame.of_edges(OWN_SCALE)
        if scale is not None and own is not None:
            h = frame.aggregate(frame.add(Op.ROW_SCALE, frame.matmul(x, self.weight), scale), "sum")
            return frame.bias(frame.add(Op.ROW_SCALE, h, own), self.bias)
        if frame.on_block:
            return self._define_on_block(frame, x)
        graph = frame.one_loop()
        h = frame.matmul(x, self.weight)
        if self.reduce != "sum":
            return frame.bias(frame.aggregate(h, self.reduce, graph), self.bias)
        scale = frame.degree_power(graph, -0.5, h)
        h = frame.aggregate(frame.add(Op.ROW_SCALE, h, scale), "sum", graph)
        return frame.bias(frame.add(Op.ROW_SCALE, h, scale), self.bias)

    def adds_loops(self) -> bool:
        """As published."""
        return True

    def edge_form(self) -> tuple[object, ...]:
        """Self-loops are left out whatever the reducer."""
        return (GCNConv,)

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """Without self-loops: the node itself has a term of its own, of the self-loop's weight, or 1."""
        return edges.without_loops(graph)

    def _define_weighted(self, frame: Frame, x: Value) -> Value:
        """The weighted sum over neighbours and the node itself, normalised by weighted degrees, or their mean."""
        if self.reduce == "max":
            raise ConfigError("GCNConv: reduce='max' cannot be combined with edge_weight; use 'sum' or 'mean'")
        weight, loop = frame.of_edges(WEIGHT), frame.of_edges(LOOP)
        assert weight is not None  # as asked by the caller
        h = frame.matmul(x, self.weight)
        scale = None
        if self.reduce == "sum":
            degree = frame.of_edges(DEGREE) if frame.on_block else self._weighted_degree(frame, weight, loop)
            assert degree is not None  # it comes with the weights of a block
            scale = frame.add(Op.POW, degree, exponent=-0.5)
            h = frame.add(Op.ROW_SCALE, h, scale)
        total = frame.aggregate(h, "sum", weight=weight)
        count = frame.add(Op.IN_DEGREE, frame.graph, dtype=h.tensor.dtype)
        if frame.on_block:  # k of d neighbours were drawn
            count = frame.own(frame.add(Op.SRC_DEGREE, frame.graph, dtype=h.tensor.dtype))
            share = frame.add(Op.MUL, count, frame.degree_power(frame.graph, -1.0, h))
            total = frame.add(Op.ROW_SCALE, total, share)
        own = frame.own(h)
        total = frame.add(Op.ADD, total, own if loop is None else frame.add(Op.ROW_SCALE, own, frame.own(loop)))
        if scale is None:
            return frame.bias(
                frame.add(Op.ROW_SCALE, total, frame.add(Op.POW, count, exponent=-1.0, eps=1.0)), self.bias
            )
        return frame.bias(frame.add(Op.ROW_SCALE, total, frame.own(scale)), self.bias)

    def _weighted_degree(self, frame: Frame, weight: Value, loop: Value | None) -> Value:
        """Sums of the weights of a node's in-edges and of its own row."""
        degree = frame.add(Op.REDUCE, frame.graph, weight, kind="sum")
        if loop is None:
            return frame.add(Op.ADD_CONST, degree, constant=1.0)
        return frame.add(Op.ADD, degree, loop)

    def _define_on_block(self, frame: Frame, x: Value) -> Value:
        """The sum over drawn neighbours times degree / number drawn, in the degrees of the whole graph."""
        if self.reduce == "max":
            raise ConfigError("GCNConv: expected reduce sum or mean on sampled blocks, got 'max'")
        h = frame.matmul(x, self.weight)
        degree = frame.add(Op.SRC_DEGREE, frame.graph, dtype=h.tensor.dtype)
        own_degree = frame.own(degree)
        upscale = frame.add(Op.MUL, own_degree, frame.degree_power(frame.graph, -1.0, h))
        exponent = -0.5 if self.reduce == "sum" else -1.0
        if self.reduce == "sum":
            h = frame.add(Op.ROW_SCALE, h, frame.add(Op.POW, degree, exponent=exponent, eps=1.0))
        total = frame.add(Op.ROW_SCALE, frame.aggregate(h, "sum"), upscale)
        total = frame.add(Op.ADD, total, frame.own(h))
        return frame.bias(
            frame.add(Op.ROW_SCALE, total, frame.add(Op.POW, own_degree, exponent=exponent, eps=1.0)), self.bias
        )


def _looped(block: Block, dtype: torch.dtype) -> tuple[Graph, Tensor, Tensor]:
    """A block with one self-loop at every destination, and the factors of the rows of sources and of destinations."""
    scale = (block.src_degrees().to(dtype) + 1).rsqrt()
    return block.with_one_loop(), constant(scale), constant(scale[: block.num_dst].clone())


class GCN(Stack):
    """A stack of :class:`GCNConv`; arguments as :class:`graphweft.nn.stack.Stack`.

    Example:
        >>> model = GCN(64, 32, 8, num_layers=3, dropout=0.5)
        >>> sum(p.numel() for p in model.parameters())
        3400
    """

    layer = GCNConv
