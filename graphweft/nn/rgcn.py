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
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import Residency
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot
from graphweft.nn.typed_stack import TypedConv, TypedStack, glorot_tables


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
        num_bases: Matrices are combinations of so many; None: a matrix of its own for each.
        num_blocks: Matrices have so many blocks on their diagonal and zeros elsewhere; None: full.
        self_loop: A node's own row counts, by a matrix of its own.
        bias: Adds a learned vector.
        reduce: ``"mean"`` over the neighbours of each relation, as published, or ``"sum"``.

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
    ) -> None:
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


class RGCN(TypedStack):
    """An embedding of the features, then a stack of :class:`RGCNConv`; ReLU between layers.

    Args:
        in_features, hidden, out_features, num_layers, dropout, bias, norm, residual: As
            :class:`graphweft.nn.stack.Stack`.
        num_relations: Relations of the graph.
        num_bases, self_loop, reduce: As :class:`RGCNConv`.
        num_blocks: As :class:`RGCNConv`, for layers whose two widths it divides; the others are full.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = RGCN(10, 16, 4, num_relations=3, num_bases=2)
        >>> [tuple(layer.weight.shape) for layer in model.layers]
        [(2, 16, 16), (2, 16, 4)]
    """

    layer = RGCNConv
    usual_reduce = "mean"

    def make_layer(self, in_features: int, out_features: int, last: bool, **options: Any) -> CompiledModule:
        """One layer; block-diagonal only where the blocks divide both widths."""
        blocks = options.pop("num_blocks", None)
        if blocks is not None and not (last and (in_features % blocks or out_features % blocks)):
            options["num_blocks"] = blocks
        return RGCNConv(in_features, out_features, **options)
