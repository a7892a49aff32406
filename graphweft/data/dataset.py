"""A dataset: a graph, features, labels and a split, checked once so that nothing after it has to.

Comes in: what a reader or a user has. Goes out: a frozen :class:`Dataset`. Made by the readers and the generator,
used by the trainer, the loader and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft._memory import empty
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures, sparsity

Features = Tensor | SparseFeatures
Task = Literal["classification", "multilabel", "regression"]
Part = Literal["train", "val", "test"]
_ROWS = 16_384


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One graph (or many in one block-diagonal graph) with what is known about its nodes.

    Attributes:
        name: How tables and messages call it.
        graph: N nodes, E edges; typed graphs are flat, nodes type after type.
        x: (N, F) float32, or sparse features of that shape; None where the source has none.
        y: (N,) int64 class ids with -1 for no label, (N, C) float32 for several labels a node, or with
            ``task == "regression"`` values, (N,) or (N, C) float32; a missing one is NaN. With ``graph_ptr`` the rows
            are graphs.
        train_idx: int64 ids of training rows of ``y``; rows without a label may occur, see :meth:`labelled`.
        val_idx: int64 ids of validation rows.
        test_idx: int64 ids of test rows.
        num_classes: Width of a model's output; 0 where nothing is labelled.
        task: What ``y`` holds.
        edge_weight: (E,) float32 in the order of ``graph.edges()``, or None.
        edge_features: (E, K) float32 in the same order, or None.
        features: Features of each node type of a typed graph.
        target_type: Node type that is labelled, for a typed graph.
        graph_ptr: (G + 1,) int64; graph g has nodes ``graph_ptr[g]`` to ``graph_ptr[g + 1]``.
        node_ids: (N,) int64 ids the nodes had in the source, where they were renumbered.
        class_names: Names of the classes, where the source has them.
        arrays: Other arrays of the source with one row per node or graph, by name.
        held_out: Triples kept out of the graph: name -> ((2, E') int64, (E',) int64 relation).
        notes: What a reader should know of the source: what is missing, what was changed.

    Raises: DataError naming the part that does not fit, what was expected and what came.

    Example:
        >>> graph = Graph(torch.tensor([0, 1]), torch.tensor([1, 0]), num_nodes=2)
        >>> every = torch.arange(2)
        >>> ds = Dataset("pair", graph, torch.eye(2), torch.tensor([0, 1]), every[:1], every[1:], every[:0], 2)
        >>> ds.num_nodes, ds.num_features, ds.feature_sparsity
        (2, 2, 0.5)
    """

    name: str
    graph: Graph
    x: Features | None
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int
    task: Task = "classification"
    edge_weight: Tensor | None = None
    edge_features: Tensor | None = None
    features: Mapping[str, Features] = field(default_factory=dict)
    target_type: str | None = None
    graph_ptr: Tensor | None = None
    node_ids: Tensor | None = None
    class_names: tuple[str, ...] = ()
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    held_out: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.graph.num_nodes < 1:
            raise DataError("graph: expected at least one node, got none")
        if self.x is not None:
            check_features("x", self.x, self.num_nodes)
        for node_type, features in self.features.items():
            check_features(f"features of {node_type!r}", features, None)
        if self.graph_ptr is not None:
            _check_graph_ptr(self.graph_ptr, self.num_nodes)
        _check_labels(self.y, self.num_rows, self.num_classes, self.task)
        for part in ("train", "val", "test"):
            _check_idx(f"{part}_idx", getattr(self, f"{part}_idx"), self.num_rows)
        _check_edge_rows("edge_weight", self.edge_weight, self.num_edges, 1)
        _check_edge_rows("edge_features", self.edge_features, self.num_edges, 2)
        if self.node_ids is not None and self.node_ids.shape != (self.num_nodes,):
            raise DataError(f"node_ids: expected {self.num_nodes} ids, got shape {tuple(self.node_ids.shape)}")

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        """Directed edges of the graph."""
        return self.graph.num_edges

    @property
    def num_rows(self) -> int:
        """Rows of ``y``: nodes, or graphs of a set of graphs."""
        return self.num_nodes if self.graph_ptr is None else self.graph_ptr.numel() - 1

    @property
    def num_features(self) -> int:
        """Columns of ``x``; 0 without features."""
        if self.x is None:
            return 0
        return self.x.width if isinstance(self.x, SparseFeatures) else self.x.shape[1]

    @property
    def feature_sparsity(self) -> float:
        """Share of the entries of ``x`` that are zero, exact; 0 without features."""
        if self.x is None:
            return 0.0
        return float(self.x.sparsity if isinstance(self.x, SparseFeatures) else sparsity(self.x))

    @property
    def train_mask(self) -> Tensor:
        """(rows,) bool, true for training rows."""
        return self._mask(self.train_idx)

    @property
    def val_mask(self) -> Tensor:
        """(rows,) bool, true for validation rows."""
        return self._mask(self.val_idx)

    @property
    def test_mask(self) -> Tensor:
        """(rows,) bool, true for test rows."""
        return self._mask(self.test_idx)

    def idx(self, part: Part) -> Tensor:
        """The row ids of one part of the split.

        Raises: DataError for another name.
        """
        if part not in ("train", "val", "test"):
            raise DataError(f"part: expected train, val or test, got {part!r}")
        found: Tensor = getattr(self, f"{part}_idx")
        return found

    def labelled(self, part: Part) -> Tensor:
        """The row ids of one part that have a label; a source may list rows whose label it does not give."""
        idx = self.idx(part)
        if self.num_classes == 0:
            return idx[:0]
        if not self.y.is_floating_point():
            return idx[self.y[idx] >= 0]
        return idx[~self.y[idx].reshape(idx.numel(), self.num_classes).isnan().all(dim=1)]

    def check_features(self) -> None:
        """There are node features.

        Raises: DataError that says what there is instead.
        """
        if self.x is None:
            held = f"features of {', '.join(sorted(self.features))} only" if self.features else "none"
            raise DataError(f"{self.name}: expected node features x, got {held}")

    def check_trainable(self) -> None:
        """The dataset has what training a node model needs.

        Raises: DataError that says what is missing.
        """
        if self.graph_ptr is not None:
            raise DataError(
                f"{self.name}: expected one label per node, got a set of {self.num_rows} graphs with one each"
            )
        if self.num_classes == 0:
            raise DataError(f"{self.name}: expected labels to train on, got none")
        if self.labelled("train").numel() == 0:
            raise DataError(f"{self.name}: expected at least one training node with a label, got none")
        if not self.graph.is_typed:
            self.check_features()

    def row_normalized(self) -> Dataset:
        """The same dataset with each row of the features divided by its sum of absolute values; zero rows stay."""
        x = None if self.x is None else _row_normalized(self.x)
        features = {node_type: _row_normalized(value) for node_type, value in self.features.items()}
        return replace(self, x=x, features=features)

    def with_inverse_relations(self) -> Dataset:
        """The same dataset of a typed graph whose edges are turned as well, in relations of their own.

        An edge and its inverse have the same weight and features.

        Example:
            >>> graph, every = Graph.hetero({("a", "of", "b"): ([0, 1], [0, 0])}), torch.arange(3)
            >>> labels = torch.tensor([0, 1, -1])
            >>> ds = Dataset("ab", graph, None, labels, every[:1], every[1:2], every[:0], 2, target_type="a")
            >>> ds.with_inverse_relations().graph.relations
            (('a', 'of', 'b'), ('b', 'inverse of', 'a'))
        """
        weight, rows = (None if t is None else torch.cat([t, t]) for t in (self.edge_weight, self.edge_features))
        return replace(self, graph=self.graph.add_inverse_relations(), edge_weight=weight, edge_features=rows)

    def deaf_types(self) -> list[str]:
        """Node types with training labels into which no edge leads; none for a graph without types."""
        if not self.graph.is_typed:
            return []
        layout, train = self.graph.layout, self.labelled("train")
        fed = {relation[2] for relation in layout.relations if len(layout.edge_range(relation))}
        found = []
        for name in layout.node_types:
            nodes = layout.node_range(name)
            if name not in fed and bool(((train >= nodes.start) & (train < nodes.stop)).any()):
                found.append(name)
        return found

    def __repr__(self) -> str:
        kind = "sparse" if isinstance(self.x, SparseFeatures) else "dense"
        width = f"{self.num_features} {kind} features" if self.x is not None else "no features"
        split = "/".join(str(self.idx(part).numel()) for part in ("train", "val", "test"))
        return (
            f"Dataset({self.name!r}, {self.num_nodes} nodes, {self.num_edges} edges, {width}, "
            f"{self.num_classes} classes, split {split})"
        )

    def _mask(self, idx: Tensor) -> Tensor:
        mask = torch.zeros(self.num_rows, dtype=torch.bool)
        mask[idx] = True
        return mask


