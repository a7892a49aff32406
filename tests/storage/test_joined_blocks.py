"""Blocks of a part that are read together: every byte of them, few others, few requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphweft as gw
from graphweft.loader.groups import read_group
from graphweft.storage.joined_blocks import runs
from graphweft.storage.store_format import Shape, layout

WANTED = ("x", "y", "indptr", "indices")
NODES, DEGREE, WIDTH, PARTS = 4000, 12, 64, 2


@given(st.integers(0, 300), st.integers(1, 20_000), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_runs_have_the_wanted_blocks_in_order_and_little_else(width: int, nodes: int, degree: int) -> None:
    blocks = layout(Shape(width, "float32", "int32", "int64", 0), nodes, nodes * degree)
    found = runs(blocks, WANTED)
    wanted = [block for block in blocks if block.name in WANTED and block.nbytes]
    assert [block for run in found for block in run] == wanted
    spans = sum(run[-1].offset + run[-1].nbytes - run[0].offset for run in found)
    needed = sum(block.nbytes for block in wanted)
    assert spans <= needed * 1.04 + 4096 * len(blocks)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, NODES, (2, NODES * DEGREE))
    x, y = torch.from_numpy(rng.random((NODES, WIDTH), np.float32)), torch.from_numpy(rng.integers(0, 4, NODES))
    ds = gw.Dataset("random", gw.Graph(ends[0], ends[1], num_nodes=NODES), x, y, seed=0)
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("joined") / "store", parts=PARTS, method="hash")


def test_a_group_takes_a_request_a_part(store: gw.macro.Store) -> None:
    fresh = gw.macro.Store(store.path)
    group = read_group(fresh, range(PARTS))
    needed = sum(b.nbytes for part in store.manifest.parts for b in part.blocks if b.name in WANTED)
    assert fresh.counts.requests == PARTS and needed <= fresh.counts.nbytes <= 1.05 * needed
    parts = [store.part(number) for number in range(PARTS)]
    assert group.x is not None and torch.equal(group.x, torch.cat([part.x for part in parts if part.x is not None]))
    assert torch.equal(group.y, torch.cat([part.y for part in parts]))
    degrees = torch.cat([part.indptr.diff() for part in parts])
    assert torch.equal(group.graph.csc.indptr.diff(), degrees)
    assert torch.equal(group.graph.csc.indices.long(), torch.cat([part.indices for part in parts]).long())
    assert fresh.held.nbytes == 0  # nothing stays behind


@pytest.mark.parametrize("name", WANTED)
def test_a_flipped_bit_is_told_with_its_block(name: str, store: gw.macro.Store, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    for path in store.path.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    entry = store.manifest.parts[1]
    with (folder / entry.file).open("r+b") as file:
        file.seek(entry.block(name).offset + 5)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    with pytest.raises(gw.errors.DataError, match=f"checksum .* of block {name} at byte {entry.block(name).offset}"):
        read_group(gw.macro.Store(folder), range(PARTS))
