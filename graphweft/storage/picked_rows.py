"""Some rows of a table in a file: through a map where they are few, else by reading all that lies between.

Comes in: an open file, where its table lies, ascending rows. Goes out: these rows, at places of a tensor. Called by
:class:`graphweft.storage.store.Store` and by inference over stores, for hidden rows.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import aligned_empty, mapped

FEW = 1 << 16  # bytes between wanted rows from which on they are picked one by one, as a disk reads less in that time
_PAGE = mmap.PAGESIZE  # what a row that is picked by itself takes of the system's memory


class BlockRows(NamedTuple):
    """A table in a file.

    Attributes:
        offset: Byte where it begins.
        dtype: Of its values.
        shape: Rows, columns.
    """

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        found: int = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        return found


def pick_rows(file: BlockFile, table: BlockRows, rows: NDArray[np.int64], out: Tensor, at: Tensor, piece: int) -> None:
    """``out[at] = table[rows]`` for ascending rows, some perhaps several times; ``piece``: bytes read at a time.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "rows"
        >>> _ = path.write_bytes(torch.arange(8.0).numpy().tobytes())
        >>> out = torch.zeros(3, 2)
        >>> with BlockFile(path) as file:
        ...     table = BlockRows(0, torch.float32, (4, 2))
        ...     pick_rows(file, table, np.array([0, 3]), out, torch.tensor([2, 0]), 1 << 20)
        >>> out.tolist()
        [[6.0, 7.0], [0.0, 0.0], [0.0, 1.0]]
    """
    if not len(rows):
        return
    width = max(table.width, 1)
    if len(rows) * FEW < (int(rows[-1]) - int(rows[0]) + 1) * width:
        step = max(piece // (_PAGE + width), 1)
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            held = mapped(file.path, table.dtype, table.shape, table.offset, at_random=True)
            file.read_soon((table.offset + some * width).tolist(), width)
            _copy(held, some, out, at[first : first + step])
            del held
            file.forget()
        return
    step = max(piece // width, 1)
    for first in range(int(rows[0]), int(rows[-1]) + 1, step):
        last = min(first + step, int(rows[-1]) + 1)
        cut = slice(*np.searchsorted(rows, (first, last)).tolist())
        if cut.start == cut.stop:
            continue
        held = aligned_empty((last - first, *table.shape[1:]), table.dtype)
        file.read_into(table.offset + first * width, held)
        _copy(held, rows[cut] - first, out, at[cut])


def _copy(held: Tensor, rows: NDArray[np.int64], out: Tensor, at: Tensor) -> None:
    """``out[at] = held[rows]``; where rows come to lie in a stretch nothing else is made."""
    if not bool((at[1:] - at[:-1] == 1).all()):
        out.index_copy_(0, at, torch.index_select(held, 0, torch.from_numpy(rows)).to(out.dtype))
        return
    target = out[int(at[0]) : int(at[-1]) + 1]
    # as many as lie there, and yet not all of them where some are wanted twice
    if len(rows) == int(rows[-1]) - int(rows[0]) + 1 and bool((np.diff(rows) == 1).all()):
        target[:] = held[int(rows[0]) : int(rows[-1]) + 1]
    elif held.dtype == out.dtype and target.is_contiguous():
        torch.index_select(held, 0, torch.from_numpy(rows), out=target)
    else:
        target[:] = torch.index_select(held, 0, torch.from_numpy(rows))


__all__ = ["FEW", "BlockRows", "pick_rows"]
