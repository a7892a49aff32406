"""Metrics of links against their definitions, counted pair by pair, ties included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphweft._errors import ConfigError, ShapeError
from graphweft.train.link_metrics import average_precision, hits_at, mean_reciprocal, ranks, roc_auc


def _draw(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores from few values, so that many are equal."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**9)))
    levels = data.draw(st.sampled_from([2, 5, 1000]))
    return (rng.integers(0, levels, rng.integers(1, 40)) / 7, rng.integers(0, levels, rng.integers(1, 40)) / 7)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_roc_auc_is_the_share_of_pairs_in_order(data: Any) -> None:
    positive, negative = _draw(data)
    wins = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    expected = wins / (positive.size * negative.size)
    got = roc_auc(torch.from_numpy(positive), torch.from_numpy(negative))
    assert got == pytest.approx(expected, abs=1e-12)
    statistic = stats.mannwhitneyu(positive, negative).statistic
    assert got == pytest.approx(statistic / (positive.size * negative.size), abs=1e-12)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_average_precision_is_the_sum_over_thresholds(data: Any) -> None:
    positive, negative = _draw(data)
    expected, recall = 0.0, 0.0
    for threshold in sorted({*positive, *negative}, reverse=True):  # as scikit-learn defines it
        true, false = (positive >= threshold).sum(), (negative >= threshold).sum()
        expected += (true / positive.size - recall) * true / (true + false)
        recall = true / positive.size
    assert average_precision(torch.from_numpy(positive), torch.from_numpy(negative)) == pytest.approx(expected)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_ranks_are_mean_places(data: Any) -> None:
    positive, negative = _draw(data)
    shared = ranks(torch.from_numpy(positive), torch.from_numpy(negative))
    places = [1 + stats.rankdata(-np.append(negative, p), method="average")[-1] - 1 for p in positive]
    assert shared.tolist() == pytest.approx(places)
    table = np.broadcast_to(negative, (positive.size, negative.size)).copy()
    assert torch.equal(ranks(torch.from_numpy(positive), torch.from_numpy(table)), shared)
    scores = (torch.from_numpy(positive), torch.from_numpy(negative))
    assert mean_reciprocal(shared) == pytest.approx(np.mean(1 / np.array(places)))
    for k in (1, 3, 10):
        assert hits_at(k, *scores) == pytest.approx(np.mean(np.array(places) <= k))


def test_nothing_to_count_is_none() -> None:
    none, some = torch.empty(0), torch.tensor([1.0])
    assert roc_auc(none, some) is None and roc_auc(some, none) is None
    assert average_precision(none, some) is None and hits_at(1, none, some) is None and mean_reciprocal(none) is None
    assert average_precision(some, none) == 1.0 and mean_reciprocal(ranks(some, none)) == 1.0


def test_bad_scores_are_one_line() -> None:
    one = torch.tensor([1.0])
    with pytest.raises(ConfigError, match="roc_auc: expected scores that are numbers, got nan"):
        roc_auc(torch.tensor([float("nan")]), one)
    with pytest.raises(ShapeError, match="ranks: expected 1 rows of negatives, got 2"):
        ranks(one, torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="expected scores with 1 dimensions, got 2"):
        roc_auc(torch.zeros(2, 2), one)
    with pytest.raises(ConfigError, match="hits_at: expected k as an integer >= 1, got 0"):
        hits_at(0, one, one)


def test_what_is_no_score_is_told_in_one_line() -> None:
    for wrong in ("x", None, [[1.0], [1.0, 2.0]]):
        scores: Any = wrong
        with pytest.raises(ConfigError, match=r"^roc_auc: expected scores as numbers, got"):
            roc_auc(scores, torch.ones(1))
