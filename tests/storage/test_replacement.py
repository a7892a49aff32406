"""Caches by exact next use: the optimum by brute force, and what is read at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphweft.storage.replacement import UNKNOWN, farthest, lru_misses, optimal_misses
from graphweft.storage.requests import SECTOR, WASTE, merged


def _fewest(uses: Sequence[int], capacity: int) -> int:
    """Misses of the best of all policies, by trying every content of the cache after every use."""

    @functools.cache
    def after(place: int, held: frozenset[int]) -> int:
        if place == len(uses):
            return 0
        item = uses[place]
        full = held | {item}
        kept = [full] if len(full) <= capacity else [full - {gone} for gone in full]
        return (item not in held) + min(after(place + 1, content) for content in kept)

    return after(0, frozenset())


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_that_of_all_policies(uses: list[int], capacity: int) -> None:
    assert optimal_misses(uses, capacity) == _fewest(uses, capacity) <= lru_misses(uses, capacity)


@given(st.data(), st.lists(st.integers(0, 400), unique=True, min_size=1, max_size=60).map(sorted))
@settings(max_examples=100, deadline=None)
def test_requests_hold_all_rows_and_little_else(data: st.DataObject, rows: list[int]) -> None:
    width, most = data.draw(st.sampled_from([4, 100, 1024, 4096, 6000])), data.draw(st.integers(1, 50))
    offset = SECTOR * data.draw(st.integers(0, 3))
    found = merged(np.array(rows), most, 401, width, offset)
    covered = np.concatenate([np.arange(first, end) for first, end in found])
    assert set(rows) <= set(covered.tolist()) and len(np.unique(covered)) == len(covered)
    assert (np.diff(found, axis=1) <= most).all() and covered.max() <= 400
    assert (np.diff(found.ravel()) >= 0).all()

    def sectors(nodes: list[int]) -> set[int]:
        return {
            at for i in nodes for at in range((offset + i * width) // SECTOR, -(-(offset + (i + 1) * width) // SECTOR))
        }

    assert len(sectors(covered.tolist())) <= (1 + WASTE) * len(sectors(rows))


@given(st.lists(st.tuples(st.integers(0, 9) | st.just(UNKNOWN), st.integers(0, 9)), min_size=1, max_size=20), st.data())
def test_what_leaves_is_used_last(items: list[tuple[int, int]], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(items)))
    next_use, uses = (np.array(column, np.int32) for column in zip(*items, strict=True))
    gone = farthest(next_use, uses, count)
    assert len(set(gone.tolist())) == count
    ranks = sorted(items, key=lambda item: (item[0], -item[1]))  # the first are wanted soonest, or most often
    kept = sorted((items[i] for i in set(range(len(items))) - set(gone.tolist())), key=lambda item: (item[0], -item[1]))
    key = [(when, -often if when == UNKNOWN else 0) for when, often in kept]
    assert key == [(when, -often if when == UNKNOWN else 0) for when, often in ranks[: len(kept)]]
