"""The cost model: monotone, fitted by least squares, kept as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft.cost import CostModel, Work, attention_work, contraction_work, gather_work, product_work, rows_work

SIZES = st.integers(1, 10**6)


@given(SIZES, SIZES, st.integers(1, 512), SIZES)
def test_more_edges_never_cost_less(rows: int, edges: int, width: int, source: int) -> None:
    model = CostModel()
    assert model.seconds(gather_work(rows, edges, width, source)) <= model.seconds(
        gather_work(rows, edges + 1000, width, source)
    )


@given(SIZES, st.integers(1, 2000), st.integers(1, 512))
def test_wider_products_never_cost_less(n: int, k: int, m: int) -> None:
    model = CostModel()
    for work in (product_work, contraction_work):
        assert model.seconds(work(n, k, m)) <= model.seconds(work(n, k, m + 16))


def test_gathers_from_far_cost_more() -> None:
    model = CostModel()
    seconds = [model.seconds(gather_work(1000, 10**6, 32, n)) for n in (10**3, 10**5, 10**6, 10**8)]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_what_lies_near_never_costs_more_whatever_was_measured_of_it() -> None:
    noisy = CostModel({**CostModel().coefficients, "gather near reused": (1e-6, 1e-6, 1.0)})
    near, far = (gather_work(1000, 10**6, 32, n) for n in (10**3, 10**8 // 200))
    assert near.kind == "gather near reused" and noisy.seconds(near) == CostModel().seconds(
        Work("gather mid reused", near.amount, near.bytes)
    )
    assert noisy.seconds(far) == CostModel().seconds(far)


def _samples(scale: float, noise: float = 0.0) -> list[tuple[Work, float]]:
    rng = np.random.default_rng(0)
    truth = CostModel()
    works = [product_work(n, k, 32) for n in (10**4, 10**5, 10**6) for k in (16, 100, 600)]
    works += [rows_work(n) for n in (10**5, 10**6, 10**7)]
    return [(w, truth.seconds(w) * scale * (1 + noise * rng.standard_normal())) for w in works]


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_fit_recovers_a_machine_that_is_slower_or_faster(scale: float) -> None:
    samples = _samples(scale)
    fitted = CostModel().fit(samples, weight=0.01)
    assert fitted.error(samples) < 0.02


def test_fit_under_noise_stays_below_the_papers_error() -> None:
    """SPEC N10: 12.5 % in the paper, below 25 % asked for."""
    samples = _samples(2.0, noise=0.1)
    assert CostModel().fit(samples).error(samples) < 0.125


def test_kinds_without_samples_keep_their_coefficients() -> None:
    fitted = CostModel().fit([(rows_work(10**6), 1.0)])
    assert fitted.coefficients["product"] == CostModel().coefficients["product"]
    assert fitted.coefficients["rows"] != CostModel().coefficients["rows"]


def test_text_round_trip_and_damage() -> None:
    fitted = CostModel().fit(_samples(2.0))
    assert CostModel.from_json(fitted.to_json()) == fitted
    assert CostModel.from_json('{"unknown": [1, 2, 3]}') == CostModel()
    with pytest.raises(ValueError, match="Expecting value"):
        CostModel.from_json("not json")


def test_narrow_rows_and_sparse_features_are_kinds_of_their_own_that_cost_the_same_until_they_are_measured() -> None:
    wide, narrow = gather_work(9, 10**5, 32, 10**3), gather_work(9, 10**5, 16, 10**3)
    stored = gather_work(9, 10**5, 32, 10**3, is_sparse=True)
    assert len({work.kind for work in (wide, narrow, stored)}) == 3
    assert wide.amount == 2 * narrow.amount
    assert {product_work(9, 9, m).kind for m in (1, 16)} != {product_work(9, 9, 17).kind}
    model = CostModel()
    assert {model.coefficients[work.kind] for work in (wide, narrow, stored)} == {model.coefficients[wide.kind]}
    measured = model.fit([(narrow, 1.0)])
    assert measured.seconds(narrow) > model.seconds(narrow) and measured.seconds(wide) == model.seconds(wide)


def test_a_profile_of_a_former_version_prices_new_kinds_as_those_that_they_were_a_part_of() -> None:
    former = CostModel.from_json('{"gather near": [1, 2, 3], "product": [4, 5, 6]}')
    for work in (gather_work(9, 9, 16, 9), gather_work(9, 9, 32, 9, is_sparse=True), gather_work(9, 9, 32, 9)):
        assert former.coefficients[work.kind] == (1, 2, 3)
    assert former.coefficients[product_work(9, 9, 9).kind] == (4, 5, 6)
    assert former.coefficients[contraction_work(9, 9, 9).kind] == CostModel().coefficients["contraction"]


def test_attention_is_priced_by_where_the_rows_lie_that_it_gathers() -> None:
    few, many = (attention_work(10**6, 10**6, 8, 16, sources) for sources in (10**3, 10**6))
    assert (few.kind, many.kind) == ("attention near", "attention memory")
    back = attention_work(10**3, 10**6, 8, 16, 10**6, backward=True)  # which gathers rows of destinations
    assert back.kind == "attention gradients near"
    shared = attention_work(9, 10**6, 8, 16, 10**4, shared=True)
    assert shared.kind == "attention near"
    former = CostModel.from_json('{"attention": [1, 2, 3], "attention gradients": [4, 5, 6]}')
    assert former.coefficients["attention far"] == (1.0, 2.0, 3.0)
    assert former.coefficients["attention gradients near"] == (4.0, 5.0, 6.0)


def test_kinds_that_were_not_measured_follow_the_tier_before() -> None:
    usual = CostModel()
    slow = CostModel({**usual.coefficients, "gather mid": tuple(2 * c for c in usual.coefficients["gather mid"])})
    found = slow.spread(["gather near", "gather mid", "gather memory"]).coefficients
    assert found["gather far"] == pytest.approx(tuple(2 * c for c in usual.coefficients["gather far"]))
    for kind in ("gather near", "gather mid", "gather memory", "gather far narrow", "product", "draw"):
        assert found[kind] == pytest.approx(slow.coefficients[kind])


def test_rows_of_few_edges_are_paid_for() -> None:
    model = CostModel()
    seconds = [model.seconds(gather_work(rows, 10**5, 16, 10**4)) for rows in (10**3, 10**5)]
    assert seconds[1] > 1.5 * seconds[0]


def test_attention_pays_for_weights_of_edges_and_for_heads_of_rows() -> None:
    one, eight = (attention_work(10**3, 10**6, heads, 64 // heads, 10**3) for heads in (1, 8))
    assert one.bytes == pytest.approx(eight.bytes, rel=0.01)
    assert 2 < eight.amount / one.amount < 4  # an edge costs as much as five weights beside those
    few, many = (attention_work(rows, 10**5, 8, 8, 10**3) for rows in (10**2, 10**4))
    assert many.amount > 1.4 * few.amount
    few, many = (attention_work(10**3, 10**5, 1, 8, ends, backward=True) for ends in (10**3, 10**5))
    assert many.amount > 3 * few.amount and many.kind == few.kind
