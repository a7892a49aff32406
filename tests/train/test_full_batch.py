"""Full-batch steps: what is prepared, what is kept."""

from __future__ import annotations

import pytest
import torch

from graphweft._errors import GraphWeftError
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.nn import GCN
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


def test_features_with_dropout_are_kept() -> None:
    ds = synthetic("default", scale=0.1, seed=3)
    trainer = Trainer(GCN(ds.num_features, 16, ds.num_classes, dropout=0.5), ds, lr=0.01, keep_features=False)
    trainer.fit(2)
    assert isinstance(ds.x, torch.Tensor)
    assert ds.x.is_contiguous()
