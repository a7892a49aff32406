"""Edges sorted by part in a file: how many at a time, and what reading them leaves with the system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuzz.stores import kept_pages

from graphweft.data.edge_runs import EdgeRuns, least_to_sort, sort_edges
from graphweft.data.store_input import Edges


def _sorted(path: Path, memory: int, parts: int, count: int, chunks: list[int] | None = None) -> EdgeRuns:
    """``count`` edges i -> i of as many nodes, node i in part i % parts, each id its own."""
    ids = np.arange(count)

    def edges(most: int) -> list[Edges]:
        if chunks is not None:
            chunks.append(most)
        return [Edges(ids[first : first + most], ids[first : first + most]) for first in range(0, count, most)]

    part, new_id = (ids % parts).astype(np.uint16), ids.astype(np.int32)
    return sort_edges("ring", edges, part, new_id, parts, path, memory, lambda _: None, total=count)


def test_runs_have_room_for_where_parts_begin_in_them(tmp_path: Path) -> None:
    memory, parts, count, chunks = 1 << 20, 400, 1_000_000, list[int]()
    runs = _sorted(tmp_path / "runs", memory, parts, count, chunks)
    assert 72 * chunks[0] + runs.resident <= 1.01 * memory  # the last run is not whole
    assert runs.resident == sum(cut.nbytes for cut in runs.cuts) > memory // 32
    assert sorted(runs.whole(7)[:, 1].tolist()) == list(range(7, count, parts))


def test_fewer_bytes_than_the_least_are_not_kept(tmp_path: Path) -> None:
    parts, count, chunks = 400, 1_000_000, list[int]()
    least = least_to_sort(parts, count)
    runs = _sorted(tmp_path / "runs", least // 4, parts, count, chunks)
    assert 72 * chunks[0] + runs.resident == pytest.approx(least, rel=0.02)


def test_reading_a_part_of_many_runs_leaves_no_pages(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    runs = _sorted(path, 72 * 16_384, 4, 1_000_000)
    assert len(runs.cuts) > 50
    for part in range(4):
        seen = [kept_pages(tmp_path) for _ in runs.read(part, 1 << 20)]
        assert len(seen) == len(runs.cuts)
        assert max(seen) < runs.nbytes // 20
