"""What a loader over a store is made of: structure in memory, a table of rows within a budget, batches drawn ahead.

Comes in: a store and a budget. Goes out: the feed of a loader. Called by :class:`graphweft.loader.loader.Loader`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from graphweft._errors import ConfigError, DataError
from graphweft._torch_private import hosted
from graphweft.graph.graph import Graph
from graphweft.graph.select import as_selection
from graphweft.loader.batch import Batch, Data
from graphweft.loader.disk_feed import DiskFeed, Feed, RowCounts
from graphweft.loader.epochs import EpochLoader
from graphweft.loader.mapped_feed import MappedFeed
from graphweft.loader.piece_feed import PieceFeed
from graphweft.storage.feature import SparseFeatures
from graphweft.storage.flat_rows import FlatRows, flat_rows_of
from graphweft.storage.memory_size import memory_bytes, shown_bytes
from graphweft.storage.piece_rows import PieceRows
from graphweft.storage.row_cache import RowCache
from graphweft.storage.store import Store
from graphweft.storage.stored_structure import StoredNodes, structure_bytes
from graphweft.storage.typed_rows import RowSource, TableSource, UncompressedRows

B = TypeVar("B")
AHEAD = 6  # one in so many bytes beside the structure is for batches that are drawn ahead


class Nodes(Protocol):
    """What is in memory of a store; see :class:`StoredNodes`."""

    @property
    def store(self) -> Store: ...  # noqa: D102
    @property
    def row_ids(self) -> Tensor: ...  # noqa: D102
    @property
    def graph(self) -> Graph: ...  # noqa: D102
    @property
    def y(self) -> Tensor: ...  # noqa: D102
    @property
    def train_idx(self) -> Tensor: ...  # noqa: D102


@dataclass
class DiskTables:
    """What batches are made from: a store's structure and labels, and no features.

    Attributes:
        stored: The store, with its structure.
        memory: Bytes for rows of features and batches drawn ahead.
        graph: Its structure.
        y: Labels of all nodes.
        train_idx: Its training nodes.
        flat: For a typed graph whose types have columns of their own: what makes rows of them.
        mapped: Rows come from memory maps, for comparison; nothing is read ahead.
        pieces: Products read rows a piece at a time, as those of a batch have no room together; with ``flat``.
    """

    stored: Nodes
    memory: int
    graph: Graph
    y: Tensor
    train_idx: Tensor
    x: None = None
    flat: FlatRows | None = None
    mapped: bool = False
    pieces: bool = False

    def nodes_read(self, ids: Tensor) -> Tensor:
        """Those of some nodes whose rows are on disk."""
        return ids if self.flat is None else ids[self.flat.is_stored(ids)]

    def rows(self, ids: Tensor, table: Tensor, place: Tensor) -> Tensor | SparseFeatures:
        """Rows of some nodes: that of node i is ``table[place[i]]``, where it is on disk."""
        own = table[place[self.nodes_read(ids)].long()]
        return own if self.flat is None else self.flat.rows(ids, own)

    def rows_in(self, ids: Tensor, table: Tensor, place: Tensor) -> Tensor | SparseFeatures:
        """As :meth:`rows`; those of types of their own are read where they lie, as long as they lie there."""
        if self.flat is None or self.mapped:
            return self.rows(ids, table, place)
        return UncompressedRows.of(self.flat, ids, TableSource(table, place))

    def over(self, made: Any, source: RowSource) -> Any:
        """A batch without rows, whose products read those of its nodes from a source."""
        assert self.flat is not None  # as there are pieces
        made.x = UncompressedRows.of(self.flat, made.n_id, source)
        return made


class _Owner(Protocol):
    """The loader."""

    def make(self, places: Tensor, epoch: int) -> Any: ...
    def order(self, epoch: int) -> Tensor: ...
    def nodes_read(self, made: Any) -> Tensor: ...
    def with_rows(self, made: Any, table: Tensor, place: Tensor) -> Any: ...
    @property
    def batch_size(self) -> int: ...
    def _length(self, epoch: int) -> int: ...


def tables_of(stored: Nodes, memory: int | str | None, other: int = 0, mapped: bool = False) -> DiskTables:
    """The tables within a budget, of which ``other`` bytes are for something else; ``mapped``: see the attribute.

    Raises: ConfigError naming the least that would do; DataError for a damaged store.
    """
    budget, (kept, reading) = memory_bytes(memory), structure_bytes(stored.store)
    least = kept + max(reading, other)
    if least >= budget and not mapped:
        raise ConfigError(
            f"memory: expected more than {shown_bytes(least)}, the structure and labels of {stored.store.name}, got "
            f"{shown_bytes(budget)}; mode macro trains with less"
        )
    if not stored.store.row_width:
        raise DataError(f"{stored.store.name}: expected a store with features to read, got one without")
    tables = (stored.graph, stored.y, stored.train_idx)
    return DiskTables(stored, budget - kept - other, *tables, flat=flat_rows_of(stored.store), mapped=mapped)


def on_disk(
    ds: Any, memory: int | str | None, prefetch: int | None, workers: int | None
) -> tuple[DiskTables | None, Data | Graph, int | None]:
    """Tables of a store, what the loader reads as its data, and how many batches it prepares by itself.

    Raises: ConfigError for options that do not go together.
    """
    if isinstance(ds, Store):
        ds = tables_of(StoredNodes(ds), memory)
    elif memory is not None:
        raise ConfigError(f"memory={memory} cannot be combined with data in memory; it is for a gw.macro.Store")
    if not isinstance(ds, DiskTables):
        return None, ds, prefetch
    if prefetch is not None or workers is not None:
        raise ConfigError("Loader: prefetch and workers cannot be combined with a store, which is read ahead anyway")
    return ds, ds, None if ds.mapped else 0


class FedLoader(EpochLoader[B]):
    """A loader whose batches get their rows of features from a store, where there is one."""

    _feed: Feed[B] | None = None

    @hosted
    def __call__(self, index: Any) -> B:
        """The batch of the items at these places, drawn as in the epoch under way.

        Raises: IndexRangeError for a place that is none.
        """
        made = self.make(as_selection(self.who, "place", index, self.num_items), self._epoch)
        return made if self._feed is None else self._feed.alone(made)

    @contextlib.contextmanager
    def first_batch(self) -> Iterator[B | None]:
        """As for all loaders; rows of a store are read for it alone."""
        if self._feed is not None:
            yield self(self.order(self._epoch)[: self.batch_size]) if len(self) else None
            return
        with super().first_batch() as batch:
            yield batch

    @property
    def disk(self) -> RowCounts | None:
        """What the batches so far took of the disk; None where features are in memory."""
        return None if self._feed is None else self._feed.counts

    @property
    def disk_workers(self) -> int:
        """Threads that draw batches ahead."""
        return 0 if self._feed is None else self._feed.workers

    def with_own_rows(self, made: Any) -> B:
        """A batch of :meth:`make` with rows that are read for it alone; of a store."""
        assert self._feed is not None  # of a store
        return self._feed.alone(made)

    def forget_ahead(self) -> None:
        """Drops batches that were drawn ahead."""
        if self._feed is not None:
            self._feed.forget()

    def _preparer(self, epoch: int) -> Callable[[int], B]:
        return super()._preparer(epoch) if self._feed is None else self._feed.batches(epoch)

    def _batches(self, turn: object, epoch: int, first: int) -> Iterator[B]:
        with contextlib.nullcontext() if self._feed is None else self._feed.running():
            yield from super()._batches(turn, epoch, first)


def feed_of(loader: _Owner, tables: DiskTables) -> Feed[Any]:
    """The feed of a loader over a store. Raises: ConfigError for a budget without room for rows, or with ``fetch``."""
    if getattr(loader, "_fetch", None) is not None:
        raise ConfigError("Loader: fetch cannot be combined with a store, which has the features")
    orders: dict[int, Tensor] = {}
    size = loader.batch_size

    def draw(epoch: int, position: int) -> Any:
        order = orders.get(epoch)
        if order is None:
            for past in [e for e in list(orders) if e < epoch - 1]:
                orders.pop(past, None)
            order = orders[epoch] = loader.order(epoch)
        return loader.make(order[position * size : (position + 1) * size], epoch)

    stored = tables.stored
    if tables.mapped:
        return MappedFeed(stored.store, stored.row_ids, draw, loader.nodes_read, loader.with_rows)
    if tables.pieces and tables.flat is not None:
        rows = PieceRows(stored.store, tables.flat, stored.row_ids, tables.memory)
        return PieceFeed(rows, draw, tables.over)
    ahead = tables.memory // AHEAD
    cache = RowCache(stored.store, stored.row_ids, tables.memory - ahead)
    return DiskFeed(cache, draw, loader.nodes_read, loader.with_rows, batch_bytes, loader._length, ahead)


def batch_bytes(made: Any) -> int:
    """About the bytes of a batch without rows of features.

    Example:
        >>> import torch
        >>> batch_bytes((torch.zeros(4), [torch.zeros(2)], "name"))
        24
    """
    if isinstance(made, Tensor):
        return made.numel() * made.element_size()
    if isinstance(made, Graph):
        return made.num_edges * (4 + 8) + made.num_dst * 8  # with the ids of edges
    if isinstance(made, Batch):
        return 8 * made.num_nodes + sum(batch_bytes(block) for block in made.blocks)
    if isinstance(made, tuple | list):
        return sum(batch_bytes(item) for item in made)
    return batch_bytes(made.values) if hasattr(made, "values") else 0
