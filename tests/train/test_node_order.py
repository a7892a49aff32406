"""Full batches in another order of the nodes: against torch in float64, and as the caller sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweft as gw
from graphweft._errors import CheckpointError, ConfigError
from graphweft.dist.ranks import Ranks
from graphweft.nn import GAT, GCN, GIN, SAGE
from graphweft.partitioning import multilevel
from graphweft.train import order_choice
from graphweft.train.full_batch import FullBatch
from graphweft.train.needs import Needs
from graphweft.train.node_order import order_bytes
from graphweft.train.order_choice import has_communities, order_planned, price_of
from graphweft.train.ranked_full import RankedFullBatch
from graphweft.train.setup import Given
from graphweft.train.steps import USUALLY_DRAWN

GROUPS, SIZE = 12, 25
NODES = GROUPS * SIZE


def grouped_graph(seed: int, groups: int = GROUPS, size: int = SIZE, degree: int = 8) -> gw.Graph:
    """Communities whose nodes are in random order."""
    draw = np.random.default_rng(seed)
    nodes = groups * size
    name = draw.permutation(nodes)
    src, other = draw.integers(0, nodes, (2, degree * nodes))
    dst = np.where(draw.random(src.size) < 0.9, src // size * size + other % size, other)
    return gw.Graph(name[src], name[dst], num_nodes=nodes)


def grouped(seed: int = 0, *, symmetric: bool = True, edges: bool = False, values: bool = False) -> gw.Dataset:
    """A dataset over such a graph, with training nodes in an order of their own."""
    draw = torch.Generator().manual_seed(seed)
    graph = grouped_graph(seed)
    graph = graph.to_bidirected() if symmetric else graph
    x = torch.randn(NODES, 6, generator=draw)
    y = torch.randn(NODES, generator=draw) if values else torch.randint(0, 3, (NODES,), generator=draw)
    split = torch.randperm(NODES, generator=draw)
    task = "regression" if values else "classification"
    ds = gw.Dataset("groups", graph, x, y, split[:90], split[90:160], split[160:], 1 if values else 3, task=task)
    return replace(ds, edge_weight=torch.rand(graph.num_edges, generator=draw)) if edges else ds


def trained(ds: gw.Dataset, order: str, make: Callable[..., nn.Module] = GCN, epochs: int = 3, **options: Any) -> Any:
    """A trainer after some epochs."""
    torch.manual_seed(1)
    trainer = gw.Trainer(make(6, 8, ds.num_classes), ds, lr=0.01, order=order, **options)
    trainer.fit(epochs)
    return trainer


def taken(trainer: gw.Trainer) -> Any:
    """The order in which steps see the nodes; None: as given."""
    assert isinstance(trainer._batch, FullBatch)
    return trainer._batch.order


@pytest.mark.parametrize("symmetric", [True, False])
def test_training_is_that_of_torch_in_float64(symmetric: bool) -> None:
    ds = grouped(symmetric=symmetric)
    torch.manual_seed(1)
    model = GCN(6, 8, 3)
    weights = [p.detach().double().requires_grad_() for p in model.parameters()]
    trainer = gw.Trainer(model, ds, lr=0.1, optimizer="sgd", order="neighbours", restore_best=False)
    history = trainer.fit(4)
    assert taken(trainer) is not None and not torch.equal(taken(trainer).nodes, torch.arange(NODES))
    src, dst = ds.graph.without_self_loops().edges()
    matrix = torch.eye(NODES, dtype=torch.float64).index_put_((dst, src), torch.tensor(1.0).double(), accumulate=True)
    scale = matrix.sum(1).rsqrt()
    matrix = scale[:, None] * matrix * scale

    def forward() -> Tensor:
        hidden = (matrix @ ds.x.double() @ weights[0] + weights[1]).relu()  # type: ignore[union-attr]
        return matrix @ hidden @ weights[2] + weights[3]

    for record in history:
        loss = functional.cross_entropy(forward()[ds.train_idx], ds.y[ds.train_idx])
        assert record.loss == pytest.approx(loss.item(), rel=1e-5)
        for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data -= 0.1 * slope
    expected = forward().detach()
    assert torch.allclose(trainer.predictions().outputs.double(), expected, atol=1e-5)
    right = expected.argmax(1) == ds.y
    assert trainer.evaluate("test") == pytest.approx(float(right[ds.test_idx].double().mean()))


CASES: dict[str, tuple[Any, dict[str, bool], dict[str, Any]]] = {
    "sage": (SAGE, {}, {}),
    "gin, directed": (GIN, {"symmetric": False}, {}),
    "gat": (lambda *sizes: GAT(*sizes, heads=2), {}, {}),
    "weights of edges": (GCN, {"symmetric": False, "edges": True}, {}),
    "values": (SAGE, {"values": True}, {}),
    "features are given up": (GCN, {}, {"keep_features": False}),
    "features are read in every step": (SAGE, {}, {"keep_features": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_handed_out_is_in_the_order_of_the_data(name: str) -> None:
    make, data, options = CASES[name]
    runs = [trained(grouped(**data), order, make, **options) for order in ("given", "neighbours")]
    given, other = runs
    assert taken(given) is None and taken(other) is not None
    assert [r.loss for r in other.history] == pytest.approx([r.loss for r in given.history], rel=1e-5)
    assert torch.allclose(other.predictions().outputs, given.predictions().outputs, atol=1e-5)
    assert other.evaluate("val") == pytest.approx(given.evaluate("val"), abs=1e-5)
    if not options:
        assert torch.equal(other.x, given.ds.x)


def test_sparse_features_and_bfloat16() -> None:
    ds = grouped()
    assert isinstance(ds.x, Tensor)
    sparse = gw.Dataset("s", ds.graph, gw.data.SparseFeatures.from_dense(ds.x.relu()), ds.y, *splits(ds), 3)
    for data, options in ((sparse, {}), (grouped(3), {"precision": "bf16"})):
        given, other = (trained(data, order, SAGE, **options) for order in ("given", "neighbours"))
        assert torch.allclose(other.predictions().outputs, given.predictions().outputs, atol=1e-2 if options else 1e-5)


def splits(ds: gw.Dataset) -> tuple[Tensor, Tensor, Tensor]:
    return ds.train_idx, ds.val_idx, ds.test_idx


def test_code_of_the_user_sees_the_order_of_the_data() -> None:
    """A loss, a metric and hooks."""
    ds = grouped()
    seen: dict[str, Tensor] = {}

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen[f"loss {labels.numel()}"] = labels.clone()
        return functional.cross_entropy(outputs, labels)

    def metric(outputs: Tensor, labels: Tensor) -> float:
        seen[f"metric {labels.numel()}"] = labels.clone()
        return float((outputs.argmax(1) == labels).double().mean())

    trainer = trained(ds, "neighbours", loss=loss, metrics={"right": metric})
    assert torch.equal(seen["loss 90"], ds.y[ds.train_idx]) and torch.equal(seen["metric 70"], ds.y[ds.val_idx])
    assert trainer.history.last.metrics["val_right"] == trainer.history.last.val_acc
    before = trainer.predictions().outputs
    trainer.model.register_forward_hook(lambda _, given, out: seen.update(x=given[1], out=out.detach()))
    assert torch.allclose(trainer.predictions().outputs, before, atol=1e-5)
    assert torch.equal(seen["x"], ds.x) and torch.allclose(seen["out"], before, atol=1e-5)  # type: ignore[arg-type]
    trainer.fit(1)
    assert seen["x"] is ds.x


def test_changes_in_place_are_followed() -> None:
    """Labels, splits and features that change between two fits, also behind torch's back."""
    runs = []
    for order in ("given", "neighbours"):
        ds = grouped()
        trainer = trained(ds, order)
        assert isinstance(ds.x, Tensor)
        ds.x.numpy()[5] += 3.0
        ds.y[ds.train_idx[:40]] = (ds.y[ds.train_idx[:40]] + 1) % 3
        ds.train_idx[:3] = ds.test_idx[:3]
        trainer.fit(2)
        runs.append(trainer)
    given, other = runs
    assert taken(other) is not None
    assert [r.loss for r in other.history] == pytest.approx([r.loss for r in given.history], rel=1e-5)
    assert torch.allclose(other.predictions().outputs, given.predictions().outputs, atol=1e-5)


