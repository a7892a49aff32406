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

from graphweft._memory import trim_heap
from graphweft.graph.graph import Graph
from graphweft.nn.edges import EdgeInputs
from graphweft.nn.stack import Stack
from graphweft.sample.neighbor import NeighborSampler
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.flat_rows import flat_rows_of
from graphweft.storage.gather import gather_rows
from graphweft.storage.store import Store
from graphweft.train.part_inference import evaluating, out_width
from graphweft.train.tiles import HiddenRows, Tiles

Rows = Tensor | SparseFeatures


class StoredInference:
    """Inference over a graph in memory with features in a store.

    Args:
        model: A stack of layers.
        graph: The graph, nodes in the order of the source.
        store: Where the features are.
        place: int64 (N,) id in the store of every node.
        tiles: How much is in memory at once.
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
        >>> found = StoredInference(model, stored.graph, stored.store, stored.row_ids, Tiles(1 << 17)).outputs()
        >>> bool(torch.allclose(found, model.eval()(ds.graph, ds.x), atol=1e-5))
        True
    """

    def __init__(
        self, model: Stack, graph: Graph, store: Store, place: Tensor, tiles: Tiles, scratch: Path | None = None
    ) -> None:
        self.model, self.graph, self._store, self._place = model, graph, store, place
        self._tiles, self._scratch, self._flat = tiles, scratch, flat_rows_of(store)

    def outputs(self, edges: EdgeInputs | None = None) -> Tensor:
        """(N, C) outputs of all nodes in evaluation mode; ``edges``: what layers read of the edges."""
        rows: HiddenRows | None = None
        sampler = NeighborSampler(self.graph, [-1])
        with evaluating(self.model):
            for index in range(len(self.model.layers)):
                rows = self._layer(index, sampler, rows, edges)
        assert rows is not None  # a stack has a layer
        return rows.rows

    def _layer(
        self, index: int, sampler: NeighborSampler, under: HiddenRows | None, edges: EdgeInputs | None
    ) -> HiddenRows:
        """Rows of one layer for all nodes; ``under`` are those of the layer before, None the features."""
        below = None if under is None else under.rows
        nodes, width = self.graph.num_nodes, self._store.row_width if below is None else below.shape[1]
        most = self._tiles.edges(width, out_width(self.model.layers[index]), under is not None and under.is_filed)
        ends = self.graph.csc.indptr.numpy()[1:] + np.arange(1, nodes + 1)
        found: HiddenRows | None = None
        first = 0
        while first < nodes:
            done = int(ends[first - 1]) if first else 0
            stop = max(int(np.searchsorted(ends, done + most, "right")), first + 1)
            block = sampler.sample(torch.arange(first, stop)).blocks[0]
            part = self.model.run_layer(index, block, self._rows(block.src_ids, below), edges)
            del block
            if found is None:
                held = 0 if under is None else under.nbytes
                found = self._tiles.rows(self._scratch, nodes, part.shape[1], held)
            found.put(first, part, self._store.piece)  # a wait for the disk a tile would take most of the time
            if under is not None:
                under.let_go()
            if self._tiles.kept is not None:  # gaps of the heap that no other tile fits would add up
                trim_heap()
            first = stop
        if found is not None:
            found.let_go()
        return HiddenRows(torch.empty(0, self.model.out_features)) if found is None else found

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
