"""Rows of features by id, read by many threads at once, against the table in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft.storage import row_reader
from graphweft.storage.block_file import BlockFile
from graphweft.storage.row_reader import RowReader

NODES = 3000


def _dataset(width: int) -> gw.Dataset:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES, (2, 9000))
    x = torch.from_numpy(rng.standard_normal((NODES, width), np.float32))
    x[5, 0], x[6, 0] = 3e-6, -0.0  # below the normal numbers of float16
    return gw.Dataset("rows", gw.Graph(src, dst, num_nodes=NODES), x, rng.integers(0, 3, NODES))


@pytest.fixture(params=["direct", "through the cache"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param != "direct":
        monkeypatch.delattr(os, "O_DIRECT")
    yield


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [3, 100, 1500])
def test_rows_lie_where_they_are_wanted(dtype: str, width: int, way: None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(row_reader, "_FILES", 2)  # parts are read in several turns
    ds = _dataset(width)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=5, memory="64MB", method="hash", dtype=dtype)
    assert isinstance(ds.x, torch.Tensor)
    stored = torch.cat([store.block(part, "node_ids") for part in range(5)])
    expected = ds.x[stored].to(store.feature_dtype).float()
    rng = np.random.default_rng(1)
    for count, memory in ((NODES, 1 << 16), (400, 1 << 20), (1, 1 << 12)):
        ids = np.sort(rng.choice(NODES, count, replace=False))
        reader, places = RowReader(store, memory), rng.permutation(count + 3)[:count]
        table = torch.full((count + 3, width), torch.nan)
        before, plan = store.counts.nbytes, reader.plan(ids)
        checked = store.counts.nbytes
        reader.read(plan, ids, places, table)
        assert torch.equal(table[torch.from_numpy(places)], expected[torch.from_numpy(ids)])
        assert int(table[:, 0].isnan().sum()) == 3  # no other row was written
        assert reader.counts.nbytes == store.counts.nbytes - checked >= count * width * store.feature_dtype.itemsize
        assert before <= checked


def test_rows_of_types_end_in_zeros(tmp_path: Path) -> None:
    ids = torch.arange(60)
    edges = {("author", "writes", "paper"): (ids % 20, ids), ("paper", "by", "author"): (ids, ids % 20)}
    graph, labels = gw.Graph.hetero(edges, {"author": 20, "paper": 60}), torch.cat([torch.full((20,), -1), ids % 3])
    x = {"author": torch.rand(20, 2), "paper": torch.rand(60, 7)}
    ds = gw.Dataset("papers", graph, y=labels, features=x, target_type="paper", seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "typed", parts=3, memory="64MB", method="hash")
    stored, table = (
        torch.cat([store.block(part, "node_ids") for part in range(3)]),
        torch.full((80, store.row_width), 9.0),
    )
    reader, every = RowReader(store), np.arange(80)
    reader.read(reader.plan(every), every, every, table)
    wide = torch.zeros(80, store.row_width)
    wide[:20, :2], wide[20:, :7] = x["author"], x["paper"]
    assert torch.equal(table, wide[stored])


@pytest.mark.parametrize("short", [False, True])
def test_a_failure_is_that_of_the_first_request(short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = gw.macro.prepare_store(_dataset(100), tmp_path / "store", parts=2, memory="64MB", method="hash")
    reader, ids, opened = RowReader(store), np.arange(0, NODES, 50), BlockFile.__init__
    plan, sizes = reader.plan(ids), {path: path.stat().st_size for path in store.path.glob("part-*")}

    def unreadable(self: BlockFile, path: Path) -> None:
        opened(self, path)
        self.size = sizes[path]
        if not short:  # the system does not read what is open for writing alone
            other = os.open(path, os.O_WRONLY)
            os.dup2(other, self.handle)
            os.close(other)

    if short:
        os.truncate(store.path / store.manifest.parts[0].file, 8192)
    monkeypatch.setattr(BlockFile, "__init__", unreadable)
    text = (
        r"part-00000.bin: expected \d+ bytes from byte \d+ on, got \d+; the file is truncated"
        if short
        else r"part-00000.bin: reading failed at byte \d+: Bad file descriptor"
    )
    with pytest.raises(gw.errors.DataError, match=text):
        reader.read(plan, ids, np.arange(len(ids)), torch.empty(len(ids), 100))
