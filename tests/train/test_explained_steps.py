"""What ``gw.explain`` tells of a trainer is what trains, in every mode, and telling it changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stored_kinds
import torch
from graphs import learnable
from torch import Tensor, nn

import graphweft as gw
from graphweft import cli
from graphweft.data.flat_features import with_flat_features
from graphweft.runtime.observed import observing_plans
from graphweft.runtime.plan import Plan


def _nodes() -> gw.Dataset:
    return gw.synthetic("cora", scale=0.1, seed=0)


def _model(ds: Any, kind: type[Any] = gw.nn.SAGE) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = kind(ds.num_features, 8, ds.num_classes)
    return made


class Mean(gw.MessagePassing):
    """A model of a user, of which a part falls back."""

    def __init__(self, ds: gw.Dataset) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(ds.num_features, ds.num_classes)

    def message(self, edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"]}

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph: gw.Graph, x: Tensor) -> Tensor:
        return self.propagate(graph, ndata={"h": self.linear(x)})["h"]


def _full(folder: Path) -> gw.Trainer:
    return gw.Trainer(_model(ds := _nodes()), ds)


def _full_weighted(folder: Path) -> gw.Trainer:
    ds = _nodes()
    ds = gw.Dataset(
        **{name: getattr(ds, name) for name in ("name", "graph", "x", "y", "train_idx", "val_idx", "test_idx")},
        num_classes=ds.num_classes,
        edge_weight=torch.rand(ds.num_edges, generator=torch.Generator().manual_seed(0)),
    )
    return gw.Trainer(_model(ds, gw.nn.GCN), ds)


def _full_by_user(folder: Path) -> gw.Trainer:
    ds = replace(ds := _nodes(), x=ds.x.to_dense())
    return gw.Trainer(Mean(ds), ds)


def _macro(folder: Path) -> gw.Trainer:
    return gw.Trainer(_model(ds := _nodes()), ds, mode="macro", macro="parts:2/8", fanouts=(4, 3), batch_size=3)


def _macro_within(kind: str) -> Callable[[Path], gw.Trainer]:
    def made(folder: Path) -> gw.Trainer:
        return gw.Trainer(_model(ds := _nodes()), ds, mode="mini", macro=kind, fanouts=(4, 3), batch_size=4)

    return made


def _sampled(sampler: str) -> Callable[[Path], gw.Trainer]:
    return lambda folder: gw.Trainer(_model(ds := _nodes()), ds, mode="mini", sampler=sampler, batch_size=9)


def _links(folder: Path) -> gw.Trainer:
    return gw.Trainer(_model(ds := _nodes()), ds, mode="mini", task="link", fanouts=(4, 3), batch_size=100)


def _pairs(folder: Path) -> gw.Trainer:
    ds = _nodes()
    ds = ds.with_edge_labels(torch.arange(ds.num_edges) % 2)
    torch.manual_seed(0)
    model = gw.nn.EdgeModel(ds.num_features, 8, 2)
    return gw.Trainer(model, ds, fanouts=(4, 3), batch_size=100)


def _graphs(folder: Path) -> gw.Trainer:
    torch.manual_seed(0)
    ds = learnable(40)
    return gw.Trainer(gw.nn.GraphModel.for_data(ds, 8), ds, mode="mini", batch_size=16)


def _embedded(folder: Path) -> gw.Trainer:
    ds = _nodes()
    return gw.Trainer(gw.nn.GAE(_model(ds, gw.nn.GCN)), ds)


def _typed(mode: str) -> Callable[[Path], gw.Trainer]:
    def made(folder: Path) -> gw.Trainer:
        torch.manual_seed(0)
        ds: Any = stored_kinds.academic()
        if mode == "macro":
            ds = gw.macro.prepare_store(ds, folder / "typed", parts=4, method="hash")
        else:
            ds = with_flat_features(ds)
        model = gw.nn.RGCN(ds.num_features, 8, 3, num_relations=6, num_layers=2)
        return gw.Trainer(model, ds, mode=mode, fanouts=(4, 3), batch_size=50)

    return made


def _stored(mode: str, **more: Any) -> Callable[[Path], gw.Trainer]:
    def made(folder: Path) -> gw.Trainer:
        ds = _nodes()
        store = gw.macro.prepare_store(ds, folder / "store", parts=4, method="hash")
        return gw.Trainer(_model(ds), store, mode=mode, fanouts=(4, 3), batch_size=5, **more)

    return made


MADE: dict[str, Callable[[Path], gw.Trainer]] = {
    "full": _full,
    "full, weighted": _full_weighted,
    "full, a user's model": _full_by_user,
    "macro": _macro,
    "mini, large": _macro_within("large:1/2"),
    "mini, parts": _macro_within("parts:2/8"),
    "layer": _sampled("layer"),
    "saint": _sampled("saint-node"),
    "shadow": _sampled("shadow"),
    "links": _links,
    "pairs": _pairs,
    "graphs": _graphs,
    "gae": _embedded,
    "typed, mini": _typed("mini"),
    "typed, macro": _typed("macro"),
    "store, macro": _stored("macro", macro="parts:2/4"),
    "store, mini": _stored("mini", memory="64MB"),
    "store, layer": _stored("mini", memory="64MB", sampler="layer"),
    "store, mapped": _stored("mapped"),
    "store, links": _stored("macro", macro="parts:2/4", task="link"),
}


def _calls(plan: Plan) -> list[str]:
    return [call.label for call in (*plan.forward, *plan.backward)]


def _told(text: str) -> list[str]:
    """The labels of all calls of a text, in order."""
    lines = (re.match(r"(?:%\d+,? *)+(.*?) +[\d.]+ us", line) for line in text.splitlines())
    return [found[1] for found in lines if found]


@pytest.mark.parametrize("name", MADE)
def test_what_is_told_is_what_trains(name: str, tmp_path: Path) -> None:
    told = MADE[name](tmp_path / "a")
    text = gw.explain(told)
    trained = MADE[name](tmp_path / "b")
    with observing_plans() as ran:
        trained.fit(1)
    staged = trained.staged_plan()
    plans = [one.plan for one in ran] if staged is None else [staged[0].plan]
    calls = _told(text)
    begins = (plans[at:] for at in range(len(plans)))  # an evaluation may come before the first step
    assert calls and any([label for plan in some for label in _calls(plan)][: len(calls)] == calls for some in begins)
    mine, other = told.fit(2), MADE[name](tmp_path / "c").fit(2)
    assert [record.loss for record in mine] == [record.loss for record in other]


@pytest.mark.parametrize("name", ["full", "macro", "mini, parts", "links", "store, layer", "graphs", "gae"])
def test_telling_within_a_run_changes_nothing(name: str, tmp_path: Path) -> None:
    trainer, other = MADE[name](tmp_path / "a"), MADE[name](tmp_path / "b")

    class Telling:
        def on_batch_end(self, trainer: gw.Trainer, batch: int, loss: float) -> None:
            assert "kernels forward" in gw.explain(trainer)

    first = trainer.fit(1)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    assert "kernels forward" in gw.explain(trainer)
    for key, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert [record.loss for record in trainer.fit(1)] == [record.loss for record in other.fit(2)]
    assert first is trainer.history


def test_groups_and_rows_are_named(tmp_path: Path) -> None:
    text = gw.explain(_macro(tmp_path))
    assert "batches of 3 nodes, drawn in groups of 2 of 8 parts" in text
    first, second = text.split("== program 1: ")
    assert "== program 0: rows of " in first and first.count("-- forward calls --") == 1 == second.count("-- forward")
    ds = _nodes()
    assert f"a step computes the outputs of {len(ds.train_idx)} nodes" in gw.explain(_full(tmp_path))
    assert "batches of 100 edges" in gw.explain(_links(tmp_path))
    assert "programs" not in gw.explain(_full(tmp_path)) and "== program" not in gw.explain(_full(tmp_path))


def test_the_command_tells_groups(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data", "cora", "--scale", "0.05", "--mode", "macro", "--macro", "parts:2/8"]
    assert cli.main(["explain", *flags, "--batch-size", "4"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "drawn in groups of 2 of 8 parts" in out and out.count("-- forward calls --") == 2
    assert cli.main(["explain", "--data", "cora", "--scale", "0.05", "--task", "link"]) == 0
    assert re.search(r"batches of \d+ edges", capsys.readouterr().out)
    assert cli.main(["explain", "--data", "cora", "--scale", "0.05", "--task", "node2vec"]) == 2
    assert "node2vec has no layers to explain" in capsys.readouterr().err
