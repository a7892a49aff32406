"""Compiled libraries as files: whole or not there, and made by one of the processes that want them.

Comes in: where a library belongs, and how it is made in an empty folder. Goes out: the file, ending in the digest of
its content, by which a torn or damaged one is found before it is loaded. Called by ``runtime/build.py`` and
``_first_use.py``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

_DIGEST_BYTES = hashlib.sha256().digest_size
_PIECE = 1 << 16  # bytes that are read at a time


def made(path: Path, make: Callable[[Path], str]) -> str:
    """Sees to it that the library at ``path`` is there; returns why it is not, or an empty text.

    Args:
        path: The library. Its folder is made.
        make: Makes ``unit.so`` in the folder that it is given, or returns why it could not. Called under a file lock,
            and only where the library is missing or damaged.

    Raises: OSError where the folder cannot be written.
    """
    if whole(path):
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        return "" if whole(path) else _moved(path, make)


def _moved(path: Path, make: Callable[[Path], str]) -> str:
    """Makes the library beside its place, adds its digest, then moves it there in one step."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        failure = make(Path(scratch))
        if failure:
            return failure
        library = Path(scratch) / "unit.so"
        content = library.read_bytes()
        with library.open("ab") as file:  # the loader does not look behind the last section
            file.write(hashlib.sha256(content).digest())
        library.replace(path)  # a new file: another process may have the old one mapped
    return ""


def whole(path: Path) -> bool:
    """Whether the file ends in the digest of what stands before it: a torn library would kill the process."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
            while left > 0 and (piece := file.read(min(left, _PIECE))):  # a whole library would be memory of the run
                digest.update(piece)
                left -= len(piece)
            return left == 0 and file.read() == digest.digest()
    except OSError:
        return False


def run(command: Sequence[str]) -> str:
    """Runs a compiler; returns its first error, or an empty text."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    except subprocess.CalledProcessError as failure:
        lines = [line for line in failure.stderr.splitlines() if "error" in line or "undefined" in line]
        return lines[0].strip() if lines else f"status {failure.returncode}"
    except (OSError, subprocess.SubprocessError) as failure:
        return str(failure) or type(failure).__name__
    return ""


__all__ = ["made", "run", "whole"]
