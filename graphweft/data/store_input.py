"""What a store is built from: edges in chunks and rows of nodes in ranges, from memory or from files larger than it.

Comes in: a dataset, or :class:`GraphFiles`. Goes out: a :class:`StoreInput`. Called by
:mod:`graphweft.data.prepare_store`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import ConfigError, DataError, DataWarning
from graphweft.data.dataset import Dataset, training_labels
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.fingerprint import fingerprint
from graphweft.storage.store_format import SPLIT_BITS

Ids = NDArray[np.int64]


class Rows(NamedTuple):
    """What is known of consecutive nodes: features (n, F) or None, labels, and the bits of their splits."""

    x: Tensor | None
    y: Tensor
    split: NDArray[np.uint8]


class StoreInput(Protocol):
    """Where a store comes from."""

    @property
    def name(self) -> str:
        """Name of the dataset."""
        ...

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        ...

    @property
    def num_edges(self) -> int | None:
        """Directed edges, where that is known without reading them."""
        ...

    @property
    def num_features(self) -> int:
        """Columns of the features; 0 without."""
        ...

    @property
    def labels(self) -> LabelKind:
        """What the labels are."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the store should know."""
        ...

    @property
    def graph(self) -> Graph | None:
        """The structure where it is in memory already."""
        ...

    @property
    def resident(self) -> int:
        """Bytes that the input holds in memory on behalf of the build."""
        ...

    def identity(self) -> dict[str, Any]:
        """What tells this input from another, ready for JSON."""
        ...

    def training_labels(self) -> Tensor | None:
        """int64 (N,) classes of training nodes, -1 elsewhere, for partitioners; None where that is not known."""
        ...

    def edges(self, most: int) -> Iterator[tuple[Ids, Ids]]:
        """Sources and destinations of all edges, about ``most`` at a time."""
        ...

    def rows(self, first: int, last: int) -> Rows:
        """The nodes from ``first`` to ``last``."""
        ...


@dataclass(frozen=True)
class LabelKind:
    """What labels are: their task, width of an output, columns (0: one number a node), dtype, names of classes."""

    task: str
    num_classes: int
    columns: int
    dtype: str
    class_names: tuple[str, ...] = ()


class DatasetInput:
    """A dataset in memory.

    Raises: ConfigError for a typed graph or a set of graphs. Warns: DataWarning for what a store does not keep.
    """

    resident = 0

    def __init__(self, ds: Dataset) -> None:
        if ds.graph.is_typed or ds.graph_ptr is not None:
            kind = "a typed graph" if ds.graph.is_typed else f"a set of {ds.num_rows} graphs"
            raise ConfigError(f"{ds.name}: expected one graph without types for a store, got {kind}")
        self._ds, self.graph = ds, ds.graph
        self.name, self.num_nodes, self.num_features = ds.name, ds.num_nodes, ds.num_features
        self.num_edges: int | None = ds.num_edges
        columns = ds.y.shape[1] if ds.y.dim() == 2 else 0
        dtype = "float32" if ds.y.is_floating_point() else "int64"
        self.labels = LabelKind(ds.task, ds.num_classes, columns, dtype, ds.class_names)
        parts = ("edge_weight", "edge_features", "edge_time", "node_names")
        left = [part for part in parts if getattr(ds, part) is not None and len(getattr(ds, part))]
        self.notes = ds.notes
        if left:
            note = f"{', '.join(left)} are not kept in a store"
            self.notes = (*ds.notes, note)
            warnings.warn(f"{ds.name}: {note}", DataWarning, stacklevel=4)

    def identity(self) -> dict[str, Any]:
        """Sizes and marks of the bytes."""
        ds, csc = self._ds, self._ds.graph.csc
        parts = [
            csc.indptr,
            csc.indices,
            ds.y,
            ds.train_idx,
            ds.val_idx,
            ds.test_idx,
            *([] if ds.x is None else [ds.x]),
        ]
        return {"name": ds.name, "marks": [str(fingerprint(part)) for part in parts]}

    def training_labels(self) -> Tensor | None:
        """Those of the dataset."""
        return training_labels(self._ds)

    def edges(self, most: int) -> Iterator[tuple[Ids, Ids]]:
        """Destination after destination."""
        csc = self._ds.graph.csc
        indptr = csc.indptr.numpy()
        row = 0
        while row < self.num_nodes:
            last = max(int(np.searchsorted(indptr, indptr[row] + most, "right")) - 1, row + 1)
            src = csc.indices.numpy()[indptr[row] : indptr[last]].astype(np.int64)
            yield src, np.repeat(np.arange(row, last), np.diff(indptr[row : last + 1]))
            row = last

    def rows(self, first: int, last: int) -> Rows:
        """Slices; sparse features become dense."""
        ds = self._ds
        wanted = torch.arange(first, last)
        x = ds.x.take_rows(wanted).to_dense() if isinstance(ds.x, SparseFeatures) else ds.x
        x = x if x is None or isinstance(ds.x, SparseFeatures) else x[first:last]
        split = np.zeros(last - first, np.uint8)
        for part, bit in SPLIT_BITS.items():
            ids = getattr(ds, f"{part}_idx").numpy()
            split[ids[(ids >= first) & (ids < last)] - first] |= bit
        return Rows(x, ds.y[first:last], split)


def check_ends(who: str, src: Ids, dst: Ids, num_nodes: int) -> None:
    """Raises: DataError for an id outside of [0, num_nodes)."""
    for ids in (src, dst):
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
            wrong = ids[(ids < 0) | (ids >= num_nodes)][0]
            raise DataError(f"{who}: expected ids in [0, {num_nodes}), got {wrong}")
