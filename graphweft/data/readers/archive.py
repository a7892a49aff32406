"""NumPy arrays from files that may lie: ``.npy`` and ``.npz`` without pickles, without trust in any declared size.

Comes in: an open file. Goes out: arrays of plain numbers or text. Sizes that a header claims are compared with the
bytes that are there before anything is allocated; headers are matched, never evaluated. Used by all readers of
``.npz`` and ``.npy``.
"""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from graphweft._errors import DataError
from graphweft._memory import empty
from graphweft.data.readers.files import ARRAYS_FLOOR, content_limit, file_size, one_line, open_regular, show

_MAX_MEMBERS = 4096
_MAX_DIRECTORY = _MAX_MEMBERS * 1024
_MAX_HEADER = 10_000
_MAX_TEXT_ITEM = 1 << 16
_DEFLATE_LIMIT = 1040  # deflate cannot shrink more than 1032 times
_SURE_RATIO = 32  # memory is taken at once where the packed bytes are at least a 32nd of it, else as data comes
_CHUNK = 1 << 22

_ITEM = re.compile(
    r"\s*'(?:(?P<descr>descr)'\s*:\s*'(?P<code>[<>|=]?[a-zA-Z?]\d{0,9})'"
    r"|(?P<order>fortran_order)'\s*:\s*(?P<flag>True|False)"
    r"|(?P<shape>shape)'\s*:\s*\((?P<sizes>[\d,L\s]{0,200})\))\s*(?:,|(?=\}))"
)
_DTYPE = re.compile(r"[<>|=]?(?:[?]|b1|[iu][1248]|f[248]|S\d+|U\d+)")


class Header(NamedTuple):
    """What a ``.npy`` header says, and how many bytes it takes itself."""

    dtype: np.dtype[Any]
    fortran: bool
    shape: tuple[int, ...]
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.dtype.itemsize * math.prod(self.shape)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def parse_header(who: str, stream: _Stream) -> Header:
    """The header at the start of a ``.npy`` stream, which then stands at the data.

    Raises: DataError if it is damaged or declares objects, records or complex numbers.
    """
    start = stream.read(8)
    if len(start) != 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise DataError(f"{who}: expected a .npy array, got something else")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > _MAX_HEADER:
        raise DataError(f"{who}: expected a .npy header of at most {_MAX_HEADER} bytes, got {length}")
    raw = stream.read(length)
    if len(raw) != length:
        raise DataError(f"{who}: expected a whole .npy header, got {len(raw)} of {length} bytes")
    found = _match_header(who, raw.decode("latin-1"))
    return Header(*found, 8 + width + length)


