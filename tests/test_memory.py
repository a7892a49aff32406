"""The pool of buffers: who owns memory, arenas in its place, intervals that do not grow."""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Sequence

import pytest
import torch

from graphweft import _budget, _memory
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


def recorded_unmap(monkeypatch: pytest.MonkeyPatch, dying: Sequence[list[torch.Tensor]] = ()) -> list[tuple[int, int]]:
    """Begin and end of what is unmapped from now on; a tensor of ``dying`` dies once the memory before it is gone."""
    gone: list[tuple[int, int]] = []
    unmap = _memory._unmap

    def seen(start: int, size: int) -> None:
        gone.append((start, start + size))
        unmap(start, size)
        for holder in dying:
            if holder and holder[0].data_ptr() == start + size:
                holder.clear()

    monkeypatch.setattr(_memory, "_unmap", seen)
    return gone


@pytest.mark.parametrize("count", [1, 4])
def test_a_tensor_that_dies_while_free_memory_is_unmapped_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    pool = Pool()
    tensors = [pool.empty((MIB // 4,)) for _ in range(8)]  # each a MiB, one behind the other
    tensors.sort(key=lambda tensor: -tensor.data_ptr())
    dying = [[tensor] for tensor in tensors[:8:2]]
    tensors.clear()
    gone = recorded_unmap(monkeypatch, dying[:count])  # the last one has free memory on one side only
    pool.trim()
    assert not any(dying[:count])
    gone.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(gone))  # nothing is unmapped twice
    assert pool.stats().lent == (4 - count) * MIB
    assert pool.stats().mapped == 8 * MIB - sum(end - start for start, end in gone)
    again = [pool.empty((MIB // 4,)).fill_(2.0) for _ in range(8)]  # memory that is gone would end the process
    assert [float(tensor.sum()) for tensor in again] == [2.0 * (MIB // 4)] * 8
    del again, dying
    pool.trim()
    assert pool.stats().mapped == 0


def test_trimming_leaves_what_a_worker_holds() -> None:
    pool, ready, trimmed = Pool(), threading.Event(), threading.Event()
    sums: list[float] = []

    def work() -> None:
        tensors = [pool.empty((MIB // 4,)).fill_(float(i)) for i in range(4)]
        del tensors[::2]
        ready.set()
        trimmed.wait(30)
        sums.extend(float(tensor.add_(1.0).sum()) for tensor in tensors)

    worker = threading.Thread(target=work)
    worker.start()
    assert ready.wait(30)
    pool.trim()
    assert pool.stats().mapped == 2 * MIB
    trimmed.set()
    worker.join(30)
    assert sums == [2.0 * (MIB // 4), 4.0 * (MIB // 4)]
    assert pool.stats().lent == 0


def test_a_tensor_may_die_while_another_thread_is_in_the_pool() -> None:
    pool = Pool()
    tensor = [pool.empty((MIB,))]
    with pool._lock:
        worker = threading.Thread(target=tensor.clear, daemon=True)
        worker.start()
        worker.join(10)
        assert not worker.is_alive()
    assert pool.stats().lent == 0


def test_an_arena_whose_tensor_outlives_it_is_unmapped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Pool()
    arena.confine(4 * MIB)
    tensor = arena.empty((MIB // 4,)).fill_(3.0)
    gone = recorded_unmap(monkeypatch)
    arena.trim()
    del arena
    assert sum(end - start for start, end in gone) == 3 * MIB
    assert float(tensor.sum()) == 3.0 * (MIB // 4)
    del tensor
    assert sum(end - start for start, end in gone) == 4 * MIB


def test_tensors_of_about_one_size_take_turns_in_the_same_regions() -> None:
    pool, sizes = Pool(), [45.2, 46.9, 44.1, 47.7, 45.0, 47.9, 46.3]
    last = pool.empty((int(sizes[0] * MIB / 4),), roomy=True).fill_(-1.0)
    for place, size in enumerate(sizes[1:]):  # as a loader's caller, who keeps a batch until the next one is there
        tensor = pool.empty((int(size * MIB / 4),), roomy=True).fill_(float(place))
        assert (last == place - 1).all()
        last = tensor
        del tensor
    assert pool.stats().mapped == 2 * 48 * MIB and last.untyped_storage().nbytes() == int(sizes[-1] * MIB / 4) * 4


def test_within_a_budget_no_region_is_larger_than_its_tensor() -> None:
    pool = Pool()
    with _budget.Budget(1 << 40).enforced():
        tensor = pool.empty((45 * MIB // 4,), roomy=True)
        assert pool.stats().lent == tensor.nbytes


def test_a_pool_notes_what_tensors_take_and_give_back() -> None:
    pool, found = Pool(), list[tuple[int, int]]()
    before = pool.empty((1 << 20,), torch.uint8)
    address = before.data_ptr()
    with pool.noting(found):
        first = pool.empty((3 << 20,), torch.uint8)
        del before
        small = pool.empty((16,), torch.uint8)  # torch's own
        begin = first.data_ptr()
        del first
    del small
    last = pool.empty((1 << 20,), torch.uint8)
    assert found == [(begin, 3 << 20), (address, 0), (begin, 0)]
    del last


def test_mappings_of_others_do_not_part_free_intervals() -> None:
    """As those of large blocks of the C library's heap, which come between two mappings of the pool."""
    floats, pool = Pool.page // 4, Pool(1 << 44)
    first = pool.empty((floats,))
    others = [mmap.mmap(-1, Pool.page) for _ in range(4)]
    second = pool.empty((floats,))
    assert first.data_ptr() == second.data_ptr() + Pool.page < 1 << 44
    del first, second
    again = pool.empty((2 * floats,))
    assert pool.stats().mapped == 2 * Pool.page
    del again
    pool.trim()
    for other in others:
        other.close()
    assert 0 < _memory.POOL.empty((floats,)).data_ptr() < _memory._AREA


def test_a_mapping_continues_what_is_free_below_all_others() -> None:
    """Rows of twice the width of a step's, as of an evaluation after it: mapped is what is missing."""
    pool = Pool(1 << 43)
    small, large = (pool.empty((size * MIB // 4,)) for size in (1, 8))
    del large
    larger = pool.empty((20 * MIB // 4,)).fill_(1.0)
    assert pool.stats().mapped == 22 * MIB and float(larger.sum()) == 20 * MIB // 4
    del small, larger
    pool.trim()
    again = pool.empty((20 * MIB // 4,)).fill_(1.0)  # nothing is free to be continued
    assert pool.stats().mapped == again.nbytes


def test_a_mapping_elsewhere_is_as_large_as_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system puts mappings apart from each other, none continues another."""
    pool, mapped = Pool(1 << 41), list[int]()
    map_pages = pool._map

    def apart(size: int) -> int:
        pool._last -= 1 << 30
        mapped.append(map_pages(size))
        return mapped[-1]

    monkeypatch.setattr(pool, "_map", apart)
    small = pool.empty((MIB // 4,))
    large = pool.empty((20 * MIB // 4,)).fill_(1.0)
    assert float(large.sum()) == 20 * MIB // 4
    assert large.data_ptr() == mapped[-1] and small.data_ptr() != mapped[-1]


def test_memory_that_is_given_back_to_make_room_is_not_taken_for_free() -> None:
    """The free interval that a mapping would continue may be the one that goes."""
    pool = Pool(1 << 40)
    held = pool.empty((32 * MIB // 4,)).fill_(1.0)
    del held
    with _budget.Budget(_budget.own_bytes() + 40 * MIB).enforced():
        larger = pool.empty((36 * MIB // 4,)).fill_(1.0)
        assert float(larger.sum()) == 36 * MIB // 4
    assert pool.stats().mapped == larger.nbytes
    del larger
    pool.trim()


def test_pages_that_are_given_up_stay_mapped_and_are_taken_last() -> None:
    """Of 16 MiB, 10 are free below and 4 above what is lent; what comes next needs none of those that are gone."""
    pool = Pool()
    pool.confine(16 * MIB)
    above, lent, below = (pool.empty((size * MIB // 4,)).fill_(1.0) for size in (4, 2, 10))
    del above, below
    before = _budget.own_bytes()
    assert pool.give_pages(6 * MIB) == 6 * MIB
    gone = before - _budget.own_bytes()
    assert abs(gone - 6 * MIB) < MIB and pool.stats().mapped == 16 * MIB
    upper, lower = (pool.empty((4 * MIB // 4,)).fill_(2.0) for _ in range(2))
    assert abs(before - _budget.own_bytes() - gone) < MIB
    rest = pool.empty((6 * MIB // 4,))
    assert float(rest.sum()) == 0.0  # zeros, as of new pages
    assert [float(x[0]) for x in (upper, lower, lent)] == [2.0, 2.0, 1.0]
    assert pool.give_pages(64 * MIB) == 0  # nothing is free


def test_pages_that_were_given_up_count_as_untouched_again() -> None:
    pool = Pool()
    with _budget.Budget(_budget.own_bytes() + 64 * MIB).enforced():
        held = pool.empty((16 * MIB // 4,)).fill_(1.0)
        del held
        assert _memory._untouched_bytes() == 0
        assert pool.give_pages(4 * MIB + 1) == 4 * MIB == _memory._untouched_bytes()
        pool.trim()
        assert _memory._untouched_bytes() == 0
