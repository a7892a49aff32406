"""The pool of buffers: who owns memory, arenas in its place, intervals that do not grow."""

from __future__ import annotations

import threading

import pytest
import torch

from graphweft._memory import Pool

MIB = 1 << 20


def test_a_pool_knows_its_own_tensors_and_views_of_them() -> None:
    pool, other = Pool(), Pool()
    tensor = pool.empty((MIB,))
    assert pool.owns(tensor)
    assert pool.owns(tensor[100:200])
    assert not other.owns(tensor)
    assert not pool.owns(torch.ones(4))
    held = tensor.detach()
    del tensor
    assert pool.owns(held)
    address = held.data_ptr()
    del held
    assert address not in pool._leases


def test_an_arena_serves_in_the_pools_place_on_this_thread_only() -> None:
    pool, arena = Pool(), Pool()
    elsewhere: list[torch.Tensor] = []
    with pool.within(arena):
        inside = pool.empty((MIB,))
        worker = threading.Thread(target=lambda: elsewhere.append(pool.empty((MIB,))))
        worker.start()
        worker.join()
        with pool.within(None):
            nested = pool.empty((MIB,))
    after = pool.empty((MIB,))
    assert arena.owns(inside)
    assert arena.owns(nested)
    assert pool.owns(elsewhere[0])
    assert pool.owns(after)


def test_a_confined_pool_maps_nothing_more() -> None:
    pool = Pool()
    pool.confine(4 * MIB)
    first = pool.empty((MIB // 2,))
    second = pool.empty((MIB // 2,))
    with pytest.raises(MemoryError, match="interval is full"):
        pool.empty((MIB // 4,))
    del first
    third = pool.empty((MIB // 4,))
    assert pool.stats().maps == 1
    assert second.data_ptr() != third.data_ptr()


def test_what_does_not_fit_an_arena_may_spill() -> None:
    pool, arena = Pool(), Pool()
    arena.confine(4 * MIB)
    with pool.within(arena, spills=True):
        tensors = [pool.empty((MIB // 2,)) for _ in range(3)]
    assert [arena.owns(tensor) for tensor in tensors] == [True, True, False]
    assert pool.owns(tensors[2])
    with pool.within(arena), pytest.raises(MemoryError):
        pool.empty((MIB // 2,))
