"""A store as a dataset whose structure and labels are in memory, and whose features stay on disk.

Comes in: an opened store. Goes out: a :class:`StoredGraph`, nodes in the order of the source. Called by the trainer for
mini-batches from disk.
"""

from __future__ import annotations

from torch import Tensor

from graphweft.data.stored import StoredDataset
from graphweft.graph.graph import Graph
from graphweft.storage.store import Store
from graphweft.storage.stored_structure import node_rows, read_edges


class StoredGraph(StoredDataset):
    """A dataset in the order of its source without its features, which stay on disk.

    ``row_ids`` is the id in the store of every node, ``y`` has a row for every node. ``x`` has the width of the
    features and no rows. The structure is read when :attr:`graph` is first asked for, with the weights of edges where
    there are some; until then ``edge_weight`` has no entries.

    Args:
        store: The store.
        mapped: Features are read through memory maps, as mode "mapped" does.

    Raises: DataError for a damaged store.

    Example:
        >>> import tempfile, torch
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> stored = StoredGraph(prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4))
        >>> torch.equal(stored.y, ds.y), torch.equal(stored.val_idx, ds.val_idx)
        (True, True)
    """

    _graph: Graph | None

    mapped: bool

    def __init__(self, store: Store, mapped: bool = False) -> None:
        super().__init__(store)
        object.__setattr__(self, "mapped", mapped)
        object.__setattr__(self, "_graph", None)

    @staticmethod
    def _rows(store: Store) -> tuple[Tensor, Tensor, Tensor]:
        """Ids in the store, labels and bits of all nodes in the order of the source."""
        return node_rows(store)

    @property
    def graph(self) -> Graph:
        """The structure, in memory; rows of in-edges by ascending source. Raises: DataError for a damaged store."""
        if self._graph is None:
            graph, weight = read_edges(self.store)
            object.__setattr__(self, "_graph", graph)
            object.__setattr__(self, "edge_weight", weight)
        assert self._graph is not None  # it was read
        return self._graph

    def deaf_types(self) -> list[str]:
        """As of a dataset in memory, by the manifest: the structure is read once it is known that it fits."""
        types = self.store.types
        return [] if types is None else types.layout.unfed(self.labelled("train"))

    def __repr__(self) -> str:
        return f"StoredGraph({self.store!r})"
