"""Models of whole graphs: a node model, a readout of all its layers, and a head.

Comes in: graphs side by side with rows of their nodes and offsets, as :class:`gw.GraphLoader` yields them. Goes out:
one row a graph. The node model is compiled as a whole; its layers are read out together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from graphweft._errors import ConfigError, ShapeError
from graphweft.graph.graph import Graph
from graphweft.graph.side_by_side import members
from graphweft.nn.gat import GAT
from graphweft.nn.gcn import GCN
from graphweft.nn.gin import GIN
from graphweft.nn.made_with import KeepsArguments
from graphweft.nn.module import CompiledModule
from graphweft.nn.node_data import NodeData, widths_of
from graphweft.nn.readout import Readout, check_ptr
from graphweft.nn.sage import SAGE
from graphweft.nn.stack import Stack
from graphweft.nn.transformer import Transformer
from graphweft.storage.feature import SparseFeatures

CONVS: dict[str, Callable[..., Stack]] = {
    "gcn": GCN,
    "sage": SAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": functools.partial(GAT, v2=True),
    "transformer": Transformer,
}
_JUMPS = ("cat", "last")


class OnNodeModel(nn.Module):
    """What is read from what a node model, ``encoder``, makes of nodes."""

    encoder: nn.Module

    @property
    def takes_edge_weight(self) -> bool:
        """Whether the node model weighs its sums over in-edges."""
        return isinstance(self.encoder, CompiledModule) and self.encoder.takes_edge_weight

    def edge_columns(self) -> int:
        """Columns of edge features that the node model reads; 0 for none."""
        return self.encoder.edge_columns() if isinstance(self.encoder, CompiledModule) else 0


class GraphModel(KeepsArguments, OnNodeModel):
    """A model of graphs: a node model, a readout of its rows, and a linear head.

    As published for GIN (Xu et al., ICLR 2019), the readouts of the features and of every layer are joined:
    ``head(concat_k readout(h_k))``, with batch norms within and after the perceptrons.

    Args:
        in_features: Width of the node features.
        hidden: Width of every layer.
        out_features: Classes, labels or values.
        num_layers: Layers of the node model.
        conv: "gin", "gcn", "sage", "gat", "gatv2" or "transformer"; or a module called as ``conv(graph, x)`` that
            returns rows of width ``hidden`` and replaces the layers.
        readout: "sum", "mean" or "max", or some of them joined by "+"; or a module for rows of :attr:`read_width`
            columns. A module is called as ``readout(rows, ptr)`` and has a method ``width(columns)``, as
            :class:`Set2Set`.
        jumping: "cat" reads out all layers and the features, "last" only the last layer.
        dropout: Probability to drop an element of the head's input.
        norm: "batch", "layer" or None after every layer, for GIN also within its perceptron.
        options: More arguments of the node model, such as ``residual``, ``heads``.

    Raises: ConfigError for a value out of range.

    Example:
        >>> model = GraphModel(4, 8, 2, num_layers=3)
        >>> model(Graph([0, 1, 2], [1, 0, 3], num_nodes=4), torch.randn(4, 4), torch.tensor([0, 2, 4])).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        out_features: int,
        num_layers: int = 5,
        conv: str | nn.Module = "gin",
        readout: str | nn.Module = "sum",
        jumping: str = "cat",
        dropout: float = 0.0,
        norm: str | None = "batch",
        **options: Any,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if jumping not in _JUMPS:
            raise ConfigError(f"{who}: expected jumping among {', '.join(_JUMPS)}, got {jumping!r}")
        if not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
            raise ConfigError(f"{who}: expected dropout in [0, 1), got {dropout!r}")
        self.in_features, self.out_features, self.jumping = in_features, out_features, jumping
        if isinstance(conv, str):
            self.encoder: nn.Module = _layers(
                who, conv, (in_features, hidden, hidden, num_layers), norm=norm, jumping=jumping, **options
            )
            self.read_width = hidden * num_layers if jumping == "cat" else hidden
        else:
            if options:
                raise ConfigError(f"{who}: {min(options)} cannot be combined with a module as conv, which has its own")
            self.encoder, self.read_width = conv, hidden
        self.readout = Readout(readout) if isinstance(readout, str) else readout
        width = getattr(self.readout, "width", None)
        if not callable(width):
            raise ConfigError(f"{who}: expected a readout with a method width(columns), got {type(readout).__name__}")
        self.inputs = Readout(readout) if isinstance(readout, str) and jumping == "cat" else None
        columns = int(width(self.read_width)) + (0 if self.inputs is None else self.inputs.width(in_features))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(columns, out_features)

    @classmethod
    def for_data(cls, ds: NodeData, hidden: int, out_features: int | None = None, **options: Any) -> Self:
        """A model whose sizes are those of a set of graphs.

        Args:
            ds: The set.
            hidden: Width of every layer.
            out_features: Width of the result; None: the number of classes or values.
            options: As the constructor's.

        Raises: ConfigError for a set without features or classes.
        """
        given, made = widths_of(cls.__name__, ds, out_features, "degree_onehot")
        return cls(given, hidden, made, **options)

    def forward(
        self,
        graph: Any,
        x: Float[Tensor, "nodes in"] | SparseFeatures | None = None,
        ptr: Int64[Tensor, "offsets"] | None = None,
        edge_weight: Float[Tensor, "edges"] | None = None,
        edge_attr: Float[Tensor, "edges edge_dim"] | None = None,
    ) -> Float[Tensor, "graphs columns"]:
        """Output rows of the graphs.

        Shape: x (N, in_features), ptr (graphs + 1,) -> (graphs, out_features).

        Args:
            graph: One graph of all graphs side by side; or a batch of :class:`gw.GraphLoader`, which contains all other
                arguments.
            x: Rows of their nodes.
            ptr: Offsets of the graphs; None: one graph.
            edge_weight: Weights of the edges, for models that take them.
            edge_attr: Features of the edges, for models that take them.

        Raises: ShapeError for rows that do not fit.
        """
        pooled = self.embed(graph, x, ptr, edge_weight, edge_attr)
        out: Tensor = self.head(self.drop(pooled))
        return out

    def embed(
        self,
        graph: Any,
        x: Float[Tensor, "nodes in"] | SparseFeatures | None = None,
        ptr: Int64[Tensor, "offsets"] | None = None,
        edge_weight: Float[Tensor, "edges"] | None = None,
        edge_attr: Float[Tensor, "edges edge_dim"] | None = None,
    ) -> Float[Tensor, "graphs columns"]:
        """The input of the head: the joined readouts, (graphs, columns). Arguments as :meth:`forward`."""
        if x is None and hasattr(graph, "ptr"):
            graph, x, ptr = graph.graph, graph.x, graph.ptr
        if not isinstance(graph, Graph):
            raise ShapeError(f"{type(self).__name__}: expected a graphweft Graph first, got {type(graph).__name__}")
        if x is None:
            raise ShapeError(f"{type(self).__name__}: expected features of the nodes, got None")
        rows = x.to_dense() if isinstance(x, SparseFeatures) else x
        ptr = torch.tensor([0, graph.num_nodes]) if ptr is None else ptr
        named = {"edge_weight": edge_weight, "edge_attr": edge_attr}
        given = {name: value for name, value in named.items() if value is not None}
        return self.read_out(rows, self.encoder(graph, rows, **given), ptr)

    def read_out(
        self, x: Float[Tensor, "nodes in"], made: Float[Tensor, "nodes layers"], ptr: Int64[Tensor, "offsets"]
    ) -> Float[Tensor, "graphs out"]:
        """What the head reads, from the features and from what the node model made of them."""
        if self.inputs is None or not isinstance(self.readout, Readout):
            pooled: Tensor = self.readout(made, ptr)
            return pooled
        check_ptr(type(self).__name__, made, ptr)
        of_graphs = members(ptr)
        return torch.cat([self.inputs.over(x, of_graphs), self.readout.over(made, of_graphs)], dim=1)


def _layers(who: str, conv: str, sizes: tuple[int, int, int, int], **options: Any) -> Stack:
    """The node model. Raises: ConfigError."""
    if conv not in CONVS:
        raise ConfigError(f"{who}: expected conv among {', '.join(CONVS)}, or a module, got {conv!r}")
    if conv == "gin":
        options = {"mlp_norm": options["norm"], **options}
    return CONVS[conv](*sizes, **options)
