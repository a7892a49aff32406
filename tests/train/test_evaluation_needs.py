"""What evaluations and predictions of a run within a budget take, and give back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from train.watched_pool import MB, Watched, make_model

import graphweft as gw
from graphweft._budget import Highest, own_bytes
from graphweft._memory import POOL
from graphweft.data.dataset import Dataset
from graphweft.runtime import rehearsal
from graphweft.train.full_batch import FullBatch
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.mini_needs import _whole
from graphweft.train.needs import data_bytes, handed_bytes


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return gw.synthetic("arxiv", scale=0.15, seed=0)


@pytest.mark.own_process
def test_free_memory_is_given_back_around_predictions_as_around_evaluations(ds: Dataset) -> None:
    given: dict[str, Any] = {"mode": "mini", "fanouts": (5, 5), "batch_size": 512}
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        gw.Trainer(make_model("GAT", ds), ds, memory=data_bytes(ds) + 12 * MB, **given)
    shares = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9)  # the least by sizes may leave room for one beside the other
    made = (gw.Trainer(make_model("GAT", ds), ds, memory=int(share * caught.value.least), **given) for share in shares)
    short = next(trainer for trainer in made if trainer.needs is not None and trainer.needs.trims)
    roomy = gw.Trainer(make_model("GAT", ds), ds, memory="4GB", **given)
    assert short.needs is not None and short.needs.trims and roomy.needs is not None and not roomy.needs.trims
    left = []
    for trainer in (short, roomy):
        POOL.empty((32 * MB,), torch.uint8)  # freed at once: what batches leave behind
        trainer.predict()
        stats = POOL.stats()
        left.append(stats.mapped - stats.lent)
    assert left[0] < 16 * MB < 32 * MB <= left[1]


@pytest.mark.own_process
@pytest.mark.parametrize("kind", ["GCN", "GIN"])
def test_outputs_that_a_recorded_run_hands_out_are_counted(kind: str, ds: Dataset) -> None:
    """A copy beside the recording, which gives as many pages up; its next replay takes them again."""
    ds = replace(ds, num_classes=400)
    floor = own_bytes() - data_bytes(ds)
    trainer = gw.Trainer(make_model(kind, ds, 16), ds, memory="4GB")
    batch, needs = trainer._batch, trainer.needs
    assert isinstance(batch, FullBatch) and needs is not None
    trainer.fit(2)
    highest = Highest()
    outputs = batch.logits()
    assert batch._tape is not None and 20 * MB < outputs.nbytes <= needs.outputs == handed_bytes(ds)
    assert 0.85 * needs.running < highest.nbytes - floor < 1.05 * needs.running
    highest = Highest()
    trainer.fit(1)
    assert needs.running < highest.nbytes - floor < 1.05 * (needs.running + needs.outputs)
    assert needs.fits(needs.least) and not needs.fits(needs.running + needs.outputs)


@pytest.mark.own_process
@pytest.mark.parametrize("kind", ["GIN", "NGCF"])
def test_what_an_evaluation_computes_once_is_rehearsed_with_what_passes_meanwhile(kind: str, ds: Dataset) -> None:
    """Against a pool: copies of wide rows, and values that are made for others alone, are mapped, and stay so."""
    ds = replace(ds, x=torch.randn(ds.num_nodes, 256, generator=torch.Generator().manual_seed(0)))
    mini = gw.Trainer(make_model(kind, ds, 16), ds, mode="mini", fanouts=(5, 5), batch_size=256)._batch
    assert isinstance(mini, MiniBatch)
    model, pool = mini.model, Watched()
    _, run = _whole(mini, model)  # type: ignore[arg-type]
    assert run.hoists and run.plan is not None and run.plan.hoisted
    imagined = rehearsal._Imagined()
    imagined.is_lean = True
    staying = rehearsal._made_once(run, imagined)
    with POOL.within(pool):
        mini.logits()
    assert staying > 0.9 * 4 * 256 * ds.num_nodes
    rehearsal._run_beside(run, imagined)
    assert imagined.stats().mapped == pytest.approx(pool.most, rel=0.12)


@pytest.mark.own_process
@pytest.mark.parametrize("kind", ["GIN", "GCN", "SAGE"])
def test_values_that_steps_and_evaluations_keep_are_counted_once_each(kind: str) -> None:
    """Rows of the training nodes for the one, of all nodes for the other: as the pool lends them."""
    ds = gw.synthetic("arxiv", scale=0.25, seed=30)
    before = POOL.stats().lent  # values are computed once where costs are measured, or when the run is prepared
    trainer = gw.Trainer(make_model(kind, ds, 16), ds, memory="4GB")
    batch, needs = trainer._batch, trainer.needs
    assert isinstance(batch, FullBatch) and needs is not None
    trainer.prepare()
    assert batch._tape is not None  # whose memory is another pool's
    assert needs.kept + needs.structure == pytest.approx(POOL.stats().lent - before, rel=0.1, abs=MB)
