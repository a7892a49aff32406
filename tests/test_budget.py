"""A limit on the process's memory: asked before the pool maps, told in one line."""

from __future__ import annotations

import gc
import mmap
import re
import threading
from pathlib import Path

import pytest
import torch

import graphweft as gw
from graphweft import _budget, _memory
from graphweft._memory import POOL, Pool, heap_bytes

MIB = 1 << 20


def fresh(nbytes: int) -> mmap.mmap:
    """Pages that the system has just given; an allocator may have resident memory that others let go of."""
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, nbytes, mmap.PAGESIZE):
        pages[start] = 1
    return pages


def test_memory_above_the_limit_is_refused_with_the_least_that_would_do() -> None:
    POOL.trim()
    budget = _budget.Budget(64 * MIB, accounts="data 1 MB")
    with budget.enforced():
        small = POOL.empty((16 * MIB,), torch.uint8).zero_()
        with pytest.raises(
            gw.errors.MemoryBudgetError, match=r"^memory: expected at least \d+ MB for this run \(data"
        ) as caught:
            POOL.empty((128 * MIB,), torch.uint8)
    assert caught.value.least > 128 * MIB
    assert _budget.in_force() is None
    assert POOL.empty((128 * MIB,), torch.uint8).numel() == 128 * MIB  # not without the budget
    del small


def test_what_is_taken_before_a_run_is_planned_is_named_as_no_least() -> None:
    POOL.trim()
    with _budget.Budget(8 * MIB).enforced(), pytest.raises(gw.errors.MemoryBudgetError) as caught:
        POOL.empty((32 * MIB,), torch.uint8)
    text = r"^memory: expected more than the \d+ MB that are taken before this run is planned, got 9 MB; graphweft plan"
    assert re.match(text, str(caught.value))
    assert caught.value.least == 0 and caught.value.reached > 31 * MIB


def test_free_memory_is_given_back_before_anything_is_refused() -> None:
    POOL.trim()
    budget = _budget.Budget(96 * MIB)
    with budget.enforced():
        held = POOL.empty((64 * MIB,), torch.uint8).zero_()
        del held
        other = Pool()
        other.confine(64 * MIB)  # fits only once the first is unmapped
        assert POOL.stats().mapped == POOL.stats().lent  # nothing free is left mapped
        other.trim()


@pytest.mark.parametrize(("expected", "kept"), [(0, 64 * MIB), (80 * MIB, 0), (1 << 30, 64 * MIB)])
def test_free_memory_is_given_back_before_a_run_takes_more_than_was_predicted(expected: int, kept: int) -> None:
    """64 MiB are free, 72 are asked for: beside each other they are more than 80. Small mappings change nothing.

    What lies between keeps the larger one from continuing the smaller one.
    """
    gc.collect()
    POOL.trim()
    with _budget.Budget(4 << 30, expected=expected).enforced():
        held = POOL.empty((64 * MIB,), torch.uint8).zero_()
        between = POOL.empty((2 * MIB,), torch.uint8)
        del held
        larger = POOL.empty((72 * MIB,), torch.uint8)
        assert POOL.stats().mapped - POOL.stats().lent == kept
        del larger, between
        arena = Pool()
        arena.confine(2 * MIB)
        assert POOL.stats().mapped - POOL.stats().lent == kept + 74 * MIB
        arena.trim()


def test_the_limit_holds_on_all_threads() -> None:
    failures = []

    def work() -> None:
        try:
            POOL.empty((256 * MIB,), torch.uint8)
        except gw.errors.MemoryBudgetError as failure:
            failures.append(failure)

    with _budget.Budget(16 * MIB).enforced():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(failures) == 1


def test_own_bytes_follow_what_is_touched() -> None:
    before = _budget.own_bytes()
    held = fresh(32 * MIB)
    assert 28 * MIB < _budget.own_bytes() - before < 64 * MIB
    del held


def test_a_short_peak_is_noted_by_all_who_look_on_and_for_the_process() -> None:
    """Whoever begins to look makes the system forget what it had noted."""
    first, before = _budget.Highest(), _budget.own_bytes()
    fresh(64 * MIB).close()
    second = _budget.Highest()
    if not first.nbytes:
        pytest.skip("the system does not note peaks")
    fresh(32 * MIB).close()
    assert 60 * MIB <= first.nbytes - before <= 80 * MIB
    assert 30 * MIB <= second.nbytes - before <= 48 * MIB
    assert _budget.resident_peak() >= before + 60 * MIB


@pytest.mark.own_process
def test_files_that_are_closed_in_between_are_no_part_of_a_peak(tmp_path: Path) -> None:
    (tmp_path / "pages").write_bytes(bytes(32 * MIB))
    with (tmp_path / "pages").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert sum(mapped[start] for start in range(0, 32 * MIB, mmap.PAGESIZE)) == 0
    highest, before = _budget.Highest(), _budget.own_bytes()
    if not highest.nbytes:
        pytest.skip("the system does not note peaks")
    mapped.close()
    fresh(8 * MIB).close()
    assert highest.nbytes - before <= 12 * MIB  # 40 if the file's were the run's


def test_the_heap_counts_small_tensors() -> None:
    gc.collect()  # what other tests left is not freed in between
    before = heap_bytes()
    held = [torch.zeros(1000) for _ in range(100)]
    assert before == 0 or heap_bytes() - before >= 100 * 4000
    del held


def test_pages_that_are_mapped_count_before_they_are_touched() -> None:
    POOL.trim()  # what others left free would be taken first
    budget = _budget.Budget(limit=48 * MIB)
    with budget.enforced():
        held = POOL.empty((20 * MIB // 4,))
        assert budget.used() < 10 * MIB  # no page of it is there yet
        with pytest.raises(gw.errors.MemoryBudgetError):
            POOL.empty((40 * MIB // 4,))
        held.zero_()
        del held
        last = POOL.empty((40 * MIB // 4,)).data_ptr()
    POOL.trim()  # its addresses may be another's next
    assert not any(at <= last < at + size for at, (size, _) in _memory._untouched.items())


def test_what_is_unmapped_is_cut_out_of_earlier_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = _budget.Budget(limit=MIB)
    sizes = {0: 5, 10: 10, 22: 3, 40: 5, 60: 10, 80: 30}
    monkeypatch.setattr(_memory, "_untouched", {start: (size, budget) for start, size in sizes.items()})
    _memory._forget_mapping(15, 28)
    _memory._forget_mapping(90, 10)
    left = {start: size for start, (size, _) in _memory._untouched.items()}
    assert left == {0: 5, 10: 5, 43: 2, 60: 10, 80: 10, 100: 10}


def test_what_another_run_mapped_and_has_not_touched_is_not_counted() -> None:
    POOL.trim()
    other = Pool()
    with _budget.Budget(limit=96 * MIB).enforced():
        other.confine(64 * MIB)  # as the arena of a trainer that is still there
    with _budget.Budget(limit=48 * MIB).enforced():
        assert POOL.empty((30 * MIB // 4,)).numel() == 30 * MIB // 4
    POOL.trim()
    other.trim()
