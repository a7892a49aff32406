"""What models read of a dataset to take their sizes from it.

Comes in: a dataset of any class that has these attributes. Goes out: widths. Called by ``for_data`` of the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, cast

from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features


class NodeData(Protocol):
    """A dataset such as :class:`gw.Dataset`."""

    @property
    def graph(self) -> Graph: ...  # noqa: D102
    @property
    def x(self) -> Features | None: ...  # noqa: D102
    @property
    def features(self) -> Mapping[str, Features]: ...  # noqa: D102
    @property
    def num_classes(self) -> int: ...  # noqa: D102
    @property
    def edge_weight(self) -> Tensor | None: ...  # noqa: D102
    @property
    def edge_features(self) -> Tensor | None: ...  # noqa: D102


class SizedByData:
    """A base of models whose constructor takes ``in_features``, ``hidden`` and ``out_features`` first."""

    @classmethod
    def for_data(cls, ds: NodeData, hidden: int, out_features: int | None = None, **options: Any) -> Self:
        """A model whose sizes are those of a dataset.

        Widths of features (those of all node types of a typed graph side by side, as the trainer gives them), classes,
        node types and relations, and for GAT the columns of edge weights and features.

        Args:
            ds: The dataset, with inverse relations if the model is to have them.
            hidden: Width between layers.
            out_features: Width of the result; None: the number of classes.
            options: As the constructor's.

        Raises: ConfigError for a dataset without classes or features, or of another kind of graph.

        Example:
            >>> from graphweft.data.synthetic import synthetic
            >>> from graphweft.nn.sage import SAGE
            >>> ds = synthetic("cora", scale=0.1)
            >>> model = SAGE.for_data(ds, hidden=16, dropout=0.5)
            >>> (model.in_features, model.out_features) == (ds.num_features, ds.num_classes)
            True
        """
        out_features = ds.num_classes if out_features is None else out_features
        if out_features == 0:
            raise ConfigError(f"{cls.__name__}.for_data: expected a dataset with classes, or out_features, got none")
        sizes = cls.sizes_of(ds)
        given = sizes.pop("in_features")
        made: Self = cast(Any, cls)(given, hidden, out_features, **{**sizes, **options})
        return made

    @classmethod
    def sizes_of(cls, ds: NodeData) -> dict[str, Any]:
        """``in_features`` and other arguments of the constructor that follow from ``ds``. Raises: ConfigError."""
        if ds.graph.is_typed and ds.x is None:
            count = len(ds.graph.relations)
            who = f"{cls.__name__}.for_data"
            raise ConfigError(
                f"{who}: expected an untyped graph, got {count} relations; gw.nn.RGCN and gw.nn.HGT take them"
            )
        if ds.x is None:
            raise ConfigError(f"{cls.__name__}.for_data: expected a dataset with node features x, got none")
        return {"in_features": ds.x.shape[1]}


def flat_columns(ds: NodeData) -> int:
    """Columns of the features of all nodes in one matrix.

    Those of ``x``; else every node type has columns of its own, and a type without features one for each node.
    """
    if ds.x is not None:
        return int(ds.x.shape[1])
    layout = ds.graph.layout
    widths = (
        ds.features[name].shape[1] if name in ds.features else len(layout.node_range(name))
        for name in layout.node_types
    )
    return sum(widths)


def widths_of(who: str, ds: NodeData, out_features: int | None, features: str) -> tuple[int, int]:
    """Columns of ``x``, and ``out_features`` or the number of classes.

    Args:
        who: The caller, for errors.
        ds: The dataset.
        out_features: Width of the result; None: the number of classes or values.
        features: The name of features that a dataset without any is told of.

    Raises: ConfigError for a dataset without features, or without classes where no width is given.
    """
    out_features = ds.num_classes if out_features is None else out_features
    if out_features == 0:
        raise ConfigError(f"{who}.for_data: expected a dataset with labels, or out_features, got none")
    if ds.x is None:
        raise ConfigError(
            f"{who}.for_data: expected node features x, got none; ds.with_features({features!r}) makes some"
        )
    return int(ds.x.shape[1]), out_features


def edge_columns(ds: NodeData) -> int | None:
    """Columns of weights and features of the edges; None where there are neither."""
    features = 0 if ds.edge_features is None else ds.edge_features.shape[1]
    return features + (ds.edge_weight is not None) or None


__all__ = ["NodeData", "SizedByData", "edge_columns", "flat_columns", "widths_of"]