def test_a_resumed_run_has_the_order_of_the_run(tmp_path: Path) -> None:
    ds = grouped()
    whole = trained(ds, "neighbours", epochs=6, restore_best=False)
    trained(ds, "neighbours", epochs=4, restore_best=False, out=tmp_path / "run")
    torch.manual_seed(1)
    again = gw.Trainer(GCN(6, 8, 3), ds, lr=0.01, restore_best=False, out=tmp_path / "run")
    assert again.resume()
    again.fit(2)
    assert taken(again) is not None
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))
    with pytest.raises(CheckpointError, match=r"expected order 'neighbours' as in the run .* got 'given'"):
        gw.Trainer(GCN(6, 8, 3), ds, lr=0.01, restore_best=False, out=tmp_path / "run", order="given").resume()
    trained(ds, "given", restore_best=False, out=tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"expected order None as in the run .* got 'neighbours'"):
        gw.Trainer(GCN(6, 8, 3), ds, lr=0.01, out=tmp_path / "other", order="neighbours").resume()


def test_threads_change_no_bit() -> None:
    ds, before, found = grouped(), torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(trained(ds, "neighbours", lambda *sizes: GCN(*sizes, dropout=0.3)).predictions().outputs)
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_a_device_keeps_the_given_order_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph for which the CPU would look at the choice, and where it was not asked for the given order."""
    steps = gw.Trainer(GCN(6, 4, 3), grouped())._batch
    assert isinstance(steps, FullBatch) and order_choice.OrderChoice("auto", steps, "device='cuda'")._told == ""
    monkeypatch.setattr(order_choice, "WORTH_ORDERING", 0)
    steps.device = torch.device("cuda", 0)
    told = "order of nodes: as given; what another saves on cuda:0 is not known"
    assert str(order_choice.OrderChoice("auto", steps, "device='cuda:0'")) == told
    assert str(order_choice.OrderChoice("given", steps, "device='cuda:0'")) == ""


def test_ranks_order_their_parts_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the given order was asked for; here of one rank, which has all nodes."""
    monkeypatch.setattr(multilevel, "WORTH_ORDERING", 0)
    ds = grouped()
    ordered = "order of nodes: neighbours together within each rank's part"
    for together, told in ((True, ordered), (False, "")):
        model = GCN(6, 4, 3)
        steps = RankedFullBatch(Ranks(), model, ds, ds.x, torch.optim.SGD(model.parameters(), 0.1), together=together)
        assert str(order_choice.OrderChoice("auto", steps, "ranks")) == told
        train, others = set(ds.train_idx.tolist()), set(range(NODES)) - set(ds.train_idx.tolist())
        assert (steps.part.own.tolist() == sorted(train) + sorted(others)) != together


