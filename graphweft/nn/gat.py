"""Graph attention networks: GAT (Velickovic et al., ICLR 2018) and GATv2 (Brody, Alon, Yahav, ICLR 2022).

``h'_i = sum_j softmax_j(e_ij) W h_j`` over the in-neighbours j of i and i itself, for every head; with
``e_ij = leaky(<a_src, W h_j> + <a_dst, W h_i>)`` in GAT and ``e_ij = <a, leaky(W h_j + W' h_i)>`` in GATv2. The softmax
is neither stored nor are messages made: the compiler raises what is written here to one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.nn.attention import AdditiveConv, AttentionConv, AttentionStack
from graphweft.nn.edges import ATTR
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, as_widths, glorot
from graphweft.nn.node_data import NodeData, edge_columns


class GATConv(AdditiveConv):
    """One graph attention layer.

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` is (in_features, heads * channels) with
    ``channels = out_features / heads``, or ``channels = out_features`` if heads are averaged. ``att_src`` and
    ``att_dst`` are (heads, channels).

    Args:
        in_features: Width of the input rows; a pair for features (x_src, x_dst) of two sets of nodes, each with a
            weight of its own (``weight``, ``dst_weight``), and ``add_self_loops=False``.
        out_features: Width of the output rows.
        heads: Number of attention heads.
        concat: Whether the results of the heads are joined; else they are averaged.
        bias: Adds a learned vector.
        dropout: Probability to drop an attention weight in training.
        value_dropout: Probability to drop an element of the transformed rows in the sum. Scores are computed from the
            rows before, as in the authors' program. Not supported by :class:`GATv2Conv`.
        negative_slope: Of the leaky ReLU on scores, in [0, 1].
        add_self_loops: Whether every node attends to itself, exactly once. Requires a square graph.
        reduce: Only ``"sum"`` is supported.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.
        residual: Adds the node's own input row times ``residual_weight`` (in_features, out_features).
        edge_dim: Columns of edge features. Scores are then
            ``leaky(<a_src, W h_j> + <a_dst, W h_i> + <a_edge, W_e e_ij>)``. Features are passed as ``edge_attr``; an
            ``edge_weight`` counts as one more column, the first.
        fill_value: Features of self-loops: ``"mean"``, over the other edges into the node, or a number.

    With ``edge_dim`` the layer also has ``edge_projection`` (edge_dim, heads * channels) and ``att_edge`` (heads,
    channels).

    Raises: ConfigError for a value out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> GATConv(4, 6, heads=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 6])
        >>> layer = GATConv(4, 6, heads=3, edge_dim=2)
        >>> layer(Graph([0, 1], [1, 2]), torch.ones(3, 4), edge_attr=torch.ones(2, 2)).shape
        torch.Size([3, 6])
    """

    takes_pairs = True

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        heads: int = 1,
        *,
        edge_dim: int | None = None,
        fill_value: float | str = "mean",
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, heads, **options)
        self.take_edges(edge_dim, fill_value)
        self.att_edge = None if edge_dim is None else glorot(heads, self.channels, fans=self.channels + 1)

    def with_edges(self, frame: Frame, total: Value) -> Value:
        """Plus ``<a_edge, W_e e>``; the two are multiplied first, so an edge has one number a head and no row."""
        rows = frame.of_edges(ATTR)
        if rows is None or self.edge_projection is None or self.att_edge is None:
            return total
        assert self.edge_dim is not None  # it has a projection
        heads = frame.reshape(frame.param(self.edge_projection), self.edge_dim, self.heads, self.channels)
        folded = frame.add(Op.EINSUM, heads, frame.param(self.att_edge), spec="fhc,hc->fh")
        return frame.apply("add", total, frame.add(Op.MATMUL, rows, folded))

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform, score both ends, attend."""
        graph = self.looped(frame)
        score, values = self.scored(frame, graph, x)
        return self.finish(frame, frame.attend(graph, score, values, self.dropout, self.training), x)


class GATv2Conv(AttentionConv):
    """One layer of dynamic attention; arguments as :class:`GATConv`.

    With ``edge_dim`` a score is ``<a, leaky(W h_j + W' h_i + W_e e_ij)>``, W_e the ``edge_projection`` (edge_dim,
    heads * channels).

    Shape: (nodes, in_features) -> (nodes, out_features); ``weight`` and ``dst_weight`` are (in_features, heads *
    channels), ``att`` is (heads, channels); ``src_bias`` and ``dst_bias``, with ``bias``, are (heads * channels,).

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> GATv2Conv(4, 6, heads=3)(Graph([0, 1], [1, 2]), torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    takes_pairs = True

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        heads: int = 1,
        *,
        edge_dim: int | None = None,
        fill_value: float | str = "mean",
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, heads, **options)
        self.take_edges(edge_dim, fill_value)
        if self.value_dropout:
            raise ConfigError(
                f"GATv2Conv: expected value_dropout 0, got {self.value_dropout}; its values are scored too"
            )
        channels, width = self.channels, heads * self.channels
        self.weight, self.dst_weight = (glorot(size, width, fans=size + channels) for size in as_widths(in_features))
        self.att = glorot(heads, channels, fans=channels + 1)
        self.src_bias = nn.Parameter(torch.zeros(width)) if self.bias is not None else None
        self.dst_bias = nn.Parameter(torch.zeros(width)) if self.bias is not None else None

    def define(self, frame: Frame, x: Value) -> Value:
        """Transform for either end, score, attend."""
        graph = self.looped(frame)
        src = self.by_head(frame, frame.bias(frame.matmul(x, self.weight), self.src_bias))
        dst = self.by_head(frame, frame.bias(frame.own_product(x, self.dst_weight), self.dst_bias))
        total = frame.apply("add", frame.add(Op.BROADCAST_SRC, graph, src), frame.add(Op.BROADCAST_DST, graph, dst))
        rows = frame.of_edges(ATTR)
        if rows is not None and self.edge_projection is not None:
            total = frame.apply("add", total, self.by_head(frame, frame.matmul(rows, self.edge_projection)))
        unit = frame.apply("leaky_relu", total, alpha=self.slope)
        score = frame.add(Op.EINSUM, unit, frame.param(self.att), spec="nhc,hc->nh")
        return self.finish(frame, frame.attend(graph, score, src, self.dropout, self.training), x)


class GAT(AttentionStack):
    """A stack of :class:`GATConv`, or with ``v2`` of :class:`GATv2Conv`.

    Hidden layers join ``heads`` heads, and ``hidden`` is their total width. The last layer averages ``out_heads`` heads
    of ``out_features`` each. Dropout acts on every layer's input and on attention weights; ``attention_dropout`` sets
    the latter. The default activation is ELU, as published. Each head is initialised with its own Glorot bounds.

    Args:
        in_features, hidden, out_features, num_layers, dropout, bias, norm, residual, activation: As
            :class:`graphweft.nn.stack.Stack`; the default activation is ``"elu"``.
        heads: Heads of hidden layers; they divide ``hidden``.
        out_heads: Heads of the last layer.
        attention_dropout: Probability to drop an attention weight in training; None: as ``dropout``.
        v2: Whether scores are those of GATv2.
        edge_dim, fill_value: As :class:`GATConv`, in every layer.
        options: Further arguments of every layer, such as ``value_dropout``.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = GAT(64, 32, 8, heads=4)
        >>> [layer.heads for layer in model.layers]
        [4, 1]
    """

    layer = GATConv

    @classmethod
    def sizes_of(cls, ds: NodeData) -> dict[str, Any]:
        """With ``edge_dim``, where the edges of ``ds`` have weights or features."""
        return {**super().sizes_of(ds), "edge_dim": edge_columns(ds)}

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
        v2: bool = False,
        **options: Any,
    ) -> None:
        self._v2 = v2
        sizes = (in_features, hidden, out_features, num_layers)
        super().__init__(*sizes, heads, out_heads, dropout, attention_dropout, **options)

    def kind(self) -> Callable[..., CompiledModule]:
        """The class of the layers."""
        return GATv2Conv if self._v2 else GATConv
