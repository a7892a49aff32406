"""A temporary file of rows that is written and read past the system's page cache.

Comes in: bytes and where they belong. Goes out: the same bytes. Called by inference over stores, which puts rows of a
layer into another order. What the system keeps of the file counts as memory of the run, so it is next to nothing.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import REQUEST, aligned_empty, bytes_of, forget_pages, read_bytes
from graphweft.storage.requests import SECTOR
from graphweft.train.tiles import temporary

_LEAST_KEPT = 1 << 20  # bytes of pages that the system may keep


class NoRoomError(Exception):
    """The disk is full."""


class Scratch:
    """A temporary file of which the system keeps no more than a bound.

    Args:
        folder: Where; None: the system's folder of such files.
        most: Bytes of pages that the system may keep.
        nbytes: Room on the disk that is taken at once.

    Raises: NoRoomError.

    Example:
        >>> file, rows = Scratch(None, 1 << 20), aligned_empty((4,), torch.float32)
        >>> file.write_pages(rows.fill_(2.0), 4096)
        >>> found = torch.empty(2)
        >>> with file.opened() as reader:
        ...     reader.read_into(4104, found)
        >>> found.tolist()
        [2.0, 2.0]
    """

    def __init__(self, folder: Path | None, most: int, nbytes: int = 0) -> None:
        try:
            file = temporary(folder, nbytes, "rows in another order")
        except DataError as failure:
            raise NoRoomError from failure
        self.handle = os.dup(file.fileno())
        file.close()
        self._most, self._fresh = max(most, _LEAST_KEPT), 0
        self._direct: int | None = _direct(self.path)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)
        if getattr(self, "_direct", None) is not None:
            os.close(self._direct)  # type: ignore[arg-type]

    @property
    def path(self) -> Path:
        """Another name for the open file."""
        return Path(f"/proc/self/fd/{self.handle}")

    def opened(self) -> BlockFile:
        """For reads of rows."""
        return BlockFile(self.path)

    def write(self, content: memoryview, offset: int) -> None:
        """Through the page cache, of which a part is written back now and then. Raises: NoRoomError."""
        try:
            _write(self.handle, content, offset)
            self._fresh += len(content)
            if self._fresh > self._most:
                self.settle()
        except OSError as failure:
            raise NoRoomError from failure

    def write_pages(self, rows: Tensor, offset: int) -> None:
        """Page-aligned memory to an offset of whole pages; the last page is filled up with what lies behind the memory.

        ``rows``: made by ``aligned_empty``.

        Raises: NoRoomError.
        """
        content = bytes_of(rows)
        if self._direct is None:
            self.write(content, offset)
            return
        whole = len(content) // SECTOR * SECTOR
        try:
            _write(self._direct, content[:whole], offset)
            if whole < len(content):
                last = aligned_empty((SECTOR,), torch.uint8)
                bytes_of(last)[: len(content) - whole] = content[whole:]
                _write(self._direct, bytes_of(last), offset + whole)
        except OSError as failure:
            if failure.errno != errno.EINVAL:
                raise NoRoomError from failure
            os.close(self._direct)  # a file system that says so late
            self._direct = None
            self.write(content, offset)

    def settle(self) -> None:
        """What was written reaches the disk, and the system drops its copy."""
        os.fdatasync(self.handle)
        forget_pages(self.handle)
        self._fresh = 0

    def read(self, offset: int, out: memoryview) -> None:
        """Through the page cache."""
        read_bytes(self.handle, "temporary file", offset, out)


def _direct(path: Path) -> int | None:
    """The file once more, for writes past the page cache; None where the file system has none."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def _write(handle: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(handle, content[done : done + REQUEST], offset + done)


__all__ = ["NoRoomError", "Scratch"]