def training_labels(ds: Dataset) -> Tensor | None:
    """int64 (N,): the class of every training node, -1 elsewhere; None where labels are no classes.

    Example:
        >>> graph, every = Graph([0, 1], [1, 0]), torch.arange(2)
        >>> training_labels(Dataset("pair", graph, None, torch.tensor([1, 1]), every[:1], every[1:], every[:0], 2))
        tensor([ 1, -1])
    """
    if ds.task != "classification" or ds.graph_ptr is not None:
        return None
    labels = torch.full((ds.num_nodes,), -1, dtype=torch.int64)
    labels[ds.train_idx] = ds.y[ds.train_idx].long()
    return labels


def check_features(who: str, x: Features, rows: int | None) -> None:
    """``x`` is a finite float32 matrix with ``rows`` rows, dense or sparse.

    Raises: DataError with the position of the first value that is not finite.
    """
    sparse = isinstance(x, SparseFeatures)
    shape: tuple[int, ...] = (x.num_rows, x.width) if isinstance(x, SparseFeatures) else tuple(x.shape)
    values = x.values if isinstance(x, SparseFeatures) else x
    if len(shape) != 2 or shape[1] < 1:
        raise DataError(f"{who}: expected a matrix with at least one column, got shape {shape}")
    if rows is not None and shape[0] != rows:
        raise DataError(f"{who}: expected {rows} rows, one per node, got {shape[0]}")
    if values.dtype != torch.float32:
        raise DataError(f"{who}: expected float32, got {values.dtype}")
    position = first_not_finite(values)
    if position is not None:
        bad = float(values.reshape(-1)[position])
        row, column = divmod(position, shape[1])
        where = f"entry {position}" if sparse else f"row {row}, column {column}"
        raise DataError(f"{who}: expected finite values, got {bad} at {where}")


