"""What layers and models with weighted sums over in-edges share: heads, options, the graph's self-loops.

Comes in: options. Goes out: the bases of the layers in ``gat.py`` and ``cgat.py`` and of stacks of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._checks import check_ids
from graphweft._errors import ConfigError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Value
from graphweft.nn.edges import ATTR, Carried, EdgeInputs, looped
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, as_widths, check_blocks, check_model, glorot, reducer
from graphweft.nn.stack import Stack
from graphweft.runtime.compile import CompiledFunction
from graphweft.storage.feature import Features


class AttentionConv(CompiledModule):
    """A layer that weighs what its in-neighbours send, head by head; arguments as :class:`graphweft.nn.GATConv`."""

    reducers: tuple[str, ...] = ("sum",)
    edge_dim: int | None = None
    edge_projection: nn.Parameter | None
    fill_value: float | str = "mean"

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        heads: int = 1,
        concat: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        value_dropout: float = 0.0,
        negative_slope: float = 0.2,
        add_self_loops: bool = True,
        reduce: str = "sum",
        *,
        aggr: str | None = None,
        residual: bool = False,
    ) -> None:
        who = type(self).__name__
        reduce = reducer(who, reduce, aggr, "sum")
        check_model(who, {"in_features": in_features, "out_features": out_features, "heads": heads}, dropout, reduce)
        if not 0.0 <= value_dropout < 1.0:
            raise ConfigError(f"{who}: expected value_dropout in [0, 1), got {value_dropout}")
        if reduce not in self.reducers:
            known = " or ".join(repr(name) for name in self.reducers)
            raise ConfigError(f"{who}: expected reduce {known}, weighted by attention, got {reduce!r}")
        if concat and out_features % heads:
            raise ConfigError(f"{who}: expected out_features that {heads} heads divide, got {out_features}")
        if not 0.0 <= negative_slope <= 1.0:
            raise ConfigError(f"{who}: expected negative_slope in [0, 1], got {negative_slope}")
        super().__init__(in_features)
        self.heads, self.concat, self.slope, self.reduce = heads, concat, negative_slope, reduce
        self.dropout, self.value_dropout = dropout, value_dropout
        self.channels = out_features // heads if concat else out_features
        self.add_self_loops = add_self_loops
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.residual_weight = glorot(as_widths(in_features)[1], out_features) if residual else None

    def block(self, block: Block) -> Graph:
        """With exactly one self-loop at every destination, where the layer adds them."""
        return block.with_one_loop() if self.add_self_loops else block

    def sampled(self, frame: Frame, block: Value) -> Value:
        """As :meth:`block`."""
        return frame.add(Op.ONE_LOOP, block) if self.add_self_loops else block

    def looped(self, frame: Frame) -> Value:
        """The graph with the self-loops that the layer adds."""
        if self.add_self_loops and frame.dst is not None:
            who = type(self).__name__
            raise ConfigError(f"{who}: add_self_loops=True cannot be combined with features as (x_src, x_dst)")
        has_them = frame.looped or frame.on_block or frame.of_edges(ATTR) is not None
        return frame.one_loop() if self.add_self_loops and not has_them else frame.graph

    def with_attention(
        self, graph: Graph | Sequence[Block], x: Features | None, rows: Tensor | None, edges: EdgeInputs
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """``(out, (edge_index, alpha))``; the weights come out of the program that sums by them."""
        if not isinstance(graph, Graph):
            check_blocks(type(self).__name__, graph, 1)
            graph = graph[0]
        bare = edges.weight is None and edges.attr is None
        if self.add_self_loops and bare and not isinstance(graph, Block) and graph.is_square and not graph.is_typed:
            graph = looped(graph)
        given = self.arguments(graph, x, None, edges)
        function = self._pieces.get("attention")
        if function is None:
            function = self._pieces["attention"] = CompiledFunction(self._describe_attention)
        result = function(given)
        if rows is not None:
            check_ids(f"{type(self).__name__} rows", rows, graph.num_dst)
        out = result["out"] if rows is None else result["out"][rows]
        return out, (torch.stack(given.graph.edges()).long(), result["attention"])

    def _describe_attention(self, builder: Builder, inputs: dict[str, Value], training: bool) -> dict[str, Value]:
        frame = self._frame(builder, inputs, training)
        frame.looped = True
        out = self.define(frame, frame.x)
        assert frame.attention is not None  # every layer of this class sets it
        return {"out": out, "attention": frame.attention}

    def take_edges(self, edge_dim: int | None, fill_value: float | str) -> None:
        """Makes the layer one that reads ``edge_dim`` columns of edge features. Raises: ConfigError."""
        who = type(self).__name__
        if edge_dim is not None:
            check_model(who, {"edge_dim": edge_dim}, 0.0, "sum")
        number = isinstance(fill_value, int | float) and not isinstance(fill_value, bool) and math.isfinite(fill_value)
        if fill_value != "mean" and not number:
            raise ConfigError(f"{who}: expected fill_value as a number or 'mean', got {fill_value!r}")
        self.edge_dim, self.fill_value = edge_dim, fill_value
        width = self.heads * self.channels
        if edge_dim is None:
            self.edge_projection = None
        else:
            self.edge_projection = glorot(edge_dim, width, fans=edge_dim + self.channels)

    def adds_loops(self) -> bool:
        """``add_self_loops``."""
        return self.add_self_loops

    def edge_columns(self) -> int:
        """``edge_dim``."""
        return self.edge_dim or 0

    def edge_form(self) -> tuple[object, ...]:
        """Self-loops, what they carry, and of what width."""
        return (AttentionConv, self.add_self_loops, self.fill_value, self.edge_dim)

    def carried(self, graph: Graph, edges: EdgeInputs) -> Carried:
        """With exactly one self-loop at every node, where the layer adds them, and features of all edges."""
        return edges.with_one_loop(graph, self.fill_value) if self.add_self_loops else edges.features(graph)

    def by_head(self, frame: Frame, x: Value) -> Value:
        """(heads * channels) as (heads, channels)."""
        return frame.reshape(x, self.heads, self.channels)

    def finish(self, frame: Frame, out: Value, x: Value | None = None) -> Value:
        """(heads, channels): the heads side by side or their mean, the residual of the input x, then the bias."""
        if self.concat or self.heads == 1:
            out = frame.reshape(out, self.heads * self.channels)
        else:
            out = frame.add(Op.SCALE, frame.add(Op.SUM_DIMS, out, axes=(0,)), factor=1.0 / self.heads)
        if self.residual_weight is not None and x is not None:
            out = frame.add(Op.ADD, out, frame.own_product(x, self.residual_weight))
        return frame.bias(out, self.bias)


class AdditiveConv(AttentionConv):
    """A layer that scores an edge by the sum of a product at either end, ``leaky(<a_src, W h_j> + <a_dst, W h_i>)``.

    Shape: ``weight`` is (in_features, heads * channels); ``att_src``, ``att_dst`` are (heads, channels).
    """

    def __init__(self, in_features: int | tuple[int, int], out_features: int, heads: int = 1, **options: Any) -> None:
        super().__init__(in_features, out_features, heads, **options)
        channels, own = self.channels, as_widths(in_features)[1]
        self.weight = glorot(self.in_features, heads * channels, fans=self.in_features + channels)
        is_pair = not isinstance(in_features, int)
        self.dst_weight = glorot(own, heads * channels, fans=own + channels) if is_pair else None
        self.att_src, self.att_dst = (glorot(heads, channels, fans=channels + 1) for _ in range(2))

    def scored(self, frame: Frame, graph: Value, x: Value) -> tuple[Value, Value]:
        """Scores of edges (heads,), and the source rows (heads, channels) to be summed, some of them dropped."""
        rows = frame.matmul(x, self.weight)
        h = self.by_head(frame, rows)
        if frame.dst is None:
            own = frame.own(h)
        else:
            shared = self.weight if self.dst_weight is None else self.dst_weight
            own = self.by_head(frame, frame.matmul(frame.dst, shared))
        ends = [
            frame.add(Op.EINSUM, side, frame.param(a), spec="nhc,hc->nh")
            for side, a in ((h, self.att_src), (own, self.att_dst))
        ]
        total = frame.apply(
            "add", frame.add(Op.BROADCAST_SRC, graph, ends[0]), frame.add(Op.BROADCAST_DST, graph, ends[1])
        )
        score = frame.apply("leaky_relu", self.with_edges(frame, total), alpha=self.slope)
        if self.value_dropout:
            h = self.by_head(frame, frame.dropout(rows, self.value_dropout, self.training))
        return score, h

    def with_edges(self, frame: Frame, total: Value) -> Value:
        """Sums of the ends' scores (heads,), and what the edge itself adds."""
        return total


