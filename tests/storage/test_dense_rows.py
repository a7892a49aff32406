"""Dense rows of sparse features: once per place a warning with the size, an error above the bound."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

from graphweft._config import config
from graphweft._errors import DenseFeaturesWarning, DenseSizeError
from graphweft.storage.dense_rows import BOUND, dense_rows
from graphweft.storage.feature import SparseFeatures


def test_each_place_warns_once_whatever_the_sizes() -> None:
    parts = [SparseFeatures.from_dense(torch.eye(size)) for size in (500, 600, 700)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for x in parts:
            F.softmax(x, 1)
        first = len(seen)
        for x in parts:
            F.softmax(x, 0)
            F.softplus(x)
    assert first == 1 and len(seen) == 3
    assert [warning.filename for warning in seen] == [__file__] * 3
    text = str(seen[0].message)
    assert text.startswith("softmax: SparseFeatures 500 x 500 (1.0 MB) were made dense") and "\n" not in text
    assert issubclass(seen[0].category, DenseFeaturesWarning)


def test_rows_above_the_bound_are_refused() -> None:
    x = SparseFeatures.from_dense(torch.eye(100))
    with config(memory=39_999), pytest.raises(DenseSizeError, match=r"exp: expected at most 0.0 MB .* to_dense\(\)"):
        torch.exp(x)
    with config(memory=40_000), pytest.warns(DenseFeaturesWarning):
        torch.exp(x)
    with config(memory=79_999), pytest.raises(DenseSizeError, match="100 x 100 and 100 x 100"):
        torch.stack([x, x + 0])
    rows = BOUND // 4 // 1000 + 1
    large = SparseFeatures(torch.zeros(rows + 1, dtype=torch.int64), [], [], (rows, 1000))
    with pytest.raises(DenseSizeError, match=f"got SparseFeatures {rows} x 1000"):
        large.cos()
    with config(memory=10):
        assert x.to_dense().shape == (100, 100)  # an explicit wish is no surprise
        assert (x @ torch.ones(100, 2)).shape == (100, 2)


def test_kept_rows_are_the_same_tensor() -> None:
    x = SparseFeatures.from_dense(torch.eye(3))
    with pytest.warns(DenseFeaturesWarning):
        (first,) = dense_rows("here", x, kept=True)
    with pytest.warns(DenseFeaturesWarning):
        assert dense_rows("here", x, kept=True)[0] is first
