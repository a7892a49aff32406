"""Budgets that leave no room to find out what a run takes: refused by sizes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphweft as gw
from graphweft._budget import Highest, in_force, own_bytes
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.train import steps
from graphweft.train.needs import data_bytes

MB = 10**6


def _model(kind: str, ds: Dataset, hidden: int) -> Any:
    torch.manual_seed(0)
    made: nn.Module = getattr(gw.nn, kind)(ds.num_features, hidden, ds.num_classes, num_layers=2)
    return made


@pytest.mark.own_process
@pytest.mark.parametrize(("kind", "mode"), [("SAGE", "mini"), ("GAT", "mini"), ("GIN", "auto"), ("GCN", "full")])
def test_a_budget_without_room_for_compiling_is_refused_by_sizes(
    kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least that is named is enough, and less than twice of what would do where it is found out."""
    ds = gw.synthetic("pubmed", scale=0.25, seed=0)
    full: dict[str, Any] = {"mode": "full"}
    drawn: dict[str, Any] = {"mode": "mini", "fanouts": (10, 10), "batch_size": 256}
    ways = {"full": [full], "mini": [drawn], "auto": [full, drawn]}[mode]
    given: dict[str, Any] = {**ways[-1], "mode": mode}
    with monkeypatch.context() as patch, pytest.raises(gw.errors.MemoryBudgetError) as caught:
        patch.setattr(steps, "_fitted", None)  # nothing is made
        gw.Trainer(_model(kind, ds, 16), ds, memory=data_bytes(ds) + 3 * MB, **given)
    least = caught.value.least
    known = [gw.Trainer(_model(kind, ds, 16), ds, memory="1GB", **way).needs for way in ways]
    found = min(needs.least for needs in known if needs is not None)
    assert found < least < 2 * found
    again = [gw.Trainer(_model(kind, ds, 16), ds, memory="1GB", **way).needs for way in ways]
    running = min(needs.running for needs in again if needs is not None)  # without what a process loads only once
    with pytest.raises(gw.errors.MemoryBudgetError):
        gw.Trainer(_model(kind, ds, 16), ds, memory=int(0.9 * running), **given)
    assert len(gw.Trainer(_model(kind, ds, 16), ds, memory=least, **given).fit(2)) == 2


def test_data_that_are_more_than_the_budget_are_refused_by_what_compiling_tells() -> None:
    ds, found = gw.synthetic("arxiv", scale=0.15, seed=0), []
    for memory in (data_bytes(ds) - 2 * MB, data_bytes(ds) + 8 * MB):
        with pytest.raises(gw.errors.MemoryBudgetError) as caught:
            gw.Trainer(_model("SAGE", ds, 64), ds, memory=memory)
        found.append(caught.value.least)
    assert found[0] == pytest.approx(found[1], rel=0.1)


@pytest.mark.own_process
@pytest.mark.parametrize(("kind", "mode"), [("SAGE", "auto"), ("SAGE", "mini"), ("GAT", "mini"), ("NGCF", "auto")])
def test_finding_out_what_a_run_takes_keeps_to_its_budget(kind: str, mode: str) -> None:
    """Batches and tiles that are drawn and tried, as the system sees the memory; what is refused names more."""
    ds = gw.synthetic("reddit", scale=0.02, seed=3)
    given: dict[str, Any] = {"mode": mode, "fanouts": (10, 10), "batch_size": 1024}
    refused = 0
    for more in (6, 7, 8, 10, 14, 20):
        POOL.trim()
        highest, floor, memory = Highest(), own_bytes() - data_bytes(ds), data_bytes(ds) + more * MB
        try:
            gw.Trainer(_model(kind, ds, 64), ds, memory=memory, **given)
        except gw.errors.MemoryBudgetError as found:
            refused += 1
            assert found.least > memory
        assert highest.nbytes - floor <= memory
    assert refused > 1


@pytest.mark.parametrize("over", [{"full"}, {"mini"}, {"full", "mini"}])
def test_a_mode_whose_finding_out_uses_the_budget_up_leaves_the_other(
    over: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ds, priced = gw.synthetic("arxiv", scale=0.05, seed=0), steps._priced

    def tried(mode: str, *given: Any) -> Any:
        if mode in over:
            in_force().admit(1 << 40, lambda: None)  # type: ignore[union-attr]
        return priced(mode, *given)

    monkeypatch.setattr(steps, "_priced", tried)
    given: dict[str, Any] = {"mode": "auto", "fanouts": (5, 5), "memory": "2GB"}
    if len(over) == 2:
        with pytest.raises(gw.errors.MemoryBudgetError, match=r"^memory: expected at least \d+ MB") as caught:
            gw.Trainer(_model("SAGE", ds, 16), ds, **given)
        assert caught.value.least > 1 << 40
        return
    trainer = gw.Trainer(_model("SAGE", ds, 16), ds, **given)
    assert {trainer.mode} == {"full", "mini"} - over and len(trainer.fit(1)) == 1
    assert trainer.plan is not None and "2000 MB" in str(trainer.plan)
    assert any(other.strategy.mode in over and "needs" in other.reason for other in trainer.plan.others)


def test_a_budget_that_is_used_up_while_a_mode_is_tried_names_what_sizes_say_and_more_than_was_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ds = gw.synthetic("arxiv", scale=0.05, seed=0)
    memory = data_bytes(ds) + 40 * MB

    def tried(*given: Any) -> None:
        POOL.empty((64 * MB,), torch.uint8)

    monkeypatch.setattr(steps, "_fitted", tried)
    with pytest.raises(gw.errors.MemoryBudgetError, match=r"for this run \(program .* data ") as caught:
        gw.Trainer(_model("SAGE", ds, 16), ds, memory=memory)
    assert data_bytes(ds) + 64 * MB < caught.value.least < 1.1 * (data_bytes(ds) + 64 * MB) + 24 * MB
