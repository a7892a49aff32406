"""The memory of steps: sparse rows, packed products, what is measured, and batches of which a part was trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphweft as gw
from graphweft._budget import Budget, lifted
from graphweft._memory import POOL, Pool
from graphweft.runtime.footprint import whole_pages
from graphweft.runtime.rehearsal import Run, taken_bytes
from graphweft.storage.feature import SparseFeatures
from graphweft.train import mini_needs
from graphweft.train.full_batch import FullBatch
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.needs_by_running import PARTLY
from graphweft.train.strategies import unlimited


@pytest.mark.own_process
def test_sparse_features_with_dropout_are_counted_by_their_entries() -> None:
    ds = gw.synthetic("pubmed", scale=0.6, seed=0)
    assert isinstance(ds.x, SparseFeatures)
    dense = ds.x.num_rows * ds.x.width * 4
    trainer = gw.Trainer(gw.nn.GIN(ds.num_features, 64, ds.num_classes, num_layers=2, dropout=0.5), ds)
    batch, pool = trainer._batch, Pool()
    assert isinstance(batch, FullBatch)
    with POOL.within(pool):  # with the rows turned around
        trainer.prepare()
        batch.step()
        batch.step()
    needs = batch.needs(unlimited(ds))
    assert needs.step == pytest.approx(pool.stats().mapped, rel=0.15) and needs.step < 1.2 * dense


def test_a_step_that_is_measured_counts_until_its_costs_are_remembered(tmp_path: Path) -> None:
    """It is not recorded, and takes more than the one that is; a later run of the same kind leaves it out."""
    ds = gw.synthetic("pubmed", scale=0.3, seed=0)

    def made() -> FullBatch:
        batch = gw.Trainer(gw.nn.SAGE(ds.num_features, 128, ds.num_classes, num_layers=3), ds)._batch
        assert isinstance(batch, FullBatch)
        return batch

    with gw.config(cache_dir=str(tmp_path)):
        first = made()
        before = first.needs(unlimited(ds)).step
        first.prepare()
        after = made().needs(unlimited(ds)).step
    with gw.config(cache_dir=str(tmp_path / "other")):
        assert after < made().needs(unlimited(ds)).step == before


def test_what_products_pack_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels keep the largest of their buffers from call to call."""
    ds = gw.synthetic("flickr", scale=0.05, seed=0)
    batch = gw.Trainer(gw.nn.SAGE(ds.num_features, 32, ds.num_classes, num_layers=2), ds)._batch
    assert isinstance(batch, FullBatch)
    step, _, _, sizes = batch.plans()
    run, alone = Run(step, sizes), step.target.buffers
    found = taken_bytes(run, run)
    most = max(alone(call, sizes) for call in step.backward)
    monkeypatch.setattr(type(step.target), "buffers", lambda *_: 0)
    assert 1 << 20 < most == found - taken_bytes(run, run)


def test_sparse_features_are_turned_around_in_memory_that_a_step_has_freed() -> None:
    """For the gradient of the first weight, once. What stays of it parts the room of the next step, which is mapped."""
    ds = gw.synthetic("pubmed", scale=0.6, seed=0)
    assert isinstance(ds.x, SparseFeatures)
    batch = gw.Trainer(gw.nn.GIN(ds.num_features, 64, ds.num_classes, num_layers=2, dropout=0.5), ds)._batch
    assert isinstance(batch, FullBatch)
    step, _, _, sizes = batch.plans()
    turned = ds.x.values.nbytes, ds.x.indices.nbytes, 8 * ds.x.width
    step_alone, both = Run(step, sizes), Run(step, sizes, turned=turned)
    assert taken_bytes(step_alone) <= taken_bytes(both) < taken_bytes(step_alone) + sum(turned)
    assert taken_bytes(both, both) <= taken_bytes(both) + whole_pages(sum(turned))


def test_what_a_batch_holds_is_told_in_one_order() -> None:
    """Of plans of one program; a plan that is made anew, as by another process, names the same bytes as least."""
    ds = gw.synthetic("arxiv", scale=0.02, seed=0)
    found = []
    for _ in range(3):
        model = gw.nn.GAT(ds.num_features, 16, ds.num_classes, num_layers=2, dropout=0.5)
        known = gw.Trainer(model, ds, mode="mini", fanouts=(4, 4), batch_size=64).staged_plan()
        assert known is not None
        found.append(known[0].prepared_bytes(known[1]))
    assert len(set(found[0][0])) > 4 and found == found[:1] * 3


@pytest.mark.parametrize("memory", [None, "1GB"])
def test_an_evaluation_within_a_budget_has_no_gradients_of_batches_beside_it(memory: str | None) -> None:
    ds = gw.synthetic("arxiv", scale=0.02, seed=0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes, num_layers=2)
    trainer = gw.Trainer(model, ds, mode="mini", fanouts=(4, 4), batch_size=64, memory=memory)
    trainer.fit(1)
    assert all((parameter.grad is None) == (memory is not None) for parameter in model.parameters())


@pytest.mark.own_process
def test_a_few_seeds_tell_what_a_step_of_products_with_neighbours_takes() -> None:
    """They reach nearly all nodes, so the step grows by the nodes whose rows inner layers compute."""
    ds = gw.synthetic("reddit", scale=0.0159, seed=917)
    model = gw.nn.NGCF(ds.num_features, 128, ds.num_classes, num_layers=3)
    mini = gw.Trainer(model, ds, mode="mini", fanouts=(10, 10, 10), batch_size=1024)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    part, whole = (mini_needs._tried_again(mini, 0, seeds) for seeds in (16, 1024))
    batch, step = mini_needs._times_larger(mini, part, 64.0, 1024)
    found = mini_needs._larger(part, PARTLY * batch, PARTLY * step)
    assert 1.1 * sum(part.held) < sum(whole.held) < sum(found.held) < 1.3 * sum(whole.held)
    assert 0.95 * taken_bytes(whole.step) < taken_bytes(found.step) < 1.3 * taken_bytes(whole.step)


@pytest.mark.own_process
def test_a_batch_is_made_by_twice_as_many_seeds_at_a_time_where_there_is_no_room_for_more() -> None:
    ds = gw.synthetic("reddit", scale=0.02, seed=653)
    model = gw.nn.NGCF(ds.num_features, 16, ds.num_classes, num_layers=2)
    mini = gw.Trainer(model, ds, mode="mini", fanouts=(4, 4), batch_size=1024)._batch
    assert isinstance(mini, MiniBatch)
    mini.prepare()
    part, whole = (mini_needs._tried_again(mini, 0, seeds) for seeds in (128, 1024))
    times, taken = sum(whole.held) / sum(part.held), sum(part.held) + sum(part.making)
    assert times < 2.6
    POOL.trim()
    with Budget(int(5 * taken)).enforced(), lifted():
        assert mini_needs._times_larger(mini, part, 8.0, 1024)[0] == pytest.approx(times, rel=0.05)
    POOL.trim()
    with Budget(int(1.5 * taken)).enforced(), lifted():
        assert mini_needs._times_larger(mini, part, 8.0, 1024)[0] > 1.3 * times  # by sizes alone
