"""The dense or sparse path of node features, and sparse dropout."""

from __future__ import annotations

import pytest
import torch

import graphweft as gw
from graphweft.runtime import calibrate
from graphweft.runtime.features import DEFAULT_THRESHOLD, SparseOperand
from graphweft.storage.feature import SparseFeatures
from graphweft.train.settle import settle_features


def _with_zeros(share: float) -> torch.Tensor:
    x = torch.ones(100, 100)
    x.view(-1)[: round(share * 10_000)] = 0.0
    return x


@pytest.mark.parametrize(("share", "sparse"), [(0.0, False), (0.79, False), (0.80, True), (0.995, True)])
def test_threshold_is_inclusive(share: float, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC M06."""
    monkeypatch.setattr(calibrate, "is_calibrated", lambda: False)
    monkeypatch.setattr(calibrate, "threshold", lambda: DEFAULT_THRESHOLD)
    x = _with_zeros(share)
    with gw.config(calibrate=False):
        settled = settle_features(x)
    assert isinstance(settled, SparseFeatures) == sparse
    assert torch.equal(settled.to_dense(), x)


def test_sparse_input_stays_sparse() -> None:
    x = SparseFeatures.from_dense(torch.ones(3, 4))
    assert settle_features(x) is x


def test_conversion_keeps_every_entry() -> None:
    x = torch.randn(30, 20) * (torch.rand(30, 20) < 0.005)
    features = settle_features(x)
    assert isinstance(features, SparseFeatures)
    assert torch.equal(features.to_dense(), x)


def test_both_layouts_drop_the_same_entries() -> None:
    x = SparseFeatures.from_dense(torch.rand(40, 25) * (torch.rand(40, 25) < 0.4))
    dropped = SparseOperand.of(x).dropped(0.5, seed=3, stream=1)
    dense = torch.zeros(40, 25)
    for adjacency, values, turned in ((*dropped.by_row(), False), (*dropped.by_column(), True)):
        rows = torch.repeat_interleave(torch.arange(adjacency.num_rows), adjacency.indptr[1:] - adjacency.indptr[:-1])
        columns = adjacency.indices.long()
        made = torch.zeros(40, 25)
        made[(columns, rows) if turned else (rows, columns)] = values
        if turned:
            assert torch.equal(made, dense)
        dense = made
    kept = dense != 0
    assert 0.4 < float(kept.sum()) / x.nnz < 0.6
    torch.testing.assert_close(dense[kept], 2.0 * x.to_dense()[kept])
