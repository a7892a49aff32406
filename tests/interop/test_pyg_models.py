"""Models of PyTorch Geometric on sparse features against the same models on dense rows: full graph and batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo import random_edges

from graphweft._errors import DenseFeaturesWarning
from graphweft.graph.graph import Graph
from graphweft.interop.parts import GraphParts
from graphweft.interop.pyg import from_pyg
from graphweft.loader.loader import Loader
from graphweft.storage.feature import SparseFeatures

pyg = pytest.importorskip("torch_geometric.nn")
N, WIDTH = 120, 30

MODELS: dict[str, Any] = {
    "GCN": lambda: pyg.GCN(WIDTH, 8, 2, 3),
    "GraphSAGE": lambda: pyg.GraphSAGE(WIDTH, 8, 2, 3),
    "GAT": lambda: pyg.GAT(WIDTH, 8, 2, 3, heads=2),
    "GATv2": lambda: pyg.GAT(WIDTH, 8, 2, 3, v2=True),
    "GIN": lambda: pyg.GIN(WIDTH, 8, 2, 3),
    "deep GCN": lambda: pyg.GCN(WIDTH, 8, 3, 3, jk="cat", norm="batch"),
}


def _features() -> tuple[SparseFeatures, Tensor]:
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(N, WIDTH, generator=generator)
    dense = torch.where(torch.rand(N, WIDTH, generator=generator) < 0.1, dense, 0.0)
    dense[5] = 0.0
    return SparseFeatures.from_dense(dense), dense


def _graph() -> Graph:
    edges = random_edges(N, 700, seed=1)
    return Graph(edges.src, edges.dst, num_nodes=N)


def _run(model: torch.nn.Module, x: Any, edge_index: Tensor) -> list[Tensor]:
    model.zero_grad()
    out = model(x, edge_index)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def _close(made: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(made, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_full_graphs_make_no_dense_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sparse, dense = _features()
    ends = torch.stack(_graph().edges())
    model = MODELS[name]()
    expected = _run(model, dense, ends)
    monkeypatch.delattr(SparseFeatures, "to_dense")
    _close(_run(model, sparse, ends), expected)


def test_the_mean_of_extrema_needs_rows() -> None:
    sparse, dense = _features()
    ends = torch.stack(_graph().edges())
    model = pyg.GraphSAGE(WIDTH, 8, 2, 3, aggr="max")
    with pytest.warns(DenseFeaturesWarning, match=r"scatter_reduce_: SparseFeatures 700 x 30 \(0.1 MB\)"):
        made = _run(model, sparse, ends)
    _close(made, _run(model, dense, ends))


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GAT"])
def test_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sparse, dense = _features()
    parts = GraphParts(_graph(), sparse, torch.arange(N) % 3, train_idx=torch.arange(60))
    model = MODELS[name]().eval()
    monkeypatch.delattr(SparseFeatures, "to_dense")
    for batch in Loader(parts, parts.train_idx, fanouts=[5, 3], batch_size=20):
        batch = batch.to("cpu")
        rows = dense[batch.n_id]
        assert isinstance(batch.x, SparseFeatures) and batch.x.size(0) == batch.num_nodes
        assert batch.x[: batch.batch_size].shape == (batch.batch_size, WIDTH)
        _close(_run(model, batch.x, batch.edge_index), _run(model, rows, batch.edge_index))
        hops = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        made, expected = (model(x, batch.edge_index, **hops) for x in (batch.x, rows))
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-4)


def test_a_batch_sent_elsewhere_has_dense_rows() -> None:
    parts = GraphParts(_graph(), _features()[0], torch.arange(N) % 3, train_idx=torch.arange(60))
    batch = next(iter(Loader(parts, parts.train_idx, fanouts=[5], batch_size=20)))
    with pytest.warns(DenseFeaturesWarning, match="to\\('meta'\\)"):
        assert batch.to("meta").x.device.type == "meta"


def test_sparse_features_inside_data_come_back() -> None:
    data = pytest.importorskip("torch_geometric.data").Data
    sparse, dense = _features()
    parts = from_pyg(data(x=sparse, edge_index=torch.stack(_graph().edges()), y=torch.arange(N) % 3))
    assert isinstance(parts.x, SparseFeatures)
    torch.testing.assert_close(parts.x.to_dense(), dense)
