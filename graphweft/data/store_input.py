"""What a store is built from: edges in chunks and rows of nodes in ranges, from memory or from files larger than it.

Comes in: a dataset, or :class:`GraphFiles`. Goes out: a :class:`StoreInput`. Called by
:mod:`graphweft.data.prepare_store`.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft._errors import ConfigError, DataError, DataWarning
from graphweft.data.dataset import Dataset, training_labels
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.fingerprint import fingerprint
from graphweft.storage.store_format import SPLIT_BITS
from graphweft.storage.store_types import Types


class Rows(NamedTuple):
    """What is known of consecutive nodes: features (n, F) or None, labels, and the bits of their splits."""

    x: Tensor | None
    y: Tensor
    split: NDArray[np.uint8]


class Edges(NamedTuple):
    """Sources and destinations of some edges; of a typed graph their relations, and their weights where they have any.

    ``weight`` is float32.
    """

    src: Ids
    dst: Ids
    relation: Ids | None = None
    weight: NDArray[np.float32] | None = None


class StoreInput(Protocol):
    """Where a store comes from."""

    @property
    def name(self) -> str:
        """Name of the dataset."""

    @property
    def num_nodes(self) -> int:
        """Nodes."""

    @property
    def num_edges(self) -> int | None:
        """Directed edges, where that is known without reading them."""

    @property
    def both_ways(self) -> bool:
        """Whether :meth:`edges` is known to give the reverse of every edge."""

    @property
    def num_features(self) -> int:
        """Columns of the features that all nodes have; 0 without."""

    @property
    def types(self) -> Types | None:
        """Node types and relations of a typed graph."""

    @property
    def type_widths(self) -> tuple[int, ...]:
        """Columns of the features of each node type, 0 without; empty where all nodes have the same."""

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""

    @property
    def labels(self) -> LabelKind:
        """What the labels are."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the store should know."""

    @property
    def graph(self) -> Graph | None:
        """The structure where it is in memory already."""

    @property
    def resident(self) -> int:
        """Bytes that the input holds in memory on behalf of the build."""

    def identity(self) -> dict[str, Any]:
        """What tells this input from another, ready for JSON."""

    def training_labels(self) -> Tensor | None:
        """int64 (N,) classes of training nodes, -1 elsewhere, for partitioners; None where that is not known."""

    def edges(self, most: int) -> Iterator[Edges]:
        """All edges, about ``most`` at a time."""

    def rows(self, first: int, last: int) -> Rows:
        """The nodes from ``first`` to ``last``, of one type where types have features of their own."""


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

    Raises: ConfigError for a set of graphs; DataError for features of another number of rows.

    Warns: DataWarning for what a store does not keep.
    """

    resident = 0
    both_ways = False  # whose structure is in memory, where nobody asks

    def __init__(self, ds: Dataset) -> None:
        if ds.graph_ptr is not None:
            raise ConfigError(f"{ds.name}: expected one graph for a store, got a set of {ds.num_rows} graphs")
        self._ds, self.graph = ds, ds.graph
        self.name, self.num_nodes, self.num_features = ds.name, ds.num_nodes, ds.num_features
        self.num_edges: int | None = ds.num_edges
        self.types = Types.of(ds.graph.layout, ds.target_type) if ds.graph.is_typed else None
        self.type_widths = _type_widths(ds) if ds.graph.is_typed and ds.x is None else ()
        self.has_weights = ds.edge_weight is not None
        columns = ds.y.shape[1] if ds.y.dim() == 2 else 0
        dtype = "float32" if ds.y.is_floating_point() else "int64"
        self.labels = LabelKind(ds.task, ds.num_classes, columns, dtype, ds.class_names)
        parts = ("edge_features", "edge_time", "node_names")
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
            *([] if ds.edge_weight is None else [ds.edge_weight]),
        ]
        more = {} if self.types is None else {"types": asdict(self.types)}
        if self.types is not None:
            parts += [] if csc.edge_ids is None else [csc.edge_ids]
            parts += [ds.features[name] for name in self.types.node_types if name in ds.features]
        return {"name": ds.name, "marks": [str(fingerprint(part)) for part in parts], **more}

    def training_labels(self) -> Tensor | None:
        """Those of the dataset."""
        return training_labels(self._ds)

    def edges(self, most: int) -> Iterator[Edges]:
        """Destination after destination."""
        csc, weights = self._ds.graph.csc, self._ds.edge_weight
        indptr = csc.indptr.numpy()
        starts = None if self.types is None else np.array(self.types.edge_offsets)
        row = 0
        while row < self.num_nodes:
            last = max(int(np.searchsorted(indptr, indptr[row] + most, "right")) - 1, row + 1)
            some = slice(int(indptr[row]), int(indptr[last]))
            src = csc.indices.numpy()[some].astype(np.int64)
            ids = np.arange(some.start, some.stop) if csc.edge_ids is None else csc.edge_ids.numpy()[some]
            relation = None if starts is None else np.searchsorted(starts[1:], ids, "right")
            weight = None if weights is None else weights.numpy()[ids]
            yield Edges(src, np.repeat(np.arange(row, last), np.diff(indptr[row : last + 1])), relation, weight)
            row = last

    def rows(self, first: int, last: int) -> Rows:
        """Slices; sparse features become dense."""
        ds = self._ds
        split = np.zeros(last - first, np.uint8)
        for part, bit in SPLIT_BITS.items():
            ids = getattr(ds, f"{part}_idx").numpy()
            split[ids[(ids >= first) & (ids < last)] - first] |= bit
        return Rows(self._features(first, last), ds.y[first:last], split)

    def _features(self, first: int, last: int) -> Tensor | None:
        x, start = self._ds.x, 0
        if self.type_widths:
            assert self.types is not None  # whose widths they are
            type_ = bisect.bisect_right(self.types.node_offsets, first) - 1
            x, start = self._ds.features.get(self.types.node_types[type_]), self.types.node_offsets[type_]
        if isinstance(x, SparseFeatures):
            return x.take_rows(torch.arange(first - start, last - start)).to_dense()
        return None if x is None or not x.shape[1] else x[first - start : last - start]


def _type_widths(ds: Dataset) -> tuple[int, ...]:
    """Columns of the features of each type. Raises: DataError for features of another number of rows."""
    layout, found = ds.graph.layout, []
    for name in layout.node_types:
        x, nodes = ds.features.get(name), len(layout.node_range(name))
        if x is not None and x.shape[0] != nodes:
            raise DataError(f"features of {name!r}: expected {nodes} rows, one per node, got {x.shape[0]}")
        found.append(0 if x is None else int(x.shape[1]))
    return tuple(found)


def check_ends(who: str, src: Ids, dst: Ids, num_nodes: int) -> None:
    """Raises: DataError for an id outside of [0, num_nodes)."""
    for ids in (src, dst):
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
            wrong = ids[(ids < 0) | (ids >= num_nodes)][0]
            raise DataError(f"{who}: expected ids in [0, {num_nodes}), got {wrong}")
