"""Inputs count as unchanged when they were declared so or have the same bytes; equal calls give equal bits."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from nn.models import MODELS, make
from torch import Tensor
from zoo import random_edges

import graphweft as gw
from graphweft.runtime import compile as compiling
from graphweft.runtime.constants import Watch, constant, is_declared, owning
from graphweft.runtime.plan import Plan
from graphweft.storage.fingerprint import fingerprint

NODES, EDGES, WIDTH = 4000, 60_000, 32


def large_graph(seed: int = 0, nodes: int = NODES, edges: int = EDGES) -> gw.Graph:
    drawn = random_edges(nodes, edges, seed)
    return gw.Graph(drawn.src, drawn.dst, num_nodes=nodes)


def rows(seed: int = 0, nodes: int = NODES, width: int = WIDTH) -> Tensor:
    return torch.randn(nodes, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def hoisted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that were computed to be kept, as they are computed."""
    made: list[str] = []
    evaluate = Plan.evaluate_hoisted

    def watched(self: Plan, item: Any, *rest: Any) -> Any:
        made.append(item.value.op.name)
        return evaluate(self, item, *rest)

    monkeypatch.setattr(Plan, "evaluate_hoisted", watched)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_fingerprint_sees_every_element(dtype: torch.dtype) -> None:
    x = torch.arange(70).remainder(2).to(dtype).reshape(7, 10)
    first = fingerprint(x)
    assert fingerprint(x.clone()) == first
    for at in range(70):
        other = x.clone()
        other.view(-1)[at] = 1 - other.view(-1)[at].to(torch.int64)
        assert fingerprint(other) != first
    assert fingerprint(x.reshape(10, 7)) != first, "another shape"
    assert fingerprint(x.t()) == fingerprint(x.t().contiguous())
    assert fingerprint(x[:0]) != first


def test_fingerprint_does_not_depend_on_threads() -> None:
    x, found = rows(1, 100_003), set()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.add(fingerprint(x))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_fingerprint_of_sparse_features_sees_values_and_places() -> None:
    dense = torch.eye(4)
    first = fingerprint(gw.data.SparseFeatures.from_dense(dense))
    assert fingerprint(gw.data.SparseFeatures.from_dense(dense)) == first
    assert fingerprint(gw.data.SparseFeatures.from_dense(dense * 2)) != first
    assert fingerprint(gw.data.SparseFeatures.from_dense(dense.flip(0))) != first


def test_declarations_are_by_object_and_end_with_it() -> None:
    x = torch.ones(3)
    assert gw.constant(x) is x and is_declared(x)
    assert not is_declared(torch.ones(3)) and not is_declared(x.view(3))
    key = id(x)
    del x
    gc.collect()
    from graphweft.runtime import constants

    assert key not in constants._declared
    with pytest.raises(gw.errors.DtypeError, match="constant: expected a tensor or SparseFeatures, got list"):
        gw.constant([1.0])  # type: ignore[type-var]
    y = torch.ones(3)
    with owning(y):
        assert is_declared(y)
    assert not is_declared(y)


def test_a_watch_moves_the_version_on_only_after_a_silent_change() -> None:
    array = np.zeros(8, "f4")
    x = torch.from_numpy(array)
    watch = Watch(x)
    watch.look()
    watch.look()
    assert x._version == 0
    array[3] = 1
    watch.look()
    assert x._version == 1
    watch.look()
    assert x._version == 1
    x.add_(1)
    watch.look()
    assert x._version == 2, "torch counted this one itself"


@pytest.mark.parametrize("declared", [False, True])
def test_the_first_layers_sum_is_kept_while_features_stay(hoisted: list[str], declared: bool) -> None:
    graph, x, model = large_graph(), rows(), gw.nn.GIN(WIDTH, 64, 4)
    if declared:
        gw.constant(x)
    model(graph, x).sum().backward()
    assert "SPMM" in hoisted or "REDUCE" in hoisted, hoisted
    hoisted.clear()
    for _ in range(3):
        model(graph, x).sum().backward()
    assert not hoisted
    x.mul_(2)
    model(graph, x).sum().backward()
    assert hoisted


def test_two_graphs_in_turn_keep_what_was_computed_for_both(hoisted: list[str]) -> None:
    graphs, x, model = (large_graph(1), large_graph(2)), (rows(1), rows(2)), gw.nn.GIN(WIDTH, 64, 4)
    alone = [copy.deepcopy(model)(g, h) for g, h in zip(graphs, x, strict=True)]
    for g, h in zip(graphs, x, strict=True):
        model(g, h)
    hoisted.clear()
    for _ in range(2):
        for g, h, expected in zip(graphs, x, alone, strict=True):
            assert torch.equal(model(g, h), expected)
    assert not hoisted


