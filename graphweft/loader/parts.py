"""Graphs as parts: the protocol that stores on disk fulfil, and a dataset in memory that does.

Comes in: a dataset and the part of every node. Goes out: structure, features and labels part by part, nodes numbered
part after part. Called by the loader of groups and by inference part by part.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.sample.in_edges import entries_of
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.gather import gather_rows
from graphweft.storage.store_types import Types


class PartSource(Protocol):
    """A graph whose nodes are numbered part after part."""

    @property
    def bounds(self) -> NDArray[np.int64]:
        """(parts + 1,) first node of every part, and the number of nodes."""

    @property
    def edge_counts(self) -> NDArray[np.int64]:
        """(parts,) edges into every part."""

    @property
    def types(self) -> Types | None:
        """Node types and relations of a typed graph."""

    @property
    def regions(self) -> NDArray[np.int64]:
        """First node of each type in every part, part after part, and the number of nodes; without types the bounds."""

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""

    @property
    def num_features(self) -> int:
        """Columns of the features."""

    @property
    def feature_bytes(self) -> NDArray[np.int64]:
        """(parts,) bytes of the features of each part."""

    @property
    def feature_dtype(self) -> torch.dtype:
        """As the features lie there."""

    def read_ahead(self, number: int) -> None:
        """What a group takes of a part is asked for next."""

    def structure(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Offsets, and sources of in-edges, ascending in every row."""

    def edge_columns(self, number: int) -> tuple[NDArray[np.integer[Any]] | None, NDArray[np.float32] | None]:
        """Relations and weights of a part's in-edges, in the order of its structure; None without."""

    def features_into(self, number: int, out: Tensor) -> None:
        """The features of a part, (n, F), into ``out``."""

    def labels(self, number: int) -> Tensor:
        """The labels of a part."""

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, F) features of nodes with ascending ids."""

    def feature_rows_into(self, ids: NDArray[np.int64], out: Tensor, at: Tensor) -> None:
        """Features of nodes with ascending ids as rows ``at`` of ``out``, in its dtype."""


class MemoryParts:
    """A dataset in memory as parts; a store of the same parts gives the same groups.

    Args:
        graph: The graph, without types.
        x: Its features, or None.
        y: Labels of its nodes.
        part: (N,) part of every node.
        parts: Number of parts.

    Example:
        >>> source = MemoryParts(Graph([0, 1, 2], [2, 0, 0]), torch.eye(3), torch.arange(3), torch.tensor([1, 0, 1]), 2)
        >>> source.order.tolist(), source.structure(1)[1].tolist(), source.labels(0).tolist()
        ([1, 0, 2], [0, 2, 1], [1])
    """

    def __init__(self, graph: Graph, x: Tensor | SparseFeatures | None, y: Tensor, part: Tensor, parts: int) -> None:
        self._graph, self._x, self._y = graph, x, y
        numbers = part.numpy()
        self.bounds: NDArray[np.int64] = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=parts))])
        self.order = torch.from_numpy(np.argsort(numbers, kind="stable"))  # nodes of the dataset by their new ids
        self.new_id: NDArray[np.int64] = np.empty(len(numbers), np.int64)
        self.new_id[self.order.numpy()] = np.arange(len(numbers))
        self.num_features = 0 if x is None else x.shape[1]
        values = x.values if isinstance(x, SparseFeatures) else x
        self.feature_dtype = torch.float32 if values is None else values.dtype
        degrees = np.diff(graph.csc.indptr.numpy())
        self.types: Types | None = None
        self.has_weights, self.regions = False, self.bounds
        self.feature_bytes: NDArray[np.int64] = np.diff(self.bounds) * self.num_features * self.feature_dtype.itemsize
        self.edge_counts: NDArray[np.int64] = np.bincount(numbers, degrees, minlength=parts).astype(np.int64)

    def _nodes(self, number: int) -> Tensor:
        return self.order[int(self.bounds[number]) : int(self.bounds[number + 1])]

    def read_ahead(self, number: int) -> None:
        """All is in memory."""

    def structure(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Offsets, and sources of in-edges, ascending in every row."""
        nodes, csc = self._nodes(number).numpy(), self._graph.csc
        degrees, places = entries_of(csc.indptr.numpy(), nodes)
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        rows = np.repeat(np.arange(len(nodes)), degrees)
        sources = self.new_id[csc.indices.numpy()[places]]
        keys = np.sort(rows * max(len(self.new_id), 1) + sources)
        return indptr, keys % max(len(self.new_id), 1)

    def edge_columns(self, number: int) -> tuple[None, None]:
        """Neither relations nor weights."""
        return None, None

    def features_into(self, number: int, out: Tensor) -> None:
        """The features of a part, (n, F), into ``out``."""
        out.copy_(self._rows(self._nodes(number)))

    def labels(self, number: int) -> Tensor:
        """The labels of a part."""
        return self._y[self._nodes(number)]

    def feature_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """(n, F) features of nodes with ascending ids."""
        return self._rows(self.order[torch.from_numpy(ids)])

    def feature_rows_into(self, ids: NDArray[np.int64], out: Tensor, at: Tensor) -> None:
        """Features of nodes with ascending ids as rows ``at`` of ``out``, in its dtype."""
        out.index_copy_(0, at, self.feature_rows(ids).to(out.dtype))

    def _rows(self, nodes: Tensor) -> Tensor:
        if self._x is None:
            return torch.empty(nodes.numel(), 0)
        found = gather_rows(self._x, nodes)
        return found.to_dense() if isinstance(found, SparseFeatures) else found


def edge_bytes(source: PartSource) -> int:
    """Bytes of an edge in memory: its source, of a typed graph its id and relation, and its weight."""
    return 4 + (0 if source.types is None else 8) + (4 if source.has_weights else 0)


__all__ = ["MemoryParts", "PartSource", "edge_bytes"]