def _match_header(who: str, text: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    damaged = f"{who}: expected a .npy header with descr, fortran_order and shape, got {one_line(text, 80)!r}"
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise DataError(damaged)
    position, values = 1, {}
    while match := _ITEM.match(text, position):
        position = match.end()
        for key, value in (("descr", "code"), ("order", "flag"), ("shape", "sizes")):
            if match[key]:
                values[key] = match[value]
    if text[position:].strip() != "}" or len(values) != 3:
        if "'O" in text or "|O" in text:
            raise DataError(f"{who}: expected plain numbers, got Python objects, which are never unpickled")
        raise DataError(damaged)
    code = values["descr"]
    if "O" in code:
        raise DataError(f"{who}: expected plain numbers, got Python objects, which are never unpickled")
    if not _DTYPE.fullmatch(code):
        raise DataError(f"{who}: expected bool, integer, float or text values, got dtype {code!r}")
    if re.search(r"[SU]", code) and int(re.sub(r"\D", "", code)) > _MAX_TEXT_ITEM:
        raise DataError(f"{who}: expected short texts, got dtype {code!r}")
    sizes = [part.strip().rstrip("L") for part in values["shape"].split(",")]
    if sizes and sizes[-1] == "":
        sizes.pop()
    if len(sizes) > 4 or not all(part.isdigit() and len(part) < 19 for part in sizes):
        raise DataError(damaged)
    return np.dtype(code), values["order"] == "True", tuple(int(part) for part in sizes)


def _read_data(who: str, stream: _Stream, header: Header, sure: bool) -> NDArray[Any]:
    """Exactly the bytes of one array; memory is taken at once if ``sure``, else as they come."""
    total = header.nbytes
    if sure:
        whole = empty((total,), torch.uint8).numpy()
        view, filled = whole.data, 0
        while filled < total and (chunk := stream.read(min(_CHUNK, total - filled))):
            view[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
    else:
        grown = bytearray()
        while len(grown) < total and (chunk := stream.read(min(_CHUNK, total - len(grown)))):
            grown += chunk
        whole, filled = np.frombuffer(grown, np.uint8), len(grown)
    if filled != total or stream.read(1):
        raise DataError(f"{who}: expected {total} bytes of data for shape {header.shape}, got another number")
    if header.dtype == np.bool_ and total and int(whole.max()) > 1:
        raise DataError(f"{who}: expected bool values, got a byte {int(whole.max())}")
    if header.dtype.itemsize == 0:  # empty texts
        return np.zeros(header.shape, header.dtype)
    flat: NDArray[Any] = whole.view(header.dtype)
    array = flat.reshape(header.shape[::-1]).T if header.fortran else flat.reshape(header.shape)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _directory_size(file: BinaryIO, size: int) -> int:
    """Bytes of a zip archive's list of members as its end records say; listing many takes long."""
    file.seek(max(0, size - (1 << 16) - 200))
    tail = file.read()
    file.seek(0)
    found = [0]
    for mark, offset, width in ((b"PK\x05\x06", 12, 4), (b"PK\x06\x06", 40, 8)):
        at = tail.rfind(mark)
        field = tail[at + offset : at + offset + width]
        if at >= 0 and len(field) == width and field != b"\xff" * width:
            found.append(int.from_bytes(field, "little"))
    return max(found)


class NpzArchive:
    """The arrays of one ``.npz`` file by name; only those asked for are unpacked.

    Raises: DataError if the file is no zip archive of ``.npy`` members, has a name twice or claims what cannot be.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self.size = file_size(file)
        self._budget = content_limit(self.size, ARRAYS_FLOOR)
        if _directory_size(file, self.size) > _MAX_DIRECTORY:
            raise DataError(f"{name}: expected at most {_MAX_MEMBERS} members, got a larger directory")
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, OSError, EOFError) as error:
            raise DataError(f"{name}: expected a .npz archive, got: {one_line(str(error), 80)}") from error
        self._members: dict[str, zipfile.ZipInfo] = {}
        entries = self._zip.infolist()
        if len(entries) > _MAX_MEMBERS:
            raise DataError(f"{name}: expected at most {_MAX_MEMBERS} members, got {len(entries)}")
        for info in entries:
            key = info.filename.removesuffix(".npy")
            if key in self._members:
                raise DataError(f"{name}: expected each member once, got {one_line(key, 60)!r} twice")
            self._members[key] = info
        self._headers: dict[str, Header] = {}
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def names(self) -> list[str]:
        """Names of the members without ``.npy``."""
        return list(self._members)

    def unused(self) -> list[str]:
        """Names of the members that nobody read or left out knowingly."""
        return [key for key in self._members if key not in self._used]

    def leave_out(self, *prefixes: str) -> None:
        """Counts members whose names start so as known: what they hold is told elsewhere, or follows from others."""
        self._used.update(key for key in self._members if key.startswith(prefixes))

    def header(self, key: str) -> Header:
        """Dtype and shape of a member, checked against the bytes the archive has for it.

        Raises: DataError if it is missing or its sizes contradict each other.
        """
        if key in self._headers:
            return self._headers[key]
        if key not in self._members:
            raise DataError(f"{self.name}: expected a member {key!r}, got {one_line(', '.join(self._members), 120)}")
        info = self._members[key]
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(f"{key}: expected a stored or deflated member, got an encrypted one or another method")
        if info.compress_size > self.size or info.file_size > _DEFLATE_LIMIT * info.compress_size + 1024:
            raise DataError(
                f"{key}: expected {info.file_size} bytes from {info.compress_size} compressed ones, got a wrong size"
            )
        try:
            with self._zip.open(info) as stream:
                header = parse_header(key, stream)
        except DataError:  # a ValueError too
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise self._damaged(key, error) from error
        if header.length + header.nbytes != info.file_size:
            raise DataError(
                f"{key}: expected {header.nbytes} bytes for shape {header.shape} of {header.dtype}, "
                f"got {info.file_size - header.length}"
            )
        self._headers[key] = header
        return header

    def array(self, key: str, shape: tuple[int | None, ...] | None = None, kinds: str = "biuf") -> NDArray[Any]:
        """One member as an array.

        Args:
            key: The member's name without ``.npy``.
            shape: The expected shape, None for a size that is free; checked before the data are read.
            kinds: Accepted dtype kinds.

        Raises: DataError if it is missing, damaged or of another shape or kind.
        """
        header = self.header(key)
        if header.dtype.kind not in kinds:
            wanted = _KIND_NAMES.get(kinds, "other values")
            raise DataError(f"{key}: expected {wanted}, got {header.dtype}")
        if shape is not None and (
            len(shape) != len(header.shape)
            or any(want is not None and want != got for want, got in zip(shape, header.shape, strict=True))
        ):
            wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
            raise DataError(f"{key}: expected shape {wanted}, got {header.shape}")
        self._budget -= max(header.nbytes, 4 * math.prod(header.shape))  # small integers become float32 features
        if self._budget < 0:
            raise DataError(
                f"{key}: expected arrays that fit the file and the free memory, got {header.nbytes} bytes more"
            )
        info = self._members[key]
        self._used.add(key)
        try:
            with self._zip.open(info) as stream:
                parse_header(key, stream)
                return _read_data(key, stream, header, header.nbytes <= _SURE_RATIO * info.compress_size)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise self._damaged(key, error) from error

    def _damaged(self, key: str, error: Exception) -> DataError:
        return DataError(f"{one_line(key, 60)}: expected a readable member, got: {one_line(str(error), 80)}")


_KIND_NAMES = {
    "biuf": "numbers",
    "iu": "integers",
    "f": "floating-point numbers",
    "U": "text",
    "US": "texts",
    "SU": "text",
}


def read_npy(path: Path, kinds: str = "biuf") -> NDArray[Any]:
    """The array of one ``.npy`` file.

    Raises: DataError if it is damaged, holds objects, or its size is not what its header claims.
    """
    with open_regular(path) as file:
        who = show(path.name)
        header = parse_header(who, file)
        there = file_size(file) - header.length
        if header.nbytes != there:
            raise DataError(f"{who}: expected {header.nbytes} bytes for shape {header.shape}, got {there}")
        if header.dtype.kind not in kinds:
            raise DataError(f"{who}: expected numbers, got {header.dtype}")
        return _read_data(who, file, header, sure=True)
