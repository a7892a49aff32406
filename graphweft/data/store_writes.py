"""Writes into the files of a store that is being built; a full disk is told in one line.

Comes in: arrays and offsets. Goes out: bytes on disk. Called by the modules that build a store.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft._workers import become_worker
from graphweft.storage.block_io import array_bytes, forget_pages

_REQUEST = 16 << 20
_BEGIN, _WAIT = 2, 7  # flags of sync_file_range: to the disk; and until it is there
_PAGE = 4096


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


class Behind:
    """Does one step beside the caller: who gives the next one waits for the one before, and is told if that failed.

    Inside of ``with``; at its end the last step is done.
    """

    def __enter__(self) -> Behind:
        self._thread = ThreadPoolExecutor(1, "graphweft-write", become_worker)
        self._step: Future[Any] | None = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=True)

    def begin(self, step: Callable[..., Any], *given: Any) -> None:
        """Begins a step. Raises: what the one before raised."""
        self.wait()
        self._step = self._thread.submit(step, *given)

    def wait(self) -> None:
        """Waits for the step that was begun. Raises: what it raised."""
        step, self._step = self._step, None
        if step is not None:
            step.result()


class WrittenPages:
    """Files that were written to, of which the system keeps no more than a bound.

    Half of it travels to the disk while the other half is written. A file reaches the disk for good by :func:`settle`.

    Args:
        most: Bytes of pages.
    """

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._half = max(most // 2, 1 << 20)
        self._held = 0
        self._fresh: set[Path] = set()
        self._under_way: set[Path] = set()

    def add(self, path: Path, nbytes: int, pieces: int = 1) -> None:
        """So many bytes were written, in pieces that begin and end inside of pages; any thread. Raises: DataError."""
        with self._lock:
            self._fresh.add(path)
            self._held += nbytes + _PAGE * pieces
            if self._held >= self._half:
                self._turn()

    def let_go(self) -> None:
        """The system keeps nothing. Raises: DataError, for a full disk."""
        self._turn()
        self._turn()

    def _turn(self) -> None:
        for path in sorted(self._fresh):
            _on_its_way(path, _BEGIN)
        for path in sorted(self._under_way):
            _on_its_way(path, _WAIT)
        self._fresh, self._under_way, self._held = set(), self._fresh, 0


def _on_its_way(path: Path, flags: int) -> None:
    """What was written of a file goes to the disk; once it is there the system drops its copy. Raises: DataError."""
    with opened(path) as handle:
        call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
        if call is not None:
            failed = call(handle, ctypes.c_int64(0), ctypes.c_int64(0), flags) != 0
            if failed:
                raise _failed(path, f": {os.strerror(ctypes.get_errno())}")
        elif flags == _WAIT:
            settle(handle, path)
        if flags == _WAIT:
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
