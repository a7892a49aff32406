"""Link prediction from a store: the batches of memory, bit for bit, with features read from disk.

Comes in: a model, a store with its structure in memory, a budget. Goes out: epochs and scores for the trainer. Splits,
negatives, draws and updates are those of :class:`LinkTask`; rows of features come as in mode mini from a store.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graphweft.data.dataset import Dataset
from graphweft.data.stored_graph import StoredGraph
from graphweft.loader.disk import DiskTables, tables_of
from graphweft.loader.disk_link import DiskLinkLoader
from graphweft.loader.link import LinkLoader
from graphweft.nn.stack import Stack
from graphweft.storage.memory_size import memory_bytes
from graphweft.train.disk_batches import EVALUATION, check_mapped
from graphweft.train.disk_counts import FromDisk
from graphweft.train.link_task import LinkTask, check_link, check_stored_links
from graphweft.train.settle import Features
from graphweft.train.setup import Setup
from graphweft.train.stored_inference import StoredInference
from graphweft.train.tiles import Tiles

_EDGE_BYTES = 120  # of an edge: the training graph, known pairs, the edges to predict, and what splitting them takes


class DiskLinkTask(LinkTask, FromDisk):
    """Trains on edges of a store whose features are on disk.

    Args:
        setup: With a store as ``ds``; its ``memory`` is for structure, pairs, rows of features, batches drawn ahead and
            evaluation.

    Raises: ConfigError for a typed store, a model that is no stack of layers, or too little memory.
    """

    def __init__(self, setup: Setup) -> None:
        model, ds = setup.model, setup.ds
        assert isinstance(ds, StoredGraph)  # by which the kind was chosen
        check_link(setup.drawn)
        check_stored_links(model, ds.store)
        check_mapped(ds, setup.memory)
        budget = memory_bytes(setup.memory)
        self._evaluated_in = budget // EVALUATION
        self._scratch = setup.scratch
        more = self._evaluated_in + _EDGE_BYTES * ds.store.num_edges
        self._disk = tables_of(ds, budget, more, ds.mapped)
        super().__init__(setup)

    def _training(self, ds: Dataset, x: Features) -> tuple[Dataset, Any]:
        """The store, and tables over the training graph."""
        held = self._disk
        tables = (held.stored, held.memory, self.split.graph, held.y, held.train_idx)
        return ds, DiskTables(*tables, mapped=held.mapped)

    def _loader(self, batch_size: int, seed: int, made: type[LinkLoader] = DiskLinkLoader) -> LinkLoader:
        """Batches of training edges."""
        return super()._loader(batch_size, seed, made)

    def logits(self) -> Tensor:
        """The embeddings, (N, C), from all neighbours in the training graph."""
        assert isinstance(self.model, Stack) and isinstance(self.ds, StoredGraph)  # as was checked
        place = (self.split.graph, self.ds.store, self.ds.row_ids, Tiles.share_of(self._evaluated_in), self._scratch)
        return StoredInference(self.model, *place).outputs(self.edge_data.inputs)

    def identity(self) -> dict[str, Any]:
        """What decides the batches, for checkpoints."""
        return {**super().identity(), "store": self.store.manifest.crc32}


__all__ = ["DiskLinkTask"]
