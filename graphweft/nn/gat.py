"""Graph attention networks: GAT (Velickovic et al., ICLR 2018) and GATv2 (Brody, Alon, Yahav, ICLR 2022).

``h'_i = sum_j softmax_j(e_ij) W h_j`` over the in-neighbours j of i and i itself, for every head; with
``e_ij = leaky(<a_src, W h_j> + <a_dst, W h_i>)`` in GAT and ``e_ij = <a, leaky(W h_j + W' h_i)>`` in GATv2. The softmax
is neither stored nor are messages made: the compiler raises what is written here to one operation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.graph.adjacency import Adjacency
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot
from graphweft.nn.stack import Stack


class _AttentionConv(CompiledModule):
    """What both kinds of attention share."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        concat: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        add_self_loops: bool = True,
        reduce: str = "sum",
    ) -> None:
        who = type(self).__name__
        check_model(who, {"in_features": in_features, "out_features": out_features, "heads": heads}, dropout, reduce)
        if reduce != "sum":
            raise ConfigError(f"{who}: expected reduce 'sum', weighted by attention, got {reduce!r}")
        if concat and out_features % heads:
            raise ConfigError(f"{who}: expected out_features that {heads} heads divide, got {out_features}")
        if not 0.0 <= negative_slope <= 1.0:
            raise ConfigError(f"{who}: expected negative_slope in [0, 1], got {negative_slope}")
        super().__init__(in_features)
        self.heads, self.concat, self.dropout, self.slope = heads, concat, dropout, negative_slope
        self.channels = out_features // heads if concat else out_features
        self.add_self_loops = add_self_loops
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def block(self, block: Block) -> Graph:
        """With exactly one self-loop at every destination, where the layer adds them."""
        if not self.add_self_loops:
            return block
        nodes = torch.arange(block.num_dst + 1)
        loops = Adjacency(nodes, nodes[:-1].to(block.csc.indices.dtype), None, block.num_src)
        return block.without_self_loops() + Graph.from_adjacency(loops, bipartite=True)

    def _graph(self, frame: Frame) -> Value:
        return frame.one_loop() if self.add_self_loops and not frame.on_block else frame.graph

    def _by_head(self, frame: Frame, x: Value) -> Value:
        return frame.reshape(x, self.heads, self.channels)

    def _finish(self, frame: Frame, graph: Value, score: Value, x: Value) -> Value:
        """Attention, then the heads side by side or their mean, then the bias."""
        out = frame.attend(graph, score, x, self.dropout)
        if self.concat or self.heads == 1:
            out = frame.reshape(out, self.heads * self.channels)
        else:
            out = frame.add(Op.SCALE, frame.add(Op.SUM_DIMS, out, axes=(0,)), factor=1.0 / self.heads)
        return frame.bias(out, self.bias)


class GATConv(_AttentionConv):
    """One graph attention layer.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, heads * channels) with
    ``channels = out_features / heads``, or out_features where heads are averaged; ``att_src``, ``att_dst`` are
    (heads, channels).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        heads: Independent attentions.
        concat: Heads stand side by side; else their mean is taken.
        bias: Adds a learned vector.
        dropout: Probability to drop an attention weight in training.
        negative_slope: Of the leaky ReLU on scores, in [0, 1].
        add_self_loops: Every node attends to itself, exactly once; the graph must be square then.
        reduce: ``"sum"``, the only way.

    Raises: ConfigError for a value out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> GATConv(4, 6, heads=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    def __init__(self, in_features: int, out_features: int, heads: int = 1, **options: Any) -> None:
        super().__init__(in_features, out_features, heads, **options)
        self.weight = glorot(in_features, heads * self.channels)
        self.att_src, self.att_dst = glorot(heads, self.channels), glorot(heads, self.channels)

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, score both ends, attend."""
        graph = self._graph(frame)
        h = self._by_head(frame, frame.matmul(x, self.weight))
        ends = [
            frame.add(Op.EINSUM, rows, frame.param(a), spec="nhc,hc->nh")
            for rows, a in ((h, self.att_src), (frame.own(h), self.att_dst))
        ]
        total = frame.apply(
            "add", frame.add(Op.BROADCAST_SRC, graph, ends[0]), frame.add(Op.BROADCAST_DST, graph, ends[1])
        )
        return self._finish(frame, graph, frame.apply("leaky_relu", total, alpha=self.slope), h)


class GATv2Conv(_AttentionConv):
    """One layer of dynamic attention; arguments as :class:`GATConv`.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` and ``dst_weight`` are (in_features, heads *
    channels), ``att`` is (heads, channels); ``src_bias`` and ``dst_bias``, with ``bias``, are (heads * channels,).

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> GATv2Conv(4, 6, heads=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    def __init__(self, in_features: int, out_features: int, heads: int = 1, **options: Any) -> None:
        super().__init__(in_features, out_features, heads, **options)
        width = heads * self.channels
        self.weight, self.dst_weight = glorot(in_features, width), glorot(in_features, width)
        self.att = glorot(heads, self.channels)
        self.src_bias = nn.Parameter(torch.zeros(width)) if self.bias is not None else None
        self.dst_bias = nn.Parameter(torch.zeros(width)) if self.bias is not None else None

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform for either end, score, attend."""
        graph = self._graph(frame)
        src = self._by_head(frame, frame.bias(frame.matmul(x, self.weight), self.src_bias))
        dst = self._by_head(frame, frame.bias(frame.own_product(x, self.dst_weight), self.dst_bias))
        total = frame.apply("add", frame.add(Op.BROADCAST_SRC, graph, src), frame.add(Op.BROADCAST_DST, graph, dst))
        unit = frame.apply("leaky_relu", total, alpha=self.slope)
        score = frame.add(Op.EINSUM, unit, frame.param(self.att), spec="nhc,hc->nh")
        return self._finish(frame, graph, score, src)


class GAT(Stack):
    """A stack of :class:`GATConv`, or with ``v2`` of :class:`GATv2Conv`.

    Hidden layers have ``heads`` heads side by side, ``hidden`` wide together. The last layer averages ``out_heads``
    heads of ``out_features`` each. Dropout acts on every layer's input and, unless ``attention_dropout`` says
    otherwise, on attention weights; the activation is ELU, as published.

    Args:
        in_features, hidden, out_features, num_layers, dropout, bias, norm, residual: As
            :class:`graphweft.nn.stack.Stack`.
        heads: Heads of hidden layers; they divide ``hidden``.
        out_heads: Heads of the last layer.
        attention_dropout: Probability to drop an attention weight in training; None: as ``dropout``.
        activation: ``"elu"`` or ``"relu"``.
        v2: Scores of GATv2.
        options: More arguments of every layer.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = GAT(64, 32, 8, heads=4)
        >>> [layer.heads for layer in model.layers]
        [4, 1]
    """

    layer = GATConv

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
        activation: str = "elu",
        v2: bool = False,
        **options: Any,
    ) -> None:
        if activation not in ("elu", "relu"):
            raise ConfigError(f"GAT: expected activation 'elu' or 'relu', got {activation!r}")
        self._kind = GATv2Conv if v2 else GATConv
        self._heads = {False: heads, True: out_heads}
        self._drop = dropout if attention_dropout is None else attention_dropout
        super().__init__(in_features, hidden, out_features, num_layers, dropout, **options)
        self.activation = activation

    def make_layer(self, in_features: int, out_features: int, last: bool, **options: Any) -> CompiledModule:
        """A hidden layer, or the last one."""
        heads = self._heads[last]
        return self._kind(in_features, out_features, heads, concat=not last, dropout=self._drop, **options)
