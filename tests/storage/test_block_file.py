"""Large reads: the bytes of the file whatever is asked, none of them left in the system's cache, faults told."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.loader.groups import read_group
from graphweft.storage.block_file import BlockFile
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.picked_rows import BlockRows, pick_rows

_libc = ctypes.CDLL(None, use_errno=True)


def _resident(folder: Path) -> int:
    """Bytes of a folder's files in the page cache, by mincore."""
    total = 0
    for path in folder.glob("part-*"):
        size = path.stat().st_size
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as pages,
        ):
            whole = np.frombuffer(pages, np.uint8)
            seen = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
            assert _libc.mincore(ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(size), seen) == 0
            total += sum(page & 1 for page in seen) * mmap.PAGESIZE
            del whole
    return total


@pytest.fixture(params=["direct", "through the cache", "refused late"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """File systems with direct reads, without, and one that says so when it is asked to read."""
    if request.param == "through the cache":
        monkeypatch.delattr(os, "O_DIRECT")
    if request.param == "refused late":
        read = os.preadv

        def refusing(handle: int, into: Any, offset: int) -> int:
            if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return read(handle, into, offset)

        monkeypatch.setattr(os, "preadv", refusing)
    return str(request.param)


def test_any_range_into_any_memory(way: str, tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 100_001).astype(np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    with BlockFile(tmp_path / "file") as file:
        for offset, count in ((0, 100_001), (4096, 8192), (4096, 9000), (5, 1), (99_990, 11), (8192, 0), (1, 50_000)):
            for start in (0, 3):
                out = aligned_empty((count + start,), torch.uint8)[start:]
                file.read_into(offset, out)
                assert np.array_equal(out.numpy(), content[offset : offset + count])
            buffer = aligned_empty((count + 8192,), torch.uint8)
            assert np.array_equal(
                file.read_span(offset, offset + count, buffer).numpy(), content[offset : offset + count]
            )
        with pytest.raises(
            gw.errors.DataError, match=r"file: expected \d+ bytes from byte \d+ on, got \d+; .* truncated"
        ):
            file.read_into(99_000, aligned_empty((2000,), torch.uint8))


def test_nothing_of_a_store_stays_in_the_page_cache(way: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes, width = 4000, 256
    np.save(tmp_path / "edges.npy", rng.integers(0, nodes, (2, 20_000)))
    np.save(tmp_path / "x.npy", rng.random((nodes, width), np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 4, nodes))
    files = gw.macro.GraphFiles(tmp_path / "edges.npy", tmp_path / "x.npy", tmp_path / "y.npy")
    store = gw.macro.prepare_store(files, tmp_path / "s", parts=8, method="hash")
    for path in store.path.glob("part-*"):  # what was written is on the disk before its pages can go
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert _resident(store.path) == 0 and store.nbytes > 4_000_000
    for first in range(0, 8, 2):
        read_group(store, [first, first + 1])
        assert _resident(store.path) <= store.nbytes // 50
    loader = gw.Loader(gw.macro.Store(store.path), fanouts=[5], batch_size=100, memory=2_000_000)
    for _ in loader:
        under_way = 8 * 4 * 4096  # what eight readers have asked for
        assert _resident(store.path) <= store.nbytes // 50 + under_way
    end = time.monotonic() + 5
    while _resident(store.path) > store.nbytes // 50 and time.monotonic() < end:  # reads ahead of the next epoch
        time.sleep(0.01)
    assert _resident(store.path) <= store.nbytes // 50


def test_a_mapped_part_is_compared_with_its_checksums(tmp_path: Path) -> None:
    store = gw.macro.prepare_store(gw.synthetic("default", scale=0.02), tmp_path / "s", parts=2)
    entry = store.manifest.parts[0]
    file, content = store.path / entry.file, (store.path / entry.file).read_bytes()
    assert torch.equal(gw.macro.Store(store.path).part(0, mapped=True).indices, store.part(0).indices)
    for block in entry.blocks:
        at = block.offset + block.nbytes // 2
        file.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        with pytest.raises(gw.errors.DataError, match=f"checksum .* of block {block.name} at byte {block.offset}"):
            gw.macro.Store(store.path).part(0, mapped=True)
        gw.macro.Store(store.path, verify=False).part(0, mapped=True)  # who asked not to look


@pytest.mark.parametrize("wanted", [[0, 0, 2], [3, 4, 5, 5, 7], [1, 2, 3], [0, 2, 2, 3, 4]])
def test_rows_that_are_wanted_several_times(wanted: list[int], tmp_path: Path) -> None:
    """Some are as many as all rows between the first and the last."""
    table, out = torch.arange(16.0).view(8, 2), torch.zeros(len(wanted), 2)
    (tmp_path / "rows").write_bytes(table.numpy().tobytes())
    with BlockFile(tmp_path / "rows") as file:
        rows = BlockRows(0, torch.float32, (8, 2))
        pick_rows(file, rows, np.array(wanted), out, torch.arange(len(wanted)), 1 << 20)
    assert torch.equal(out, table[wanted])
