"""Layers and models for typed graphs, made of one layer a relation: ``HeteroConv`` and ``to_hetero``.

Comes in: layers by relation, or a model for one kind of nodes. Goes out: rows by node type. Where the published typed
models are wanted, :class:`graphweft.nn.RGCN` and :class:`graphweft.nn.HGT` run all relations in one program. Names and
meaning follow PyTorch Geometric.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import ConfigError, DataWarning, ShapeError
from graphweft.graph.graph import Graph
from graphweft.nn.attention import AttentionConv
from graphweft.nn.lazy import OPEN, Lazy
from graphweft.nn.module import CompiledModule
from graphweft.nn.relations import (
    Relation,
    all_rows,
    check_relations,
    check_typed,
    check_way,
    joined,
    relation_of,
    rows_by_type,
)
from graphweft.nn.stack import Stack, activated

_BETWEEN = "__"  # joins the three names of a relation to one of a submodule


class HeteroConv(nn.Module):
    """A separate layer for every relation; the results for one destination type are combined.

    Args:
        convs: Layers by relation (source type, name, destination type). A layer between two types takes features of
            both, as ``SAGEConv((a, b), out)``; a width of -1 follows from the first call. Other modules are called as
            ``layer(graph, (x_src, x_dst))``, or as ``layer(graph, x)`` within a type.
        aggr: ``"sum"``, ``"mean"``, ``"min"``, ``"max"``, ``"cat"`` or ``"stack"`` (one row a relation).

    Shape: x by type (nodes of the type, width) -> by destination type (nodes of the type, out).

    Raises: ConfigError for keys that are no relations.

    Example:
        >>> import torch
        >>> from graphweft.nn.sage import SAGEConv
        >>> g = Graph.hetero({("user", "buys", "item"): ([0, 1], [0, 0])}, {"user": 2, "item": 1})
        >>> layer = HeteroConv({("user", "buys", "item"): SAGEConv((-1, -1), 8)})
        >>> {name: tuple(x.shape) for name, x in layer(g, {"user": torch.ones(2, 3), "item": torch.ones(1, 4)}).items()}
        {'item': (1, 8)}
    """

    def __init__(self, convs: Mapping[Relation, nn.Module], aggr: str = "sum") -> None:
        super().__init__()
        check_way("HeteroConv", "aggr", aggr)
        for relation in convs:
            if not isinstance(relation, tuple) or len(relation) != 3:
                raise ConfigError(f"HeteroConv: expected keys (source type, name, destination type), got {relation!r}")
        if not convs:
            raise ConfigError("HeteroConv: expected a layer for at least one relation, got none")
        self.relations: tuple[Relation, ...] = tuple(convs)
        self.aggr = aggr
        self.convs = nn.ModuleDict({_key(relation): conv for relation, conv in convs.items()})
        if len(self.convs) < len(convs):
            raise ConfigError(
                f"HeteroConv: expected relations that differ when joined by {_BETWEEN!r}, got {list(convs)}"
            )

    def forward(
        self,
        graph: Graph,
        x: Mapping[str, Float[Tensor, "_ _"]] | Float[Tensor, "nodes width"],
        *,
        edge_weight: Mapping[Relation, Float[Tensor, "_"]] | None = None,
        edge_attr: Mapping[Relation, Float[Tensor, "_ _"]] | None = None,
    ) -> Any:
        """Output rows by type, for the types that are destinations of a relation of this layer.

        Args:
            graph: The typed graph.
            x: Rows by type; or one matrix of all nodes, type after type. The result is then one matrix too, with zeros
                for types that are no destination.
            edge_weight: Weights (edges of the relation,) by relation, for layers that take some.
            edge_attr: Features (edges of the relation, columns) by relation, for layers that take some.

        Raises: GraphError for a graph that is not typed, or lacks a relation; ShapeError for rows that do not fit it.
        """
        check_typed("HeteroConv", graph)
        check_relations("HeteroConv", graph, self.relations)
        rows = rows_by_type("HeteroConv", graph, x)
        missing = sorted({name for relation in self.relations for name in relation[::2]} - rows.keys())
        if missing:
            raise ShapeError(
                f"HeteroConv: expected rows of all types of its relations, got none of {', '.join(missing)}"
            )
        out = self.between(graph, rows, edge_weight, edge_attr)
        return all_rows("HeteroConv", graph, out) if isinstance(x, Tensor) else out

    def between(
        self,
        graph: Graph,
        rows: Mapping[str, Float[Tensor, "_ _"]],
        edge_weight: Mapping[Relation, Float[Tensor, "_"]] | None = None,
        edge_attr: Mapping[Relation, Float[Tensor, "_ _"]] | None = None,
    ) -> dict[str, Float[Tensor, "_ _"]]:
        """As ``forward``, by the relations between types that there are rows of."""
        made: dict[str, list[Tensor]] = {}
        for relation in self.relations:
            source, _, target = relation
            if source not in rows or target not in rows:
                continue
            conv, edges = self.convs[_key(relation)], _of_relation(relation, edge_weight, edge_attr)
            given = rows[source] if source == target and not _is_pair(conv) else (rows[source], rows[target])
            made.setdefault(target, []).append(conv(relation_of(graph, relation), given, **edges))
        return {name: joined("HeteroConv", found, self.aggr) for name, found in made.items()}

    def extra_repr(self) -> str:
        """How results are combined."""
        return f"aggr={self.aggr!r}"


class HeteroStack(nn.Module):
    """A stack of :class:`HeteroConv` with, after every layer but the last, what the model it was made of has there.

    Made by :func:`to_hetero`.

    Shape: x by type (nodes of the type, its width) -> by type (nodes of the type, ``out_features``), of the types that
    every layer reaches.
    """

    def __init__(self, layers: Iterable[HeteroConv], model: Stack, types: Iterable[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout, self.residual, self.activation = model.dropout, model.residual, model.activation
        self.norms = nn.ModuleList(nn.ModuleDict({name: copy.deepcopy(norm) for name in types}) for norm in model.norms)

    def forward(
        self,
        graph: Graph,
        x: Mapping[str, Float[Tensor, "_ _"]] | Float[Tensor, "nodes width"],
        *,
        edge_weight: Mapping[Relation, Float[Tensor, "_"]] | None = None,
        edge_attr: Mapping[Relation, Float[Tensor, "_ _"]] | None = None,
    ) -> Any:
        """As :meth:`HeteroConv.forward`, through all layers."""
        check_typed("to_hetero", graph)
        rows: dict[str, Tensor] = rows_by_type("to_hetero", graph, x)
        for index, layer in enumerate(self.layers):
            given = {name: functional.dropout(row, self.dropout, self.training) for name, row in rows.items()}
            assert isinstance(layer, HeteroConv)  # as it was made
            if index == 0:
                out = layer(graph, given, edge_weight=edge_weight, edge_attr=edge_attr)
            else:  # types that receive nothing have no rows any more
                out = layer.between(graph, given, edge_weight, edge_attr)
            if index < len(self.layers) - 1:
                out = {name: self._between(index, name, row, rows[name]) for name, row in out.items()}
            rows = out
        return all_rows("to_hetero", graph, rows) if isinstance(x, Tensor) else rows

    def _between(self, index: int, name: str, out: Tensor, given: Tensor) -> Tensor:
        """Residual, norm and activation of one type's rows."""
        if self.residual and given.shape == out.shape:
            out = out + given
        if len(self.norms):
            out = self.norms[index][name](out)  # type: ignore[index]
        return activated(self.activation, out)


