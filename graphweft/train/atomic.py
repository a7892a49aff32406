"""Files that are either the old version or the new one, whenever the process dies.

Comes in: bytes and a path. Goes out: the file, written under a temporary name in the same folder, flushed to the disk
and renamed. Called by the checkpoints, the history and the plot.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".partial"


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replaces ``path`` by what ``write`` puts into the open file; on an error the old file stays.

    Raises: OSError when the folder cannot be written or the disk is full.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_atomic(target, lambda file: file.write(b"all or nothing"))
        >>> target.read_bytes()
        b'all or nothing'
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
