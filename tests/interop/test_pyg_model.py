"""Models of PyTorch Geometric in the trainer, against a plain loop around them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweft._errors import ConfigError, GraphError
from graphweft.data.synthetic import synthetic
from graphweft.graph.graph import Graph
from graphweft.interop.pyg_model import PyGModel, adapted
from graphweft.nn.gcn import GCN
from graphweft.train.trainer import Trainer


@pytest.mark.parametrize(("name", "mode"), [("GCN", "full"), ("GraphSAGE", "mini"), ("GAT", "full"), ("GAT", "mini")])
def test_a_model_of_pytorch_geometric_trains_as_in_a_plain_loop(name: str, mode: str) -> None:
    models: Any = pytest.importorskip("torch_geometric.nn")
    ds = synthetic("default", scale=0.02, seed=0)
    assert isinstance(ds.x, Tensor)
    model = getattr(models, name)(ds.num_features, 8, 2, ds.num_classes)
    plain = copy.deepcopy(model)
    sampled: dict[str, Any] = {"fanouts": (-1, -1), "batch_size": 10_000} if mode == "mini" else {}
    trainer = Trainer(model, ds, lr=0.02, mode=mode, restore_best=False, **sampled)
    history = trainer.fit(5)
    assert trainer.model is model and set(trainer.state_dict()["model"]) == set(plain.state_dict())
    edges, rows, losses = torch.stack(ds.graph.edges()).long(), ds.train_idx, []
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.02)
    for _ in range(5):
        optimizer.zero_grad()
        loss = functional.cross_entropy(plain(ds.x, edges)[rows], ds.y[rows])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert history["loss"] == pytest.approx(losses, rel=1e-4)
    assert torch.equal(trainer.predict(), plain.eval()(ds.x, edges).argmax(1))


class _Sum(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def test_what_is_called_with_a_graph_stays_as_it_is() -> None:
    model = GCN(3, 4, 2)
    assert adapted(model) is model
    assert isinstance(adapted(_Sum()), PyGModel)


def test_another_call_and_a_typed_graph_are_told() -> None:
    class OfData(nn.Module):
        def forward(self, everything: Any) -> Any:
            return everything

    with pytest.raises(
        ConfigError, match=r"or model\(x, edge_index\) as in PyTorch Geometric, got forward\(everything"
    ) as caught:
        adapted(OfData())
    assert "\n" not in str(caught.value)
    typed = Graph.hetero({("a", "to", "a"): (torch.tensor([0]), torch.tensor([1]))}, num_nodes={"a": 2})
    with pytest.raises(GraphError, match="expected an untyped graph"):
        adapted(_Sum())(typed, torch.ones(2, 1))


def test_sparse_features_become_dense_with_one_warning() -> None:
    ds = synthetic("cora", scale=0.02, seed=0)
    model = nn.Linear(ds.num_features, ds.num_classes)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = model

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.linear(x)  # type: ignore[no-any-return]

    if isinstance(ds.x, Tensor):
        pytest.skip("the features of this set are dense")
    with pytest.warns(UserWarning, match=r"sparse features become dense for Own, \d+ MB"):
        trainer = Trainer(Own(), ds)
    assert len(trainer.fit(2)) == 2
