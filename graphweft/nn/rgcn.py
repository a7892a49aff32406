"""Relational graph convolution, R-GCN (Schlichtkrull et al., ESWC 2018).

``h'_i = W_0 h_i + sum over relations r of 1/c_ir sum over r-neighbours j of W_r h_j + b`` with ``c_ir`` the number of
r-neighbours. The matrices are full, combinations of a few bases, or block-diagonal. What is written here per edge runs
as one product per (relation, node) pair; no matrix is copied to an edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from graphweft._errors import ConfigError
from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import Residency
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot, reducer
from graphweft.nn.node_data import NodeData, flat_columns
from graphweft.nn.typed_stack import TypedConv, TypedStack, glorot_tables
from graphweft.storage.feature import Features
from graphweft.storage.relational import relational_rows


class RGCNConv(TypedConv):
    """One relational graph convolution.

    Shape: (nodes, in_features) -> (nodes, out_features). ``weight`` is (relations, in_features, out_features); with
    ``num_bases`` it is (num_bases, in_features, out_features) and ``coefficients`` (relations, num_bases); with
    ``num_blocks`` (relations, num_blocks, in_features / num_blocks, out_features / num_blocks). ``root`` is
    (in_features, out_features).

    Args:
        in_features: Width of the input rows.
        out_features: Width of the output rows.
        num_relations: Relations of the graph.
        num_bases: Number of basis matrices, whose combinations are the relations' matrices; None: a separate matrix for
            every relation.
        num_blocks: Number of diagonal blocks of each matrix, with zeros elsewhere; None: full matrices.
        self_loop: Adds the node's own row times ``root``.
        bias: Adds a learned vector.
        reduce: ``"mean"`` over the neighbours of each relation, as published, or ``"sum"``.
        aggr: Another name for ``reduce``, as in PyTorch Geometric; ``"add"`` is ``"sum"``.

    Raises: ConfigError for a value out of range.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> graph = Graph.hetero({("a", "likes", "b"): ([0, 1], [0, 0]), ("b", "of", "a"): ([0], [1])})
        >>> RGCNConv(4, 6, num_relations=2, num_blocks=2)(graph, torch.ones(3, 4)).shape
        torch.Size([3, 6])
    """

    tables: ClassVar[Mapping[str, Residency]] = {"weight": Residency.ETYPE, "coefficients": Residency.ETYPE}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        self_loop: bool = True,
        bias: bool = True,
        reduce: str = "mean",
        *,
        aggr: str | None = None,
    ) -> None:
        reduce = reducer("RGCNConv", reduce, aggr, "mean")
        sizes = {"in_features": in_features, "out_features": out_features, "num_relations": num_relations}
        given = {"num_bases": num_bases, "num_blocks": num_blocks}
        check_model("RGCNConv", sizes | {n: v for n, v in given.items() if v is not None}, 0.0, reduce)
        if num_bases is not None and num_blocks is not None:
            raise ConfigError("RGCNConv: expected num_bases or num_blocks, got both")
        if reduce == "max":
            raise ConfigError("RGCNConv: expected reduce 'mean' or 'sum', got 'max'")
        blocks = num_blocks or 1
        if in_features % blocks or out_features % blocks:
            raise ConfigError(
                f"RGCNConv: expected widths that {blocks} blocks divide, got {in_features} and {out_features}"
            )
        super().__init__(in_features, num_relations)
        self.out_features, self.blocks, self.reduce = out_features, blocks, reduce
        if num_bases is None:
            self.weight = glorot_tables(num_relations, blocks, in_features // blocks, out_features // blocks)
            if num_blocks is None:
                self.weight = nn.Parameter(self.weight.detach()[:, 0])
        else:
            self.weight = glorot_tables(num_bases, in_features, out_features)
        self.coefficients = None if num_bases is None else glorot_tables(num_relations, num_bases)
        self.root = glorot(in_features, out_features) if self_loop else None
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def has_rows_per_type(self, name: str) -> bool:
        """``weight`` has a matrix per relation, or, with bases, one per basis."""
        return name != "weight" or self.coefficients is None

    def define(self, frame: Frame, x: Value) -> Value:
        """The messages of every relation, the node's own row, the bias."""
        weights = frame.param(self.weight)
        if self.coefficients is not None:
            weights = frame.add(Op.EINSUM, frame.param(self.coefficients), weights, spec="nb,bio->nio")
        heads = (self.blocks, self.in_features // self.blocks, self.out_features // self.blocks)
        operands = [frame.reshape(x, *heads[:2]), frame.reshape(weights, *heads)]
        if self.reduce == "mean":
            degree = frame.add(Op.SAME_DEGREE, frame.graph, dtype=x.tensor.dtype)
            operands.append(frame.add(Op.POW, degree, exponent=-1.0))
        sums = frame.add(Op.TYPED_SPMM, frame.graph, *operands, transposed=False)
        out = frame.reshape(sums, self.out_features)
        if self.root is not None:
            out = frame.add(Op.ADD, frame.matmul(x, self.root), out)
        return frame.bias(out, self.bias)


class RelationalEmbedding(TypedConv):
    """The first layer of R-GCN on nodes without features: the input of node j is a one at place j.

    ``h'_i = v_i + sum over relations r of 1/c_ir sum over r-neighbours j of W_r[j] + b``: a learned row per relation,
    or per basis, and node. It takes the rows of :func:`graphweft.storage.relational.relational_rows`, so that it is one
    product of sparse rows; the sum of an edge's row exists nowhere but in the result.

    Shape: (nodes, :attr:`in_features`) -> (nodes, out_features). ``weight`` is (relations + 1, nodes, out_features),
    the last matrix the nodes' own rows; with ``num_bases`` it is (num_bases + 1, nodes, out_features) and
    ``coefficients`` (relations, num_bases). The rows of all relations are then made in every step.

    Args:
        num_nodes: Nodes of the graph.
        out_features: Width of the output rows.
        num_relations: Relations of the graph.
        num_bases: Rows are combinations of so many; None: rows of its own for each relation.
        self_loop: A node's own row counts.
        bias: Adds a learned vector.

    Raises: ConfigError for a value out of range.
    """

    def __init__(
        self,
        num_nodes: int,
        out_features: int,
        num_relations: int,
        num_bases: int | None = None,
        self_loop: bool = True,
        bias: bool = True,
    ) -> None:
        sizes = {"num_nodes": num_nodes, "out_features": out_features, "num_relations": num_relations}
        check_model("RelationalEmbedding", sizes | ({} if num_bases is None else {"num_bases": num_bases}), 0.0, "sum")
        super().__init__((num_relations + self_loop) * num_nodes, num_relations)
        self.num_nodes, self.out_features = num_nodes, out_features
        matrices = (num_relations if num_bases is None else num_bases) + self_loop
        self.weight = glorot_tables(matrices, num_nodes, out_features)
        self.coefficients = None if num_bases is None else glorot_tables(num_relations, num_bases)
        if num_bases is not None and self_loop:  # the own rows are a basis that nothing else is made of
            self.register_buffer("_others", torch.zeros(num_relations, 1), persistent=False)
            self.register_buffer("_own", torch.eye(num_bases + 1)[-1:], persistent=False)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    _others: torch.Tensor
    _own: torch.Tensor

    def define(self, frame: Frame, x: Value) -> Value:
        """The sparse product, the bias."""
        table = frame.param(self.weight)
        if self.coefficients is not None:
            shares = frame.param(self.coefficients)
            if self.weight.shape[0] > self.coefficients.shape[1]:
                shares = frame.add(Op.CAT, shares, frame.param(self._others), axis=1)
                shares = frame.add(Op.CAT, shares, frame.param(self._own), axis=0)
            flat = frame.reshape(table, self.weight.shape[0], self.num_nodes * self.out_features)
            table = frame.add(Op.EINSUM, shares, flat, spec="rb,bi->ri")
        table = frame.reshape(table, self.in_features, self.out_features)
        return frame.bias(frame.add(Op.MATMUL, x, table), self.bias)


class RGCN(TypedStack):
    """An embedding of the features, then a stack of :class:`RGCNConv`; ReLU between layers.

    Without features (``in_features=None``), the model is the one published for such graphs: it has no embedding, and
    its first layer is a :class:`RelationalEmbedding`. It is then called as ``model(graph)``, and its inputs are
    :meth:`features`.

    Args:
        in_features: Width of the node features; None: no features.
        hidden, out_features, num_layers, dropout, bias, norm, residual: As :class:`graphweft.nn.stack.Stack`.
        num_relations: Relations of the graph.
        num_nodes: Nodes of the graph, for a model without features.
        num_bases, self_loop, reduce: As :class:`RGCNConv`.
        num_blocks: As :class:`RGCNConv`, for layers with both widths divisible by it; other layers have full matrices.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = RGCN(10, 16, 4, num_relations=3, num_bases=2)
        >>> [tuple(layer.weight.shape) for layer in model.layers]
        [(2, 16, 16), (2, 16, 4)]
        >>> model = RGCN(None, 16, 4, num_relations=3, num_nodes=10)
        >>> [tuple(layer.weight.shape) for layer in model.layers]
        [(4, 10, 16), (3, 16, 4)]
    """

    layer = RGCNConv
    usual_reduce = "mean"

    @classmethod
    def sizes_of(cls, ds: NodeData) -> dict[str, Any]:
        """Columns of all types' features and relations; where no type has features, none, and the nodes instead."""
        relations = {"num_relations": len(ds.graph.relations)}
        if ds.x is None and not ds.features:
            return {"in_features": None, "num_nodes": ds.graph.num_nodes, **relations}
        return {"in_features": flat_columns(ds), **relations}

    def __init__(
        self,
        in_features: int | None,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        *,
        num_relations: int,
        num_nodes: int | None = None,
        self_loop: bool = True,
        **options: Any,
    ) -> None:
        if (in_features is None) == (num_nodes is None):
            got = "neither" if in_features is None else "both"
            raise ConfigError(f"RGCN: expected in_features, or num_nodes for nodes without features, got {got}")
        if num_nodes is not None:
            check_model("RGCN", {"num_nodes": num_nodes, "num_relations": num_relations}, dropout, "sum")
            in_features = (num_relations + self_loop) * num_nodes
        assert in_features is not None  # one of the two was given
        options |= {"num_relations": num_relations, "self_loop": self_loop}
        sizes = (in_features, hidden, out_features, num_layers, dropout)
        super().__init__(*sizes, embeds=num_nodes is None, **options)
        self.reduce = reducer("RGCN", options.get("reduce"), options.get("aggr"), self.usual_reduce)
        if num_nodes is not None:
            width = hidden if num_layers > 1 else out_features
            names = ("num_relations", "num_bases", "self_loop", "bias")
            chosen = {name: options[name] for name in names if name in options}
            self.layers[0] = RelationalEmbedding(num_nodes, width, **chosen)

    def make_layer(self, in_features: int, out_features: int, last: bool, **options: Any) -> CompiledModule:
        """One layer; block-diagonal only where the blocks divide both widths."""
        blocks = options.pop("num_blocks", None)
        if blocks is not None and not (last and (in_features % blocks or out_features % blocks)):
            options["num_blocks"] = blocks
        return RGCNConv(in_features, out_features, **options)

    def features(self, graph: Graph, x: Features | None = None) -> Features | None:
        """``x``; for a model without features rows of the graph's structure, made once a graph."""
        first = self.layers[0]
        if x is not None or not isinstance(first, RelationalEmbedding):
            return x
        own = first.in_features > first.num_relations * first.num_nodes
        return derived(graph, relational_rows, self.reduce == "mean", own)
