"""Rows of features from a store, in few large requests.

Comes in: ids of nodes, where each row is to lie. Goes out: a table with these rows. Called by
:class:`graphweft.storage.row_cache.RowCache`. Wanted rows that lie near each other are read together; several threads
read, each into a buffer of its own, so that requests are under way while rows of others are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.storage.block_io import ReadCounts, aligned_empty
from graphweft.storage.requests import SECTOR, merged
from graphweft.storage.store import FeatureRegion, Store

_MOST_REQUEST, _LEAST_REQUEST = 4 << 20, 4 * SECTOR
_COPY = 1 << 16  # bytes of rows
THREADS = 8  # requests under way at a time, at most


@dataclass(frozen=True)
class _Request:
    """Ids ``first`` to ``end`` of a region, of which ``rows`` are wanted at ``places`` of the table."""

    region: FeatureRegion
    first: int
    end: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]


class RowReader:
    """Reads rows of features by id.

    Args:
        store: The store.
        memory: Bytes for buffers.

    Attributes:
        counts: What was read.

    Example:
        >>> import tempfile
        >>> from graphweft.data.prepare_store import prepare_store
        >>> from graphweft.data.synthetic import synthetic
        >>> ds = synthetic("default", scale=0.02)
        >>> store = prepare_store(ds, tempfile.mkdtemp() + "/store", parts=4)
        >>> reader, table = RowReader(store), torch.empty(3, ds.num_features)
        >>> ids = np.array([7, 100])
        >>> reader.read(reader.plan(ids), ids, np.array([2, 0]), table)
        >>> torch.equal(table[2], ds.x[store.block(0, "node_ids")[7]])
        True
    """

    def __init__(self, store: Store, memory: int = 8 << 20) -> None:
        self._store, self.counts = store, ReadCounts()
        self._regions = store.feature_regions
        self._ends = np.array([region.end for region in self._regions], np.int64)
        self._item = torch.empty(0, dtype=store.feature_dtype).element_size()
        widest = store.row_width * self._item
        self._threads = min(max(memory // (_LEAST_REQUEST + 2 * SECTOR), 1), THREADS)
        room = max(min(memory // self._threads - 2 * SECTOR, _MOST_REQUEST), _LEAST_REQUEST)
        self._room = max(room // widest, 1) * widest

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return self._threads * (self._room + 2 * SECTOR)

    def plan(self, ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Ranges of ids, (n, 2) for each region, that hold the rows of ``ids``, ascending, each once.

        Raises: DataError for a damaged store.
        """
        found = []
        where = np.searchsorted(self._ends, ids, "right")
        cuts = np.flatnonzero(np.diff(where, prepend=-1))
        for first, last in zip(cuts.tolist(), [*cuts[1:].tolist(), len(ids)], strict=True):
            region = self._regions[where[first]]
            self._store.check(region.part, region.block, self.buffer_bytes)  # here, once, before threads take buffers
            block = self._store.manifest.parts[region.part].block(region.block)
            width = region.width * self._item
            rows = merged(ids[first:last] - region.first, self._room // width, block.shape[0], width, block.offset)
            found.append(rows + region.first)
        return found

    def read(
        self, plan: list[NDArray[np.int64]], ids: NDArray[np.int64], places: NDArray[np.int64], table: Tensor
    ) -> None:
        """``table[places] = features[ids]``; ids of the store in the ranges of the plan, ascending, each once.

        Raises: DataError for a damaged store, or a failing read.
        """
        todo = iter(list(self._requests(plan, ids, places)))
        turn = threading.Lock()

        def work() -> None:
            buffer = aligned_empty((self._room + 2 * SECTOR,), torch.uint8)
            while True:
                with turn:
                    request = next(todo, None)
                if request is None:
                    return
                self._take(request, buffer, table)

        with ThreadPoolExecutor(self._threads, "graphweft-rows") as threads:
            for running in [threads.submit(work) for _ in range(self._threads)]:
                running.result()

    def _requests(
        self, plan: list[NDArray[np.int64]], ids: NDArray[np.int64], places: NDArray[np.int64]
    ) -> Iterator[_Request]:
        """Requests in the order of the files."""
        for ranges in plan:
            region = self._regions[int(np.searchsorted(self._ends, ranges[0, 0], "right"))]
            begins, ends = np.searchsorted(ids, ranges[:, 0]), np.searchsorted(ids, ranges[:, 1])
            for (first, end), begin, stop in zip(ranges.tolist(), begins.tolist(), ends.tolist(), strict=True):
                yield _Request(region, first, end, ids[begin:stop], places[begin:stop])

    def _take(self, request: _Request, buffer: Tensor, table: Tensor) -> None:
        """One request, and its rows where they are wanted; a row that is narrower than the table ends in zeros."""
        region = request.region
        rows, counts = self._store.feature_range(region, request.first, request.end, buffer)
        wanted, places = torch.from_numpy(request.rows - request.first), torch.from_numpy(request.places)
        step = max(_COPY // (region.width * self._item), 1)  # what is copied at a time takes memory beside the buffer
        for first in range(0, len(wanted), step):
            some = slice(first, first + step)
            found = rows[wanted[some]].to(table.dtype)
            if region.width < table.shape[1]:
                found = torch.nn.functional.pad(found, (0, table.shape[1] - region.width))
            table.index_copy_(0, places[some], found)
        self.counts.add(counts)
