"""Link prediction from a store: the batches of memory, bit for bit, with features read from disk.

Comes in: a model, a store with its structure in memory, a budget. Goes out: epochs and scores for the trainer. Splits,
negatives, draws and updates are those of :class:`LinkTask`; rows of features come as in mode mini from a store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.data.stored_graph import StoredGraph
from graphweft.loader.disk import DiskTables, tables_of
from graphweft.loader.disk_link import DiskLinkLoader
from graphweft.loader.held_parts import HeldParts
from graphweft.loader.link import LinkLoader
from graphweft.nn.stack import Stack
from graphweft.storage.feature import Features
from graphweft.storage.memory_size import memory_bytes
from graphweft.train.disk_batches import EVALUATION, check_mapped
from graphweft.train.disk_counts import FromDisk
from graphweft.train.edge_data import EdgeData
from graphweft.train.link_task import LinkTask, check_link, check_stored_links
from graphweft.train.part_inference import PartInference
from graphweft.train.samplers import fitting_fanouts
from graphweft.train.setup import Setup
from graphweft.train.stored_sizes import SPLITTING, check_link_rows, link_outputs


class DiskLinkTask(LinkTask, FromDisk):
    """Trains on edges of a store whose features are on disk.

    Args:
        setup: With a store as ``ds``.

    Attributes:
        inference: What evaluates.

    Raises: ConfigError for a typed store, a model that is no stack of layers; MemoryBudgetError for too little memory.
    """

    def __init__(self, setup: Setup) -> None:
        model, ds = setup.model, setup.ds
        assert isinstance(ds, StoredGraph)  # by which the kind was chosen
        check_link(setup.drawn)
        check_stored_links(model, ds.store)
        check_mapped(ds, setup.memory)
        assert isinstance(model, Stack)  # as was checked
        budget, drawn = memory_bytes(setup.memory), setup.drawn
        if setup.memory is not None:
            check_link_rows(model, ds, fitting_fanouts(model, drawn.fanouts), drawn.batch_size, budget)
        self._place = ds.row_ids
        more = budget // EVALUATION + SPLITTING * ds.store.num_edges
        self._disk = tables_of(ds, budget, more, ds.mapped)
        super().__init__(setup)
        self.inference = PartInference(model, self._parts(None), budget // EVALUATION, 1, setup.scratch)

    def _parts(self, weight: Tensor | None) -> HeldParts:
        """The parts of the store with the training graph, and the weights of its edges."""
        return HeldParts(self.store, self.split.graph, self._place, weight)

    def _training(self, ds: Dataset, x: Features) -> tuple[Dataset, Any]:
        """The store, and tables over the training graph."""
        held = self._disk
        tables = (held.stored, held.memory, self.split.graph, held.y, held.train_idx)
        return ds, DiskTables(*tables, mapped=held.mapped)

    def _loader(self, batch_size: int, seed: int, made: type[LinkLoader] = DiskLinkLoader) -> LinkLoader:
        """Batches of training edges."""
        return super()._loader(batch_size, seed, made)

    @property
    def counted(self) -> tuple[int, int]:
        """Bytes of embeddings of all nodes; and, once they are there, of scoring pairs."""
        assert isinstance(self.model, Stack)  # as was checked
        held, scoring = link_outputs(self.model, self.store, True, self.split)
        return held, max(scoring - held, 0)

    def pooled(self, before: int) -> int:
        """The training graph and the edges to predict, as far as they lie there."""
        return max(POOL.stats().mapped - before, 0)

    def resize(self, memory: int, pieces: bool = False) -> None:
        """Rows of features and batches drawn ahead take so many bytes from now on; no batch changes.

        ``pieces``: False, as links are of no types.
        """
        self._disk = replace(self._disk, memory=memory, pieces=pieces)
        self.ds, self._tables = self._training(self.ds, self.x)
        self.loader = self._loader(self.drawn.batch_size, self.seed)

    def use(self, edge_data: EdgeData) -> None:
        """As for links in memory; weights of edges were read with the structure."""
        super().use(edge_data.with_weight(self.ds.edge_weight))
        weight = self.edge_data.weight
        self.inference.source, self.inference.weighted = self._parts(weight), weight is not None

    def outputs(self) -> Tensor:
        """As :meth:`logits`: pairs of all nodes are scored."""
        return self.logits()

    def logits(self) -> Tensor:
        """The embeddings, (N, C), from all neighbours in the training graph."""
        found = self.inference.outputs(np.arange(self.ds.num_nodes))[self._place]
        if self.budget is not None:  # what tiles took would lie beside the pairs that are scored
            POOL.trim()
        return found


__all__ = ["DiskLinkTask"]
