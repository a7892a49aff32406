"""Edge weights, edge features and deaf node types in the trainer: used, told, or switched off."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphweft._errors import ConfigError, DataWarning
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.nn import GAT, GCN, GIN, HGT, NGCF, RGCN, SAGE, GCNConv
from graphweft.nn.edges import EdgeInputs
from graphweft.train.edge_data import edge_data_of
from graphweft.train.trainer import Trainer

NODES = 120


def _data(loops: bool = False, columns: int = 0, weighted: bool = True) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, NODES, (2, 900), generator=generator)
    keep = (src != dst) | (src % 7 == 0 if loops else torch.zeros(900, dtype=torch.bool))
    graph = Graph(src[keep], dst[keep], num_nodes=NODES)
    labels = torch.randint(0, 3, (NODES,), generator=generator)
    order = torch.randperm(NODES, generator=generator)
    x = torch.randn(NODES, 6, generator=generator)
    weight = 5 * torch.rand(graph.num_edges, generator=generator) ** 3 if weighted else None
    features = torch.randn(graph.num_edges, columns, generator=generator) if columns else None
    parts = order[:60], order[60:90], order[90:]
    return Dataset("toy", graph, x, labels, *parts, 3, edge_weight=weight, edge_features=features)


def _plain_gcn(ds: Dataset, model: GCN, epochs: int, lr: float) -> Tensor:
    """Logits of a GCN trained in plain torch on dense matrices in float64, from the parameters of ``model``."""
    src, dst = ds.graph.edges()
    own = src == dst
    assert ds.edge_weight is not None and isinstance(ds.x, Tensor)
    weight, x = ds.edge_weight.double(), ds.x.double()
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    matrix.index_put_((dst[~own], src[~own]), weight[~own], accumulate=True)
    matrix += torch.diag(torch.ones(NODES, dtype=torch.float64).index_put((dst[own],), weight[own]))
    scale = matrix.sum(1) ** -0.5
    matrix = scale[:, None] * matrix * scale
    parameters = [p.detach().double().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr)

    def forward() -> Tensor:
        (w0, b0), (w1, b1) = parameters[:2], parameters[2:]
        return matrix @ ((matrix @ (x @ w0) + b0).relu() @ w1) + b1

    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward()[ds.train_idx], ds.y[ds.train_idx]).backward()
        optimizer.step()
    return forward().detach().float()


@pytest.mark.parametrize("mode", ["full", "mini"])
@pytest.mark.parametrize("loops", [False, True])
def test_a_trained_gcn_is_that_of_plain_torch(mode: str, loops: bool) -> None:
    ds = _data(loops)
    torch.manual_seed(1)
    model = GCN(6, 8, 3)
    assert [name for name, _ in model.layers[0].named_parameters()] == ["weight", "bias"]
    expected = _plain_gcn(ds, model, 12, 0.02)
    options: dict[str, Any] = {"mode": "mini", "fanouts": (-1, -1), "batch_size": 60} if mode == "mini" else {}
    trainer = Trainer(model, ds, lr=0.02, restore_best=False, **options)
    trainer.fit(12)
    torch.testing.assert_close(trainer._batch.logits(), expected, rtol=2e-3, atol=2e-3)
    assert ds.edge_weight is not None
    with torch.no_grad():
        torch.testing.assert_close(model(ds.graph, ds.x, edge_weight=ds.edge_weight), expected, rtol=2e-3, atol=2e-3)


MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "mini": {"mode": "mini", "batch_size": 30},
    "shadow": {"mode": "mini", "batch_size": 30, "sampler": "shadow"},
    "saint": {"mode": "mini", "batch_size": 30, "sampler": "saint-node"},
    "layer": {"mode": "mini", "batch_size": 30, "sampler": "layer"},
    "large": {"mode": "mini", "batch_size": 30, "macro": "large:1/2"},
    "parts": {"mode": "mini", "batch_size": 30, "macro": "parts:2/4"},
    "link": {"mode": "mini", "batch_size": 200, "task": "link"},
}


@pytest.mark.parametrize("mode", MODES)
def test_weights_reach_the_model_in_every_mode(mode: str) -> None:
    """Weights of one give the loss of an unweighted run; others do not, and "ignore" leaves them out."""
    ds = _data(loops=True)
    assert ds.edge_weight is not None
    ones = replace(ds, edge_weight=torch.ones_like(ds.edge_weight))

    def loss(data: Dataset, choice: str) -> float:
        torch.manual_seed(0)
        record = Trainer(GCN(6, 8, 3), data, edge_data=choice, **MODES[mode]).fit(1)[-1]
        return record.loss

    without = loss(ds, "ignore")
    assert loss(ones, "use") == pytest.approx(without, rel=1e-4)
    assert abs(loss(ds, "use") - without) > 1e-3 * abs(without)


def test_an_interrupted_run_with_weights_ends_with_the_same_bits(tmp_path: Any) -> None:
    ds, runs = _data(), []
    for cut in (4, 2):
        torch.manual_seed(0)
        trainer = Trainer(SAGE(6, 8, 3, dropout=0.3), ds, mode="mini", batch_size=30, out=tmp_path / str(cut))
        trainer.fit(cut)
        if cut == 2:
            trainer = Trainer(SAGE(6, 8, 3, dropout=0.3), ds, mode="mini", batch_size=30, out=tmp_path / str(cut))
            assert trainer.resume()
            trainer.fit(2)
        runs.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert torch.equal(*runs)


def _warned(model: nn.Module, ds: Dataset, choice: str = "use") -> tuple[list[str], dict[str, Any]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = edge_data_of(model, ds, choice)
    assert all(item.category is DataWarning for item in caught)
    return [str(item.message) for item in caught], found.identity()


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 3)
        self.given: list[dict[str, Tensor | None]] = []

    def forward(self, graph: Graph, x: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        self.given.append({"edge_weight": edge_weight})
        result: Tensor = self.conv(graph, x, edge_weight=edge_weight)
        return result


class _Deaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 3)

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        result: Tensor = self.conv(graph, x)
        return result


def test_what_a_model_cannot_use_is_said_once_in_one_line() -> None:
    weighted, both = _data(), _data(columns=2)
    for model in (GCN(6, 8, 3), SAGE(6, 8, 3), GIN(6, 8, 3), GAT(6, 8, 3, heads=2, edge_dim=1)):
        assert _warned(model, weighted) == ([], {"edge_inputs": ["edge_weight"]})
    assert _warned(GAT(6, 8, 3, heads=2, edge_dim=3), both) == ([], {"edge_inputs": ["edge_weight", "edge_features"]})
    for model in (NGCF(6, 8, 3), GAT(6, 8, 3, heads=2), _Deaf()):
        (text,), used = _warned(model, weighted)
        assert text.startswith(
            f"toy: edge_weight not used by {type(model).__name__}; GCN, SAGE and GIN use edge_weight"
        )
        assert "edge_data='ignore'" in text and "\n" not in text and used == {}
        assert _warned(model, weighted, "ignore") == ([], {})
    (text,), used = _warned(GCN(6, 8, 3), both)
    assert "edge_features not used by GCN" in text and used == {"edge_inputs": ["edge_weight"]}
    (text,), used = _warned(GAT(6, 8, 3, heads=2, edge_dim=2), both)
    assert "edge_weight not used by GAT, whose edge_dim is 2; edge_dim=3 uses both" in text
    assert used == {"edge_inputs": ["edge_features"]}
    (text,), used = _warned(GAT(6, 8, 3, heads=2, edge_dim=7), both)
    assert "edge_weight and edge_features not used by GAT, whose edge_dim is 7; expected 3" in text and used == {}
    with pytest.raises(ConfigError, match="edge_data: expected one of use, ignore, got 'yes'"):
        Trainer(GCN(6, 8, 3), weighted, edge_data="yes")
    with pytest.warns(DataWarning, match="edge_weight not used by NGCF"):
        Trainer(NGCF(6, 8, 3), weighted)


def test_times_of_edges_that_nothing_reads_are_told() -> None:
    ds = _data(weighted=False)
    timed = replace(ds, edge_time=torch.arange(ds.graph.num_edges))
    line = "^toy: edge_time not used by the trainer; gw.sampling.SegmentSampler"
    with pytest.warns(DataWarning, match=line):
        Trainer(GCN(6, 8, 3), timed)
    Trainer(GCN(6, 8, 3), timed, edge_data="ignore")


@pytest.mark.parametrize("mode", ["full", "mini"])
def test_a_model_of_ones_own_is_given_what_it_asks_for(mode: str) -> None:
    ds, model = _data(), _Own()
    Trainer(model, ds, mode=mode, **({"batch_size": 30} if mode == "mini" else {})).fit(1)
    assert model.given and all(isinstance(item["edge_weight"], Tensor) for item in model.given)
    assert not any(isinstance(item["edge_weight"], EdgeInputs) for item in model.given)


def _typed() -> Dataset:
    """Papers have the labels; authors write them and nothing leads back."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, 20, (60,), generator=generator), torch.randint(0, 30, (60,), generator=generator)
    graph = Graph.hetero({("paper", "by", "author"): ends}, {"author": 30, "paper": 20})
    first = graph.layout.node_range("paper").start
    labels = torch.full((50,), -1)
    labels[first : first + 20] = torch.randint(0, 3, (20,), generator=generator)
    papers = torch.arange(first, first + 20)
    features = {"paper": torch.randn(20, 4, generator=generator)}
    parts = papers[:10], papers[10:15], papers[15:]
    weight = torch.rand(60, generator=generator)
    return Dataset("typed", graph, None, labels, *parts, 3, edge_weight=weight, features=features, target_type="paper")


