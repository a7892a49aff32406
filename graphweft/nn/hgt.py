"""Heterogeneous graph transformer, HGT (Hu et al., WWW 2020).

With keys, queries and values by node type, and per relation r and head matrices ``A_r``, ``M_r`` and a prior ``p_r``:
an edge j -> i of r is scored ``p_r <k_j A_r, q_i> / sqrt(d)``, the softmax goes over all edges into i, whatever their
relation, and ``h'_i = s W_t gelu(sum of softmax v_j M_r) + (1 - s) h_i`` with ``s`` a learned gate per node type t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import Residency
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, reducer
from graphweft.nn.node_data import NodeData, flat_columns
from graphweft.nn.typed_stack import TypedConv, TypedStack, glorot_tables

_NODE, _EDGE = Residency.NTYPE, Residency.ETYPE


class HGTConv(TypedConv):
    """One layer of heterogeneous attention.

    Shape: (nodes, in_features) -> (nodes, out_features). ``key``, ``query``, ``value`` are (node types, in_features,
    out_features), ``out`` is (node types, out_features, out_features), their biases (node types, out_features);
    ``attention`` and ``message`` are (relations, heads, channels, channels), ``prior`` is (relations, heads), ``skip``
    (node types,).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        num_node_types: Node types of the graph.
        num_relations: Relations of the graph.
        heads: Number of attention heads; a divisor of ``out_features``.
        reduce: Only ``"sum"`` is supported.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.
        bias: Adds learned vectors to keys, queries, values and outputs.

    Raises: ConfigError for a value out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> graph = Graph.hetero({("a", "likes", "b"): ([0, 1], [0, 0]), ("b", "of", "a"): ([0], [1])})
        >>> HGTConv(4, 6, num_node_types=2, num_relations=2, heads=3)(graph, torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    tables: ClassVar[Mapping[str, Residency]] = {
        **dict.fromkeys(("key", "query", "value", "out"), _NODE),
        **dict.fromkeys(("key_bias", "query_bias", "value_bias", "out_bias", "skip"), _NODE),
        **dict.fromkeys(("attention", "message", "prior"), _EDGE),
    }

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_node_types: int,
        num_relations: int,
        heads: int = 1,
        bias: bool = True,
        reduce: str = "sum",
        *,
        aggr: str | None = None,
    ) -> None:
        reduce = reducer("HGTConv", reduce, aggr, "sum")
        sizes = {"in_features": in_features, "out_features": out_features, "heads": heads}
        check_model("HGTConv", sizes | {"num_node_types": num_node_types, "num_relations": num_relations}, 0.0, reduce)
        if reduce != "sum":
            raise ConfigError(f"HGTConv: expected reduce 'sum', weighted by attention, got {reduce!r}")
        if out_features % heads:
            raise ConfigError(f"HGTConv: expected out_features that {heads} heads divide, got {out_features}")
        super().__init__(in_features, num_relations, num_node_types)
        self.heads, self.channels = heads, out_features // heads
        for name, width in (
            ("key", in_features),
            ("query", in_features),
            ("value", in_features),
            ("out", out_features),
        ):
            self.register_parameter(name, glorot_tables(num_node_types, width, out_features))
            zeros = nn.Parameter(torch.zeros(num_node_types, out_features)) if bias else None
            self.register_parameter(f"{name}_bias", zeros)
        self.attention = glorot_tables(num_relations, heads, self.channels, self.channels)
        self.message = glorot_tables(num_relations, heads, self.channels, self.channels)
        self.prior = nn.Parameter(torch.ones(num_relations, heads))
        self.skip = nn.Parameter(torch.ones(num_node_types)) if in_features == out_features else None

    def define(self, frame: Frame, x: Value) -> Value:
        """Keys, queries and values by type, attention by relation, output by type, gate."""
        graph = frame.graph
        key, query, value = (
            frame.reshape(self._by_type(frame, x, name), self.heads, self.channels)
            for name in ("key", "query", "value")
        )
        prior = frame.add(Op.SCALE, frame.param(self.prior), factor=1.0 / math.sqrt(self.channels))
        matrices = frame.apply("mul", frame.param(self.attention), frame.reshape(prior, self.heads, 1, 1))
        score = frame.add(Op.TYPED_SDDMM, graph, key, matrices, query, transposed=False, by_head=True)
        weights = frame.add(Op.EDGE_SOFTMAX, graph, score, whole=True)
        sums = frame.add(Op.TYPED_SPMM, graph, value, frame.param(self.message), weights, transposed=False)
        out = self._by_type(frame, frame.gelu(frame.reshape(sums, self.heads * self.channels)), "out")
        if self.skip is None:
            return out
        gate = frame.add(Op.BROADCAST_NTYPE, graph, frame.apply("sigmoid", frame.param(self.skip)))
        change = frame.add(Op.ADD, out, frame.add(Op.SCALE, x, factor=-1.0))
        return frame.add(Op.ADD, frame.add(Op.ROW_SCALE, change, gate), x)

    def _by_type(self, frame: Frame, x: Value, name: str) -> Value:
        """Rows times the matrix ``name`` of their node's type, plus its bias."""
        bias = getattr(self, f"{name}_bias")
        more = () if bias is None else (frame.param(bias),)
        return frame.add(Op.TYPE_MATMUL, frame.graph, x, frame.param(getattr(self, name)), *more, transposed=False)


class HGT(TypedStack):
    """A linear map of the features to ``hidden`` columns with a ReLU, a stack of :class:`HGTConv`, and a linear map to
    the classes.

    Args:
        in_features, hidden, out_features, num_layers, dropout, bias, norm: As :class:`graphweft.nn.stack.Stack`.
        num_node_types, num_relations: Types of the graph.
        heads: Heads of every layer; a divisor of ``hidden``.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = HGT(10, 16, 4, num_node_types=2, num_relations=3, heads=4)
        >>> len(model.layers), tuple(model.head.shape)
        (2, (16, 4))
    """

    layer = HGTConv

    @classmethod
    def sizes_of(cls, ds: NodeData) -> dict[str, Any]:
        """Columns of all types' features, node types and relations."""
        types, relations = len(ds.graph.node_types), len(ds.graph.relations)
        return {"in_features": flat_columns(ds), "num_node_types": types, "num_relations": relations}

    def __init__(self, in_features: int, hidden: int, out_features: int, num_layers: int = 2, **options: Any) -> None:
        super().__init__(in_features, hidden, hidden, num_layers, **options)
        self.activation = "none"
        check_model("HGT", {"out_features": out_features}, 0.0, "sum")
        self.out_features = out_features
        self.head = glorot_tables(hidden, out_features)
        self.head_bias = nn.Parameter(torch.zeros(out_features))

    def make_layer(self, in_features: int, out_features: int, last: bool, **options: Any) -> CompiledModule:
        """All layers are alike."""
        return HGTConv(in_features, out_features, **options)

    def after_embedding(self, frame: Frame, x: Value) -> Value:
        """ReLU."""
        return frame.relu(x)

    def embedded(self, index: int, x: Any) -> Any:
        """ReLU after the embedding."""
        made = super().embedded(index, x)
        return made if index else torch.relu(made)

    def finished(self, index: int, x: Any) -> Any:
        """The last layer is followed by the classes."""
        return x if index < len(self.layers) - 1 else torch.addmm(self.head_bias, x, self.head)

    def _define_piece(self, frame: Frame, index: int, given: Value) -> Value:
        """The last layer is followed by the classes."""
        x = super()._define_piece(frame, index, given)
        if index < len(self.layers) - 1:
            return x
        return frame.bias(frame.matmul(x, self.head), self.head_bias)
