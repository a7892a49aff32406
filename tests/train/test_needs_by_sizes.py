"""Budgets that leave no room to find out what a run takes: refused by sizes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphweft as gw
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
    """The least that is named is enough, and not much more than that."""
    ds = gw.synthetic("pubmed", scale=0.25, seed=0)
    given: dict[str, Any] = {"mode": mode, **({} if mode == "full" else {"fanouts": (10, 10), "batch_size": 256})}
    with monkeypatch.context() as patch, pytest.raises(gw.errors.MemoryBudgetError) as caught:
        patch.setattr(steps, "_fitted", None)  # nothing is made
        gw.Trainer(_model(kind, ds, 16), ds, memory=data_bytes(ds) + 3 * MB, **given)
    least = caught.value.least
    with pytest.raises(gw.errors.MemoryBudgetError):
        gw.Trainer(_model(kind, ds, 16), ds, memory=int(0.8 * least) - 2 * MB, **given)
    assert len(gw.Trainer(_model(kind, ds, 16), ds, memory=least, **given).fit(2)) == 2


def test_data_that_are_more_than_the_budget_are_refused_by_what_compiling_tells() -> None:
    ds, found = gw.synthetic("arxiv", scale=0.15, seed=0), []
    for memory in (data_bytes(ds) - 2 * MB, data_bytes(ds) + 8 * MB):
        with pytest.raises(gw.errors.MemoryBudgetError) as caught:
            gw.Trainer(_model("SAGE", ds, 64), ds, memory=memory)
        found.append(caught.value.least)
    assert found[0] == pytest.approx(found[1], rel=0.1)
