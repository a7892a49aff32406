"""The guard's policy, a pure function, and its measurements against gradients given by hand."""

from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphweft.train.quality import MOST_FANOUT, Quality, Setting, adapt, assess, mean

FIRST = Setting((10, 5), parts=4, most_parts=32, refresh=0)


def test_within_the_bound_nothing_changes() -> None:
    assert adapt(FIRST, FIRST, Quality(0.08, 0.05, 0.03, 0.1), 0.1) == FIRST


def test_sampling_is_answered_by_wider_fanouts() -> None:
    assert adapt(FIRST, FIRST, Quality(0.3, 0.25, 0.1, 0.1), 0.1).fanouts == (15, 8)


def test_staleness_is_answered_by_refreshing_then_by_more_parts() -> None:
    stale, now, seen = Quality(0.3, 0.1, 0.25, 0.0), FIRST, []
    for _ in range(8):
        now = adapt(now, FIRST, stale, 0.1)
        seen.append((now.refresh, now.parts))
    assert seen == [(4, 4), (2, 4), (1, 4), (1, 8), (1, 16), (1, 32), (1, 32), (1, 32)]


def test_room_to_spare_takes_steps_back_down_to_the_users_setting() -> None:
    now = Setting((34, 17), parts=16, most_parts=32, refresh=1)
    for _ in range(10):
        now = adapt(now, FIRST, Quality(0.01, 0.01, 0.0, 0.0), 0.1)
    assert (now.fanouts, now.parts) == (FIRST.fanouts, FIRST.parts)


def test_between_half_of_the_bound_and_the_bound_nothing_is_taken_back() -> None:
    now = Setting((34, 17), parts=16, most_parts=32, refresh=1)
    assert adapt(now, FIRST, Quality(0.051, 0.03, 0.04, 0.0), 0.1) == now
    assert adapt(now, FIRST, Quality(0.049, 0.03, 0.04, 0.0), 0.1).parts == 8


def test_all_neighbours_stay_all() -> None:
    now = Setting((-1, 100))
    for _ in range(5):
        now = adapt(now, now, Quality(0.5, 0.5, 0.0, 0.0), 0.1)
    assert now.fanouts == (-1, MOST_FANOUT)


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_what_is_not_finite_is_above_any_bound(error) -> None:
    assert adapt(FIRST, FIRST, Quality(error, error, 0.0, 0.0), 0.1) != FIRST


@given(
    st.tuples(st.integers(1, 200), st.integers(1, 200)), st.integers(0, 32), st.integers(0, 8),
    st.floats(0, 2), st.floats(0, 2), st.floats(0.01, 1),
)  # fmt: skip
def test_settings_stay_in_range(fanouts, parts, refresh, sampling, staleness, bound) -> None:
    first = Setting((10, 5), min(parts, 4), 32, 0)
    now = Setting(fanouts, parts, 32, refresh)
    then = adapt(now, first, Quality(max(sampling, staleness), sampling, staleness, 0.0), bound)
    assert all(fanout >= 1 for fanout in then.fanouts)
    assert all(fanout <= max(MOST_FANOUT, was) for fanout, was in zip(then.fanouts, fanouts, strict=True))
    assert then.parts <= 32 and then.refresh >= 0


def _drawn(gradient: list[float], halo: list[bool] | None, edges: int = 6) -> Any:
    """A batch of nodes 4, 1, 2, the first two computed by its first layer, whose loss has the given gradient."""
    graph = SimpleNamespace(in_degrees=lambda: torch.tensor([9, 8, 9, 9, 4]))
    block = SimpleNamespace(num_dst=2, num_edges=edges, source=graph)
    mask = None if halo is None else torch.tensor(halo)
    return SimpleNamespace(slope=torch.tensor(gradient), n_id=torch.tensor([4, 1, 2]), blocks=[block], halo=mask)


def _assessed(halo: list[bool] | None, edges: int) -> Quality:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.full((1, 2), 7.0)
    probe = SimpleNamespace(
        drawn=_drawn([3.0, 1.0], halo, edges), inside=_drawn([3.0, 4.0], halo), exact=_drawn([0.0, 5.0], None)
    )
    found = assess(model, probe, lambda batch: (model.weight * batch.slope).sum(), 2.5)
    assert model.weight.grad.tolist() == [[7.0, 7.0]]  # what training has added up stays
    return found


def test_errors_are_distances_between_the_three_gradients() -> None:
    """Drawn (3, 1), inside (3, 4), exact (0, 5); of 8 + 4 in-edges the batch has 6, of the 4 into no halo node 3."""
    flat = _assessed(None, 6)
    assert astuple(flat) == pytest.approx((1.0, 1.0, 0.0, 0.5, 2.5))
    nested = _assessed([False, True, True], 3)
    assert astuple(nested) == pytest.approx((1.0, 0.6, 10**0.5 / 5, 0.25, 2.5))


def test_several_probes_are_averaged() -> None:
    assert mean([Quality(1.0, 2.0, 3.0, 0.5, 4.0), Quality(3.0, 0.0, 1.0, 0.0, 6.0)]) == Quality(
        2.0, 1.0, 2.0, 0.25, 5.0
    )
