"""A file that is read in large requests past the system's page cache.

Comes in: a path, ranges of bytes, memory to fill. Goes out: the memory filled, or one line that says which bytes of
which file could not be had. Called by :class:`graphweft.storage.store.Store`. Reads are direct (``O_DIRECT``) where the
file system has that; elsewhere the pages that a read leaves in the system's cache are dropped after it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweft._errors import DataError
from graphweft.storage.block_io import REQUEST, ReadCounts, aligned_empty, bytes_of, expect_no_more, forget_pages
from graphweft.storage.requests import SECTOR

_PIECE = 4 << 20  # bytes that go through a buffer at a time where memory is not aligned


class BlockFile:
    """An open file; one thread reads from it at a time. Use it as a context.

    Attributes:
        path: The file.
        size: Its bytes.
        direct: Whether reads pass the page cache.
        counts: What was read.

    Raises: OSError where the file cannot be opened.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows"
        >>> _ = path.write_bytes(bytes(range(100)) * 100)
        >>> with BlockFile(path) as file:
        ...     found = torch.empty(3, dtype=torch.uint8)
        ...     file.read_into(5, found)
        ...     found.tolist(), file.size
        ([5, 6, 7], 10000)
    """

    def __init__(self, path: Path) -> None:
        self.path, self.counts = path, ReadCounts()
        flags = os.O_RDONLY | os.O_CLOEXEC
        self.direct = hasattr(os, "O_DIRECT")
        try:
            self._handle = os.open(path, flags | (os.O_DIRECT if self.direct else 0))
        except OSError as failure:
            if not self.direct or failure.errno != errno.EINVAL:
                raise
            self.direct, self._handle = False, os.open(path, flags)
        self.size = os.fstat(self._handle).st_size
        if not self.direct:
            expect_no_more(self._handle)

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    @property
    def handle(self) -> int:
        """The open file, as the system names it."""
        return self._handle

    def read_into(self, offset: int, out: Tensor) -> None:
        """Fills contiguous ``out`` with the bytes from ``offset`` on.

        Raises: DataError for a file that ends before, or a failing read.
        """
        wanted = bytes_of(out)
        straight = 0 if self.direct else len(wanted)
        if self.direct and offset % SECTOR == 0 and out.data_ptr() % SECTOR == 0:
            straight = len(wanted) // SECTOR * SECTOR
        self._read(offset, wanted[:straight], straight)
        if straight < len(wanted):
            self._through_buffer(offset + straight, wanted[straight:])

    def read_span(self, first: int, end: int, buffer: Tensor) -> Tensor:
        """The bytes from ``first`` to ``end``, in a page-aligned ``buffer`` with two sectors to spare; its part."""
        begin = first // SECTOR * SECTOR if self.direct else first
        least = end - begin
        room = -(-least // SECTOR) * SECTOR if self.direct else least
        self._read(begin, bytes_of(buffer)[:room], least)
        return buffer[first - begin : least]

    def read_soon(self, begins: list[int], length: int) -> None:
        """The system begins to read so many bytes from each of some places on, before they are touched in a map."""
        if hasattr(os, "posix_fadvise"):
            for begin in begins:
                os.posix_fadvise(self._handle, begin, length, os.POSIX_FADV_WILLNEED)

    def forget(self) -> None:
        """Lets the system drop its copy of the file."""
        forget_pages(self._handle)

    def _through_buffer(self, offset: int, out: memoryview) -> None:
        """Reads whole sectors elsewhere and copies what is wanted of them."""
        buffer = aligned_empty((min(_PIECE, len(out)) // SECTOR * SECTOR + 2 * SECTOR,), torch.uint8)
        step = buffer.numel() - 2 * SECTOR or SECTOR
        target = np.frombuffer(out, np.uint8)
        for done in range(0, len(out), step):
            end = min(done + step, len(out))
            target[done:end] = self.read_span(offset + done, offset + end, buffer).numpy()

    def _read(self, offset: int, out: memoryview, least: int) -> None:
        """Fills ``out``, of which ``least`` bytes have to be in the file."""
        done = 0
        while done < least:
            try:
                got = os.preadv(self._handle, [out[done : done + REQUEST]], offset + done)
            except OSError as failure:
                if self.direct and failure.errno == errno.EINVAL:  # a file system that says so late
                    self._go_through_cache()
                    continue
                raise DataError(f"{self.path}: reading failed at byte {offset + done}: {failure.strerror}") from None
            if got == 0:
                raise DataError(
                    f"{self.path}: expected {least} bytes from byte {offset} on, got {done}; the file is truncated"
                )
            done += got
            self.counts.requests += 1
            self.counts.nbytes += got
            if self.direct and done < least and done % SECTOR:  # what follows begins inside of a sector
                self._go_through_cache()
        if not self.direct and done:  # what is in our memory needs no second copy
            forget_pages(self._handle, offset, done)

    def _go_through_cache(self) -> None:
        """Ordinary reads from now on."""
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        fcntl.fcntl(self._handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.direct = False
        expect_no_more(self._handle)
