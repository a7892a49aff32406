"""Rows that tiles read of other tiles' nodes, put in the order of the tiles by one pass over all rows.

Comes in: a table of rows on disk and tiles. Goes out: for every tile the rows of the nodes that its edges lead to
outside of it, from one place of a temporary file. Called by inference over parts where rows of a tile lie all over the
table: each of them would else be a request, or most of the table be read for every tile. As an external sort, this
reads the table once, writes each row as often as tiles want it, and reads that once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids, distinct
from graphweft.storage.block_io import aligned_empty, array_bytes, bytes_of
from graphweft.storage.picked_rows import FEW, BlockRows, pick_rows
from graphweft.train.row_tables import RowTable
from graphweft.train.row_tiles import RowTile
from graphweft.train.scratch import NoRoomError, Scratch

_WRITTEN = 3  # times what reading a byte costs: it is written, waited for, and read
_MOST_RANGES = 1 << 8  # of ids, whose rows are read together
_READS = 8  # of a list of ids


class _Lists:
    """Ids of the rows that every tile wants of others, in a file, and where ranges of ids begin in each list."""

    def __init__(self, folder: Path | None, nodes: int, step: int, most: int) -> None:
        self._file, self._dtype = Scratch(folder, most), np.dtype(np.int32 if nodes < 1 << 31 else np.int64)
        self.edges = np.arange(0, nodes + step, step)
        self.cuts: list[NDArray[np.int64]] = []
        self.begins = [0]

    def add(self, ids: Ids) -> NDArray[np.int64]:
        """One more list, ascending; rows in every range."""
        cuts = np.searchsorted(ids, self.edges)
        self._file.write(array_bytes(ids.astype(self._dtype)), self.begins[-1] * self._dtype.itemsize)
        self.cuts.append(cuts)
        self.begins.append(self.begins[-1] + len(ids))
        return np.diff(cuts)

    def ranges(self) -> Iterator[list[NDArray[np.integer[Any]]]]:
        """For every range the ids of each list in it; those of several ranges are read at once."""
        self._file.settle()
        together = -(-(len(self.edges) - 1) // _READS)
        for first in range(0, len(self.edges) - 1, together):
            end = min(first + together, len(self.edges) - 1)
            read = [self._read(begin + int(cuts[first]), begin + int(cuts[end])) for begin, cuts in self._lists()]
            self._file.settle()
            for number in range(first, end):
                bounds = [(cuts[number : number + 2] - cuts[first]).tolist() for cuts in self.cuts]
                yield [ids[slice(*cut)] for ids, cut in zip(read, bounds, strict=True)]

    def _lists(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        return zip(self.begins[:-1], self.cuts, strict=True)

    def _read(self, first: int, end: int) -> NDArray[np.integer[Any]]:
        found = np.empty(end - first, self._dtype)
        if len(found):
            self._file.read(first * self._dtype.itemsize, array_bytes(found))
        return found


class Spill:
    """Rows in the order of tiles, range of ids after range, tile after tile in each.

    Args:
        table: The rows.
        lists: The ids that tiles want.
        folder: Of the temporary file.
        memory: Bytes of rows that are read at a time.
    """

    def __init__(self, table: RowTable, lists: _Lists, folder: Path | None, memory: int) -> None:
        self._table, self._width = table, table.width * table.dtype.itemsize
        self._file = Scratch(folder, table.piece, lists.begins[-1] * self._width)
        self._places: list[list[tuple[int, int]]] = [[] for _ in lists.cuts]  # of a tile: first row, rows
        self._written = 0
        step = max(memory // max(self._width, 1), 1)
        for wanted in lists.ranges():
            every = distinct(np.concatenate(wanted))
            for first in range(0, len(every), step):
                self._put(every[first : first + step], wanted)
        self._file.settle()

    def _put(self, some: Ids, wanted: list[NDArray[np.integer[Any]]]) -> None:
        """Reads some rows and writes them for each tile that wants them, one after the other."""
        rows = aligned_empty((len(some), self._table.width), self._table.dtype)
        self._table.fill(some, rows, torch.arange(len(some)))
        for places, ids in zip(self._places, wanted, strict=True):
            own = ids[slice(*np.searchsorted(ids, (some[0], some[-1] + 1)).tolist())]
            if len(own):
                found = torch.index_select(rows, 0, torch.from_numpy(np.searchsorted(some, own)))
                self._file.write(bytes_of(found), self._written * self._width)
                places.append((self._written, len(own)))
                self._written += len(own)

    def fill(self, tile: int, out: Tensor, first: int) -> None:
        """The rows of a tile, into ``out`` from row ``first`` on."""
        with self._file.opened() as file:
            for place, count in self._places[tile]:
                table = BlockRows(place * self._width, self._table.dtype, (count, self._table.width))
                rows = np.arange(count)
                pick_rows(file, table, rows, out, torch.from_numpy(rows + first), self._table.piece)
                first += count


class TooManyRowsError(Exception):
    """Tiles read more bytes than another way does."""


def spilled(
    table: RowTable,
    tiles: Iterable[RowTile],
    nodes: int,
    folder: Path | None,
    memory: int,
    limit: int | None = None,
) -> Spill | None:
    """Rows in the order of ``tiles``, or None where each tile does better to read its own from the table.

    ``nodes``: of the graph; ``memory``: bytes of rows that are read at a time; ``limit``: what another way costs, in
    bytes read. Where the disk has no room tiles read their own as well.

    Raises: TooManyRowsError once either way costs more than ``limit``.
    """
    width = table.width * table.dtype.itemsize
    if not table.is_far or width == 0:
        return None
    step = max(memory // width, -(-nodes // _MOST_RANGES), 1)
    apart = together = 0
    try:
        lists = _Lists(folder, nodes, step, table.piece)
        for tile in tiles:
            counts = lists.add(np.empty(0, np.int64) if tile.is_over else tile.others)
            del tile  # before there is another
            apart += int(np.minimum(counts * FEW, step * width).sum())
            together += int(counts.sum()) * width
            if limit is not None and min(apart, nodes * width + _WRITTEN * together) > limit:
                raise TooManyRowsError
        if apart <= nodes * width + _WRITTEN * together:
            return None
        return Spill(table, lists, folder, memory)
    except NoRoomError:
        return None


__all__ = ["Spill", "TooManyRowsError", "spilled"]