def to_hetero(model: Stack, graph: Graph, aggr: str = "sum") -> HeteroStack:
    """Converts a model for one type of nodes, such as a :class:`graphweft.nn.SAGE`, to a model for the relations of
    ``graph``.

    Every layer becomes one layer per relation, with its own newly drawn parameters. Layers between two types have
    weights for both ends. The widths of the features follow from the first call, so types may have different widths.

    Args:
        model: A stack of layers that take features of two sets of nodes: SAGE, GIN, GAT or Transformer. If every
            relation leads from a type to itself, any stack. Its ``in_features`` is not used and may be -1.
        graph: The typed graph, or one with the same types and relations.
        aggr: As of :class:`HeteroConv`.

    Returns: a module that is called with a graph and rows by type, and returns rows by type.

    Warns of types that receive no edge (DataWarning).

    Raises: ConfigError for a model that is not supported; GraphError for a graph that is not typed.

    Example:
        >>> import torch
        >>> from graphweft.nn.sage import SAGE
        >>> edges = {("user", "buys", "item"): ([0, 1], [0, 0]), ("item", "bought by", "user"): ([0, 0], [0, 1])}
        >>> g = Graph.hetero(edges, {"user": 2, "item": 1})
        >>> model = to_hetero(SAGE(-1, 16, 4), g)
        >>> {name: tuple(x.shape) for name, x in model(g, {"user": torch.ones(2, 3), "item": torch.ones(1, 5)}).items()}
        {'item': (1, 4), 'user': (2, 4)}
    """
    check_typed("to_hetero", graph)
    made = model.with_features(1) if isinstance(model, Lazy) else model
    if not isinstance(made, Stack) or made.jumping is not None:
        got = f"{type(made).__name__} with jumping" if isinstance(made, Stack) else type(made).__name__
        raise ConfigError(f"to_hetero: expected a stack such as gw.nn.SAGE, without jumping, got {got}")
    if aggr in ("cat", "stack"):
        raise ConfigError(f"to_hetero: expected aggr sum, mean, min or max, got {aggr!r}: widths would grow")
    widths = [OPEN, *(_out_features(layer) for layer in made.layers)]
    layers = [
        HeteroConv({r: _for_relation(layer, r, widths[index]) for r in graph.relations}, aggr)
        for index, layer in enumerate(made.layers)
    ]
    reached = {relation[2] for relation in graph.relations}
    deaf = sorted({relation[0] for relation in graph.relations} - reached)
    if deaf and len(layers) > 1:
        text = f"to_hetero: nodes of type {', '.join(deaf)} receive no edge, so layers after the first do not read them"
        warnings.warn(f"{text}; use graph.add_inverse_relations()", DataWarning, stacklevel=2)
    return HeteroStack(layers, made, sorted(reached))