def first_not_finite(values: Tensor) -> int | None:
    """Flat position of the first NaN or infinity; one read of ``values`` where there is none."""
    if values.numel() == 0:
        return None
    low, high = torch.aminmax(values)  # both are NaN if any value is
    if bool(torch.isfinite(low)) and bool(torch.isfinite(high)):
        return None
    return int((~torch.isfinite(values.reshape(-1))).nonzero()[0])


def _check_labels(y: Tensor, rows: int, num_classes: int, task: Task) -> None:
    if task not in ("classification", "multilabel", "regression"):
        raise DataError(f"task: expected classification, multilabel or regression, got {task!r}")
    if y.dim() == 0 or y.shape[0] != rows:
        raise DataError(f"y: expected {rows} rows, got shape {tuple(y.shape)}")
    if task == "regression" and y.dim() == 1 and y.dtype == torch.float32 and num_classes <= 1:
        return
    if task != "classification":
        if y.dtype != torch.float32 or y.dim() != 2 or y.shape[1] != num_classes:
            raise DataError(f"y: expected float32 of shape {(rows, num_classes)}, got {y.dtype} {tuple(y.shape)}")
        return
    if y.dtype != torch.int64 or y.dim() != 1:
        raise DataError(f"y: expected int64 class ids of shape {(rows,)}, got {y.dtype} {tuple(y.shape)}")
    if y.numel():
        low, high = (int(v) for v in torch.aminmax(y))
        if low < -1 or high >= num_classes:
            position = int(((y < -1) | (y >= num_classes)).nonzero()[0])
            raise DataError(f"y: expected labels in [-1, {num_classes}), got {int(y[position])} at position {position}")


def _check_idx(who: str, idx: Tensor, rows: int) -> None:
    if idx.dtype != torch.int64 or idx.dim() != 1:
        raise DataError(f"{who}: expected a vector of int64 ids, got {idx.dtype} {tuple(idx.shape)}")
    if idx.numel():
        low, high = (int(v) for v in torch.aminmax(idx))
        if low < 0 or high >= rows:
            position = int(((idx < 0) | (idx >= rows)).nonzero()[0])
            raise DataError(f"{who}: expected ids in [0, {rows}), got {int(idx[position])} at position {position}")


def _check_graph_ptr(ptr: Tensor, num_nodes: int) -> None:
    if ptr.dtype != torch.int64 or ptr.dim() != 1 or ptr.numel() < 2:
        raise DataError(f"graph_ptr: expected at least two int64 offsets, got {ptr.dtype} {tuple(ptr.shape)}")
    if int(ptr[0]) != 0 or int(ptr[-1]) != num_nodes or bool((ptr[1:] < ptr[:-1]).any()):
        raise DataError(
            f"graph_ptr: expected offsets that rise from 0 to {num_nodes}, got {int(ptr[0])} to {int(ptr[-1])}"
        )


def _check_edge_rows(who: str, values: Tensor | None, num_edges: int, dim: int) -> None:
    if values is None:
        return
    if values.dtype != torch.float32 or values.dim() != dim or values.shape[0] != num_edges:
        raise DataError(f"{who}: expected float32 with {num_edges} rows, got {values.dtype} {tuple(values.shape)}")
    position = first_not_finite(values)
    if position is not None:
        bad = float(values.reshape(-1)[position])
        raise DataError(f"{who}: expected finite values, got {bad} at position {position}")


def _row_normalized(x: Features) -> Features:
    if isinstance(x, SparseFeatures):
        return x.row_normalized()
    out = empty(tuple(x.shape), torch.float32)
    for begin in range(0, x.shape[0], _ROWS):  # in double precision, as sparse rows are, without a copy of all
        block = x[begin : begin + _ROWS].double()
        total = block.abs().sum(dim=1, keepdim=True)
        out[begin : begin + _ROWS] = block * torch.where(total == 0, 1.0, 1.0 / total)
    return out
