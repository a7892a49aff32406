"""Neighbours of parts that a run, or a plan, chooses by itself: which, for what memory, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import graphweft as gw
from graphweft.cli import main
from graphweft.loader.groups import parts_within
from graphweft.train.grouped import Grouped
from graphweft.train.neighbour_choice import ways_of

PARTS = 32


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    found = gw.synthetic("default", scale=0.3, seed=0)
    return replace(found, x=torch.randn(found.num_nodes, 512, generator=torch.Generator().manual_seed(0)))


@pytest.fixture(scope="module")
def store(ds: gw.Dataset, tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("choice") / "store", parts=PARTS, method="hash")


def _model(data: Any) -> gw.nn.SAGE:
    torch.manual_seed(0)
    return gw.nn.SAGE(data.num_features, 16, data.num_classes, num_layers=2)


def _trainer(data: Any, **more: Any) -> gw.Trainer:
    given: dict[str, Any] = {"mode": "macro", "macro": "neighbours:auto", "fanouts": (5, 5), "batch_size": 64, **more}
    return gw.Trainer(_model(data), data, **given)


def _grouped(trainer: gw.Trainer) -> Grouped:
    assert isinstance(trainer._batch, Grouped)
    return trainer._batch


@pytest.fixture(scope="module")
def tight(store: gw.macro.Store) -> int:
    """A budget with room for some parts and not for all, once the process has all that runs load and compile."""
    _trainer(store, memory="1GB", macro=None).fit(1)
    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        _trainer(store, memory=1 << 20, macro=None)
    return int(1.15 * refused.value.least)


def test_ways_take_about_the_same_memory_and_keep_ever_more(ds: gw.Dataset, store: gw.macro.Store) -> None:
    seeds = torch.from_numpy(store.split("train")[0])
    memory = store.nbytes
    ways = ways_of(store, seeds, 2, lambda brought: parts_within(store, memory, brought=brought))
    assert [way.share for way in ways[:3]] == [0.0, 1.0, 3.0]
    counts = [way.group for way in ways]
    assert counts == sorted(counts, reverse=True) and 1 < counts[0] < PARTS
    kept = [way.kept for way in ways]
    assert kept == sorted(kept) and kept[0] < 0.8 * kept[-1]
    whole = ways_of(store, seeds, 2, lambda _: PARTS)
    assert [(way.group, way.kept) for way in whole] == [(PARTS, 1.0)]  # and nothing else is looked at


def test_auto_brings_neighbours_where_groups_keep_few_edges(store: gw.macro.Store, tight: int) -> None:
    trainer, plain = _trainer(store, memory=tight), _trainer(store, memory=tight, macro=None)
    chosen, without = _grouped(trainer), _grouped(plain)
    assert chosen.neighbours is not None and without.neighbours is None and not without.ways
    assert chosen.group < without.group and chosen.neighbours.share == chosen.ways[-1].share
    kept = [run.fit(2)[-1].metrics["edges_kept"] for run in (trainer, plain)]
    assert kept[0] > 1.1 * kept[1]
    way = next(way for way in chosen.ways if way.share == chosen.neighbours.share)
    assert way.group != chosen.group or kept[0] == pytest.approx(way.kept, abs=0.1)
    assert trainer.needs is not None and trainer.needs.fits(tight)


def test_with_room_for_all_parts_none_are_brought(store: gw.macro.Store) -> None:
    steps = _grouped(_trainer(store, memory="1GB"))
    assert steps.neighbours is None and steps.group == PARTS


def test_a_run_goes_on_with_its_share_whatever_the_budget(store: gw.macro.Store, tight: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = _trainer(store, memory=tight).fit(3)
    first = _trainer(store, memory=tight, out=out)
    first.fit(1)
    resumed = _trainer(store, memory="1GB", out=out)
    assert _grouped(resumed).neighbours is None
    assert resumed.resume()
    found = _grouped(resumed)
    assert found.neighbours is not None and found.group == _grouped(first).group
    assert resumed.fit(2)[-1].loss == whole[-1].loss


def test_a_plan_tells_the_edges_of_every_way(store: gw.macro.Store, tight: int) -> None:
    given: dict[str, Any] = {"mode": "macro", "fanouts": (5, 5), "batch_size": 64}
    plan = gw.plan(_model(store), store, memory=tight, macro="neighbours:auto", **given)
    steps = _grouped(_trainer(store, memory=tight))
    assert steps.neighbours is not None
    assert plan.mode == "macro" and plan.strategy.disk == store.nbytes + int(steps.neighbours.sizes.nbytes.sum())
    assert plan.strategy.batches.startswith(f"groups of {steps.group} of {PARTS} parts, with neighbours of ")
    told = [other for other in plan.others if other.strategy.mode == "macro"]
    assert len(told) == len(steps.ways) - 1 > 0
    for other in told:
        assert "% of the edges" in other.strategy.batches and "; macro=parts:" in other.reason
    plain = gw.plan(_model(store), store, memory=tight, **given)
    assert "neighbours" not in plain.strategy.batches and plain.strategy.disk == store.nbytes
    whole = gw.plan(_model(store), store, memory="1GB", mode="macro", macro="neighbours:auto")
    assert whole.strategy.batches == f"groups of {PARTS} of {PARTS} parts"
    assert [other.strategy.mode for other in whole.others] == ["full", "mini"]


def test_wrong_uses_are_one_line(ds: gw.Dataset, store: gw.macro.Store) -> None:
    for macro in ("parts:2/16+neighbours:auto", "neighbours:auto+hubs:1MB", "neighbours:most"):
        with pytest.raises(gw.errors.ConfigError, match=r"^macro: .*neighbours[:=](auto|SHARE)") as caught:
            _trainer(store, macro=macro)
        assert "\n" not in str(caught.value)
        assert main(["train", "--data", str(store.path), "--mode", "macro", "--macro", macro, "--epochs", "1"]) == 2
    with pytest.raises(
        gw.errors.ConfigError, match=r"^macro: expected parts:B/P with mode macro on a dataset in memory"
    ):
        _trainer(ds)
    with pytest.raises(gw.errors.ConfigError, match="stages cannot be combined with neighbours=auto"):
        gw.macro.Macro(gw.macro.Parts(torch.zeros(4).long(), 1), neighbours="auto")