def test_the_order_is_taken_where_its_epochs_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_choice, "WORTH_ORDERING", 0)
    monkeypatch.setattr(order_choice, "near_share", lambda csc: 0.1)  # all is near in so small a graph
    ds = grouped()
    model = GCN(6, 8, 3)
    assert gw.Trainer(model, ds).node_order == ""  # rows are in the cache as they are
    monkeypatch.setattr(order_choice, "nearer_seconds", lambda works: 1e-3)
    monkeypatch.setattr(order_choice.NodeOrder, "gained", 0.6)
    price = price_of(gw.Trainer(model, ds)._batch)
    assert price is not None and price.epochs > 0
    assert price.saved * (price.epochs - 1) < price.found <= price.saved * price.epochs
    line = f"another pays from {price.epochs:,} epochs on"
    trainers = [gw.Trainer(GCN(6, 8, 3), ds) for _ in range(4)]
    assert line in trainers[0].node_order and line in gw.plan(model, ds, mode="full").order
    known = gw.plan(model, ds, mode="full", epochs=price.epochs)
    assert f"neighbours, for {price.epochs:,} epochs" in known.order
    trainers[0].fit(price.epochs)
    assert taken(trainers[0]) is not None and "neighbours together" in gw.explain(trainers[0])
    monkeypatch.setattr(order_choice, "_FIND", 1.0)
    trainers[1].fit(2)  # fewer than pay now
    trainers[2].prepare()
    monkeypatch.setattr(order_choice, "_FIND", 0.0)
    monkeypatch.setattr(order_choice.NodeOrder, "gained", 0.01)
    trainers[3].fit(2)  # looked for, and not found worth it
    assert all(taken(trainer) is None for trainer in trainers[1:])
    assert "as given" in trainers[1].node_order and "as given" in trainers[3].node_order


