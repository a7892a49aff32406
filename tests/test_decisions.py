"""Decisions kept as files: what is read again, what counts as none, and what reading takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphweft import _config
from graphweft._decisions import _MOST_TEXT, decided, keep, known


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The cache folder."""
    with _config.config(cache_dir=str(tmp_path)):
        yield tmp_path


def test_reading_takes_as_much_memory_as_the_file_has(folder: Path) -> None:
    """A buffer of 16 MB that is freed once has the C library keep up to 32 MB of what is freed later."""
    keep("order.txt", "wide " * 100)
    known("order.txt")
    tracemalloc.start()
    try:
        assert known("order.txt") == "wide " * 100
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_files_that_are_damaged_or_huge_count_as_none(folder: Path) -> None:
    assert known("none.txt") is None
    (folder / "bytes.txt").write_bytes(b"\xff\xfe")
    assert known("bytes.txt") is None
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(2 * _MOST_TEXT)
    assert len(known("huge.txt") or "") == _MOST_TEXT
    assert known("huge.txt", str.isalpha) is None


def test_what_is_known_is_not_decided_again(folder: Path) -> None:
    asked: list[str] = []

    def decide() -> str:
        asked.append("")
        return str(len(asked))

    assert decided("count.txt", decide, str.isdigit) == decided("count.txt", decide, str.isdigit) == "1"
    (folder / "count.txt").write_text("x")
    assert decided("count.txt", decide, str.isdigit) == "2"  # what is there is damaged
    assert known("count.txt") == "2"
