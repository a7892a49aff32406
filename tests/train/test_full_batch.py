"""Full-batch steps: what is prepared, what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from zoo import power_law_edges

from graphweft._errors import GraphWeftError
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.nn import GCN, GIN, SAGE
from graphweft.storage.feature import SparseFeatures
from graphweft.train.trainer import Trainer


def test_features_are_given_up_only_when_nothing_reads_them() -> None:
    """Memory of dense features goes once their aggregation is kept; results are the same, a new reader is refused."""
    histories = []
    for keep in (True, False):
        ds = synthetic("default", scale=0.2, seed=3)
        torch.manual_seed(0)
        model = GCN(ds.num_features, 16, ds.num_classes)
        trainer = Trainer(model, ds, lr=0.01, keep_features=keep)
        histories.append([record.loss for record in trainer.fit(5)])
        assert isinstance(ds.x, torch.Tensor)
        assert (ds.x.stride() == (0, 0)) is (not keep)
    assert histories[0] == histories[1]
    with pytest.raises(GraphWeftError, match="the features were released"):
        model(Graph([0], [1], num_nodes=ds.num_nodes), ds.x)


@pytest.mark.parametrize(("nodes", "width"), [(12000, 24), (9000, 128)])
@pytest.mark.parametrize("make", [GCN, GIN])
def test_an_aggregation_in_the_memory_of_features_has_the_same_bits(make: Any, nodes: int, width: int) -> None:
    """Also where rows are cut into pieces, and with scales of sources."""
    src, dst, _ = power_law_edges(nodes, 9 * nodes, 2)
    results = []
    for keep in (True, False):
        x = POOL.empty((nodes, width))
        x.copy_(torch.randn(nodes, width, generator=torch.Generator().manual_seed(1)))
        y, train = torch.arange(nodes) % 5, torch.arange(0, nodes, 3)
        ds = Dataset("hubs", Graph(src, dst, nodes), x, y, train, train + 1, train + 2, 5)
        torch.manual_seed(0)
        model = make(width, 160, 5)  # wider than the features, so that they are summed first
        Trainer(model, ds, lr=0.01, keep_features=keep, restore_best=False).fit(2)
        assert (x.stride() == (0, 0)) is (not keep)
        results.append(list(model.parameters()))
    assert all(torch.equal(kept, given_up) for kept, given_up in zip(*results, strict=True))


def test_features_with_dropout_are_kept() -> None:
    ds = synthetic("default", scale=0.1, seed=3)
    trainer = Trainer(GCN(ds.num_features, 16, ds.num_classes, dropout=0.5), ds, lr=0.01, keep_features=False)
    trainer.fit(2)
    assert isinstance(ds.x, torch.Tensor)
    assert ds.x.is_contiguous()


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_one_layer_over_dropped_sparse_features(reduce: str) -> None:
    """Rows of training nodes are taken of features whose entries are dropped; a dense copy gives the same losses."""
    ds = synthetic("default", scale=0.1, seed=3)
    assert isinstance(ds.x, torch.Tensor)
    x = torch.where(torch.rand(ds.x.shape, generator=torch.Generator().manual_seed(1)) < 0.45, 0.0, ds.x)
    losses = []
    for features in (SparseFeatures.from_dense(x), x):
        torch.manual_seed(0)
        model = SAGE(ds.num_features, 16, ds.num_classes, num_layers=1, dropout=0.4, reduce=reduce)
        trainer = Trainer(model, replace(ds, x=features), lr=0.01, seed=2)
        losses.append([record.loss for record in trainer.fit(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
