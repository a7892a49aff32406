"""Outputs of all nodes whose structure is in memory and whose features are on disk: layer by layer, tile by tile.

Comes in: a stack of layers, a graph, a store with its features. Goes out: output rows of all nodes. Called by
mini-batches from a store where edges have weights or relations, and by link prediction, whose graph is a part of that
of the store. Hidden rows of a layer lie in a temporary file; every node reads all of its in-edges.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.stack import Stack
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.gather import gather_rows
from graphweft.storage.store import Store
from graphweft.train.part_inference import LEAST_TILE, TILE_SHARE, evaluating, scratch_rows

Rows = Tensor | SparseFeatures


class StoredInference:
    """Inference over a graph in memory with features in a store.

    Args:
        model: A stack of layers.
        graph: The graph, nodes in the order of the source.
        store: Where the features are.
        place: int64 (N,) id in the store of every node.
        memory: Bytes for the rows of a tile.
        scratch: Folder of temporary files; None: the system's.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.stored_graph import StoredGraph
        >>> from graphweft.data.synthetic import synthetic
        >>> from graphweft.nn.sage import SAGE
        >>> ds = synthetic("default", scale=0.02)
        >>> stored = StoredGraph(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> model = SAGE(ds.num_features, 8, ds.num_classes)
        >>> found = StoredInference(model, stored.graph, stored.store, stored.row_ids, 1 << 20).outputs()
        >>> bool(torch.allclose(found, model.eval()(ds.graph, ds.x), atol=1e-5))
        True
    """

    def __init__(
        self, model: Stack, graph: Graph, store: Store, place: Tensor, memory: int, scratch: Path | None = None
    ) -> None:
        self.model, self.graph, self._store, self._place = model, graph, store, place
        self._memory, self._scratch, self._flat = memory, scratch, flat_rows_of(store)

    def outputs(self, edges: EdgeInputs | None = None) -> Tensor:
        """(N, C) outputs of all nodes in evaluation mode; ``edges``: what layers read of the edges."""
        rows: Tensor | None = None
        sampler = NeighborSampler(self.graph, [-1])
        with evaluating(self.model):
            for index in range(len(self.model.layers)):
                rows = self._layer(index, sampler, rows, edges)
        assert rows is not None  # a stack has a layer
        return rows

    def _layer(self, index: int, sampler: NeighborSampler, below: Tensor | None, edges: EdgeInputs | None) -> Tensor:
        """Rows of one layer for all nodes; ``below`` are those of the layer before, None the features."""
        nodes, width = self.graph.num_nodes, self._store.row_width if below is None else below.shape[1]
        most = max(self._memory // TILE_SHARE // (4 * 3 * max(width, 1)), LEAST_TILE)
        ends = self.graph.csc.indptr.numpy()[1:] + np.arange(1, nodes + 1)
        found: Tensor | None = None
        first = 0
        while first < nodes:
            done = int(ends[first - 1]) if first else 0
            stop = max(int(np.searchsorted(ends, done + most, "right")), first + 1)
            block = sampler.sample(torch.arange(first, stop)).blocks[0]
            part = self.model.run_layer(index, block, self._rows(block.src_ids, below), edges)
            if found is None:
                found = scratch_rows(self._scratch, nodes, part.shape[1])
            found[first:stop] = part
            first = stop
        return torch.empty(0, self.model.out_features) if found is None else found

    def _rows(self, ids: Tensor, below: Tensor | None) -> Rows:
        """Features or hidden rows by node."""
        if below is not None:
            return gather_rows(below, ids)
        stored = ids if self._flat is None else ids[self._flat.is_stored(ids)]
        places, order = torch.sort(self._place[stored])
        found = self._store.feature_rows(places.numpy()).float()
        own = torch.empty_like(found).index_copy_(0, order, found)
        return own if self._flat is None else self._flat.rows(ids, own)


__all__ = ["StoredInference"]
