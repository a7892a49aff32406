"""A slice of the fuzz of changes between calls; more by ``python -m tests.fuzz.changes --seed S --sequences N``."""

from __future__ import annotations

from collections import Counter

import pytest
from fuzz.changes import CHANGES, run_sequence

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("part", range(4))
def test_a_slice_equals_fresh_execution(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * 15, part * 15 + 15):
        failure = run_sequence(seed, counts)
        assert failure is None, failure
    assert counts["refused"] <= 2, counts
    assert len(counts) > len(CHANGES) // 3, "too few kinds of changes"
