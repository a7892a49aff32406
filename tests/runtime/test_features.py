"""The dense or sparse path of node features, and sparse dropout."""

from __future__ import annotations

import pytest
import torch

from graphweft.runtime.features import DEFAULT_THRESHOLD, SparseOperand, choose_features
from graphweft.storage.feature import SparseFeatures


def _with_zeros(share: float) -> torch.Tensor:
    x = torch.ones(100, 100)
    x.view(-1)[: round(share * 10_000)] = 0.0
    return x


@pytest.mark.parametrize(("share", "path"), [(0.0, "dense"), (0.79, "dense"), (0.80, "sparse"), (0.99, "sparse")])
def test_threshold_is_inclusive(share: float, path: str) -> None:
    """SPEC M06."""
    choice = choose_features(_with_zeros(share), DEFAULT_THRESHOLD)
    assert (choice.path, choice.sparsity) == (path, pytest.approx(share))


def test_sparse_input_stays_sparse() -> None:
    x = SparseFeatures.from_dense(torch.ones(3, 4))
    choice = choose_features(x)
    assert choice.path == "sparse"
    assert choice.features is x


def test_conversion_keeps_every_entry() -> None:
    x = torch.randn(30, 20) * (torch.rand(30, 20) < 0.1)
    features = choose_features(x).features
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