def _for_relation(layer: nn.Module, relation: Relation, width: int) -> nn.Module:
    """A layer like ``layer`` for one relation, with parameters drawn anew."""
    assert isinstance(layer, CompiledModule) and layer.made_with is not None  # as checked
    args, options = layer.made_with[0], dict(layer.made_with[1])
    options.pop("in_features", None)
    if relation[0] == relation[2]:
        return type(layer)(width, *args[1:], **options)
    if not layer.takes_pairs:
        raise ConfigError(
            f"to_hetero: expected layers between two sets of nodes for {relation!r}, got {type(layer).__name__}; "
            "SAGE, GIN, GAT and Transformer have them"
        )
    if isinstance(layer, AttentionConv) and layer.add_self_loops:
        options["add_self_loops"] = False
    return type(layer)((width, width), *args[1:], **options)


def _out_features(layer: nn.Module) -> int:
    """Width of a layer's rows: the second argument of its constructor."""
    if not isinstance(layer, CompiledModule) or layer.made_with is None:
        raise ConfigError(f"to_hetero: expected layers with plain arguments, got {type(layer).__name__}")
    args, options = layer.made_with
    return int(args[1] if len(args) > 1 else options["out_features"])


def _key(relation: Relation) -> str:
    return _BETWEEN.join(relation).replace(".", " ")


def _is_pair(conv: nn.Module) -> bool:
    """Whether a layer wants the features of both ends also within a type: it has a width for either."""
    return isinstance(conv, CompiledModule) and not isinstance(conv, Lazy) and conv.dst_features is not None


def _of_relation(relation: Relation, weight: Any, attr: Any) -> dict[str, Tensor]:
    found = {"edge_weight": (weight or {}).get(relation), "edge_attr": (attr or {}).get(relation)}
    return {name: rows for name, rows in found.items() if rows is not None}
