"""What models of typed graphs share: one embedding for all nodes' features, and layers that know the types.

Comes in: a typed graph and features of all nodes, those of different types in different columns (a node without
features has a column of its own); or the blocks of a batch drawn from one. Goes out: :class:`TypedStack`, the base of
R-GCN and HGT. Features are multiplied by one matrix, as sparse rows, so a column per node is an embedding per node that
is never one-hot dense. A block runs as a typed graph over its sources.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphweft._errors import ShapeError
from graphweft.graph.block import Block
from graphweft.graph.graph import Graph
from graphweft.graph.typed_block import typed_block
from graphweft.ir.program import Value
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.frame import Frame
from graphweft.nn.module import CompiledModule, check_model, glorot
from graphweft.nn.settings import tensors_of
from graphweft.nn.stack import Stack
from graphweft.runtime.compile import Arguments
from graphweft.storage.feature import Features, SparseFeatures


class TypedConv(CompiledModule):
    """A layer with tables of ``num_relations`` and ``num_node_types`` rows; None where it has no such table."""

    def __init__(self, in_features: int, num_relations: int, num_node_types: int | None = None) -> None:
        super().__init__(in_features)
        self.num_relations, self.num_node_types = num_relations, num_node_types

    def arguments(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Arguments:
        """As every module's; the graph has the types that this layer was made for.

        Raises: ShapeError.
        """
        check_types(self, graph)
        return super().arguments(graph, x, rows, edges)


def check_types(layer: TypedConv, graph: Graph) -> None:
    """A whole graph with the numbers of types of ``layer``. Raises: ShapeError."""
    who = type(layer).__name__
    if isinstance(graph, Block):
        raise ShapeError(f"{who}: expected a whole typed graph, got {graph!r}")
    if not isinstance(graph, Graph) or not graph.is_square:
        raise ShapeError(f"{who}: expected a graph over one set of nodes, got {graph!r}")
    wanted = (layer.num_relations, layer.num_node_types)
    found = (len(graph.relations), len(graph.node_types))
    for what, want, got in zip(("relations", "node types"), wanted, found, strict=True):
        if want is not None and want != got:
            raise ShapeError(f"{who}: expected a graph with {want} {what}, got {got}")


class TypedStack(Stack):
    """An embedding of the features, then ``num_layers`` layers; the first is ``hidden`` wide as are those between.

    Attributes:
        embedding: (in_features, hidden), the matrix that features are multiplied by; None where the first layer takes
            them as they are.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        *,
        embeds: bool = True,
        **options: Any,
    ) -> None:
        check_model(type(self).__name__, {"in_features": in_features}, dropout, "sum")
        super().__init__(hidden, hidden, out_features, num_layers, dropout, **options)
        self.in_features = in_features
        self.embedding = glorot(in_features, hidden) if embeds else None

    def arguments(
        self, graph: Graph, x: Features | None, rows: Tensor | None = None, edges: EdgeInputs | None = None
    ) -> Arguments:
        """As every module's; the graph has the types that the layers were made for.

        Raises: ShapeError.
        """
        self._check_types(graph)
        return super().arguments(graph, x, rows, edges)

    def _check_types(self, graph: Graph) -> None:
        for layer in self.layers:
            if isinstance(layer, TypedConv):
                check_types(layer, graph)

    def _define_piece(self, frame: Frame, index: int, given: Value) -> Value:
        """The first layer takes the embedded features."""
        if index == 0 and self.embedding is not None:
            given = self.after_embedding(frame, frame.matmul(given, self.embedding))
        return super()._define_piece(frame, index, given)

    def after_embedding(self, frame: Frame, x: Value) -> Value:
        """What follows the product of features and embedding."""
        return x

    def layer_arguments(self, index: int, block: Block, x: Features, edges: EdgeInputs | None = None) -> Arguments:
        """As every stack's; the block becomes a typed graph over its sources, of which the destinations are wanted.

        Raises: ShapeError when x does not fit, or the block is not one of a graph with the layers' types.
        """
        who, width = type(self).__name__, self.in_features if index == 0 else self.layers[index].in_features
        if tuple(x.shape) != (block.num_src, width):
            raise ShapeError(f"{who}: expected {block.num_src} rows of {width} features, got shape {tuple(x.shape)}")
        self._check_types(block.source)
        if edges is not None and (edges.weight is not None or edges.attr is not None):
            self._check_edges(block, edges)
        return self._over_sources(block, x)

    def _over_sources(self, block: Block, x: Features) -> Arguments:
        """What the function of a layer is called with on a block, as a typed graph over its sources."""
        part = typed_block(block)
        ordered = x.take_rows(part.order) if isinstance(x, SparseFeatures) else x[part.order]
        tensors = tensors_of(self)
        fields = {name: (tensors.pop(name), residency) for name, residency in self._tables() if name in tensors}
        rows = part.place[: block.num_dst]
        return Arguments(part.graph, ordered, tensors, rows, 0, self.training, fields, settings=self.settings())

    def embedded(self, index: int, x: Any) -> Any:
        """The first layer takes the embedded features."""
        return x if index or self.embedding is None else x @ self.embedding

    @property
    def embeds(self) -> bool:
        """Whether :meth:`embedded` makes other rows than it is given, which :meth:`run_embedded` takes."""
        return self.embedding is not None and not self.runs_apart()

    def run_embedded(self, block: Block, x: Tensor) -> Tensor:
        """The first layer with what follows it, from rows of the block's sources that :meth:`embedded` made.

        In evaluation: what stands between features and layer is done, and doing it again to its result changes nothing.
        """
        assert self.embedding is not None  # as embeds says
        eye = torch.eye(self.embedding.shape[1], dtype=self.embedding.dtype)
        given = self._over_sources(block, x)
        given = replace(given, parameters={**given.parameters, "embedding": eye})
        return self._settled(self.layer_function(0)(given), given.graph, given.rows)

    def _layer_apart(self, layer: nn.Module, graph: Graph, x: Any, edges: EdgeInputs | None) -> Any:
        """A block becomes a typed graph over its sources, of which the destinations are wanted."""
        if not isinstance(graph, Block):
            return super()._layer_apart(layer, graph, x, edges)
        self._check_types(graph.source)
        part = typed_block(graph)
        ordered = x.take_rows(part.order) if isinstance(x, SparseFeatures) else x[part.order]
        return layer(part.graph, ordered)[part.place[: graph.num_dst]]


def glorot_tables(*shape: int) -> torch.nn.Parameter:
    """Matrices (..., rows, columns), each uniform by Glorot and Bengio (AISTATS 2010)."""
    bound = (6.0 / (shape[-2] + shape[-1])) ** 0.5
    return torch.nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