def test_a_labelled_type_that_receives_nothing_is_told_with_the_remedy() -> None:
    ds = replace(_typed(), edge_weight=None)
    with pytest.warns(DataWarning) as caught:
        Trainer(HGT.for_data(ds, hidden=8, heads=2), ds)
    (text,) = [str(item.message) for item in caught]
    assert "typed: nodes of type 'paper' have the labels and receive no edge" in text
    assert "add_inverse_relations()" in text and "\n" not in text
    whole = ds.with_inverse_relations()
    assert whole.deaf_types() == [] and ds.deaf_types() == ["paper"]
    Trainer(HGT.for_data(whole, hidden=8, heads=2), whole)  # warnings are errors here


def test_inverse_relations_keep_weights_and_features_of_edges() -> None:
    ds = _typed()
    whole = replace(ds, edge_features=torch.randn(60, 2)).with_inverse_relations()
    assert whole.edge_weight is not None and whole.edge_features is not None and ds.edge_weight is not None
    src, dst = whole.graph.edges()
    pairs = {(int(a), int(b)): [] for a, b in zip(src, dst, strict=True)}
    for a, b, weight in zip(src.tolist(), dst.tolist(), whole.edge_weight.tolist(), strict=True):
        pairs[a, b].append(weight)
    assert all(sorted(weights) == sorted(pairs[b, a]) for (a, b), weights in pairs.items())
    assert whole.edge_features.shape == (120, 2)


