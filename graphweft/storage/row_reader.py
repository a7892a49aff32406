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
from graphweft.storage.store import Store

_MOST_REQUEST, _LEAST_REQUEST = 4 << 20, 4 * SECTOR
_COPY = 1 << 16  # bytes of rows
THREADS = 8  # requests under way at a time, at most


@dataclass(frozen=True)
class _Request:
    """Rows ``first`` to ``end`` of a part, of which those at ``rows`` are wanted at ``places`` of the table."""

    part: int
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
        self._width = store.num_features * torch.empty(0, dtype=store.feature_dtype).element_size()
        self._threads = min(max(memory // (_LEAST_REQUEST + 2 * SECTOR), 1), THREADS)
        room = max(min(memory // self._threads - 2 * SECTOR, _MOST_REQUEST), _LEAST_REQUEST)
        self._most = max(room // self._width, 1)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return self._threads * (self._most * self._width + 2 * SECTOR)

    def plan(self, ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Ranges of ids, (n, 2) for each part, that hold the rows of ``ids``, ascending, each once.

        Raises: DataError for a damaged store.
        """
        bounds = self._store.bounds
        cuts = np.searchsorted(ids, bounds)
        found = []
        for part in np.flatnonzero(np.diff(cuts)).tolist():
            self._store.check(part, "x", self.buffer_bytes)  # here, once, before threads take buffers
            block = self._store.manifest.parts[part].block("x")
            rows = ids[cuts[part] : cuts[part + 1]] - bounds[part]
            found.append(merged(rows, self._most, block.shape[0], self._width, block.offset) + bounds[part])
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
            buffer = aligned_empty((self._most * self._width + 2 * SECTOR,), torch.uint8)
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
        bounds = self._store.bounds
        for ranges in plan:
            part = int(np.searchsorted(bounds, ranges[0, 0], "right")) - 1
            begins, ends = np.searchsorted(ids, ranges[:, 0]), np.searchsorted(ids, ranges[:, 1])
            for (first, end), begin, stop in zip(
                (ranges - bounds[part]).tolist(), begins.tolist(), ends.tolist(), strict=True
            ):
                yield _Request(part, first, end, ids[begin:stop] - bounds[part], places[begin:stop])

    def _take(self, request: _Request, buffer: Tensor, table: Tensor) -> None:
        """One request, and its rows where they are wanted."""
        rows, counts = self._store.feature_range(request.part, request.first, request.end, buffer)
        wanted, places = torch.from_numpy(request.rows - request.first), torch.from_numpy(request.places)
        step = max(_COPY // self._width, 1)  # what is copied at a time takes memory beside the buffer
        for first in range(0, len(wanted), step):
            some = slice(first, first + step)
            table.index_copy_(0, places[some], rows[wanted[some]].to(table.dtype))
        self.counts.add(counts)
