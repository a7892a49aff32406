"""What is predicted of links over a store, and of steps whose regions leave gaps, is what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft._memory import POOL, lean_heap
from graphweft.data.link_split import split_links
from graphweft.loader.group_loader import GroupLoader
from graphweft.train import stored_needs, stored_sizes
from graphweft.train.group_rehearsal import grown_beside_others, grown_by_step
from graphweft.train.needs_by_running import grown_while

MIB = 1 << 20


def _random(nodes: int, edges: int, bidirected: bool) -> gw.Graph:
    graph = gw.Graph(*np.random.default_rng(0).integers(0, nodes, (2, edges)), num_nodes=nodes)
    return graph.to_bidirected() if bidirected else graph


@pytest.mark.own_process
@pytest.mark.parametrize("bidirected", [False, True])
def test_what_holding_out_edges_takes_is_counted(bidirected: bool) -> None:
    lean_heap()
    split_links(_random(10, 50, bidirected))  # what is loaded once
    graph = _random(10_000, 200_000, bidirected)
    graph.edges()
    POOL.trim()
    taken, split = grown_while(lambda: split_links(graph))
    counted = stored_sizes._SPLITS + stored_sizes.SPLITTING * graph.num_edges
    assert 0.7 * counted < taken < counted
    ends = (split.train, split.val, split.test, split.kept)
    held = sum(tensor.nbytes for tensor in ends) + split.graph.csc.indices.nbytes
    held += 2 * split.train.nbytes  # in the loader: both ends, and orders of two epochs
    assert held <= stored_sizes._PAIR_BYTES * graph.num_edges < (3 if bidirected else 1.3) * held


@pytest.mark.own_process
def test_the_least_that_sizes_name_for_links_has_no_rows_beside_edges_that_are_held_out(tmp_path: Path) -> None:
    """Which is over before there are any; with both at once it was three times what is taken."""
    graph, rng = _random(2_000, 200_000, False), np.random.default_rng(1)
    ds = gw.Dataset("links", graph, rng.random((2_000, 256), np.float32), np.arange(2_000) % 4, seed=0)
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4, method="hash")

    def made(memory: int | str) -> gw.Trainer:
        model = gw.nn.SAGE(256, 16, 16, num_layers=2)
        options: dict[str, Any] = {"mode": "mini", "task": "link", "fanouts": (5, 5), "batch_size": 128, "seed": 0}
        return gw.Trainer(model, store, memory=memory, **options)

    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        made("4MB")
    least, edges = refused.value.least, stored_sizes.SPLITTING * graph.num_edges
    assert edges < least < 2.2 * edges
    taken, trainer = grown_while(lambda: made(least))
    assert taken <= least < 2.3 * taken and len(trainer.fit(1)) == 1
    loader = trainer._batch.loader  # type: ignore[union-attr]
    assert not isinstance(loader, GroupLoader) and trainer.needs is not None
    assert trainer.needs.data == stored_needs.stored_bytes(trainer.ds) + 16 * loader.num_items  # type: ignore[arg-type]


@pytest.mark.own_process
def test_gaps_that_regions_of_a_step_leave_are_a_part_of_it() -> None:
    """Every other of eight regions is free again, and none of the gaps has room for the next one."""

    def step() -> None:
        regions = [POOL.empty((MIB,), torch.uint8).fill_(1) for _ in range(8)]
        del regions[::2]
        regions.append(POOL.empty((3 * MIB,), torch.uint8).fill_(1))

    POOL.trim()
    before = POOL.stats().mapped
    plain, lent, _ = grown_beside_others(step)
    mapped = POOL.stats().mapped - before
    POOL.trim()
    found, again = grown_by_step(step)
    assert lent == again == 8 * MIB and mapped >= 10 * MIB
    assert plain < mapped <= found < mapped + MIB
