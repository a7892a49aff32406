"""Ascending ids against NumPy's sets."""

from __future__ import annotations

import numpy as np
import pytest

from graphweft._distinct import distinct, union


@pytest.mark.parametrize("count", [0, 1, 2, 50, 5000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_are_those_of_numpy(count: int, dtype: type[np.signedinteger]) -> None:
    rng = np.random.default_rng(count)
    first, second = (rng.integers(0, max(count, 1) * 2, count).astype(dtype) for _ in range(2))
    found = distinct(first)
    assert found.dtype == np.int64 and np.array_equal(found, np.unique(first))
    assert np.array_equal(union(found, distinct(second)), np.union1d(first, second))
    assert np.array_equal(union(found, found), found)
