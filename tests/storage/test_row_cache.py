"""The table of rows: what is read beside rows that have to stay, and what once they may leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import graphweft as gw
from graphweft.storage.row_cache import RowCache

Ids = NDArray[np.int64]
Rows = tuple[gw.macro.Store, torch.Tensor, torch.Tensor]

NODES, WIDTH = 2000, 24
MEMORY, SIZE = 220_000, 780  # room for 1,171 rows, so that no two batches have room side by side


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """A store, the place of every node in it, and its features."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((NODES, WIDTH), np.float32))
    ds = gw.Dataset("rows", gw.Graph([0], [1], num_nodes=NODES), x, np.zeros(NODES, np.int64))
    store = gw.macro.prepare_store(ds, tmp_path_factory.mktemp("rows") / "store", parts=3, method="hash")
    stored = torch.cat([store.block(part, "node_ids") for part in range(3)])
    return store, torch.argsort(stored), x


def _held(cache: RowCache, ids: Ids) -> torch.Tensor:
    where = cache.slot[torch.from_numpy(ids)].long()
    assert bool((where >= 0).all())
    return cache.table[where]


def _drawn(rng: np.random.Generator, size: int) -> Ids:
    return np.sort(rng.choice(NODES, size, replace=False))


def test_rows_at_hand_stay_until_the_next_ones_are_completed(rows: Rows) -> None:
    """Two batches that have no room side by side, again and again; every row is that of the features."""
    store, place, x = rows
    cache, rng = RowCache(store, place, MEMORY), np.random.default_rng(1)
    batches = [_drawn(rng, SIZE) for _ in range(9)]
    cache.complete(cache.load(batches[0], (), []))
    ahead = []
    for turn in range(1, len(batches)):
        pinned, ids = batches[turn - 1], batches[turn]
        missing = int((cache.slot[torch.from_numpy(ids)] < 0).sum())
        # where later uses are not known, rows that no batch at hand reads may leave
        begun = cache.load(ids, pinned, batches[turn + 1 :] if turn % 2 else [])
        assert torch.equal(_held(cache, pinned), x[torch.from_numpy(pinned)])
        assert begun.late is not None and begun.read == missing
        ahead.append(missing - int((cache.slot[torch.from_numpy(ids)] < 0).sum()))
        done = cache.complete(begun)
        assert torch.equal(_held(cache, ids), x[torch.from_numpy(ids)])
        assert done.late is None and done.nbytes >= begun.nbytes and done.read == missing
        nodes = np.flatnonzero(cache.slot.numpy() >= 0)
        assert len(nodes) == cache.held <= cache.capacity
        assert torch.equal(_held(cache, nodes), x[torch.from_numpy(nodes)])
    assert sum(ahead) > 0  # some were read beside the rows at hand


def test_rows_that_leave_are_those_that_would_leave_without_pins(rows: Rows) -> None:
    """Without room side by side, later uses alone decide what leaves, so no more rows are read than one by one."""
    store, place, _ = rows
    rng = np.random.default_rng(2)
    batches = [_drawn(rng, SIZE) for _ in range(12)]
    counts = []
    for with_pins in (False, True):
        cache, read = RowCache(store, place, MEMORY), 0
        for turn, ids in enumerate(batches):
            pinned = batches[turn - 1] if with_pins and turn else np.empty(0, np.int64)
            read += cache.complete(cache.load(ids, pinned, batches[turn + 1 :])).read
        counts.append(read)
    assert counts[1] <= 1.02 * counts[0] < 12 * SIZE  # equal uses leave in the order of their places, which differ


def test_a_batch_larger_than_the_table_is_refused(rows: Rows) -> None:
    store, place, _ = rows
    cache = RowCache(store, place, MEMORY)
    with pytest.raises(gw.errors.ConfigError, match=r"memory: expected room for 2000 rows of features at once"):
        cache.load(np.arange(NODES), (), [])
