"""Nothing piles up: memory, mapped pages, files and threads after many batches are those after a tenth of them.

``GRAPHWEFT_TEST_BATCHES`` sets how many; 10,000 take minutes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from loader.test_loader import dataset
from loader.test_samplers import KINDS

from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.loader.link import LinkLoader
from graphweft.loader.loader import Loader
from graphweft.loader.multistage import MultistageLoader
from graphweft.sample.stages import LargeBatch, Parts

BATCHES = int(os.environ.get("GRAPHWEFT_TEST_BATCHES", "1000"))
WAY: dict[str, Any] = {"shuffle": True, "prefetch": 2, "workers": 2}


def link(ds: Dataset) -> LinkLoader:
    index = torch.stack(ds.graph.edges())[:, :600]
    return LinkLoader(ds, index, fanouts=(5, 3), batch_size=8, exclude="target", **WAY)


def over(kind: str) -> Callable[[Dataset], Loader]:
    return lambda ds: Loader(ds, sampler=KINDS[kind](ds.graph), batch_size=4, **WAY)


LOADERS: dict[str, Callable[[Dataset], Any]] = {
    "neighbor": lambda ds: Loader(ds, fanouts=(5, 3), batch_size=4, **WAY),
    "link": link,
    "large": lambda ds: MultistageLoader(ds, None, (5, 3), 4, macro=LargeBatch(0.25), **WAY),
    "parts": lambda ds: MultistageLoader(
        ds, None, (5, 3), 4, macro=Parts(torch.arange(ds.num_nodes) % 12, 3), ahead=True, **WAY
    ),
    **{kind: over(kind) for kind in KINDS},
}


def wide() -> Dataset:
    """Features so wide that the rows of a batch come from the pool."""
    ds = dataset()
    return Dataset("wide", ds.graph, torch.randn(ds.num_nodes, 6000), ds.y, ds.train_idx, ds.val_idx, ds.test_idx, 5)


def take(loader: Any, count: int) -> None:
    """So many batches, epoch after epoch; none is under way or ready afterwards."""
    while count:
        for batch in loader:
            _ = batch.edge_index, batch.e_id
            count -= 1
            if not count:
                break


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADERS)
def test_nothing_piles_up_over_many_batches(kind: str, threads_restored: None) -> None:
    torch.set_num_threads(2)
    ds = wide()
    loader = LOADERS[kind](ds)
    process, found = psutil.Process(), []
    POOL.trim()
    lent_before = POOL.begin_peak()
    mapped_before = POOL.stats().mapped
    for count in (BATCHES // 10, BATCHES - BATCHES // 10):
        take(loader, count)
        gc.collect()
        found.append((process.memory_info().rss, POOL.stats(), process.num_fds(), threading.active_count()))
    (rss, pool, files, threads), (rss_after, pool_after, files_after, threads_after) = found
    assert files_after <= files and threads_after <= threads
    # how many batches are ready at the same time depends on how busy the machine is, how many were made does not
    assert pool_after.lent - pool.lent < 16 << 20
    assert pool_after.mapped - mapped_before < 4 * (pool_after.peak_lent - lent_before) + (16 << 20)
    assert rss_after - rss - max(pool_after.mapped - pool.mapped, 0) < 16 << 20


ABANDONED = """
import gc, threading
from graphweft._memory import POOL
from graphweft.loader.pipeline import Pipeline

go = threading.Event()

def prepare(position):
    if position:
        go.wait()
    return POOL.empty((1 << 20,))

def results():
    pipeline = Pipeline(prepare, 0, 50, workers=1, ahead=2)
    try:
        yield from pipeline
    finally:
        pipeline.close()
        closed.append(threading.current_thread())

class Cycle:
    pass

closed = []
gc.disable()
cycle = Cycle()
cycle.results, cycle.itself = results(), cycle
next(cycle.results)
with POOL._lock:  # as a collection inside of Pool.empty finds it
    go.set()  # the worker waits for the lock, or soon will
    del cycle
    gc.collect()
    assert closed == [threading.main_thread()]
assert POOL.empty((1 << 20,)).numel() == 1 << 20
"""


def test_an_iterator_collected_inside_the_pool_waits_for_no_thread() -> None:
    subprocess.run([sys.executable, "-c", ABANDONED], check=True, timeout=60)
