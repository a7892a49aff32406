"""Arrays from files that lie."""

from __future__ import annotations

import io
import resource
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from layouts import npz_bytes

from graphweft._errors import DataError
from graphweft.data.readers import archive
from graphweft.data.readers.archive import NpzArchive, parse_header, read_npy
from graphweft.data.readers.files import content_limit, open_regular


def _read(path: Path, key: str, shape: tuple[int | None, ...] | None = None, kinds: str = "biuf") -> np.ndarray:
    with open_regular(path) as file:
        return NpzArchive(file, path.name).array(key, shape, kinds)


def _write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    return path


def _header(shape: str, descr: str = "<f4", order: str = "False") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return out.getvalue()


ARRAYS: dict[str, Any] = {
    **{kind: np.arange(6).astype(kind) for kind in ("i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8")},
    "bool": np.array([True, False]),
    "big": np.arange(5).astype(">i4"),
    "matrix": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "scalar": np.int64(7),
    "empty": np.empty((0, 3), np.float32),
    "large": np.arange(700_000),
    "zeros": np.zeros(3_000_000, np.uint8),
    "text": np.array(["a", "bcd"]),
    "no_text": np.array(["", ""]),
}


@pytest.mark.parametrize("compress", [True, False])
def test_arrays_are_what_numpy_wrote(compress: bool, tmp_path: Path) -> None:
    path = _write(tmp_path, npz_bytes(ARRAYS, compress))
    for key, want in ARRAYS.items():
        got = _read(path, key, kinds="biufUS")
        np.testing.assert_array_equal(got, want)
        assert got.dtype.isnative and got.dtype.kind == np.asarray(want).dtype.kind


def test_headers_of_other_writers_are_read() -> None:
    for text in (
        "{'shape': (3L,), 'descr': '<f4', 'fortran_order': False}",
        "{'descr':'<f4','fortran_order':False,'shape':(3,)}",
    ):
        raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
        assert parse_header("a", io.BytesIO(raw)).shape == (3,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_header("(3,)", "|O"), "never unpickled"),
        (
            b"\x93NUMPY\x01\x00\x4e\x00"
            + b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,), }".ljust(78),
            "never unpickled",
        ),
        (_header("(3,)", "|V8"), "dtype '|V8'"),
        (_header("(3,)", "<c8"), "dtype '<c8'"),
        (_header("(-1,)"), "descr, fortran_order and shape"),
        (_header("__import__('os')"), "descr, fortran_order and shape"),
        (_header("(1, 1, 1, 1, 1)"), "descr, fortran_order and shape"),
        (_header("(99999999999999999999,)"), "descr, fortran_order and shape"),
        (_header("(3,)", order="1"), "descr, fortran_order and shape"),
        (_header("(1000000000000,)"), "expected 4000000000000 bytes"),
        (_header("(4294967296, 4294967296)"), "expected 73786976294838206464 bytes"),
        (_header("(3,)") + b"123", "expected 12 bytes"),
        (_header("(3,)") + bytes(13), "expected 12 bytes"),
        (_header("(3,)", "|b1") + b"\x00\x01\x02", "expected bool values, got a byte 2"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of at most"),
        (b"PK\x03\x04", "expected a .npy array"),
        (b"", "expected a .npy array"),
    ],
)
def test_damaged_members_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path, _zip({"x.npy": content}))
    with pytest.raises(DataError, match=r"^x: expected .*") as caught:
        _read(path, "x")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    alone = tmp_path / "x.npy"
    alone.write_bytes(content or b" ")
    with pytest.raises(DataError, match="expected"):
        read_npy(alone)


def test_declared_sizes_are_compared_before_anything_is_allocated(tmp_path: Path) -> None:
    """Header and directory agree on 2 GB that are not there; with 256 MiB to take, the error is still the reader's."""
    size = 2_000_000_000
    body = _header(f"({size // 4},)") + bytes(100)
    content = bytearray(_zip({"x.npy": body}, zipfile.ZIP_STORED))
    central = content.rfind(b"PK\x01\x02")
    content[central + 24 : central + 28] = struct.pack("<I", size + 128)
    path = _write(tmp_path, bytes(content))
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), before[1]))
    try:
        with pytest.raises(DataError, match=r"x: expected 2000000128 bytes from \d+ compressed ones"):
            _read(path, "x")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_more_than_the_file_can_mean_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is true to its header; what stops it is the bound on what a file of its size may become."""
    monkeypatch.setattr(archive, "content_limit", lambda size, floor: 128 * size)
    path = _write(tmp_path, npz_bytes({"x": np.zeros(1 << 22, np.uint8)}))
    with pytest.raises(DataError, match="expected arrays that fit the file and the free memory"):
        _read(path, "x")


def test_bound_is_128_times_but_never_more_than_most_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 40))
    assert content_limit(1000) == 1 << 26 and content_limit(1 << 30) == 128 << 30
    assert content_limit(1000, archive.ARRAYS_FLOOR) == 4 << 30
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert content_limit(1 << 30) == 750


def test_shape_is_checked_before_the_data_are_read(tmp_path: Path) -> None:
    path = _write(tmp_path, npz_bytes({"y": np.zeros(5)}))
    with pytest.raises(DataError, match=r"y: expected shape \(4\), got \(5,\)"):
        _read(path, "y", (4,))
    with pytest.raises(DataError, match="y: expected integers, got float64"):
        _read(path, "y", kinds="iu")


@pytest.mark.parametrize(
    ("members", "method", "message"),
    [
        ({"a.npy": b"", "a": b""}, zipfile.ZIP_STORED, "each member once"),
        ({f"m{i}": b"" for i in range(5000)}, zipfile.ZIP_STORED, "at most 4096 members"),
        ({"a.npy": _header("(0,)")}, zipfile.ZIP_LZMA, "stored or deflated"),
    ],
)
def test_odd_archives_are_refused(members: dict[str, bytes], method: int, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path, _zip(members, method))
    with pytest.raises(DataError, match=message):
        _read(path, "a")


def test_directory_of_very_many_members_is_not_even_listed(tmp_path: Path) -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"m"
    directory = entry * 200_000
    end = b"PK\x05\x06" + bytes(8) + struct.pack("<II", len(directory), 0) + bytes(2)
    with pytest.raises(DataError, match=r"a\.npz: expected at most 4096 members, got a larger directory"):
        _read(_write(tmp_path, directory + end), "a")


def test_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    content = bytearray(npz_bytes({"a": np.arange(1000)}, compress=False))
    content[600] ^= 4
    with pytest.raises(DataError, match=r"^a: expected a readable member, got: Bad CRC-32"):
        _read(_write(tmp_path, bytes(content)), "a")


@pytest.mark.parametrize("content", [b"x", b"PK\x03\x04", b"PK\x05\x06" + bytes(17), b"\0" * 100])
def test_no_archive_at_all(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.npz: expected a \.npz archive"):
        _read(_write(tmp_path, content), "a")
