"""The parts of a store with a graph in memory in the place of their structure.

Comes in: a store, a graph over its nodes, the id in the store of every node. Goes out: a :class:`PartSource` with that
graph's in-edges, and features and labels of the store. Called by link prediction in mode "mini", whose training graph
is a part of that of the store: it is evaluated part by part as the whole one is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft.graph.graph import Graph
from graphweft.sample.in_edges import entries_of
from graphweft.storage.store import Store

_EDGES = 1 << 16  # that are looked up at a time, which takes several numbers an edge


class HeldParts:
    """Attributes as of a source, and ``stored``, the store.

    Sources stand in the order of the graph's rows, so that sums over them are added up as in memory.

    Args:
        store: One without types.
        graph: In-edges by node, in the order of the source.
        place: int64 (N,) id in the store of every node.
        weight: float32 (E,) weights of the graph's edges, or None.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.stored_graph import StoredGraph
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> stored = StoredGraph(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> held = HeldParts(stored.store, stored.graph, stored.row_ids)
        >>> all(
        ...     sorted(held.structure(number)[1].tolist()) == sorted(stored.store.structure(number)[1].tolist())
        ...     for number in range(4)
        ... )
        True
    """

    def __init__(self, store: Store, graph: Graph, place: Tensor, weight: Tensor | None = None) -> None:
        self._graph, self._place, self._weight = graph, place.numpy(), weight
        self.stored, self.types = store, None
        self.bounds, self.regions, self.has_weights = store.bounds, store.regions, weight is not None
        self.num_features, self.feature_dtype = store.num_features, store.feature_dtype
        self.feature_bytes = store.feature_bytes
        self.features_into, self.labels, self.read_ahead = store.features_into, store.labels, store.read_ahead
        self.feature_rows, self.feature_rows_into = store.feature_rows, store.feature_rows_into
        degrees = np.diff(graph.csc.indptr.numpy())
        of = np.searchsorted(self.bounds, self._place, "right") - 1
        self.edge_counts: NDArray[np.int64] = np.bincount(of, degrees, minlength=len(store)).astype(np.int64)

    def structure(self, number: int) -> tuple[Ids, NDArray[np.integer[Any]]]:
        """Offsets, and sources of in-edges."""
        nodes, csc = self._nodes(number), self._graph.csc
        offsets = np.zeros(len(nodes) + 1, np.int64)
        np.cumsum(np.diff(csc.indptr.numpy())[nodes], out=offsets[1:])
        sources: NDArray[Any] = np.empty(int(offsets[-1]), np.int32 if len(self._place) < 1 << 31 else np.int64)
        indices = csc.indices.numpy()
        for first, places in self._entries(nodes):
            sources[first : first + len(places)] = self._place[indices[places]]
        return offsets, sources

    def edge_columns(self, number: int) -> tuple[None, NDArray[np.float32] | None]:
        """No relations; weights of a part's in-edges, in the order of its structure."""
        if self._weight is None:
            return None, None
        ids, weight = self._graph.csc.edge_ids, self._weight.numpy()
        found = np.empty(int(self.edge_counts[number]), np.float32)
        for first, places in self._entries(self._nodes(number)):
            found[first : first + len(places)] = weight[places if ids is None else ids.numpy()[places]]
        return None, found

    def _nodes(self, number: int) -> Ids:
        """Nodes of a part, which are in the order of the source there, too."""
        start, end = self.bounds[number : number + 2]
        found: Ids = np.flatnonzero((self._place >= start) & (self._place < end))
        return found

    def _entries(self, nodes: Ids) -> Iterator[tuple[int, Ids]]:
        """Places of the in-edges of some nodes in the graph's rows, row after row, some at a time, after how many."""
        offsets = self._graph.csc.indptr.numpy()
        ends = np.cumsum(offsets[nodes + 1] - offsets[nodes])
        row = done = 0
        while row < len(nodes):
            stop = max(int(np.searchsorted(ends, done + _EDGES, "right")), row + 1)
            yield done, entries_of(offsets, nodes[row:stop])[1]
            row, done = stop, int(ends[stop - 1])


__all__ = ["HeldParts"]