def test_sizes_come_from_the_dataset() -> None:
    ds = replace(_typed(), edge_weight=None).with_inverse_relations()
    hgt = HGT.for_data(ds, hidden=8, heads=2, num_layers=3)
    assert (hgt.in_features, hgt.out_features, len(hgt.layers)) == (4 + 30, 3, 3)
    rgcn = RGCN.for_data(ds, hidden=8, num_bases=2)
    assert rgcn.in_features == 34
    for model in (hgt, rgcn):
        Trainer(model, ds).fit(2)
    bare = RGCN.for_data(replace(ds, features={}), hidden=8)
    Trainer(bare, replace(ds, features={})).fit(1)
    both = _data(columns=2)
    gat = GAT.for_data(both, hidden=8, heads=2)
    assert gat.edge_columns() == 3 and gat.in_features == 6
    Trainer(gat, both).fit(1)
    assert SAGE.for_data(both, hidden=8, out_features=5).out_features == 5
    with pytest.raises(ConfigError, match=r"GCN\.for_data: expected an untyped graph, got 2 relations; gw\.nn\.RGCN"):
        GCN.for_data(ds, hidden=8)
    with pytest.raises(ConfigError, match="expected a dataset with classes, or out_features"):
        GCN.for_data(replace(both, num_classes=0, y=torch.full((NODES,), -1)), hidden=8)
    with pytest.raises(ConfigError, match="expected a dataset with node features x, got none"):
        SAGE.for_data(replace(both, x=None), hidden=8)
