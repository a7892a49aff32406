"""Safe access to untrusted files: regular files only, bounded sizes, one-line names in messages.

Comes in: a path. Goes out: an open binary file, bytes within a limit, or lines of text. Every reader opens its files
here.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from graphweft import _machine
from graphweft._errors import DataError

_GIB = 1 << 30
_MAX_RATIO = 128  # real tables and arrays shrink less than this as a whole; a bomb shrinks a thousandfold
ARRAYS_FLOOR = 4 * _GIB  # below this, arrays may shrink as they like: dense features that are mostly zero do
_TEXT_FLOOR = 1 << 26  # text takes longer to parse
_MAX_LINE = 1 << 20
_CHUNK = 1 << 20
_MAX_ENTRIES = 100_000


def one_line(text: str, limit: int = 300) -> str:
    r"""``text`` without line breaks and control characters, cut to ``limit`` characters.

    Example:
        >>> one_line("a\nb\x1b[31m")
        'a b [31m'
    """
    clean = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def show(path: str | os.PathLike[str]) -> str:
    """A path as a message shows it."""
    return one_line(os.fspath(path), 160)


def is_file(path: Path) -> bool:
    """Whether it is one; False for a name that no path can have, as one of 300 letters."""
    try:
        return path.is_file()
    except OSError:
        return False


def kind_of(path: Path) -> str:
    """What lies at ``path``: "file", "folder", or the name of something that is neither.

    Raises: DataError if nothing can be reached there.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise DataError(f"{show(path)}: expected a file or folder, got: {error.strerror or error}") from error
    for name, test in _KINDS.items():
        if test(mode):
            return name
    return "something unknown"


_KINDS = {
    "file": stat.S_ISREG,
    "folder": stat.S_ISDIR,
    "fifo": stat.S_ISFIFO,
    "socket": stat.S_ISSOCK,
    "character device": stat.S_ISCHR,
    "block device": stat.S_ISBLK,
}


def open_regular(path: Path) -> BinaryIO:
    """``path`` opened for reading; never blocks, never opens a device or a fifo.

    Raises: DataError if it is no regular file, is empty or cannot be opened.
    """
    kind = kind_of(path)  # before opening: opening a device can have effects
    if kind != "file":
        raise DataError(f"{show(path)}: expected a regular file, got a {kind}")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"{show(path)}: expected a readable file, got: {error.strerror or error}") from error
    info = os.fstat(handle)
    if not stat.S_ISREG(info.st_mode) or info.st_size == 0:
        os.close(handle)
        raise DataError(f"{show(path)}: expected a regular file with content, got an empty one")
    return os.fdopen(handle, "rb")


def file_size(file: BinaryIO) -> int:
    """Bytes of an open regular file."""
    return os.fstat(file.fileno()).st_size


def content_limit(size: int, floor: int = _TEXT_FLOOR) -> int:
    """Bytes that ``size`` packed bytes may become: ``floor`` or 128 times, never more than most of what is free."""
    return min(max(floor, _MAX_RATIO * size), int(_machine.free_memory() * 0.75))


def node_limit(size: int) -> int:
    """Nodes that an input of ``size`` bytes may speak of without listing them: ten million or 64 a byte."""
    return max(10_000_000, 64 * size)


def read_bytes(path: Path, limit: int = 4 * _GIB) -> bytes:
    """The whole content of a regular file of at most ``limit`` bytes."""
    with open_regular(path) as file:
        size = file_size(file)
        if size > limit:
            raise DataError(f"{show(path)}: expected at most {limit} bytes, got {size}")
        return file.read(size)


def list_folder(path: Path) -> list[str]:
    """Names in a folder, sorted.

    Raises: DataError if it cannot be listed or holds more than a dataset would.
    """
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MAX_ENTRIES:
                    raise DataError(f"{show(path)}: expected a dataset, got a folder of over {_MAX_ENTRIES} entries")
    except OSError as error:
        raise DataError(f"{show(path)}: expected a readable folder, got: {error.strerror or error}") from error
    return sorted(names)


class BoundedReader(io.RawIOBase):
    """The content of an open file, unpacked if it is gzip, that refuses to grow past what is plausible."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._limit = content_limit(file_size(file))
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._source: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        self._limit = self._limit if packed else file_size(file)
        self._name = name
        self.total = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, empty at the end.

        Raises: DataError once more came than the packed size makes plausible.
        """
        data = self._source.read(_CHUNK if size is None or size < 0 else min(size, _CHUNK))
        self.total += len(data)
        if self.total > self._limit:
            raise DataError(f"{self._name}: expected at most {self._limit} bytes unpacked, got more")
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills the start of ``buffer``."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def text_lines(path: Path) -> Iterator[str]:
    """Lines of a text file or a gzip of one, without their ends; bytes map to characters one to one.

    Raises: DataError on a zero byte or a line longer than a mebibyte: this is no text.
    """
    with open_regular(path) as file:
        reader = BoundedReader(file, show(path))
        rest = ""
        while chunk := reader.read(_CHUNK):
            if reader.total == len(chunk):
                chunk = chunk.removeprefix(b"\xef\xbb\xbf")  # the byte order mark of some editors
            if b"\0" in chunk:
                raise DataError(f"{show(path)}: expected text, got binary data")
            lines = (rest + chunk.decode("latin-1")).split("\n")
            rest = lines.pop()
            if len(rest) > _MAX_LINE:
                raise DataError(f"{show(path)}: expected lines of text, got one of more than {_MAX_LINE} characters")
            yield from lines
        if rest:
            yield rest
