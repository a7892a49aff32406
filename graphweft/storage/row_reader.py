"""Rows of features from a store, in few large requests.

Comes in: ids of nodes, where each row is to lie. Goes out: a table with these rows. Called by
:class:`graphweft.storage.row_cache.RowCache`. Wanted rows that lie near each other are read together; native threads
read, each into a buffer of its own, so that many requests are under way while rows of others are copied.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft._errors import DataError
from graphweft._native import declare
from graphweft.storage.block_io import ReadCounts
from graphweft.storage.requests import SECTOR, merged
from graphweft.storage.store import FeatureRegion, Store

_read_rows = declare("gw_read_rows_f32")

_MOST_REQUEST, _LEAST_REQUEST = 4 << 20, 4 * SECTOR
_STACK = 4 * SECTOR  # bytes that a thread touches of its stack
THREADS = 32  # requests under way at a time, at most
_FILES = 128  # open at a time
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Requests(NamedTuple):
    """Requests to one region: bytes ``begin`` to ``begin + room``, of which ``least`` have to be there.

    The first id of a request lies ``skip`` bytes in; ``cuts``: where the wanted rows of each begin; ``row``: of all,
    counted from the first id of their request.
    """

    begin: Ids
    room: Ids
    least: Ids
    skip: Ids
    cuts: Ids
    row: Ids


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
        beside = 2 * SECTOR + _STACK
        self._threads = min(max(memory // (_LEAST_REQUEST + beside), 1), THREADS)
        room = max(min(memory // self._threads - beside, _MOST_REQUEST), _LEAST_REQUEST)
        self._room = max(room // widest, 1) * widest

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return self._threads * (self._room + 2 * SECTOR + _STACK)

    @property
    def least_bytes(self) -> int:
        """Bytes that reading takes beside the rows themselves."""
        return self._threads * (2 * SECTOR + _STACK)

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
        of = [self._regions[int(np.searchsorted(self._ends, ranges[0, 0], "right"))] for ranges in plan]
        cuts = np.searchsorted(ids, [*(ranges[0, 0] for ranges in plan), np.iinfo(np.int64).max])
        for first in range(0, len(plan), _FILES):
            some = slice(first, first + _FILES)
            found = [
                self._requests(region, ranges, ids[begin:end])
                for region, ranges, (begin, end) in zip(of[some], plan[some], pairwise(cuts[first:]), strict=False)
            ]
            last = min(first + _FILES, len(plan))
            self._take(of[some], found, np.ascontiguousarray(places[cuts[first] : cuts[last]]), table)

    def _requests(self, region: FeatureRegion, ranges: Ids, ids: Ids) -> _Requests:
        """Those of one region, sectors as a whole."""
        block = self._store.manifest.parts[region.part].block(region.block)
        width = region.width * self._item
        first, end = (block.offset + (edges - region.first) * width for edges in ranges.T)
        begin = first // SECTOR * SECTOR
        cuts = np.searchsorted(ids, ranges[:, 0])
        row = ids - np.repeat(ranges[:, 0], np.diff(cuts, append=len(ids)))
        return _Requests(begin, -(-(end - begin) // SECTOR) * SECTOR, end - begin, first - begin, cuts, row)

    def _take(self, regions: Sequence[FeatureRegion], requests: list[_Requests], places: Ids, table: Tensor) -> None:
        """Rows of some regions where they are wanted; those narrower than the table end in zeros. Raises: DataError."""
        counts = [len(one.begin) for one in requests]
        begin, room, least, skip = (np.concatenate([one[field] for one in requests]) for field in range(4))
        before = np.cumsum([0, *(len(one.row) for one in requests)])
        cuts = np.concatenate([*(one.cuts + first for one, first in zip(requests, before, strict=False)), before[-1:]])
        row = np.concatenate([one.row for one in requests])
        file = np.repeat(np.arange(len(regions), dtype=np.int32), counts)
        width = np.repeat(np.array([region.width for region in regions], np.int64), counts)
        told, threads = np.zeros(5, np.int64), max(min(self._threads, len(begin) // 2), 1)
        with self._store.feature_files(regions) as files:
            handles = np.array([one.handle for one in files], np.int32)
            direct = np.array([one.direct for one in files], np.int32)
            arrays = (file, begin, room, least, skip, width, cuts, row, places)
            given = (handles.ctypes.data, direct.ctypes.data, len(begin), *(array.ctypes.data for array in arrays))
            where = (_TYPES[self._store.feature_dtype], table.data_ptr(), table.shape[1])
            _read_rows(*given, *where, threads, self._room + 2 * SECTOR, told.ctypes.data)
        counted = ReadCounts(int(told[0]), int(told[1]))
        self.counts.add(counted)
        self._store.counts.add(counted)
        if told[2] >= 0:
            wrong, got = int(told[2]), int(told[3])
            path, at = files[int(file[wrong])].path, int(begin[wrong])
            if told[4]:
                raise DataError(f"{path}: reading failed at byte {at + got}: {os.strerror(int(told[4]))}")
            raise DataError(
                f"{path}: expected {int(least[wrong])} bytes from byte {at} on, got {got}; the file is truncated"
            )
