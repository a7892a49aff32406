"""Reads of blocks: large sequential requests into memory of its own, faults told with file and offset.

Comes in: an open file, an offset, a tensor to fill. Goes out: the tensor filled, or one line that says which bytes of
which file could not be had. Called by :class:`graphweft.storage.store.Store` from any thread.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError

REQUEST = 16 << 20  # bytes of a read


@dataclass
class ReadCounts:
    """What was read.

    Attributes:
        requests: Calls of the system.
        nbytes: Bytes.
    """

    requests: int = 0
    nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, other: ReadCounts) -> None:
        """Adds what another one counted; from any thread."""
        with self._lock:
            self.requests += other.requests
            self.nbytes += other.nbytes


def aligned_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor on pages of its own, which go back to the system when it dies; contents are zero.

    Example:
        >>> aligned_empty((3, 2), torch.float16).data_ptr() % 4096
        0
    """
    nbytes = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).resize_(shape)  # no view, whose base would keep what x.data gives up


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return array_bytes(flat.numpy())


def array_bytes(array: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return array.data.cast("B") if array.size else memoryview(b"")


def read_bytes(handle: int, name: str, offset: int, out: memoryview) -> int:
    """Fills ``out`` with the bytes from ``offset`` on, whatever a call of the system gives; how many calls it took.

    Raises: DataError for a file that ends before, or a failing read; ``name`` is what it calls the file.
    """
    done = requests = 0
    while done < len(out):
        try:
            got = os.preadv(handle, [out[done : done + REQUEST]], offset + done)
        except OSError as failure:
            raise DataError(f"{name}: reading failed at byte {offset + done}: {failure.strerror}") from None
        if got == 0:
            raise DataError(
                f"{name}: expected {len(out)} bytes from byte {offset} on, got {done}; the file is truncated"
            )
        done += got
        requests += 1
    return requests


def check_crc(path: Path, name: str, offset: int, stated: int, found: int) -> None:
    """Raises: DataError where the bytes of a block have another checksum."""
    if found != stated:
        raise DataError(
            f"{path}: expected the checksum {stated} of block {name} at byte {offset}, got {found}; the file is damaged"
        )


def forget_pages(handle: int, offset: int = 0, length: int = 0) -> None:
    """Lets the system drop its copy of a clean range of the file, whole pages of it; ``length`` 0: to the end."""
    if hasattr(os, "posix_fadvise"):
        first = offset // mmap.PAGESIZE * mmap.PAGESIZE  # the system keeps pages that a range begins or ends inside of
        end = -(-(offset + length) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.posix_fadvise(handle, first, end - first if length else 0, os.POSIX_FADV_DONTNEED)


def expect_no_more(handle: int) -> None:
    """The system reads nothing beyond what is asked for, which may be megabytes after each of many places."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)


def mapped(path: Path, dtype: torch.dtype, shape: tuple[int, ...], offset: int, at_random: bool = False) -> Tensor:
    """The block as a read-only map of the file; ``at_random``: pages beside those that are touched are not read."""
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    count = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    # a private map: writes, which nobody makes, would not reach the file, and torch does not warn
    pages = np.memmap(path, np.uint8, "c", offset, (count,))
    if at_random and hasattr(mmap, "MADV_RANDOM"):
        pages._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return torch.from_numpy(pages).view(dtype).view(shape)
