"""A dataset: a graph, features, labels and a split, checked once so that nothing after it has to.

Comes in: what a reader or a user has, of any fitting type. Goes out: a frozen :class:`Dataset`. Made by the readers and
the generator, used by the trainer, the loader and the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft._keywords import says_what_was_meant
from graphweft.data.checks import (
    check_disjoint,
    check_edge_rows,
    check_features,
    check_graph_ptr,
    check_idx,
    check_labels,
    once_together,
)
from graphweft.data.column_encoding import MAX_CATEGORIES
from graphweft.data.feature_kinds import FEATURE_KINDS
from graphweft.data.given import (
    Task,
    by_type,
    check_head,
    given_features,
    given_floats,
    given_labels,
    given_node_ids,
    given_pairs,
    given_times,
    row_normalized,
)
from graphweft.data.graph_samples import of_parts
from graphweft.data.prepare import save_npz
from graphweft.data.random_rows import split_rows
from graphweft.data.shown import ShownAsTable
from graphweft.data.structure_features import structure_features
from graphweft.data.table_encoding import Roles, TableEncoding, as_names
from graphweft.data.tables import dataset_arguments
from graphweft.graph.graph import Graph
from graphweft.storage.feature import Features, SparseFeatures, is_dense, kind_of, sparsity
from graphweft.storage.int8_features import Int8Features

Part = Literal["train", "val", "test"]
_KINDS = "|".join(FEATURE_KINDS)
REMEDY = f"ds.with_features('degree') makes some, in the command --features {_KINDS}"
NOT_USED = "members of the source that are not used"  # begins a note
_PARTS: tuple[Part, ...] = ("train", "val", "test")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Dataset(ShownAsTable):
    """A graph (or many in one block-diagonal graph) with features, labels and a split of its nodes.

    Arguments may be tensors, arrays, lists or columns of a table, of any dtype that fits. Attributes are tensors of the
    types below. Only ``name`` and ``graph`` are required. ``train_idx``, ``val_idx`` and ``test_idx`` are ids or
    boolean masks. Without any of them, the labelled rows are split 60/20/20 at random by ``seed``. ``num_classes`` and
    ``task`` follow from ``y`` if they are not given.

    Attributes:
        name: Name of the dataset in tables and messages.
        graph: N nodes, E edges; typed graphs are flat, nodes type after type.
        x: (N, F) float32, or sparse or 8-bit features of that shape; None without features.
        y: (N,) int64 class ids, -1 for no label; (N, C) float32 of 0 and 1 for several labels per node; or, with
            ``task="regression"``, (N,) or (N, C) float32 values. A missing label or value is NaN. With ``graph_ptr``,
            rows are graphs.
        train_idx: int64 ids of training rows of ``y``. They may include rows without a label, see :meth:`labelled`.
        val_idx: int64 ids of validation rows.
        test_idx: int64 ids of test rows.
        num_classes: Width of a model's output; 0 without labels.
        task: Kind of ``y``: "classification", "multilabel" or "regression".
        edge_weight: (E,) float32 in the order of ``graph.edges()``, or None.
        edge_features: (E, K) float32 in the same order, or None.
        features: Features of each node type of a typed graph.
        target_type: Node type that is labelled, for a typed graph.
        edge_label_index: (2, P) int64 pairs of nodes that are the rows of ``y``, if edges are predicted; else None.
        graph_ptr: (G + 1,) int64; graph g has nodes ``graph_ptr[g]`` to ``graph_ptr[g + 1]``.
        node_ids: (N,) int64 ids of the nodes in the source, if they were renumbered. Texts, or the ``NodeIds`` of
            ``Graph.from_ids`` over texts, become ``node_names``.
        class_names: Names of the classes, if the source has them.
        arrays: Other arrays of the source with one row per node or graph, by name.
        held_out: Triples kept out of the graph: name -> ((2, E') int64, (E',) int64 relation).
        notes: Remarks on the source, such as missing parts and changes.
        node_names: N names of the nodes in the source; empty without names.
        edge_time: (E,) int64 or float64 times of the edges in the order of ``graph.edges()``, or None.
        encoding: How tables became features and labels, for a dataset of :meth:`from_tables`.

    Raises: DataError naming the part that does not fit.

    Warns: DataWarning if parts of the split have rows in common.

    Example:
        >>> graph = Graph([0, 1, 2], [1, 2, 0])
        >>> ds = Dataset("ring", graph, [[1, 0], [0, 1], [0, 0]], [0, 1, -1], train_idx=[True, False, True])
        >>> ds.num_nodes, ds.num_features, ds.num_classes, ds.train_idx.tolist()
        (3, 2, 2, [0, 2])
    """

    name: str
    graph: Graph
    x: Features | None
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int
    task: Task
    edge_weight: Tensor | None
    edge_features: Tensor | None
    features: Mapping[str, Features]
    target_type: str | None
    edge_label_index: Tensor | None
    graph_ptr: Tensor | None
    node_ids: Tensor | None
    class_names: tuple[str, ...]
    arrays: Mapping[str, Tensor]
    held_out: Mapping[str, tuple[Tensor, Tensor]]
    notes: tuple[str, ...]
    node_names: tuple[str, ...]
    edge_time: Tensor | None
    encoding: TableEncoding | None

    @says_what_was_meant(labels="y", label="y", targets="y", edge_index="graph", feat="x", edge_attr="edge_features")
    def __init__(
        self,
        name: str,
        graph: Graph,
        x: Any = None,
        y: Any = None,
        train_idx: Any = None,
        val_idx: Any = None,
        test_idx: Any = None,
        num_classes: int | None = None,
        task: Task | None = None,
        edge_weight: Any = None,
        edge_features: Any = None,
        features: Mapping[str, Any] | None = None,
        target_type: str | None = None,
        graph_ptr: Any = None,
        node_ids: Any = None,
        class_names: Sequence[str] = (),
        arrays: Mapping[str, Tensor] | None = None,
        held_out: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        notes: Sequence[str] = (),
        node_names: Sequence[str] = (),
        edge_time: Any = None,
        encoding: TableEncoding | None = None,
        edge_label_index: Any = None,
        *,
        seed: int = 0,
    ) -> None:
        check_head(name, graph)
        ptr = None if graph_ptr is None else torch.as_tensor(graph_ptr)
        if ptr is not None:
            check_graph_ptr(ptr, graph.num_nodes)
        pairs = None if edge_label_index is None else given_pairs(edge_label_index, graph.num_nodes)
        rows = graph.num_nodes if ptr is None else ptr.numel() - 1
        rows = rows if pairs is None else pairs.shape[1]
        labels, classes, found = given_labels(y, rows, num_classes, task)
        ids, names = given_node_ids(node_ids)
        parts, more = split_rows((train_idx, val_idx, test_idx), labels, classes, rows, seed)
        fields: dict[str, Any] = {
            **{"name": name, "graph": graph, "x": given_features("x", x), "y": labels},
            **{f"{part}_idx": idx for part, idx in parts.items()},
            **{
                "num_classes": classes,
                "task": found,
                "graph_ptr": ptr,
                "edge_label_index": pairs,
                "target_type": target_type,
            },
            "edge_weight": None if edge_weight is None else given_floats("edge_weight", edge_weight),
            "edge_features": None if edge_features is None else given_floats("edge_features", edge_features),
            "features": by_type(features),
            **{"node_ids": ids, "node_names": tuple(node_names) or names, "class_names": tuple(class_names)},
            **{"arrays": arrays or {}, "held_out": held_out or {}, "notes": (*notes, *more)},
            **{"edge_time": given_times("edge_time", edge_time, graph.num_edges), "encoding": encoding},
        }
        for key, value in fields.items():
            object.__setattr__(self, key, value)
        self._check()

    def _check(self) -> None:
        """Raises: DataError for the first part that does not fit."""
        if self.x is not None:
            check_features("x", self.x, self.num_nodes)
        for node_type, features in self.features.items():
            check_features(f"features of {node_type!r}", features, None)
        check_labels(self.y, self.num_rows, self.num_classes, self.task)
        parts: dict[str, Tensor] = {part: getattr(self, f"{part}_idx") for part in _PARTS}
        for part, idx in parts.items():
            check_idx(f"{part}_idx", idx, self.num_rows)
        check_edge_rows("edge_weight", self.edge_weight, self.num_edges, 1)
        check_edge_rows("edge_features", self.edge_features, self.num_edges, 2)
        if self.node_ids is not None and self.node_ids.shape != (self.num_nodes,):
            raise DataError(f"node_ids: expected {self.num_nodes} ids, got shape {tuple(self.node_ids.shape)}")
        if self.node_names and len(self.node_names) != self.num_nodes:
            raise DataError(f"node_names: expected {self.num_nodes} names, got {len(self.node_names)}")
        key = ("disjoint", *map(id, parts.values()))
        once_together(list(parts.values()), key, lambda: check_disjoint(self.name, parts, self.num_rows))

    @classmethod
    @says_what_was_meant(labels="label", y="label", src="source", dst="target", node_id="id", timestamp="time")
    def from_tables(
        cls,
        nodes: Any = None,
        edges: Any = None,
        *,
        id: str | None = None,
        source: str | None = None,
        target: str | None = None,
        label: str | Sequence[str] | None = None,
        edge_label: str | Sequence[str] | None = None,
        weight: str | None = None,
        time: str | None = None,
        split: str | None = None,
        drop: str | Sequence[str] = (),
        categories: str | Sequence[str] = (),
        max_categories: int = MAX_CATEGORIES,
        task: Task | None = None,
        bidirected: bool = False,
        unknown_ids: str = "error",
        seed: int = 0,
        name: str | None = None,
        encoding: TableEncoding | None = None,
    ) -> Dataset:
        """A dataset from a table with a row for every node and a table with a row for every edge.

        A table is a DataFrame of pandas or polars, a table of pyarrow, a mapping from names to columns, or the path of
        a CSV or Parquet file (which needs pandas: ``pip install graphweft[tables]``).

        All other columns are features. Numbers and dates are standardised over the rows of the table. A missing one
        takes the mean and is marked in a further column. Booleans are 0 and 1. Texts and categories have one column per
        value, and texts with too many values raise an error. ``from_tables(nodes, edges, encoding=ds.encoding)``
        encodes later tables in the same way; they need no label.

        Args:
            nodes: The node table; None takes the ids in the edge table, without features and labels.
            edges: The edge table.
            id: Column of ``nodes`` with the ids of the nodes, of any type. They are kept in ``ds.node_ids``, texts in
                ``ds.node_names``.
            source: Column of ``edges`` with the id of the source node.
            target: Column of ``edges`` with the id of the destination node.
            label: Column of ``nodes`` to predict. Texts, booleans and whole numbers are classes (``ds.class_names``),
                other numbers are values. A node with a missing label is unlabelled. Several columns mean several
                labels, or several values, per node.
            edge_label: Column of ``edges`` to predict in place of ``label``. The rows of ``ds.y`` are then those of
                ``edges`` (``ds.edge_label_index``).
            weight: Column of ``edges`` for ``ds.edge_weight``.
            time: Column of ``edges`` for ``ds.edge_time``; dates become seconds since 1970.
            split: Column of the labels' table with train, val, test or nothing; None: 60/20/20 of the labelled rows by
                ``seed``.
            drop: Columns of either table to leave out.
            categories: Columns of either table whose numbers are categories, such as postcodes.
            max_categories: Most categories of a column.
            task: "classification" or "regression", for labels that can mean both.
            bidirected: Whether to add the reverse of every edge, with the same weight, features and time.
            unknown_ids: "error" raises an error for edges whose ends are not in ``nodes``; "drop" leaves them out.
            seed: Of the split.
            name: Of the dataset; None: that of the node table's file.
            encoding: ``ds.encoding`` of an earlier dataset, in place of the arguments about columns.

        Raises: DataError, which suggests the nearest name for an unknown column; MissingPackageError for a file without
        pandas.

        Example:
            >>> users = {"user": ["ann", "bob", "eve"], "age": [31, None, 47], "fraud": ["no", "yes", None]}
            >>> transfers = {"sender": ["ann", "bob"], "receiver": ["bob", "eve"]}
            >>> ds = Dataset.from_tables(users, transfers, id="user", label="fraud", split=None)
            >>> ds.node_names, ds.y.tolist(), ds.class_names, ds.encoding.titles
            (('ann', 'bob', 'eve'), [0, 1, -1], ('no', 'yes'), ('age', 'age missing'))
        """
        labels, of_edges = (
            names if names is None or isinstance(names, str) else tuple(names) for names in (label, edge_label)
        )
        dropped = as_names(drop), as_names(categories)
        roles = Roles(id, source, target, labels, weight, time, split, *dropped, edge_label=of_edges)
        arguments = dataset_arguments(
            nodes,
            edges,
            roles,
            max_categories=max_categories,
            task=task,
            bidirected=bidirected,
            unknown_ids=unknown_ids,
            name=name,
            encoding=encoding,
        )
        return cls(**arguments, seed=seed)

    @classmethod
    def from_graphs(
        cls,
        train: Sequence[Any],
        val: Sequence[Any] = (),
        test: Sequence[Any] = (),
        name: str = "graphs",
        **others: Any,
    ) -> Dataset:
        """A dataset of the nodes of several graphs, for an inductive split: all nodes of a graph are in the same part.

        ``Trainer(mode="mini", sampler="graphs", batch_size=2)`` trains on two graphs at a time.

        Args:
            train: Graphs to train on: ``Data`` of PyTorch Geometric, samples, or ``gw.Graph`` with ``ndata["x"]`` and
                ``ndata["y"]``; labels are those of the nodes, (N,) or (N, C).
            val: Graphs for validation.
            test: Graphs for the test.
            name: Of the dataset.
            others: Further keywords of :class:`Dataset`, such as ``task``.

        Returns: The dataset; ``ds.arrays["graph_id"]`` has the number of the graph of each node, in the order given.

        Raises: DataError naming the graph whose part does not fit.

        Example:
            >>> def ring(size):
            ...     ids = torch.arange(size)
            ...     graph = Graph(ids, (ids + 1) % size)
            ...     graph.ndata["x"], graph.ndata["y"] = torch.ones(size, 2), ids % 2
            ...     return graph
            >>> ds = Dataset.from_graphs([ring(3), ring(4)], val=[ring(2)])
            >>> ds.num_nodes, ds.train_idx.numel(), ds.val_idx.tolist(), ds.arrays["graph_id"].tolist()
            (9, 7, [7, 8], [0, 0, 0, 1, 1, 1, 1, 2, 2])
        """
        return cls(name, **{**of_parts(train, val, test), **others})

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
        """Number of rows of ``y``: nodes, graphs of a set of graphs, or pairs of nodes."""
        if self.edge_label_index is not None:
            return self.edge_label_index.shape[1]
        return self.num_nodes if self.graph_ptr is None else self.graph_ptr.numel() - 1

    @property
    def has_node_rows(self) -> bool:
        """Whether the rows of ``y`` are nodes."""
        return self.graph_ptr is None and self.edge_label_index is None

    def with_edge_labels(
        self,
        y: Any,
        edge_label_index: Any = None,
        train_idx: Any = None,
        val_idx: Any = None,
        test_idx: Any = None,
        num_classes: int | None = None,
        task: Task | None = None,
        seed: int = 0,
    ) -> Dataset:
        """A dataset with the same graph and features and with labels of edges, or of other pairs of nodes.

        Args:
            y: Labels of the pairs: class ids, values (``task="regression"``) or rows of several labels.
            edge_label_index: (2, P) the pairs; None: all edges of the graph, in the order of ``graph.edges()``.
            train_idx: Ids or a mask of the pairs to train on. Without any of the three, 60/20/20 at random by ``seed``.
            val_idx: Ids or a mask of the pairs for validation.
            test_idx: Ids or a mask of the pairs for the test.
            num_classes: Number of classes, if ``y`` does not have all.
            task: Kind of ``y``, if it does not follow from the labels.
            seed: Of the split.

        Raises: DataError for labels that do not fit the pairs.

        Example:
            >>> ds = Dataset("ring", Graph([0, 1, 2], [1, 2, 0]), torch.eye(3))
            >>> edges = ds.with_edge_labels([0, 1, 1], train_idx=[0, 1], val_idx=[2])
            >>> edges.num_rows, edges.edge_label_index.tolist(), edges.num_classes
            (3, [[0, 1, 2], [1, 2, 0]], 2)
        """
        pairs = torch.stack(self.graph.edges()) if edge_label_index is None else edge_label_index
        kept = ("name", "graph", "x", "edge_weight", "edge_features", "features", "node_ids", "node_names", "edge_time")
        given = {"train_idx": train_idx, "val_idx": val_idx, "test_idx": test_idx}
        labels = {"y": y, "edge_label_index": pairs, "num_classes": num_classes, "task": task, "seed": seed}
        return Dataset(**{name: getattr(self, name) for name in kept}, **given, **labels)

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
        return float(sparsity(self.x))

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
        """The ids of the rows of one part that have a label."""
        idx = self.idx(part)
        check_idx(f"{part}_idx", idx, self.y.shape[0])  # which may have been changed in place
        if self.num_classes == 0:
            return idx[:0]
        if not self.y.is_floating_point():
            return idx[self.y[idx] >= 0]
        return idx[~self.y[idx].reshape(idx.numel(), self.num_classes).isnan().all(dim=1)]

    def check_features(self) -> None:
        """Checks that there are node features.

        Raises: DataError naming the features that there are.
        """
        if self.x is None:
            held = f"features of {', '.join(sorted(self.features))} only" if self.features else "none"
            raise DataError(f"{self.name}: expected node features x, got {held}; {REMEDY}")

    def check_trainable(self) -> None:
        """Checks that the dataset can train a node model.

        Raises: DataError that says what is missing.
        """
        if self.graph_ptr is not None:
            raise DataError(
                f"{self.name}: expected one label per node, got a set of {self.num_rows} graphs with one each"
            )
        if self.num_classes == 0:
            unused = [note for note in self.notes if note.startswith(NOT_USED)]
            held = f" ({unused[0]})" if unused else "" if self.encoding is None else " (--label names their column)"
            raise DataError(f"{self.name}: expected labels to train on, got none{held}; the task link needs none")
        if self.labelled("train").numel() == 0:
            raise DataError(f"{self.name}: expected at least one training node with a label, got none")
        if not self.graph.is_typed:
            self.check_features()

    def with_int8_features(self) -> Dataset:
        """The same dataset with dense features in 8 bits, for mini-batches. Raises: DataError without dense features.

        Example:
            >>> ds = Dataset("ring", Graph([0, 1, 2], [1, 2, 0]), torch.tensor([[0.5, 40.0], [1.0, 10.0], [0.0, 20.0]]))
            >>> ds.with_int8_features().x.levels.dtype
            torch.int8
        """
        self.check_features()
        return replace(self, x=Int8Features.from_dense(self.x)) if is_dense(self.x) else self

    def with_features(
        self, kind: str, width: int | None = None, *, graph: Graph | None = None, seed: int = 0
    ) -> Dataset:
        """The same dataset with features that are computed from the graph.

        "degree": scaled logarithms of in- and out-degrees (one column if they are equal), and a column of ones.
        "degree_onehot": one column per in-degree, where 255 and more share a column. "onehot": one column per node,
        sparse; the first layer learns a row per node. "random": ``width`` normal random numbers (32) by ``seed``.
        "laplacian": the first ``width`` eigenvectors (16) of the normalised Laplacian, without the trivial one.
        "embedding": one-hot rows for :class:`gw.nn.NodeEmbedding`, which learns a row per node in front of a model.

        Args:
            kind: One of these names.
            width: Columns of "random" and "laplacian".
            graph: The graph to compute features from; None: this one. For link prediction pass the training graph of
                ``gw.transforms.split_links``, so that features do not depend on held-out edges.
            seed: Seed of "random", and of the start vector for eigenvectors.

        Raises: ConfigError for another kind, or for a width that the kind does not take.

        Example:
            >>> ds = Dataset("ring", Graph([0, 1, 2], [1, 2, 0])).with_features("random", 8)
            >>> ds.num_features
            8
        """
        source = self.graph if graph is None else graph
        if source.num_nodes != self.num_nodes:
            raise DataError(f"with_features: expected a graph of {self.num_nodes} nodes, got {source.num_nodes}")
        x = structure_features(source, kind, width, seed)
        former = " in the place of those of the source" if self.x is not None or self.features else ""
        note = f"features are made of the graph: {kind}, {FEATURE_KINDS[kind]}{former}"
        return replace(self, x=x, features={}, notes=(*self.notes, note))

    def row_normalized(self) -> Dataset:
        """The same dataset with every row of the features divided by the sum of its absolute values, if it is not 0."""
        x = None if self.x is None else row_normalized(self.x)
        features = {node_type: row_normalized(value) for node_type, value in self.features.items()}
        return replace(self, x=x, features=features)

    def with_inverse_relations(self) -> Dataset:
        """The same typed dataset with an inverse relation for every relation.

        An edge and its inverse have the same weight, features and time.

        Example:
            >>> graph, every = Graph.hetero({("a", "of", "b"): ([0, 1], [0, 0])}), torch.arange(3)
            >>> labels = torch.tensor([0, 1, -1])
            >>> ds = Dataset("ab", graph, None, labels, every[:1], every[1:2], every[:0], 2, target_type="a")
            >>> ds.with_inverse_relations().graph.relations
            (('a', 'of', 'b'), ('b', 'inverse of', 'a'))
        """
        names = ("edge_weight", "edge_features", "edge_time")
        rows: dict[str, Any] = {name: torch.cat([t, t]) for name in names if (t := getattr(self, name)) is not None}
        return replace(self, graph=self.graph.add_inverse_relations(), **rows)

    def save(self, path: str | os.PathLike[str], *, compress: bool = True) -> Path:
        """Writes the dataset as one ``.npz`` file that ``gw.load`` reads back; an old file is replaced in one step.

        The file contains types, weights, features and times of edges, ids, names, the split and the encoding of tables,
        in the order of nodes and edges. Named tensors of the graph (``graph.ndata``) and notes are not saved.

        Args:
            path: Path of the file, ending in ``.npz``.
            compress: Whether to compress the file, which is slower.

        Raises: DataError for another name, or a file that cannot be written.

        Example:
            >>> import tempfile
            >>> from graphweft.data.load import load
            >>> file = Dataset("ring", Graph([0, 1, 2], [1, 2, 0]), y=[0, 1, -1]).save(f"{tempfile.mkdtemp()}/ring.npz")
            >>> load(file).y.tolist()
            [0, 1, -1]
        """
        return save_npz(self, path, compress=compress)

    def deaf_types(self) -> list[str]:
        """Node types with training labels but without in-edges; empty for a graph without types."""
        return self.graph.layout.unfed(self.labelled("train")) if self.graph.is_typed else []

    def __repr__(self) -> str:
        kind = kind_of(self.x)
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
    if ds.task != "classification" or not ds.has_node_rows:
        return None
    labels = torch.full((ds.num_nodes,), -1, dtype=torch.int64)
    labels[ds.train_idx] = ds.y[ds.train_idx].long()
    return labels
