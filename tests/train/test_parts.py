"""Parts of a graph, and of a batch, that are run to tell what the whole takes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweft as gw
from graphweft._budget import Budget, lifted
from graphweft._memory import lean_heap
from graphweft.nn.message_passing import MessagePassing
from graphweft.runtime.stand_in import stands_for, times_larger
from graphweft.train import needs_by_running
from graphweft.train.edge_data import EdgeData
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.mini_needs import _rehearsed
from graphweft.train.needs_by_running import run_bytes


class Gated(MessagePassing):
    """Every edge has rows of its own."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def message(self, edges):
        source, target = (self.linear(side["h"]) for side in (edges.src, edges.dst))
        return {"m": torch.tanh(source + target) * source}

    def reduce(self, nodes):
        return {"h": nodes.mailbox["m"].sum(1)}

    def forward(self, graph, h):
        return self.propagate(graph, ndata={"h": h})["h"]


class Gates(nn.Module):
    """Two layers of a user's own."""

    def __init__(self, ds: gw.Dataset) -> None:
        super().__init__()
        self.first, self.second = Gated(ds.num_features, 64), Gated(64, ds.num_classes)

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.second(graph, torch.relu(self.first(graph, x)))


def _model(ds: gw.Dataset) -> nn.Module:
    torch.manual_seed(0)
    return Gates(ds)


@pytest.mark.own_process
@pytest.mark.parametrize("stands", [True, False])
def test_a_part_of_a_graph_gets_the_kernels_that_the_whole_has(monkeypatch: pytest.MonkeyPatch, stands: bool) -> None:
    """The numbers of its edges, few enough to be stored, are not, as those of the whole are not."""
    lean_heap()
    ds, pools, texts = gw.synthetic("flickr", scale=0.05, seed=1), list[int](), list[set[bool]]()
    assert ds.num_edges * 64 * 4 > 4 << 20 > ds.num_edges * 64 * 4 // 16
    if not stands:
        monkeypatch.setattr(needs_by_running, "stands_for", lambda times: nullcontext())
    evaluate = needs_by_running._evaluate

    def explained(model: nn.Module, graph: gw.Graph, rows: Tensor, given: dict[str, Any]) -> None:
        evaluate(model, graph, rows, given)
        texts[-1].add("nothing of edge size stored" in str(gw.explain(model, graph, rows)))

    for strides, smaller in (((1,), (1,)), ((16,), (64,))):
        monkeypatch.setattr(needs_by_running, "_strides", lambda *given, strides=strides: strides)
        monkeypatch.setattr(needs_by_running, "_evaluate", evaluate)
        pools.append(run_bytes(_model(ds), ds, ds.x, EdgeData(), 1 << 40).pool)
        texts.append(set())
        monkeypatch.setattr(needs_by_running, "_evaluate", explained)
        monkeypatch.setattr(needs_by_running, "_strides", lambda *given, strides=smaller: strides)
        run_bytes(_model(ds), ds, ds.x, EdgeData(), 1 << 40)
    assert texts[0] == {True} and (texts[1] == {True}) == stands
    assert 0.7 * pools[0] < pools[1] < 1.5 * pools[0]


def test_a_part_of_a_batch_stands_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a budget a 64th and an eighth of the seeds are tried; without one the whole alone."""
    ds = gw.synthetic("arxiv", scale=0.05, seed=1)
    mini = gw.Trainer(_model(ds), ds, mode="mini", fanouts=(4, 4), batch_size=512)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    seen, gradients = list[float](), mini.gradients

    def noted(batch: Any) -> Any:
        seen.append(batch.batch_size)
        assert batch.batch_size * times_larger() == pytest.approx(512)
        return gradients(batch)

    monkeypatch.setattr(mini, "gradients", noted)
    with Budget(64 << 30).enforced(), lifted():
        assert _rehearsed(mini, 512)[1] == 512
    assert seen == [8, 8, 64, 64, 512, 512]
    seen.clear()
    assert _rehearsed(mini, 512)[1] == 512
    assert seen == [512, 512]


def test_what_stands_for_more_ends_with_its_block() -> None:
    ds = gw.synthetic("arxiv", scale=0.002, seed=1)
    layer = gw.nn.CGAT(ds.num_features, 16, ds.num_classes)
    graph, x = ds.graph, ds.x
    texts = []
    for times in (1.0, 1e6, 1.0):
        with stands_for(times):
            plan, _ = layer.function.sized_plan(layer.arguments(graph, x, None))
            texts.append(plan.text)
    assert texts[0] == texts[2] != texts[1]
    assert "edge_nest" in texts[1] and "edge_nest" not in texts[0]
