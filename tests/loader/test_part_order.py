"""Orders of parts that share parts between epochs: each is an order of all, and what is read against other caches."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphweft as gw
from graphweft.loader.part_order import most_held, shared_order
from graphweft.sample.permutation import permutation
from graphweft.storage.replacement import lru_misses, optimal_misses


@given(st.data(), st.integers(2, 40), st.integers(0, 5), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_part_is_in_every_epoch_once(data: st.DataObject, parts: int, seed: int, shuffle: bool) -> None:
    count = data.draw(st.integers(1, parts))
    held = data.draw(st.integers(0, most_held(parts, count)))
    shared = [shared_order(parts, held, seed, epoch, count, shuffle) for epoch in range(5)]
    assert all(sorted(one.order.tolist()) == list(range(parts)) for one in shared)
    inside: frozenset[int] = frozenset()
    read = 0
    for former, one in itertools.pairwise([None, *shared]):
        if former is not None:
            assert former.kept.tolist() == one.begun.tolist()
        for first in range(0, parts, count):
            group = set(one.order[first : first + count].tolist())
            read += len(group - inside)
            inside = one.held_after(first + count) & (inside | group)  # of those that were read
            assert len(inside) <= held  # never more than there is room for
    assert read == 5 * parts - 4 * held


def test_without_kept_parts_it_is_a_plain_permutation() -> None:
    for epoch in range(3):
        assert torch.equal(shared_order(12, 0, 7, epoch, 3).order, permutation(12, 7, epoch))


@pytest.mark.parametrize(("parts", "held"), [(32, 8), (64, 16), (64, 32), (16, 4)])
def test_a_fifth_less_is_read_than_by_the_usual_cache(parts: int, held: int) -> None:
    """At the same memory: orders at random with the part used longest ago leaving, and these with exact next use."""
    epochs = range(30)
    shared = [part for epoch in epochs for part in shared_order(parts, held, 1, epoch).order.tolist()]
    usual = [part for epoch in epochs for part in permutation(parts, 1, epoch).tolist()]
    least = len(shared) - (len(epochs) - 1) * held  # no order and no replacement reads fewer
    assert optimal_misses(shared, held) == least <= 0.8 * lru_misses(usual, held)


def test_parts_meet_others_as_often_as_at_random() -> None:
    """Groups of two of twelve parts: every pair is a group at some time, none of them nearly always."""
    met = dict.fromkeys([(a, b) for a in range(12) for b in range(a)], 0)
    again = 0
    former: set[tuple[int, int]] = set()
    for epoch in range(600):
        order = shared_order(12, 4, 3, epoch, 2).order.tolist()
        pairs = {(max(order[i : i + 2]), min(order[i : i + 2])) for i in range(0, 12, 2)}
        for pair in pairs:
            met[pair] += 1
        again += len(pairs & former)
        former = pairs
    mean = 600 * 6 / len(met)
    assert min(met.values()) > 0.6 * mean and max(met.values()) < 1.6 * mean
    assert again < 2 * 600 * 6 * 6 / len(
        met
    )  # groups of the epoch before come back at most twice as often as by chance


def test_every_part_stays_as_often_as_others_and_is_used_at_any_time() -> None:
    stays, places = torch.zeros(16), torch.zeros(16, 16)
    for epoch in range(1600):
        one = shared_order(16, 4, 0, epoch, 2)
        stays[one.kept] += 1
        places[torch.arange(16), one.order] += 1
    assert stays.min() > 0.8 * stays.mean() and stays.max() < 1.2 * stays.mean()
    assert places.min() > 0.6 * places.mean() and places.max() < 1.4 * places.mean()


def test_more_than_half_cannot_stay() -> None:
    with pytest.raises(gw.errors.ConfigError, match="held: expected at most 4 of 8 parts, got 5"):
        shared_order(8, 5, 0, 0)
