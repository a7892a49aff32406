"""What the accounts of a run in memory count once, and what they count beside each other."""

from __future__ import annotations

import itertools

import pytest
import torch
from train.watched_pool import MB, make_model

import graphweft as gw
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.train.full_batch import FullBatch
from graphweft.train.needs import RunBudget, handed_bytes, loss_bytes


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return gw.synthetic("arxiv", scale=0.15, seed=0)


def test_outputs_that_are_handed_out_lie_in_pages_of_their_own(ds: Dataset) -> None:
    """Beside a recorded step, whose memory is the next one's; small ones are none of the pool's."""
    trainer = gw.Trainer(make_model("GCN", ds), ds, memory="4GB")
    trainer.fit(1)
    POOL.trim()
    before = POOL.stats().mapped
    out = trainer._batch.logits()
    assert isinstance(trainer._batch, FullBatch) and trainer._batch._tape is not None
    assert POOL.owns(out) and POOL.stats().mapped - before == handed_bytes(ds) > out.nbytes
    small = gw.synthetic("cora", scale=0.1, seed=0)
    assert handed_bytes(small) == loss_bytes(small.num_nodes, small.num_classes)


def test_a_mode_that_is_priced_first_counts_what_pricing_the_next_one_takes(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it is chosen, and refused when the run is fitted."""
    taken = itertools.count(10 * MB, MB)
    monkeypatch.setattr(RunBudget, "taken", lambda budget: next(taken))
    plan = gw.plan(make_model("SAGE", ds), ds, memory="4GB")
    needs = [plan.strategy.needs, *(other.strategy.needs for other in plan.others)]
    programs = {found.program for found in needs if found is not None}
    assert len(programs) == 1 and next(iter(programs)) > 12 * MB


def test_values_that_torch_keeps_are_no_part_of_the_program(ds: Dataset) -> None:
    model = make_model("NGCF", ds)
    trainer = gw.Trainer(model, ds)
    assert model.function.kept_by_torch == 0
    trainer.prepare()
    batch = trainer._batch
    assert isinstance(batch, FullBatch)
    values = model.function.hoist(model.train().arguments(ds.graph, batch.x, batch._wanted))
    wide = [x for x in values if isinstance(x, torch.Tensor) and x.dim() == 2 and x.shape[1] == ds.num_features]
    by_torch = sum(x.nbytes for x in wide if not POOL.owns(x))
    assert 0 < by_torch <= model.function.kept_by_torch < by_torch + MB  # with degrees
