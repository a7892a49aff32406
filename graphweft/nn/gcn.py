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
from graphweft.runtime.compile import Arguments
from graphweft.runtime.constants import constant
from graphweft.storage.feature import Features


class GCNConv(CompiledModule):
    """One graph convolution.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        bias: Adds a learned vector.
        reduce: ``"sum"`` with symmetric normalisation, as published; or ``"mean"`` or ``"max"`` over the neighbours and
            the node itself.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.
        normalize: For ``"sum"``, whether to apply the factors of the degrees. False takes the plain sum over
            in-neighbours.
        add_self_loops: Whether a node is one of its own neighbours; None: as ``normalize``.
        improved: Whether self-loops have weight 2. With ``edge_weight``, self-loops of the graph keep their weight.

    Raises: ConfigError for a value out of range, or for ``add_self_loops=True`` with ``normalize=False``.

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
        normalize: bool = True,
        add_self_loops: bool | None = None,
        improved: bool = False,
    ) -> None:
        reduce = reducer("GCNConv", reduce, aggr, "sum")
        check_model("GCNConv", {"in_features": in_features, "out_features": out_features}, 0.0, reduce)
        if add_self_loops and not normalize:
            raise ConfigError("GCNConv: add_self_loops=True cannot be combined with normalize=False")
        loops = normalize if add_self_loops is None else add_self_loops
        if improved and not (loops and reduce == "sum"):
            raise ConfigError("GCNConv: improved=True is for reduce='sum' with self-loops")
        super().__init__(in_features)
        self.normalize, self.add_self_loops, self.improved = normalize, loops, improved
        self.weight = glorot(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reduce = reduce

    def arguments(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Arguments:
        """On a block with all in-edges the factors of its rows, as on a whole graph."""
        given = super().arguments(graph, x, rows, edges)
        bare = edges is None or (edges.weight is None and edges.attr is None)
        plain = self.reduce == "sum" and self.add_self_loops and not self.improved
        if not bare or not plain or not isinstance(graph, Block) or not graph.is_whole:
            return given
        return with_factors(given, graph)

    def block(self, block: Block) -> Block:
        """Without self-loops where the node itself has a term of its own."""
        return block.without_self_loops() if self.add_self_loops else block

    def sampled(self, frame: Frame, block: Value) -> Value:
        """As :meth:`block`."""
        return frame.add(Op.WITHOUT_LOOPS, block) if self.add_self_loops else block

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, then aggregate; the compiler may turn the two around."""
        if not self.add_self_loops:
            return frame.bias(self._neighbors_alone(frame, frame.matmul(x, self.weight)), self.bias)
        if frame.of_edges(WEIGHT) is not None:
            return self._define_weighted(frame, x)
        scale, own = frame.of_edges(SCALE), frame.of_edges(OWN_SCALE)
        if scale is not None and own is not None:
            h = frame.add(Op.ROW_SCALE, frame.matmul(x, self.weight), scale)
            h = frame.add(Op.SPMM, frame.graph, h, self_coef=1.0)
            return frame.bias(frame.add(Op.ROW_SCALE, h, own), self.bias)
        if frame.on_block:
            return self._define_on_block(frame, x)
        h = frame.matmul(x, self.weight)
        if self.improved:
            graph = frame.add(Op.WITHOUT_LOOPS, frame.graph)
            degree = frame.add(Op.IN_DEGREE, graph, dtype=h.tensor.dtype)
            scale = frame.add(Op.POW, degree, exponent=-0.5, eps=self._fill)
            h = frame.add(Op.ROW_SCALE, h, scale)
            h = frame.add(Op.ADD, frame.aggregate(h, "sum", graph), frame.add(Op.SCALE, h, factor=self._fill))
            return frame.bias(frame.add(Op.ROW_SCALE, h, scale), self.bias)
        graph = frame.one_loop()
        if self.reduce != "sum":
            return frame.bias(frame.aggregate(h, self.reduce, graph), self.bias)
        scale = frame.degree_power(graph, -0.5, h)
        h = frame.aggregate(frame.add(Op.ROW_SCALE, h, scale), "sum", graph)
        return frame.bias(frame.add(Op.ROW_SCALE, h, scale), self.bias)

    def _neighbors_alone(self, frame: Frame, h: Value) -> Value:
        """Without a term of the node itself; normalised by the degrees of the graph as it is, or not at all."""
        weight = frame.of_edges(WEIGHT)
        if self.reduce != "sum" or not self.normalize:
            return frame.aggregate(h, self.reduce, weight=weight)
        if frame.on_block and weight is not None:
            raise ConfigError("GCNConv: edge_weight on sampled blocks is not supported with add_self_loops=False")
        if not frame.on_block:
            degree = frame.add(Op.IN_DEGREE, frame.graph, dtype=h.tensor.dtype)
            if weight is not None:
                degree = frame.add(Op.REDUCE, frame.graph, weight, kind="sum")
            scale = frame.add(Op.POW, degree, exponent=-0.5)
            total = frame.aggregate(frame.add(Op.ROW_SCALE, h, scale), "sum", weight=weight)
            return frame.add(Op.ROW_SCALE, total, scale)
        degree = frame.add(Op.SRC_DEGREE, frame.graph, dtype=h.tensor.dtype, loops=True)
        total = frame.aggregate(frame.add(Op.ROW_SCALE, h, frame.add(Op.POW, degree, exponent=-0.5)), "sum")
        # k of d neighbours were drawn: times d / k, times d ** -0.5
        share = frame.add(Op.POW, frame.own(degree), exponent=0.5)
        return frame.add(Op.ROW_SCALE, total, frame.add(Op.MUL, share, frame.degree_power(frame.graph, -1.0, h)))

    def needs_whole_graph(self) -> bool:
        """A maximum with the node itself is not written for blocks."""
        return self.reduce == "max" and self.add_self_loops

    def adds_loops(self) -> bool:
        """``add_self_loops``."""
        return self.add_self_loops

    def edge_form(self) -> tuple[object, ...]:
        """Which self-loops there are, and their weight."""
        return (GCNConv, self.add_self_loops, self.improved)

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """Without self-loops, where the node itself has a term of its own, of the self-loop's weight or that added."""
        return edges.without_loops(graph, self._fill) if self.add_self_loops else edges.as_given(graph)

    @property
    def _fill(self) -> float:
        """What a self-loop weighs that the graph does not have."""
        return 2.0 if self.improved else 1.0

    def _define_weighted(self, frame: Frame, x: Value) -> Value:
        """The weighted sum over neighbours and the node itself, normalised by weighted degrees, or their mean."""
        if self.reduce == "max":
            raise ConfigError("GCNConv: reduce='max' cannot be combined with edge_weight; use 'sum' or 'mean'")
        if self.improved and frame.on_block:
            raise ConfigError("GCNConv: edge_weight on sampled blocks is not supported with improved=True")
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
        if loop is not None:
            own = frame.add(Op.ROW_SCALE, own, frame.own(loop))
        elif self.improved:
            own = frame.add(Op.SCALE, own, factor=self._fill)
        total = frame.add(Op.ADD, total, own)
        if scale is None:
            return frame.bias(
                frame.add(Op.ROW_SCALE, total, frame.add(Op.POW, count, exponent=-1.0, eps=1.0)), self.bias
            )
        return frame.bias(frame.add(Op.ROW_SCALE, total, frame.own(scale)), self.bias)

    def _weighted_degree(self, frame: Frame, weight: Value, loop: Value | None) -> Value:
        """Sums of the weights of a node's in-edges and of its own row."""
        degree = frame.add(Op.REDUCE, frame.graph, weight, kind="sum")
        if loop is None:
            return frame.add(Op.ADD_CONST, degree, constant=self._fill)
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
            h = frame.add(Op.ROW_SCALE, h, frame.add(Op.POW, degree, exponent=exponent, eps=self._fill))
        total = frame.add(Op.ROW_SCALE, frame.aggregate(h, "sum"), upscale)
        own = frame.own(h)
        total = frame.add(Op.ADD, total, frame.add(Op.SCALE, own, factor=self._fill) if self.improved else own)
        return frame.bias(
            frame.add(Op.ROW_SCALE, total, frame.add(Op.POW, own_degree, exponent=exponent, eps=self._fill)), self.bias
        )


def with_factors(given: Arguments, block: Block) -> Arguments:
    """``given`` on a block with all in-edges: without self-loops, and the factors of rows as fields."""
    assert given.x is not None  # as checked
    scale, own = derived(block, _factors, given.x.dtype)
    fields = {SCALE: (scale, Residency.SRC), OWN_SCALE: (own, Residency.DST)}
    return replace(given, graph=block.without_self_loops(), fields={**given.fields, **fields})


def _factors(block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The factors of the rows of sources and of destinations, where every node has one self-loop."""
    scale = (block.src_degrees().to(dtype) + 1).rsqrt()
    return constant(scale), constant(scale[: block.num_dst].clone())


class GCN(Stack):
    """A stack of :class:`GCNConv`; arguments as :class:`graphweft.nn.stack.Stack`; ``normalize``, ``add_self_loops``
    and ``improved`` as the layer.

    Example:
        >>> model = GCN(64, 32, 8, num_layers=3, dropout=0.5)
        >>> sum(p.numel() for p in model.parameters())
        3400
    """

    layer = GCNConv
