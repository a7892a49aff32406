"""Memory that two processes share, as a file without a name: nothing is left where either of them dies.

Comes in: a file's number, in the process that was started with it. Goes out: its bytes. Called by both sides of the
emulated device.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path

_LEAST = 1 << 16


class SharedBytes:
    """Bytes that grow; ``fileno`` is given to the other process.

    Example:
        >>> ours = SharedBytes()
        >>> ours.room(3)[:3] = b"abc"
        >>> theirs = SharedBytes(os.dup(ours.fileno))
        >>> bytes(theirs.room(3)[:3])
        b'abc'
        >>> theirs.close(), ours.close()
        (None, None)
    """

    def __init__(self, fileno: int | None = None) -> None:
        if fileno is None:
            folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
            with tempfile.TemporaryFile(dir=folder) as file:
                fileno = os.dup(file.fileno())
        self.fileno = fileno
        self._bytes: mmap.mmap | None = None

    def room(self, size: int) -> memoryview:
        """At least so many bytes, from the first on."""
        if self._bytes is None or len(self._bytes) < size:
            if os.fstat(self.fileno).st_size < max(size, 1):
                os.ftruncate(self.fileno, max(2 * size, _LEAST))
            self._bytes = mmap.mmap(self.fileno, os.fstat(self.fileno).st_size)
        return memoryview(self._bytes)

    def close(self) -> None:
        """Gives the memory up here."""
        if self.fileno >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fileno)
        self.fileno, self._bytes = -1, None


__all__ = ["SharedBytes"]