class AttentionStack(Stack):
    """A stack of layers with heads; arguments as :class:`graphweft.nn.GAT`."""

    usual_activation = "elu"

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        **options: Any,
    ) -> None:
        self._heads = {False: heads, True: out_heads}
        self._drop = dropout if attention_dropout is None else attention_dropout
        super().__init__(in_features, hidden, out_features, num_layers, dropout, **options)

    def with_attention(
        self, graph: Graph | Sequence[Block], x: Features | None, rows: Tensor | None, edges: EdgeInputs
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """``(out, [(edge_index, alpha), ...])``, a pair for every layer; layer by layer, each compiled by itself."""
        if not isinstance(graph, Graph):
            self.check_blocks(graph)
        found: list[tuple[Tensor, Tensor]] = []

        def call(layer: nn.Module, where: Graph, given: Any) -> Tensor:
            if not isinstance(layer, AttentionConv):
                got = type(layer).__name__
                raise ConfigError(f"{type(self).__name__}: expected layers with attention, got a layer of class {got}")
            out, pair = layer(where, given, edge_weight=edges, return_attention_weights=True)
            found.append(pair)
            made: Tensor = out
            return made

        return self.layer_by_layer(graph, x, rows, call), found

    def kind(self) -> Callable[..., CompiledModule]:
        """The class of the layers."""
        return type(self).layer

    def make_layer(self, in_features: int, out_features: int, last: bool, **options: Any) -> CompiledModule:
        """A hidden layer, or the last one."""
        heads = self._heads[last]
        return self.kind()(in_features, out_features, heads, concat=not last, dropout=self._drop, **options)
