"""Rows that move to where a step runs: operations that begin early and are waited for late, with the same bits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweft as gw
from graphweft._errors import IRError
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program
from graphweft.ir.residency import IndexType, Residency, TensorType
from graphweft.passes.hoist import constant_values
from graphweft.passes.transfers import send_ahead
from graphweft.runtime.tier import Arrival, Tier
from graphweft.train.mini_batch import MiniBatch


@pytest.fixture(scope="module")
def ds() -> gw.Dataset:
    return gw.synthetic("arxiv", scale=0.01, seed=0)


def trained(ds: gw.Dataset, kind: str, prepare: Any, **own: Any) -> tuple[list[float], MiniBatch]:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes, dropout=0.3, **own)
    trainer = gw.Trainer(model, ds, mode="mini", fanouts=(4, 4), batch_size=64, prepare=prepare)
    losses = [record.loss for record in trainer.fit(2)]
    assert isinstance(trainer._batch, MiniBatch)
    return losses, trainer._batch


def planned(ds: gw.Dataset, kind: str, tier: Tier) -> tuple[Any, MiniBatch]:
    torch.manual_seed(0)
    model = getattr(gw.nn, kind)(ds.num_features, 16, ds.num_classes)
    steps = gw.Trainer(
        model, ds, mode="mini", fanouts=(4, 4), batch_size=64, prepare=gw.schedule.Subtasks(1, tier=tier)
    )._batch
    assert isinstance(steps, MiniBatch)
    steps.prepare()
    found = steps.staged_plan()
    assert found is not None
    return found[0], steps


@pytest.mark.parametrize("kind", ["SAGE", "GCN", "GAT"])
def test_training_through_a_tier_gives_the_same_bits_and_counts_bytes(kind: str, ds: gw.Dataset) -> None:
    tier = Tier()
    usual, _ = trained(ds, kind, "subtasks")
    moved, _ = trained(ds, kind, gw.schedule.Subtasks(2, tier=tier))
    assert moved == usual
    assert tier.sends > 0 and tier.bytes >= 4 * ds.num_features * ds.train_idx.numel()


def test_what_is_sent_is_what_the_plan_says(ds: gw.Dataset) -> None:
    tier = Tier()
    plan, _ = planned(ds, "GCN", tier)
    batch = plan.prepare(ds.train_idx[:50], (0, 0))
    arrived = [value.wait() for value in batch.values if isinstance(value, Arrival)]
    starts = [item for item in plan.plan.hoisted if item.value.op is Op.MOVE_START]
    assert len(arrived) == len(starts) == tier.sends >= 2
    assert sum(rows.nbytes for rows in arrived) == tier.bytes
    for rows, item in zip(arrived, starts, strict=True):
        assert item.value.tensor.place == "tier" and not item.value.tensor.arrived
        assert tuple(rows.shape[1:]) == item.value.tensor.dims


def test_a_start_comes_first_and_a_wait_right_before_its_first_reader(ds: gw.Dataset) -> None:
    plan, _ = planned(ds, "GCN", Tier())
    labels = [call.kernel for call in plan._preparation.calls]
    others = labels.index("move_start")
    assert set(labels[others:]) - {"move_start"}  # something is made while the first rows move
    calls = plan.plan.forward
    waits = [at for at, call in enumerate(calls) if call.kernel == "move_wait"]
    assert waits[-1] > 1 + waits[0]  # the second layer's rows are not waited for before the first layer
    for at in waits:
        made = calls[at].writes[0].at
        following = [call for call in calls[at + 1 :] if call.kernel != "move_wait"]
        assert any(slot.at == made for slot in following[0].reads)


def test_a_batch_is_ready_while_its_rows_are_on_their_way(ds: gw.Dataset) -> None:
    free = threading.Event()

    class Slow(Tier):
        def send(self, source: Tensor, target: Tensor) -> None:
            assert free.wait(60)
            super().send(source, target)

    plan, steps = planned(ds, "SAGE", Slow())
    batch = plan.prepare(ds.train_idx[:50], (0, 0))  # would never end if it waited for the rows
    assert not free.is_set()
    threading.Timer(0.05, free.set).start()
    outputs, pullback = plan.linearize(batch, steps._tensors(), 0)
    quick, others = planned(ds, "SAGE", Tier())
    expected, again = quick.linearize(quick.prepare(ds.train_idx[:50], (0, 0)), others._tensors(), 0)
    assert torch.equal(outputs["out"], expected["out"])
    seed = torch.ones_like(expected["out"])
    for one, other in zip(pullback(seed).values(), again(seed.clone()).values(), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_a_send_that_fails_is_seen_where_the_rows_are_waited_for(ds: gw.Dataset) -> None:
    class Broken(Tier):
        def send(self, source: Tensor, target: Tensor) -> None:
            raise OSError("no bus")

    plan, steps = planned(ds, "SAGE", Broken())
    batch = plan.prepare(ds.train_idx[:50], (0, 0))
    with pytest.raises(OSError, match="no bus"):
        plan.linearize(batch, steps._tensors(), 0)


def _input(builder: Builder, name: str, rows: str | None = "V") -> Any:
    type_ = IndexType(None, None) if rows is None else TensorType(Residency.DST, rows, (3,))
    return builder.add(Op.INPUT, name=name, type=type_)


def test_rows_of_two_places_do_not_meet() -> None:
    builder = Builder()
    x, y, tier = _input(builder, "x"), _input(builder, "y"), _input(builder, "tier", None)
    begun = builder.add(Op.MOVE_START, x, tier, to="tier")
    with pytest.raises(IRError, match="expected rows that have arrived"):
        builder.add(Op.RELU, begun)
    there = builder.add(Op.MOVE_WAIT, begun)
    assert builder.add(Op.RELU, there).tensor.place == "tier"
    assert str(there.type) == "dst[V x 3] float32 at tier" and str(begun.type).endswith("to tier")
    with pytest.raises(IRError, match="add: expected rows in one place, got host and tier"):
        builder.add(Op.ADD, there, y)
    with pytest.raises(IRError, match="move_start: expected rows that are not at tier"):
        builder.add(Op.MOVE_START, there, tier, to="tier")
    with pytest.raises(IRError, match="move_wait: expected rows on their way"):
        builder.add(Op.MOVE_WAIT, there)


def test_only_rows_that_the_step_reads_are_sent_once() -> None:
    builder = Builder()
    x, y = _input(builder, "x"), _input(builder, "y")
    inner = builder.add(Op.RELU, x)
    kept = builder.add(Op.ADD, inner, x)
    program = Program((x, y), (("out", builder.add(Op.MUL, kept, builder.add(Op.SCALE, kept, factor=2.0))),))
    before = constant_values(program, ("x",))
    before.discard(program.output("out"))
    before = {value for value in before if value in (inner, kept)}
    moved, made = send_ahead(program, before, "tier")
    assert moved.count(Op.MOVE_START) == moved.count(Op.MOVE_WAIT) == 1
    assert {value.op for value in made} == {Op.RELU, Op.ADD, Op.MOVE_START}
    assert moved.output("out").tensor.place == "tier"
