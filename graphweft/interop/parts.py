"""What a graph object of another library holds, in our terms, and the dataset it makes.

Comes in: the parts that a converter found. Goes out: :class:`GraphParts`, which loaders take as it is, or a
:class:`Dataset`, whose types and shapes are those that training wants. Made by the converters beside this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.data.dataset import Dataset
from graphweft.data.given import Task
from graphweft.graph.graph import Graph
from graphweft.graph.typed import Relation
from graphweft.storage.feature import Features, SparseFeatures

_NONE = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class GraphParts:
    """The graph and all that came with it; tensors have the types and shapes that they had.

    Attributes:
        graph: The edges in their order; of untyped graphs other node tensors are its ``ndata``, edge tensors ``edata``.
        x: Node features, dense or sparse; None where there are none. Typed graphs: None, see ``features``.
        y: Labels of the nodes, if any; of the graphs where ``graph_ptr`` says that there are several.
        train_idx, val_idx, test_idx: int64 ids from masks or ids, if any; of typed graphs in the numbering of all.
        features: Typed graphs: features per node type.
        labels: Typed graphs: labels per node type.
        node_tables: Typed graphs: other node tensors per node type, by name.
        edge_tables: Typed graphs: edge tensors per relation, by name.
        graph_ptr: int64 (G + 1,): graph g has nodes ``graph_ptr[g]`` to ``graph_ptr[g + 1]``; None for one graph.
        extra: Everything else, as it was, by name; of typed graphs what one type or relation has by (type, name).
    """

    graph: Graph
    x: Features | None = None
    y: Tensor | None = None
    train_idx: Tensor | None = None
    val_idx: Tensor | None = None
    test_idx: Tensor | None = None
    features: Mapping[str, Features] = field(default_factory=dict)
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    node_tables: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    edge_tables: Mapping[Relation, Mapping[str, Tensor]] = field(default_factory=dict)
    graph_ptr: Tensor | None = None
    extra: Mapping[Any, Any] = field(default_factory=dict)

    def dataset(self, name: str = "data", *, num_classes: int | None = None) -> Dataset:
        """What :class:`gw.Trainer` takes: float32 features, and labels of the kind that they are.

        Whole numbers in one column, of any type, are class ids, not-a-number and negative ones no label; 0 and 1 in
        several columns are several labels a node; other floats are values to regress on. Without any split the labelled
        rows are split 60/20/20 at random. ``edge_weight`` and
        ``edge_attr`` become ``edge_weight`` (E,) and ``edge_features`` (E, K). A typed graph is labelled on the type
        that the split lies in, or on the only one with labels.

        Warns: UserWarning with the names of what a dataset has no place for.

        Raises: DataError for labels, features or weights that are none of that.

        Example:
            >>> parts = GraphParts(Graph([0, 1], [1, 0]), torch.ones(2, 3), torch.tensor([[1.0], [0.0]]))
            >>> ds = parts.dataset("pair")
            >>> ds.y.tolist(), ds.num_classes, ds.task
            ([1, 0], 2, 'classification')
        """
        target, y = self._labelled()
        rows = self.graph.num_nodes if self.graph_ptr is None else self.graph_ptr.numel() - 1
        labels, classes, task = as_labels(y, rows if target is None else len(self.graph.layout.node_range(target)))
        if target is not None:
            nodes, own = self.graph.layout.node_range(target), labels
            missing = -1 if task == "classification" else float("nan")
            labels = torch.full((rows, *own.shape[1:]), missing, dtype=own.dtype)
            labels[nodes.start : nodes.stop] = own
        weight, rest = self._edge_column("edge_weight"), self._edge_column("edge_attr")
        self._tell_of_what_is_left()
        if weight is not None and weight.numel() != self.graph.num_edges:
            raise DataError(f"{name}: expected edge_weight with one number per edge, got shape {tuple(weight.shape)}")
        return Dataset(
            name,
            self.graph,
            None if self.x is None else _as_features(self.x),
            labels,
            self.train_idx,
            self.val_idx,
            self.test_idx,
            classes if num_classes is None else num_classes,
            task=task,
            edge_weight=None if weight is None else weight.reshape(-1),
            edge_features=None if rest is None else rest.reshape(rest.shape[0], -1),
            features={kind: _as_features(x) for kind, x in self.features.items()},
            target_type=target,
            graph_ptr=self.graph_ptr,
        )

    def _labelled(self) -> tuple[str | None, Tensor | None]:
        """The labelled type of a typed graph, and the labels."""
        if not self.graph.is_typed:
            return None, self.y
        held = [ids for ids in (self.train_idx, self.val_idx, self.test_idx) if ids is not None]
        ids = torch.cat(held) if held else _NONE
        offsets = torch.tensor(self.graph.layout.node_offsets)
        counts = torch.bincount(torch.bucketize(ids, offsets, right=True) - 1)
        found = [self.graph.node_types[at] for at in counts.nonzero().reshape(-1).tolist()]
        targets = found or sorted(self.labels)
        if len(targets) > 1:
            raise DataError(f"dataset: expected labels on one node type, got labels on {', '.join(targets)}")
        return (targets[0], self.labels.get(targets[0])) if targets else (None, None)

    def _edge_column(self, name: str) -> Tensor | None:
        """An edge table of the whole graph as float32; of a typed one where every relation has it alike."""
        if not self.graph.is_typed:
            table = self.graph.edata.get(name)
            return None if table is None else table.float()
        tables = [self.edge_tables.get(relation, {}).get(name) for relation in self.graph.relations]
        found = [table.float() for table in tables if table is not None]
        if len(found) == len(tables) and len({table.shape[1:] for table in found}) == 1:
            return torch.cat(found)
        if found:
            given = zip(self.graph.relations, tables, strict=True)
            names = ", ".join("-".join(relation) for relation, table in given if table is not None)
            text = f"dataset: expected {name} of one width on every relation, got some on {names}, left out"
            warnings.warn(text, stacklevel=3)
        return None

    def _tell_of_what_is_left(self) -> None:
        """Tables of types and relations that a dataset has no place for."""
        left = [f"{name} of {kind}" for kind, tables in self.node_tables.items() for name in tables]
        left = [name for name in left if not name.split(" of ")[0].endswith("_mask")]
        for relation, tables in self.edge_tables.items():
            left += [f"{name} of {'-'.join(relation)}" for name in tables if name not in ("edge_attr", "edge_weight")]
        if left:
            text = f"dataset: expected no further tables of a typed graph, got {', '.join(left)}, left out"
            warnings.warn(text, stacklevel=3)


def as_labels(y: Tensor | None, rows: int) -> tuple[Tensor, int, Task]:
    """Labels as a dataset has them, the number of classes or columns, and what they are.

    Raises: DataError for another number of rows, or numbers in several columns that are neither 0 nor 1.

    Example:
        >>> as_labels(torch.tensor([[2.0], [float("nan")]]), 2)
        (tensor([ 2, -1]), 3, 'classification')
        >>> as_labels(torch.tensor([0.5, 1.0]), 2)[1:]
        (1, 'regression')
    """
    if y is None:
        return torch.full((rows,), -1), 0, "classification"
    if y.dim() == 0 or y.shape[0] != rows or y.dim() > 2:
        raise DataError(f"y: expected {rows} rows of labels, got shape {tuple(y.shape)}")
    columns = y.reshape(rows, -1)
    known = columns[~columns.isnan()]
    whole = not y.is_floating_point() or bool((known == known.round()).all() & known.isfinite().all())
    if columns.shape[1] == 1 and whole:
        ids = torch.where(columns.isnan(), -1, columns).long().clamp(min=-1).reshape(-1)
        return ids, int(ids.max()) + 1 if rows else 0, "classification"
    if bool(((known == 0) | (known == 1)).all()):
        return columns.float(), columns.shape[1], "multilabel"
    if y.is_floating_point():
        return columns.float(), columns.shape[1], "regression"
    raise DataError(f"y: expected class ids in one column, or 0 and 1 in several, got shape {tuple(y.shape)}")


def _as_features(x: Features) -> Features:
    if isinstance(x, SparseFeatures):
        found: Features = x.to(torch.float32)
        return found
    return x.float().reshape(x.shape[0], -1).contiguous()
