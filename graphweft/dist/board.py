"""What every rank on this machine is at, readable for the process that started them.

Comes in: a file, mapped by the starter and all ranks. Goes out: the phase each rank is in, why it failed, and when it
last gave a sign of life. Writing costs a copy into memory. Imports no torch: the starter needs none.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

_BEAT = struct.Struct("<d")
_TEXT = 1020  # bytes of a text
_SLOT = _BEAT.size + 2 * _TEXT
_EVERY = 0.5  # seconds between two signs of life


class Board:
    """A slot for every rank.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "board"
        >>> Board.create(path, 2)
        >>> Board(path, 2).set_phase(1, "epoch 3")
        >>> Board(path, 2).phase(1), Board(path, 2).failure(1)
        ('epoch 3', '')
    """

    def __init__(self, path: Path, size: int) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size * _SLOT)
        self._writes, self._later = threading.Lock(), 0.0  # seconds that signs of life are ahead of

    @staticmethod
    def create(path: Path, size: int) -> None:
        """Makes the file."""
        path.write_bytes(bytes(size * _SLOT))

    def set_phase(self, rank: int, text: str) -> None:
        """What ``rank`` is at."""
        self._write(rank * _SLOT + _BEAT.size, text)

    def set_failure(self, rank: int, text: str) -> None:
        """Why ``rank`` ends."""
        self._write(rank * _SLOT + _BEAT.size + _TEXT, text)

    def phase(self, rank: int) -> str:
        """What ``rank`` said last."""
        return self._read(rank * _SLOT + _BEAT.size)

    def failure(self, rank: int) -> str:
        """Why it ended, empty where it said nothing."""
        return self._read(rank * _SLOT + _BEAT.size + _TEXT)

    def beat(self, rank: int) -> None:
        """A sign of life."""
        with self._writes:
            _BEAT.pack_into(self._memory, rank * _SLOT, time.monotonic() + self._later)

    def silent_seconds(self, rank: int) -> float | None:
        """Since the last sign of life; None before the first."""
        (last,) = _BEAT.unpack_from(self._memory, rank * _SLOT)
        return time.monotonic() - last if last else None

    def keep_beating(self, rank: int, starter: int) -> None:
        """Signs of life from a thread of its own; the process ends when its starter has."""

        def run() -> None:
            while True:
                if os.getppid() != starter:
                    os._exit(1)
                self.beat(rank)
                time.sleep(_EVERY)

        self.beat(rank)
        threading.Thread(target=run, name="graphweft-rank-beat", daemon=True).start()

    def end(self, rank: int, seconds: float) -> None:
        """``rank`` has done its work: ending takes away its thread, so its silence counts after ``seconds`` alone.

        With many ranks on few cores, what Python does when a process ends takes them longer than a rank may be silent.
        """
        with self._writes:
            self._later = seconds
        self.beat(rank)

    def _write(self, at: int, text: str) -> None:
        data = " ".join(text.split()).encode()[: _TEXT - 1]
        self._memory[at : at + len(data) + 1] = data + b"\0"

    def _read(self, at: int) -> str:
        return self._memory[at : at + _TEXT].split(b"\0", 1)[0].decode(errors="replace")
