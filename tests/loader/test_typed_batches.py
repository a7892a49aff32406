"""Batches of typed graphs: views by type, resume, threads, and a HeteroConv of PyTorch Geometric trained from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from typed_zoo import academic, many

from graphweft._errors import ConfigError, GraphError
from graphweft.data.dataset import Dataset
from graphweft.graph.graph import Graph
from graphweft.loader.loader import Loader
from graphweft.nn.hgt import HGT
from graphweft.nn.rgcn import RGCN
from graphweft.train.trainer import Trainer

RELATION = ("author", "writes", "paper")


def _dataset() -> Dataset:
    """Papers with labels; papers and authors with features of their own."""
    generator = torch.Generator().manual_seed(0)
    graph = academic()
    papers = torch.arange(6, 15)
    y = torch.full((graph.num_nodes,), -1)
    y[papers] = torch.randint(3, (9,), generator=generator)
    widths = {"author": (6, 4), "paper": (9, 5), "term": (4, 2)}
    features = {name: torch.randn(shape, generator=generator) for name, shape in widths.items()}
    return Dataset(
        "academic", graph, None, y, papers[:6], papers[6:8], papers[8:], 3, features=features, target_type="paper"
    )


def _typed_set(seed: int = 0) -> Dataset:
    """Two hundred nodes and forty relations; classes that follow from the neighbours."""
    graph, generator = many(), torch.Generator().manual_seed(seed)
    every = torch.randperm(200, generator=generator)
    y = torch.arange(200) % 3
    return Dataset("many", graph, None, y, every[:120], every[120:160], every[160:], 3)


def test_views_are_the_rows_and_edges_of_their_type() -> None:
    ds = _dataset()
    (batch,) = Loader(ds, seeds=[13, 6, 9], fanouts=[-1, -1], batch_size=3)
    assert batch.node_types == ds.graph.node_types and batch.edge_types == ds.graph.relations
    papers = batch["paper"]
    assert papers.n_id[:3].tolist() == [7, 0, 3]
    assert (papers.batch_size, batch["author"].batch_size, papers.input_id.tolist()) == (3, 0, [0, 1, 2])
    for t, name in enumerate(ds.graph.node_types):
        view, first = batch[name], ds.graph.layout.node_offsets[t]
        assert torch.equal(view.x, ds.features[name][view.n_id])
        assert torch.equal(view.y, ds.y[first + view.n_id])
        assert view.num_nodes == view.n_id.unique().numel()
    for relation in ds.graph.relations:
        view = batch[relation]
        src, dst = ds.graph.relation_graph(relation).edges()
        ends = batch[relation[0]].n_id[view.edge_index[0]], batch[relation[2]].n_id[view.edge_index[1]]
        assert torch.equal(ends[0], src[view.e_id]) and torch.equal(ends[1], dst[view.e_id])
    assert set(batch.x_dict) == {"author", "paper", "term"}
    assert batch.typed.graph.num_edges == batch.num_edges
    with pytest.raises(GraphError, match=r"expected a node type or a relation of .*, got 'venue'"):
        batch["venue"]


def test_seeds_of_several_types_come_first_in_each() -> None:
    graph = academic()
    (batch,) = Loader(graph, seeds=[8, 0, 7, 2], fanouts=[2], batch_size=4)
    assert batch["author"].n_id[:2].tolist() == [0, 2] and batch["author"].input_id.tolist() == [1, 3]
    assert batch["paper"].n_id[:2].tolist() == [2, 1] and batch["paper"].input_id.tolist() == [0, 2]
    assert batch["author"].x is None and batch["author"].y is None
    _, second = Loader(graph, seeds=[8, 0, 7, 2], fanouts=[2], batch_size=2)
    assert (second["paper"].input_id.tolist(), second["author"].input_id.tolist()) == ([2], [3])


def test_fanouts_count_for_every_relation() -> None:
    graph = many()
    for batch in Loader(graph, seeds=torch.arange(200), fanouts=[2], batch_size=50):
        kinds = graph.edge_type()[batch.e_id] * 200 + batch.edge_index[1]
        assert int(kinds.unique(return_counts=True)[1].max()) <= 2
    chosen = {relation: [int(i == 3)] for i, relation in enumerate(graph.relations)}
    for batch in Loader(graph, seeds=torch.arange(200), fanouts=chosen, batch_size=50):
        assert set(graph.edge_type()[batch.e_id].tolist()) <= {3}
    (alone,) = Loader(
        graph,
        seeds=[0],
        fanouts=[-1],
        weight={graph.relations[3]: torch.zeros(len(graph.layout.edge_range(graph.relations[3])))},
    )
    assert 3 not in graph.edge_type()[alone.e_id].tolist()


def test_a_batch_without_types_has_no_views() -> None:
    (batch,) = Loader(Graph([0, 1], [1, 0]), seeds=[0], fanouts=[1])
    with pytest.raises(GraphError, match="expected a batch of a typed graph"):
        batch["paper"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_rest_of_an_epoch_comes_again_bit_for_bit(workers: int) -> None:
    ds = _typed_set()
    options: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 16, "shuffle": True, "seed": 5}
    first = Loader(ds, prefetch=2, workers=workers, **options)
    taken = iter(first)
    for _ in range(3):
        next(taken)
    state = first.state_dict()
    again = Loader(ds, prefetch=0, **options)
    again.load_state_dict(state)
    rest = [*taken, *first]
    repeated = [*again, *again]
    assert len(rest) == len(repeated) == 5 + 8
    for a, b in zip(rest, repeated, strict=True):
        assert torch.equal(a.n_id, b.n_id) and torch.equal(a.e_id, b.e_id) and torch.equal(a.edge_index, b.edge_index)


def _hetero_model(ds: Dataset) -> torch.nn.Module:
    nn = pytest.importorskip("torch_geometric.nn")

    class Net(torch.nn.Module):
        """Two layers of SAGE by relation."""

        def __init__(self) -> None:
            super().__init__()
            relations = ds.graph.relations
            self.convs = torch.nn.ModuleList(
                nn.HeteroConv({r: nn.SAGEConv((-1, -1), width) for r in relations}, aggr="sum") for width in (8, 3)
            )

        def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
            h = self.convs[0](x, edges)
            return self.convs[1]({name: rows.relu() for name, rows in h.items()}, edges)["paper"]

    return Net()


def test_a_model_of_pyg_trains_from_the_loader_unchanged() -> None:
    ds = _dataset()
    ds = replace(ds, graph=ds.graph.add_inverse_relations())  # every type receives messages
    torch.manual_seed(0)
    model = _hetero_model(ds)
    whole = {r: torch.stack(ds.graph.relation_graph(r).edges()) for r in ds.graph.relations}
    expected = model(dict(ds.features), whole)
    for batch in Loader(ds, seeds=torch.arange(14, 5, -1), fanouts=[-1, -1], batch_size=4):
        found = model(batch.x_dict, batch.edge_index_dict)[: batch["paper"].batch_size]
        torch.testing.assert_close(found, expected[batch["paper"].n_id[: batch["paper"].batch_size]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        total = 0.0
        for batch in Loader(ds, fanouts=[2, 2], batch_size=3, shuffle=True):
            count = batch["paper"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)[:count]
            loss = functional.cross_entropy(out, batch["paper"].y[:count])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.2 * losses[0]


def _model(name: str, ds: Dataset) -> torch.nn.Module:
    torch.manual_seed(1)
    relations = len(ds.graph.relations)
    if name == "rgcn":
        return RGCN(None, 8, 3, num_relations=relations, num_nodes=ds.num_nodes)
    return HGT(ds.num_nodes, 8, 3, num_node_types=1, num_relations=relations, heads=2)


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_the_trainer_runs_typed_models_in_mini_batches(name: str) -> None:
    ds = _typed_set()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        trainer = Trainer(_model(name, ds), ds, mode="mini", fanouts=[4, 3], batch_size=32, seed=3, lr=0.02)
        history = trainer.fit(15)
        assert history.last.loss < 0.7 * next(iter(history)).loss
        found.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_full_fanouts_and_one_batch_are_the_full_mode(name: str) -> None:
    ds = _typed_set()
    full = Trainer(_model(name, ds), ds, mode="full", lr=0.01)
    mini = Trainer(_model(name, ds), ds, mode="mini", fanouts=[-1, -1], batch_size=200, lr=0.01)
    for trainer in (full, mini):
        trainer.fit(3)
    for a, b in zip(full.model.parameters(), mini.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_an_interrupted_epoch_goes_on_with_the_same_bits() -> None:
    ds = _typed_set()
    whole = Trainer(_model("rgcn", ds), ds, mode="mini", fanouts=[4, 3], batch_size=32)
    whole.fit(4)
    first = Trainer(_model("rgcn", ds), ds, mode="mini", fanouts=[4, 3], batch_size=32)
    first.fit(2)
    second = Trainer(_model("rgcn", ds), ds, mode="mini", fanouts=[4, 3], batch_size=32)
    second.load_state_dict(first.state_dict())
    second.fit(2)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_typed_models_take_no_other_sampler() -> None:
    ds = _typed_set()
    with pytest.raises(ConfigError, match="sampler: expected neighbor for RGCN"):
        Trainer(_model("rgcn", ds), ds, mode="mini", sampler="shadow")
