"""Features of a part that stay in its file until they are read, and leave memory again.

Comes in: a file and where the rows lie in it. Goes out: :class:`PartRows`: a tensor over the file's pages, and some
columns at a time. Called by :mod:`graphweft.data.part_format`; a rank sums its features by columns and so never holds
all of them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft.storage.store_format import DTYPES, Block

_PAGE_OUT = 21  # MADV_PAGEOUT: pages that were not written to go back to the file; others stay
_PIECE = 8 << 20  # bytes of rows at a time


class PartRows:
    """Rows of a file.

    Attributes:
        table: All of them, private: who writes to it writes to a copy.

    Args:
        path: The file, which is not changed while this lives.
        block: Where the rows lie.

    Raises: OSError where the file cannot be mapped.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows"
        >>> _ = path.write_bytes(torch.arange(6.0).numpy().tobytes())
        >>> rows = PartRows(path, Block("x", "float32", (2, 3), 0))
        >>> rows.columns(1, 3).tolist(), rows.table.shape
        ([[1.0, 2.0], [4.0, 5.0]], torch.Size([2, 3]))
    """

    def __init__(self, path: Path, block: Block) -> None:
        self._pages: mmap.mmap | None = None
        if not block.nbytes:
            self.table = torch.empty(block.shape, dtype=DTYPES[block.dtype])
            return
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pages = mmap.mmap(handle, block.nbytes, access=mmap.ACCESS_COPY, offset=block.offset)
        finally:
            os.close(handle)
        self.table = torch.frombuffer(self._pages, dtype=DTYPES[block.dtype]).view(block.shape)

    def columns(self, first: int, last: int) -> Tensor:
        """Columns ``first`` to ``last`` of all rows, contiguous."""
        rows, width = self.table.shape
        out = empty((rows, last - first), self.table.dtype)
        step = max(1, _PIECE // (width * self.table.element_size()))
        for begin in range(0, rows, step):
            out[begin : begin + step] = self.table[begin : begin + step, first:last]
            self.let_go()
        return out

    def let_go(self) -> None:
        """Pages that were read need not stay in memory."""
        if self._pages is not None:
            with contextlib.suppress(OSError, AttributeError, ValueError):  # a system without such a request
                self._pages.madvise(_PAGE_OUT)