@pytest.mark.parametrize("edges", [False, True])
def test_a_plan_counts_what_another_order_takes(edges: bool) -> None:
    """The graph and rows in it lie beside those that were given, and places of both orders."""
    ds = grouped(edges=edges)
    model = GCN(6, 8, 3)
    trainer = gw.Trainer(model, ds, order="neighbours")
    trainer.prepare()
    order, batch = taken(trainer), trainer._batch
    assert isinstance(batch, FullBatch) and isinstance(batch.x, Tensor) and batch.x is not ds.x
    graph = order.graph.csc
    assert order_bytes(ds.graph, edge_ids=edges) == order.nodes.nbytes + order._place.nbytes + graph.nbytes
    given = Given(model, ds, batch.optimizer, None, batch.edge_data, "nodes", "full", Ranks(), USUALLY_DRAWN)
    _, needs = order_planned(given._replace(order="neighbours"), batch, None, Needs(data=1, structure=2))
    assert needs == Needs(data=1 + batch.x.nbytes, structure=2 + order_bytes(ds.graph, edge_ids=edges))
    assert order_planned(given._replace(order="given"), batch, None, Needs())[1] == Needs()


def test_communities_are_told_from_random_graphs() -> None:
    draw = torch.Generator().manual_seed(0)
    assert has_communities(grouped_graph(1, 200, 30).to_bidirected().csc)
    src, dst = torch.randint(0, 6000, (2, 60_000), generator=draw)
    assert not has_communities(gw.Graph(src, dst, num_nodes=6000).csc)
    hubs = (torch.rand(2, 60_000, generator=draw) ** 3 * 6000).long()
    assert not has_communities(gw.Graph(*hubs, num_nodes=6000).to_bidirected().csc)


class _Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = GCN(6, 8, 3)

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        out: Tensor = self.inner(graph, x)
        return out


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({"mode": "mini"}, "mode='mini'"),
        ({"mode": "mini", "task": "link"}, "task='link'"),
        ({"memory": "1GB"}, "memory='1GB'"),
        ({"model": _Called}, "_Called, which is not compiled as a whole"),
        ({"model": lambda: GCN(6, NODES, 3)}, "a parameter with a row for every node"),
    ],
)
def test_an_order_that_cannot_be_is_refused_where_it_was_asked_for(options: dict[str, Any], obstacle: str) -> None:
    ds, options = grouped(), dict(options)
    make = options.pop("model", lambda: SAGE(6, 8, 3))
    with pytest.raises(ConfigError) as caught:
        gw.Trainer(make(), ds, order="neighbours", **options)
    assert str(caught.value) == f"order='neighbours' cannot be combined with {obstacle}"
    trainer = gw.Trainer(make(), ds, **options)
    assert trainer.node_order == ""