def test_features_that_change_in_every_call_are_soon_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphweft.runtime import hoisted as kept

    looked: list[int] = []
    monkeypatch.setattr(kept, "fingerprint", lambda item: looked.append(1) or fingerprint(item))
    graph, model, x = large_graph(), gw.nn.GIN(WIDTH, 64, 4).eval(), rows()
    with torch.inference_mode():
        outs = []
        for step in range(40):
            x.copy_(rows(step))
            outs.append(model(graph, x))
    assert 2 <= len(looked) <= 12, "some looks, not one per call"
    with torch.inference_mode(), gw.config(opt_level=0):
        torch.testing.assert_close(outs[-1], model(graph, rows(39)), rtol=1e-4, atol=1e-4)
    assert not torch.equal(outs[-1], outs[-2])


def test_kept_values_go_with_their_input_and_their_graph() -> None:
    graph, x, model = large_graph(), rows(), gw.nn.GIN(WIDTH, 64, 4)
    model(graph, x)
    ((_, entries),) = model.function._hoisted._kept.values()
    assert any(entry.marks is not None and entry.watched for entry in entries.values())
    del x
    gc.collect()
    assert not any(entry.watched for entry in entries.values())
    gone = weakref.ref(graph)
    del graph, entries
    for seed in range(1, 6):  # other graphs take its place
        other = large_graph(seed)
        model(other, rows(seed))
    gc.collect()
    assert gone() is None and len(model.function._hoisted._kept) <= 4


def test_a_kept_result_is_not_the_callers_to_change() -> None:
    graph, x = large_graph(), gw.constant(rows())

    def mean() -> Tensor:
        return gw.update_all(
            graph, lambda e: {"m": e.src["h"]}, lambda n: {"h": n.mailbox["m"].mean(1)}, ndata={"h": x}
        )["h"]

    first = mean()
    expected = first.clone()
    first.mul_(0)
    assert torch.equal(mean(), expected)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_equal_calls_give_equal_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x = large_graph(3, 500, 4000), rows(3, 500, 6)
    model = make(name)

    def step(m: Any) -> list[Tensor]:
        m.zero_grad()
        out = m(graph, x)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in m.parameters())]

    first = step(model)
    twins = [copy.deepcopy(model), *([] if name.startswith("user") else [pickle.loads(pickle.dumps(model))])]
    other = large_graph(4, 530, 4200)  # of the same class of sizes
    model(other, rows(4, 530, 6)).sum().backward()
    with torch.no_grad():
        model(graph, x)
    for free in (1 << 20, 20 << 30):
        faked = psutil.virtual_memory()._replace(available=free)
        monkeypatch.setattr(psutil, "virtual_memory", lambda faked=faked: faked)
        twins.append(copy.deepcopy(model))
    fresh = make(name)
    fresh(other, rows(4, 530, 6))
    for m in (model, *twins, fresh):
        for _ in range(3):
            for mine, theirs in zip(step(m), first, strict=True):
                assert torch.equal(mine, theirs)


def test_a_plan_does_not_follow_from_the_graph_that_came_first() -> None:
    """Sizes of a class decide, not those of the first graph of it."""
    small, large = large_graph(5, 33_000, 41_000), large_graph(6, 36_000, 44_000)
    for leaves_out in (False, True):
        given = [compiling.Arguments(graph, None, {}, None, 0, False) for graph in (small, large)]
        kinds = [compiling._size_key(arguments, False, leaves_out) for arguments in given]
        assert kinds[0] == kinds[1]
    model = gw.nn.GCN(48, 40, 8)
    expected = copy.deepcopy(model)(large, rows(6, 36_000, 48))
    model(small, rows(5, 33_000, 48))
    assert torch.equal(model(large, rows(6, 36_000, 48)), expected)


def test_a_trainers_costs_do_not_decide_other_calls() -> None:
    ds = gw.synthetic("default", scale=0.02)
    model = gw.nn.GCN(ds.num_features, 16, ds.num_classes)
    twin = copy.deepcopy(model)
    gw.Trainer(model, ds, lr=0.01).fit(2)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(ds.graph, ds.x), twin.eval()(ds.graph, ds.x))
    assert constant(ds.x) is ds.x
