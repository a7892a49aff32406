"""Many graphs as samples: one block-diagonal graph, with features of nodes and edges and a label per graph.

Comes in: a set of graphs as a reader has it, or a list of graphs. Goes out: :class:`GraphDataset`, a dataset whose rows
are graphs, with subsets, random splits and folds. Made by ``load``, used by the loader of graphs and the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, Self, overload

import torch
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, DataError, GraphError
from graphweft.data.dataset import REMEDY, Dataset, Part
from graphweft.data.graph_samples import GraphSample, as_sample, classes_by_name, joined, sample_of
from graphweft.data.random_rows import mixed_rows, rows_by_class
from graphweft.graph.graph import Graph
from graphweft.graph.select import as_selection
from graphweft.graph.side_by_side import SideBySide, edge_order
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.gather import gather_rows

_PARTS: tuple[Part, ...] = ("train", "val", "test")


class GraphDataset(Dataset):
    """A :class:`Dataset` whose samples are graphs: row i of ``y`` is the label of graph i.

    All graphs are stored side by side in ``graph``. Graph i has the nodes ``graph_ptr[i]`` to ``graph_ptr[i + 1]``.
    Edges, and rows of ``edge_weight``, ``edge_features`` and ``edge_time``, are in the order of the graphs. ``ds[3]``
    is one graph with its data. ``ds[ids]``, ``ds[mask]`` and ``ds[:100]`` are smaller sets.

    Args: as :class:`Dataset`; ``graph_ptr`` is required.

    Raises: DataError naming the part that does not fit; GraphError for an edge between two graphs.

    Example:
        >>> ring, path = Graph([0, 1, 2], [1, 2, 0]), Graph([0], [1])
        >>> ds = GraphDataset.from_list([ring, path], x=[torch.ones(3, 1), torch.zeros(2, 1)], y=[1, 0])
        >>> len(ds), ds.num_classes, ds[0], ds[[1]].graph
        (2, 2, GraphSample(3 nodes, 3 edges, 1 features, y=1), Graph(num_nodes=2, num_edges=1))
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        if self.graph_ptr is None:
            raise DataError(f"{self.name}: expected graph_ptr, the offsets of the graphs, got none")
        if self.graph.is_typed:
            raise DataError(f"{self.name}: expected graphs without types, got {len(self.graph.relations)} relations")
        order = edge_order(self.graph, self.graph_ptr)
        if order is not None:
            self._sort_edges(order)

    def _sort_edges(self, order: Tensor) -> None:
        src, dst = self.graph.edges()
        graph = Graph(src[order], dst[order], num_nodes=self.num_nodes)
        graph.ndata.update(dict(self.graph.ndata))
        graph.edata.update({name: rows[order] for name, rows in self.graph.edata.items()})
        object.__setattr__(self, "graph", graph)
        for name in ("edge_weight", "edge_features", "edge_time"):
            rows = getattr(self, name)
            if rows is not None:
                object.__setattr__(self, name, rows[order])

    @classmethod
    def of(cls, ds: Dataset) -> GraphDataset:
        """Converts a dataset whose rows are graphs to a set of graphs. Raises: DataError for a dataset of one graph."""
        if isinstance(ds, GraphDataset):
            return ds
        return cls(**{field.name: getattr(ds, field.name) for field in fields(ds)})

    @classmethod
    def from_list(
        cls,
        graphs: Sequence[Any],
        x: Sequence[Any] | None = None,
        y: Any = None,
        edge_weight: Sequence[Any] | None = None,
        edge_features: Sequence[Any] | None = None,
        name: str = "graphs",
        **others: Any,
    ) -> GraphDataset:
        """A set of graphs from a list of them.

        Args:
            graphs: ``gw.Graph`` objects, samples of a GraphDataset, or ``Data`` of PyTorch Geometric with ``x``, ``y``,
                ``edge_weight`` and ``edge_attr``.
            x: Features of the nodes of every graph, (nodes, F) each; None: ``graph.ndata["x"]``, or the sample's.
            y: A label for every graph: class ids or names of classes (None: unknown), values (with
                ``task="regression"``), or a row of several labels.
            edge_weight: Weights of the edges of every graph, (edges,) each.
            edge_features: Features of the edges of every graph, (edges, K) each.
            name: Of the dataset.
            others: Further keywords of :class:`Dataset`, such as ``task``, ``train_idx``, ``seed``.

        Raises: DataError naming the graph whose part does not fit.
        """
        y, named = classes_by_name(y)
        columns: dict[str, Any] = {"x": x, "y": y, "edge_weight": edge_weight, "edge_features": edge_features}
        samples = [as_sample(item, f"graphs[{i}]") for i, item in enumerate(graphs)]
        if not samples:
            raise DataError("from_list: expected at least one graph, got none")
        for column, values in columns.items():
            if values is not None and len(values) != len(samples):
                raise DataError(f"from_list: expected {column} of {len(samples)} graphs, got {len(values)}")
        given = {column: values for column, values in columns.items() if values is not None}
        samples = [
            replace(sample, **{column: values[i] for column, values in given.items()})
            for i, sample in enumerate(samples)
        ]
        return cls(name, **{**joined(samples), **({} if y is None else {"y": y}), **named, **others})

    @classmethod
    def from_pyg(cls, graphs: Any, name: str | None = None, **others: Any) -> GraphDataset:
        """A set of graphs from a data set of PyTorch Geometric, or a list of its ``Data``; see :meth:`from_list`.

        Float labels in one column that are whole numbers become class ids, as in ``gw.from_pyg``. ``task="regression"``
        keeps them.
        """
        return cls.from_list(list(graphs), name=name or type(graphs).__name__, **others)

    @cached_property
    def _whole(self) -> SideBySide:
        assert self.graph_ptr is not None  # checked when it was made
        return SideBySide(self.graph, self.graph_ptr)

    @property
    def side_by_side(self) -> SideBySide:
        """The structure from which batches are taken."""
        return self._whole

    @property
    def num_graphs(self) -> int:
        """Graphs of the set, ``len(ds)``."""
        return self.num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[GraphSample]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> GraphSample: ...
    @overload
    def __getitem__(self, key: Any) -> Self: ...
    def __getitem__(self, key: Any) -> GraphSample | Self:
        """One graph with its data, or the set of the graphs at ids, where a mask holds, or in a slice.

        A subset has the parts of the split that its graphs are in.

        Raises: IndexError for a number that is none, IndexRangeError for such an id.
        """
        number = None if isinstance(key, bool) else as_integer(key)
        if number is None or (isinstance(key, Tensor) and key.dim()):
            return self._subset(as_selection(type(self).__name__, "graph", key, len(self)))
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.name}: expected a graph from 0 to {len(self) - 1}, got {number}")
        return sample_of(self, number % len(self))

    def _subset(self, ids: Tensor) -> Self:
        if ids.numel() == 0:
            raise DataError(f"{self.name}: expected at least one graph of {len(self)}, got none")
        ids = ids.contiguous()
        taken = self.side_by_side.take(ids)
        changed: dict[str, Any] = {
            f"{part}_idx": self._mask(self.idx(part))[ids].nonzero().reshape(-1) for part in _PARTS
        }
        for name in ("edge_weight", "edge_features", "edge_time"):
            rows = getattr(self, name)
            changed[name] = None if rows is None else rows[taken.edges]
        return replace(
            self,
            graph=taken.graph,
            x=None if self.x is None else gather_rows(self.x, taken.nodes),
            y=self.y[ids],
            graph_ptr=taken.ptr,
            arrays={name: self._rows_of(rows, ids, taken.nodes) for name, rows in self.arrays.items()},
            node_ids=None if self.node_ids is None else self.node_ids[taken.nodes],
            node_names=tuple(self.node_names[i] for i in taken.nodes.tolist()) if self.node_names else (),
            **changed,
        )

    def _rows_of(self, rows: Tensor, graphs: Tensor, nodes: Tensor) -> Tensor:
        """Rows of an array with one per node or per graph."""
        return rows[nodes] if rows.shape[0] == self.num_nodes else rows[graphs]

    def split(self, train: float = 0.8, val: float = 0.1, test: float = 0.1, seed: int = 0) -> Self:
        """The same set with a random split of the labelled graphs, stratified by class.

        Args:
            train: Share of the training graphs, a fraction.
            val: Share of the validation graphs.
            test: Share of the test graphs. Graphs that remain by rounding are training graphs.
            seed: Seed of the draw. The parts are the same on every machine.

        Raises: ConfigError for shares that are negative or add up to more than 1.
        """
        shares = (train, val, test)
        if not all(isinstance(s, int | float) and 0 <= s <= 1 for s in shares) or sum(shares) > 1 + 1e-9:
            raise ConfigError(
                f"split: expected shares from 0 to 1 that add up to at most 1, got {train}, {val}, {test}"
            )
        order = mixed_rows(self.y, seed)
        count = len(order)
        sizes = [math.floor(share * count + 1e-9) for share in shares]
        sizes[0] += (count - sum(sizes)) if math.isclose(sum(shares), 1.0, abs_tol=1e-9) else 0
        parts = torch.split(order, [*sizes, count - sum(sizes)])[:3]
        return self._with_parts(parts[0], parts[1], parts[2], f"split {train}/{val}/{test} at random by seed {seed}")

    def folds(self, k: int = 10, seed: int = 0, *, validation: bool = True) -> list[Self]:
        """``k`` sets with splits for cross-validation, stratified by class.

        Set i tests on fold i, validates on the next one and trains on the others.

        Args:
            k: Number of folds, at least 2, or 3 with ``validation``.
            seed: Seed of the draw.
            validation: Whether to use a fold for validation. False trains on it.

        Raises: ConfigError for another number of folds.
        """
        order = rows_by_class(self.y, seed)
        least = 3 if validation else 2
        number = as_integer(k)
        if number is None or not least <= number <= len(order):
            raise ConfigError(f"folds: expected k as an integer from {least} to {len(order)}, got {k!r}")
        made = [order[i::number] for i in range(number)]
        out = []
        for i in range(number):
            held = {i, (i + 1) % number} if validation else {i}
            train = torch.cat([fold for j, fold in enumerate(made) if j not in held])
            val = made[(i + 1) % number] if validation else order[:0]
            out.append(self._with_parts(train, val, made[i], f"fold {i} of {number} by seed {seed}"))
        return out

    def _with_parts(self, train: Tensor, val: Tensor, test: Tensor, note: str) -> Self:
        kept = tuple(text for text in self.notes if not text.startswith(("no split was given", "fold ", "split ")))
        parts: dict[str, Any] = {
            f"{n}_idx": ids.sort().values for n, ids in zip(_PARTS, (train, val, test), strict=True)
        }
        return replace(self, **parts, notes=(*kept, note))

    def with_tags(self) -> Self:
        """The same set with the one-hot node tags of the source joined to its features.

        Raises: DataError for a source without tags.
        """
        tags = self.arrays.get("node_tag")
        if tags is None:
            raise DataError(f"{self.name}: expected node tags of the source, got none")
        hot = torch.nn.functional.one_hot(tags.long()).float()
        x = self.x.to_dense() if isinstance(self.x, SparseFeatures) else self.x
        return self if x is None or torch.equal(x, hot) else replace(self, x=torch.cat([x, hot], dim=1))

    def check_trainable(self) -> None:
        """Checks that the set can train a model of graphs. Raises: DataError that says what is missing."""
        if self.num_classes == 0:
            raise DataError(f"{self.name}: expected labels to train on, got none")
        if self.labelled("train").numel() == 0:
            raise DataError(f"{self.name}: expected at least one training graph with a label, got none")
        if self.x is None:
            raise DataError(f"{self.name}: expected node features x, got none; {REMEDY}")

    def __repr__(self) -> str:
        width = "no features" if self.x is None else f"{self.num_features} features"
        split = "/".join(str(self.idx(part).numel()) for part in _PARTS)
        kinds = {"regression": "values", "multilabel": "labels"}.get(self.task, "classes")
        return (
            f"GraphDataset({self.name!r}, {len(self)} graphs, {self.num_nodes} nodes, {self.num_edges} edges, {width}, "
            f"{self.num_classes} {kinds}, split {split})"
        )


def typed_by_rows(ds: Dataset) -> Dataset:
    """``ds`` as a :class:`GraphDataset` where its rows are graphs, itself otherwise.

    Raises: DataError for edges between graphs.
    """
    if ds.graph_ptr is None or ds.graph.is_typed:
        return ds
    try:
        return GraphDataset.of(ds)
    except GraphError as error:
        raise DataError(f"{ds.name}: {error}") from None


__all__ = ["Features", "GraphDataset", "typed_by_rows"]
