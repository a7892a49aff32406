"""PyTorch Geometric objects both ways."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from zoo import SQUARE, Case

from graphweft._errors import DtypeError, GraphError, IndexRangeError, MissingPackageError
from graphweft.graph.graph import Graph
from graphweft.interop.pyg import from_pyg
from graphweft.interop.to_pyg import to_pyg
from graphweft.storage.feature import SparseFeatures

data_module = pytest.importorskip("torch_geometric.data")
Data, HeteroData = data_module.Data, data_module.HeteroData


@pytest.mark.parametrize("case", SQUARE, ids=str)
def test_edges_keep_their_order_both_ways(case: Case) -> None:
    data = to_pyg(case.graph(), x=torch.randn(case.num_src, 3))
    assert torch.equal(data.edge_index, torch.stack([case.src, case.dst]))
    assert data.num_nodes == case.num_src
    parts = from_pyg(data)
    assert torch.equal(torch.stack(parts.graph.edges()), data.edge_index)
    assert parts.graph.num_nodes == case.num_src
    assert torch.equal(parts.x, data.x)


def test_tensors_find_their_places() -> None:
    data = Data(
        edge_index=torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]),
        x=torch.randn(3, 5),
        y=torch.tensor([0, 1, 2]),
        edge_attr=torch.randn(4, 2),
        pos=torch.randn(3, 2),
        train_mask=torch.tensor([True, False, False]),
        test_mask=torch.tensor([False, True, True]),
    )
    parts = from_pyg(data)
    assert torch.equal(parts.graph.edata["edge_attr"], data.edge_attr)
    assert torch.equal(parts.graph.ndata["pos"], data.pos)
    assert parts.train_idx.tolist() == [0]
    assert parts.val_idx is None
    assert parts.test_idx.tolist() == [1, 2]
    back = to_pyg(parts.graph, x=parts.x, y=parts.y, train_idx=parts.train_idx, test_idx=parts.test_idx)
    for key in ("edge_index", "x", "y", "edge_attr", "pos", "train_mask", "test_mask"):
        assert torch.equal(back[key], data[key])


def test_sparse_features_and_adjacency_stay_sparse() -> None:
    x = SparseFeatures.from_scipy(sp.random_array((4, 30), density=0.2, format="csr", rng=np.random.default_rng(0)))
    graph = Graph([0, 1, 3], [1, 2, 3])
    data = to_pyg(graph, x=x)
    assert data.x.layout == torch.sparse_csr
    assert torch.equal(from_pyg(data).x.to_dense(), x.to_dense())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adj_t = torch.sparse_coo_tensor(torch.stack(graph.edges()).flip(0), torch.ones(3), (4, 4))
    turned = from_pyg(Data(adj_t=adj_t, num_nodes=4)).graph
    assert [t.tolist() for t in turned.edges()] == [[0, 1, 3], [1, 2, 3]]


def test_typed_graphs_go_both_ways() -> None:
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    g = Graph.hetero({writes: ([0, 1], [2, 0]), cites: ([0, 1], [1, 2])}, {"author": 2, "paper": 3})
    features = {"author": torch.randn(2, 4), "paper": torch.randn(3, 6)}
    data = to_pyg(g, x=features, y={"paper": torch.tensor([0, 1, 1])})
    assert isinstance(data, HeteroData)
    assert data[writes].edge_index.tolist() == [[0, 1], [2, 0]]
    data.validate()
    parts = from_pyg(data)
    assert parts.graph.relations == g.relations
    assert torch.equal(torch.stack(parts.graph.edges()), torch.stack(g.edges()))
    assert torch.equal(parts.features["paper"], features["paper"])
    assert parts.labels["paper"].tolist() == [0, 1, 1]


def test_bad_input_gives_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DtypeError, match="expected a Data or HeteroData, got int"):
        from_pyg(3)
    with pytest.raises(GraphError, match=r"expected edge_index of shape \(2, E\)"):
        from_pyg(Data(edge_index=torch.zeros(3, 4, dtype=torch.long), num_nodes=1))
    with pytest.raises(IndexRangeError, match=r"dst ids in \[0, 2\), got 5 at position 0"):
        from_pyg(Data(edge_index=torch.tensor([[0], [5]]), num_nodes=2))
    with pytest.raises(GraphError, match="expected one set of nodes"):
        to_pyg(Graph([0], [0], num_nodes=(1, 2)))
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingPackageError, match="expected the package torch_geometric, which is not installed"):
        to_pyg(Graph([0], [1]))
