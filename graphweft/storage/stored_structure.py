"""What is kept of a store in memory while its features stay on disk: structure, labels, splits, places of nodes.

Comes in: an opened store. Goes out: its graph and its tables of nodes in the order of the source, so that whatever is
drawn from them is what is drawn from a dataset in memory. Called for mini-batches from disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.ids import index_dtype
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.numbering import numbered_by_group
from graphweft.storage.store import Store
from graphweft.storage.store_format import DTYPES, SPLIT_BITS, itemsize

_LEAST_PIECE, _PIECES = 1 << 12, 64  # entries that are sorted at a time
_ENTRY_BYTES = 48  # of an entry while it is sorted


class StoredNodes:
    """Structure and labels of a store, nodes in the order of the source.

    Args:
        store: The store.

    Attributes:
        store: The store.
        row_ids: int64 (N,) id in the store of every node.
        y: Labels of all nodes.
        train_idx: int64 training nodes.
        graph: The structure, rows of in-edges by ascending source.

    Raises: DataError for a damaged store.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> nodes = StoredNodes(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> torch.equal(nodes.y, ds.y), torch.equal(nodes.train_idx, ds.train_idx)
        (True, True)
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.row_ids, self.y, bits = node_rows(store)
        self.train_idx = ((bits & SPLIT_BITS["train"]) > 0).nonzero().reshape(-1)
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        """The structure; read when it is first asked for. Raises: DataError for a damaged store."""
        if self._graph is None:
            self._graph = read_structure(self.store)
        return self._graph


def node_rows(store: Store) -> tuple[Tensor, Tensor, Tensor]:
    """Ids in the store, labels and bits of the splits of all nodes in the order of the source."""
    nodes, shape = store.num_nodes, store.manifest.shape
    columns = (nodes, shape.label_columns) if shape.label_columns else (nodes,)
    ids, bits = torch.empty(nodes, dtype=torch.int64), torch.empty(nodes, dtype=torch.uint8)
    y = torch.empty(columns, dtype=DTYPES[shape.label_dtype])
    for number, (first, end) in enumerate(zip(store.bounds[:-1].tolist(), store.bounds[1:].tolist(), strict=True)):
        source = store.block(number, "node_ids")
        ids[source] = torch.arange(first, end)
        bits[source], y[source] = store.block(number, "split"), store.labels(number)
    return ids, y, bits


def structure_bytes(store: Store) -> tuple[int, int]:
    """Bytes of the structure and of what else is kept of every node, and what reading them takes on top."""
    manifest = store.manifest
    nodes, width = store.num_nodes, itemsize(manifest.shape.index_dtype)
    label = itemsize(manifest.shape.label_dtype) * max(manifest.shape.label_columns, 1)
    part = max((entry.edges * width + entry.nodes * 16 for entry in manifest.parts), default=0)
    kept = nodes * (8 + 8 + 1 + label + 8) + store.num_edges * width  # offsets, ids, bits, labels and splits
    reading = part + nodes * 8 + _entry_bytes(store) * _piece(store)
    if store.types is not None:  # edge ids by relation; relations while they are read
        kept, reading = kept + store.num_edges * width, reading + store.num_edges * (4 + width)
    if store.has_weights:
        kept, reading = kept + store.num_edges * 4, reading + store.num_edges * 4
    return kept, reading


def _piece(store: Store) -> int:
    """Entries that are sorted at a time."""
    return max(store.num_edges // _PIECES, _LEAST_PIECE)


def _entry_bytes(store: Store) -> int:
    return _ENTRY_BYTES + (32 if store.types is not None or store.has_weights else 0)


def read_structure(store: Store) -> Graph:
    """The graph of a store in the order of the source; rows ascend, by relation first where there are some.

    Raises: DataError for a damaged store.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> graph = read_structure(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> torch.equal(graph.csc.indptr, ds.graph.csc.indptr)
        True
    """
    return read_edges(store, weighted=False)[0]


def read_edges(store: Store, weighted: bool = True) -> tuple[Graph, Tensor | None]:
    """The graph, and the weights of its edges by edge id, where there are some and they are wanted.

    Raises: DataError for a damaged store.
    """
    nodes, types = store.num_nodes, store.types
    source = torch.cat([store.block(number, "node_ids") for number in range(len(store))]).numpy()
    indptr = aligned_empty((nodes + 1,), torch.int64)
    for number, first in enumerate(store.bounds[:-1].tolist()):
        counts = store.block(number, "indptr").diff()
        indptr[torch.from_numpy(source[first : first + len(counts)]) + 1] = counts
    torch.cumsum(indptr, 0, out=indptr)
    kind = index_dtype(nodes, nodes, store.num_edges, types is not None)
    indices = aligned_empty((store.num_edges,), kind)
    weights = aligned_empty((store.num_edges,), torch.float32) if store.has_weights and weighted else None
    of = np.empty(store.num_edges if types is not None else 0, store.manifest.shape.relation_dtype)
    begins, out = indptr.numpy(), indices.numpy()
    for number, start in enumerate(store.bounds[:-1].tolist()):
        offsets, sources = store.structure(number)
        relation = None if types is None else store.block(number, "relations").numpy()
        weight = None if weights is None else store.block(number, "weights").numpy()
        for first, end in _pieces(offsets, _piece(store)):
            degrees = np.diff(offsets[first : end + 1])
            entries = slice(int(offsets[first]), int(offsets[end]))
            # sorted by row, then by relation and source: one number says all of them
            keys = np.repeat(np.arange(end - first), degrees)
            if types is not None and relation is not None:
                keys = keys * len(types.relations) + relation[entries]
            keys = keys * nodes + source[sources[entries]]
            places = np.repeat(begins[source[start + first : start + end]] - offsets[first:end], degrees)
            places += np.arange(entries.start, entries.stop)
            if weights is not None and weight is not None:
                order = np.argsort(keys, kind="stable")
                keys = keys[order]
                weights.numpy()[places] = weight[entries][order]
            else:
                keys.sort()
            out[places] = keys % nodes
            if types is not None:
                of[places] = keys // nodes % len(types.relations)
    if types is None:
        return Graph.from_adjacency(Adjacency(indptr, indices, None, nodes)), weights
    wide: np.dtype[np.signedinteger[Any]] = np.dtype(np.int32) if kind == torch.int32 else np.dtype(np.int64)
    ids = torch.from_numpy(numbered_by_group(of, np.array(types.edge_offsets), wide))
    if weights is not None:
        weights = torch.empty_like(weights).index_copy_(0, ids.long(), weights)
    return Graph.typed(Adjacency(indptr, indices, ids, nodes), types.layout), weights


def _pieces(offsets: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole rows, of some entries each."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        end = max(int(np.searchsorted(offsets, offsets[first] + most, "right")) - 1, first + 1)
        yield first, min(end, rows)
        first = min(end, rows)
