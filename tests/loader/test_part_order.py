"""Orders of parts that share parts between epochs: each is an order of all, and what is read against other caches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphweft as gw
from graphweft.loader.part_order import shared_order
from graphweft.sample.permutation import permutation
from graphweft.storage.replacement import lru_misses, optimal_misses


@given(st.data(), st.integers(2, 40), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_part_is_in_every_epoch_once(data: st.DataObject, parts: int, seed: int) -> None:
    held = data.draw(st.integers(0, parts // 2))
    orders = [shared_order(parts, held, seed, epoch).tolist() for epoch in range(5)]
    assert all(sorted(order) == list(range(parts)) for order in orders)
    for former, order in itertools.pairwise(orders):
        assert set(former[parts - held :]) == set(order[:held])


@pytest.mark.parametrize(("parts", "held"), [(32, 8), (64, 16), (64, 32), (16, 4)])
def test_a_fifth_less_is_read_than_by_the_usual_cache(parts: int, held: int) -> None:
    """At the same memory: orders at random with the part used longest ago leaving, and these with exact next use."""
    epochs = range(30)
    shared = [part for epoch in epochs for part in shared_order(parts, held, 1, epoch).tolist()]
    usual = [part for epoch in epochs for part in permutation(parts, 1, epoch).tolist()]
    assert optimal_misses(shared, held) <= 0.8 * lru_misses(usual, held)
    assert optimal_misses(shared, held) <= len(shared) - (len(epochs) - 1) * held


def test_parts_meet_others_as_often_as_at_random() -> None:
    """Groups of two of twelve parts: every pair is a group at some time, none of them nearly always."""
    met = dict.fromkeys([(a, b) for a in range(12) for b in range(a)], 0)
    for epoch in range(600):
        order = shared_order(12, 4, 3, epoch).tolist()
        for first in range(0, 12, 2):
            pair = order[first : first + 2]
            met[max(pair), min(pair)] += 1
    mean = 600 * 6 / len(met)
    assert min(met.values()) > 0.4 * mean and max(met.values()) < 2.5 * mean


def test_more_than_half_cannot_stay() -> None:
    with pytest.raises(gw.errors.ConfigError, match="held: expected at most 4 of 8 parts, got 5"):
        shared_order(8, 5, 0, 0)
