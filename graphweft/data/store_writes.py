"""Writes into the files of a store that is being built; a full disk is told in one line.

Comes in: arrays and offsets. Goes out: bytes on disk. Called by the modules that build a store.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft.storage.block_io import array_bytes, forget_pages

_REQUEST = 16 << 20


def write_all(handle: int, path: Path, content: NDArray[Any] | memoryview, offset: int) -> int:
    """Writes all bytes of ``content`` from ``offset`` on; how many. Raises: DataError, for a full disk."""
    held = content if isinstance(content, memoryview) else array_bytes(np.ascontiguousarray(content))
    done = 0
    while done < len(held):
        try:
            done += os.pwrite(handle, held[done : done + _REQUEST], offset + done)
        except OSError as failure:
            raise _failed(path, f" at byte {offset + done}: {failure.strerror}") from None
    return done


@contextlib.contextmanager
def opened(path: Path, fresh: bool = False) -> Iterator[int]:
    """A file to write into, made where there is none; ``fresh``: without what it held. Raises: DataError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0), 0o666)
    except OSError as failure:
        raise _failed(path, f": {failure.strerror}") from None
    try:
        yield handle
    finally:
        os.close(handle)


def settle(handle: int, path: Path, size: int | None = None) -> None:
    """What was written reaches the disk, and the system drops its copy; ``size``: where the file ends.

    Raises: DataError, for a full disk.
    """
    try:
        if size is not None:
            os.ftruncate(handle, size)
        os.fdatasync(handle)
    except OSError as failure:
        raise _failed(path, f": {failure.strerror}") from None
    forget_pages(handle)


def _failed(path: Path, how: str) -> DataError:
    return DataError(f"{path}: writing failed{how}; the same graphweft prepare goes on from here once that is mended")


def write_json(path: Path, held: Any) -> None:
    """Replaces a small file of the build in one step. Raises: DataError, for a full disk."""
    write_text(path, json.dumps(held))


def write_text(path: Path, text: str, synced: bool = False) -> None:
    """Replaces a file in one step; ``synced``: it is on the disk afterwards. Raises: DataError, for a full disk."""
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as failure:
        raise _failed(path, f": {failure.strerror}") from None


def sync_folder(path: Path) -> None:
    """Names in a folder reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
