"""How much an inference part by part has in memory: what a tile takes, and rows of hidden layers.

Comes in: bytes. Goes out: what is computed at once, and memory for rows of nodes, which lies in a temporary file where
it is too large; then its pages are let go tile by tile. Called by inference over stores.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import aligned_empty, forget_pages
from graphweft.storage.memory_size import shown_bytes
from graphweft.storage.picked_rows import BlockRows, pick_rows

TILE_SHARE = 8  # of the memory: the rows that a tile's edges lead to
LEAST_TILE = 1 << 12  # rows or edges
LEAST_WITHIN = 1 << 9  # rows or edges, where every byte is counted
_REAL = 4
_EDGE, _NODE, _HEAD = 28, 32, 8  # bytes of an edge and of a row beside its values, and of an edge for each head


@dataclass(frozen=True)
class TileCost:
    """Bytes of a tile of a layer, by what is in it.

    Attributes:
        row: Of a distinct row that its edges lead to.
        own: More of a node whose row is computed.
        edge: Of an edge.
    """

    row: int
    own: int
    edge: int

    @classmethod
    def of_layer(cls, width: int, out: int, heads: int = 0) -> TileCost:
        """Over rows of ``width`` columns; ``out``: columns that the layer makes, of all sources where it has heads."""
        row = _REAL * (width + (out if heads else 0)) + _NODE
        return cls(row, _REAL * (width + 2 * out) + _NODE, _EDGE + _HEAD * heads)

    def of(self, rows: int, own: int, edges: int) -> int:
        """Bytes of so many."""
        return rows * self.row + own * self.own + edges * self.edge


@dataclass(frozen=True)
class Tiles:
    """Bytes of an inference.

    Attributes:
        tile: For the rows that a tile's edges lead to.
        kept: For hidden rows of all nodes in memory; None: they lie in a file, whose pages the system keeps.
        granted: For a tile with all that it takes besides, where that was measured; 0: as ``tile``.
    """

    tile: int
    kept: int | None = None
    granted: int = 0

    @classmethod
    def share_of(cls, memory: int) -> Tiles:
        """Those of an inference beside other things, where nothing is counted."""
        return cls(memory // TILE_SHARE)

    def bytes_of(self, cost: TileCost) -> int:
        """Bytes of a tile of a layer."""
        least = (LEAST_TILE if self.kept is None else LEAST_WITHIN) * (cost.row + cost.edge)
        return max(self.tile, least)

    def rows(self, folder: Path | None, rows: int, width: int, held: int = 0) -> HiddenRows:
        """Rows of a layer for all nodes; ``held``: bytes of other such rows."""
        nbytes = _REAL * rows * width
        if self.kept is not None and nbytes + held <= self.kept:
            return HiddenRows(aligned_empty((rows, width), torch.float32))
        return _in_file(folder, rows, width, self.kept is not None)


class HiddenRows:
    """Rows of a layer.

    Attributes:
        rows: float32 (n, width).
    """

    def __init__(self, rows: Tensor, pages: Any = None, handle: int | None = None) -> None:
        self.rows, self._pages, self._handle = rows, pages, handle
        self._waiting = 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory, those whose pages are let go left out."""
        return 0 if self._pages is not None else self.rows.nbytes

    @property
    def is_filed(self) -> bool:
        """Whether the pages of a file are let go tile by tile."""
        return self._pages is not None

    def fill(self, places: NDArray[np.int64], out: Tensor, at: Tensor, piece: int) -> None:
        """``out[at] = rows[places]`` for ascending places; of a file, at most ``piece`` bytes are read at a time."""
        if self._handle is None:
            out.index_copy_(0, at, torch.index_select(self.rows, 0, torch.from_numpy(places)))
            return
        with BlockFile(Path(f"/proc/self/fd/{self._handle}")) as file:
            pick_rows(file, BlockRows(0, torch.float32, tuple(self.rows.shape)), places, out, at, piece)

    def put(self, first: int, rows: Tensor, most: int = 0) -> None:
        """Rows from ``first`` on; a file's pages are let go once more than ``most`` bytes wait for the disk."""
        self.rows[first : first + len(rows)] = rows
        self._waiting += rows.nbytes
        if self._waiting > most:
            self.let_go()

    def let_go(self) -> None:
        """The system keeps none of a file's pages; they are read again when they are touched."""
        waiting, self._waiting = self._waiting, 0
        if self._pages is None or self._handle is None:
            return
        if waiting:
            self._pages.flush()
        self._pages.madvise(mmap.MADV_DONTNEED)
        forget_pages(self._handle)

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


def temporary(folder: Path | None, nbytes: int, what: str) -> IO[bytes]:
    """A temporary file without a name; its room on the disk is taken before it is written.

    ``folder``: where; the system's folder of such files where that is None or not there.

    Raises: DataError for a full disk, which would otherwise end the process while a map is written.
    """
    folder = folder if folder is not None and folder.is_dir() else None
    file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix="graphweft-")  # noqa: SIM115
    try:
        if nbytes:
            os.posix_fallocate(file.fileno(), 0, nbytes)
    except OSError as failure:
        file.close()
        where, wanted = folder or tempfile.gettempdir(), shown_bytes(nbytes)
        raise DataError(f"{where}: expected room for {wanted} of {what}, got: {failure.strerror}") from None
    return file


def _in_file(folder: Path | None, rows: int, width: int, lets_go: bool) -> HiddenRows:
    """Memory of a temporary file. Raises: DataError for a full disk."""
    if rows * width == 0:
        return HiddenRows(torch.empty(rows, width))
    nbytes = _REAL * rows * width
    with temporary(folder, nbytes, "hidden rows") as file:
        if not lets_go:
            return HiddenRows(torch.from_numpy(np.memmap(file, np.float32, "r+", shape=(rows, width))))
        pages = mmap.mmap(file.fileno(), nbytes)
        if hasattr(mmap, "MADV_RANDOM"):
            pages.madvise(mmap.MADV_RANDOM)  # rows lie anywhere, so pages beside them are not read
        made = torch.from_numpy(np.frombuffer(pages, np.float32).reshape(rows, width))
        return HiddenRows(made, pages, os.dup(file.fileno()))


__all__ = ["LEAST_TILE", "LEAST_WITHIN", "TILE_SHARE", "HiddenRows", "TileCost", "Tiles", "temporary"]
