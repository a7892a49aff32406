"""Dense rows of a store that are read a piece at a time, as often as something is computed of them.

Comes in: nodes in any order. Goes out: their rows, piece after piece, in that order. Called by products of
:class:`graphweft.storage.typed_rows.UncompressedRows` whose rows have no room in memory together. A piece is read
while the one before it is computed with, into the other of two tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft._trace import span
from graphweft._workers import become_worker
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.flat_rows import FlatRows
from graphweft.storage.memory_size import shown_bytes
from graphweft.storage.row_reader import RowReader
from graphweft.storage.store import Store
from graphweft.storage.typed_rows import Piece

_ELEMENT = 4  # bytes of a float32, as models read features
_NUMBERS = 64  # bytes of a row of a piece: its places, orders and ids
_BUFFERS, _LEAST_BUFFERS = 4, 1 << 20  # a share of the memory, and bytes, of what is read before it has its place
_TABLES = 2
_LEAST_ROWS = 256  # of a piece: smaller ones take more requests than a disk answers at once
COUNT_BYTES = 4  # of a node: how many values its row has


def least_piece_memory(store: Store) -> int:
    """Bytes of the smallest pieces, with books and buffers."""
    rows = _TABLES * _LEAST_ROWS * (store.row_width * _ELEMENT + _NUMBERS)
    return store.num_nodes * COUNT_BYTES + rows + 2 * _LEAST_BUFFERS


def most_piece_memory(store: Store, rows: int) -> int:
    """Bytes of pieces that hold so many rows, half of them each."""
    return max(
        least_piece_memory(store), int(_BUFFERS / (_BUFFERS - 1) * rows * (store.row_width * _ELEMENT + _NUMBERS))
    )


class PieceRows:
    """Rows of a typed store; a :class:`graphweft.storage.typed_rows.RowSource`.

    Args:
        store: The store.
        flat: Which nodes have rows.
        place: int64 (N,) id in the store of every node.
        memory: Bytes for tables, books and the buffers of reads.

    Attributes:
        rows: Rows of a piece.
        read: Rows that were read so far.

    Raises: ConfigError for memory without room for a row.
    """

    def __init__(self, store: Store, flat: FlatRows, place: Tensor, memory: int) -> None:
        self._flat, self._place, self.read = flat, place.numpy(), 0
        self._reader = RowReader(store, max(memory // _BUFFERS, _LEAST_BUFFERS))
        width = store.row_width
        room = memory - len(place) * COUNT_BYTES - self._reader.buffer_bytes
        row = width * _ELEMENT + _NUMBERS
        self.rows = room // (_TABLES * row)
        if self.rows < 1:
            least = memory - room + _TABLES * row
            raise ConfigError(
                f"memory: expected at least {shown_bytes(least)} for pieces of rows of features, got "
                f"{shown_bytes(memory)}"
            )
        self._tables = [aligned_empty((self.rows, width), torch.float32) for _ in range(_TABLES)]
        self._counts = torch.full((len(place),), -1, dtype=torch.int32)

    @property
    def counts(self) -> tuple[int, int]:
        """Bytes that were read so far, sectors and gaps between rows included, and calls of the system."""
        return self._reader.counts.nbytes, self._reader.counts.requests

    def pieces(self, nodes: Tensor) -> Iterator[Piece]:
        """Rows of all ``nodes``, in order; the tables are used again, so that one pass ends before the next begins."""
        firsts = range(0, len(nodes), self.rows)
        with ThreadPoolExecutor(1, "graphweft-pieces", become_worker) as reading:
            coming = None
            for turn, first in enumerate(firsts):
                own = (nodes[first : first + self.rows], self._tables[turn % _TABLES])
                coming = reading.submit(self._read, *own) if coming is None else coming
                with span("wait for rows", "wait"):
                    place = coming.result()
                coming = None
                if first != firsts[-1]:
                    after = nodes[first + self.rows : first + 2 * self.rows]
                    coming = reading.submit(self._read, after, self._tables[(turn + 1) % _TABLES])
                yield Piece(first, own[1], place)

    def _read(self, nodes: Tensor, table: Tensor) -> Tensor:
        """Reads the rows of nodes that have some; int64 row of each node in the table, 0 for others."""
        found = torch.zeros(len(nodes), dtype=torch.int64)
        stored = self._flat.is_stored(nodes)
        ids, inverse = np.unique(self._place[nodes[stored].numpy()], return_inverse=True)
        found[stored] = torch.from_numpy(inverse.astype(np.int64))
        if len(ids):
            with span("read rows", "read", rows=len(ids)):
                self._reader.read(self._reader.plan(ids), ids, np.arange(len(ids)), table)
        self.read += len(ids)
        return found

    def entries(self, nodes: Tensor) -> Tensor:
        """Numbers of other values than zero of each row; those of rows that come for the first time are read."""
        unknown = torch.unique(nodes[self._counts[nodes] < 0])
        for first, table, place in self.pieces(unknown):
            self._counts[unknown[first : first + len(place)]] = table.count_nonzero(1).int()[place]
        return self._counts[nodes].long()


__all__ = ["PieceRows", "least_piece_memory", "most_piece_memory"]
