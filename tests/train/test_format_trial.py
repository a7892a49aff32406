"""Formats by brute force: the arg-min of injected times, and of a real warm-up epoch, which trains all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphweft import _config
from graphweft.data.dataset import Dataset
from graphweft.data.synthetic import synthetic
from graphweft.nn.sage import SAGE
from graphweft.passes.placement import Order
from graphweft.runtime.staged import ROWS_AHEAD, STRUCTURE_AHEAD, Choice, PreparedBatch, StagedPlan
from graphweft.train.format_trial import FormatTrial
from graphweft.train.trainer import Trainer

CHOICES = [
    Choice(ahead, (("w", order),), numbered)
    for ahead in (STRUCTURE_AHEAD, ROWS_AHEAD)
    for order in Order
    for numbered in (False, True)
]


@given(st.lists(st.floats(0.001, 1.0), min_size=len(CHOICES), max_size=len(CHOICES), unique=True))
def test_the_arg_min_of_injected_times_is_chosen(seconds: list[float]) -> None:
    injected, compiled = dict(zip(CHOICES, seconds, strict=True)), []
    trial = FormatTrial(CHOICES, lambda choice: compiled.append(choice) or choice)  # type: ignore[arg-type,return-value]
    batches = 0
    while not trial.settled:
        plan: Any = trial.plan()
        trial.record(plan, injected[plan])
        batches += 1
    assert trial.choice == min(injected, key=lambda choice: injected[choice]) and trial.plan() == trial.choice
    assert trial.table == injected and sorted(map(str, compiled)) == sorted(map(str, CHOICES))
    assert batches == 2 * len(CHOICES)
    assert trial.explain().splitlines()[1].endswith(str(trial.choice)) and "chosen: " in trial.explain()


def _trained(ds: Dataset, epochs: int) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(SAGE(ds.num_features, 8, ds.num_classes), ds, mode="mini", fanouts=(4, 3), batch_size=8)
    trainer.fit(epochs=epochs)
    return trainer


def test_the_warm_up_epoch_measures_and_trains() -> None:
    ds = synthetic("default", scale=0.3)
    plain = _trained(ds, 1)
    with _config.config(tune=True):
        tuned = _trained(ds, 1)  # J24: one epoch has room for all measurements
    trial = tuned._batch.formats
    assert trial is not None and trial.settled
    assert {(choice.ahead, choice.numbered) for choice in trial.table} == {
        (ahead, numbered) for ahead in (STRUCTURE_AHEAD, ROWS_AHEAD) for numbered in (False, True)
    }
    assert len({choice.orders for choice in trial.table}) == 4  # two layers, two orders each
    assert trial.table[trial.choice] == min(trial.table.values())
    assert tuned._batch.loader.plan.choice == trial.choice
    assert tuned.formats.startswith("formats of a batch") and plain.formats == ""
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(tensor, tuned.model.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_sampling_counts_as_well_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """J20: what a choice is measured by is preparation, forward and backward together."""
    prepare, slow = StagedPlan.prepare, 1000.0

    def slowly(self: StagedPlan, *arguments: Any) -> PreparedBatch:
        return replace(prepare(self, *arguments), seconds=slow if self.choice.numbered else 2 * slow)

    monkeypatch.setattr(StagedPlan, "prepare", slowly)
    with _config.config(tune=True):
        trial = _trained(synthetic("default", scale=0.3), 2)._batch.formats
    assert trial is not None and trial.settled and trial.choice.numbered
    for choice, seconds in trial.table.items():
        assert 0 < seconds - (slow if choice.numbered else 2 * slow) < 60


def test_without_tune_nothing_is_measured() -> None:
    assert _trained(synthetic("default", scale=0.1), 1)._batch.formats is None


@pytest.mark.parametrize("most", [1, 10**6])
def test_many_orders_leave_the_formats(most: int) -> None:
    ds = synthetic("default", scale=0.1)
    trainer = _trained(ds, 1)
    function = trainer.model.staged(trainer._batch.sampler, ds.x)
    choices = function.choices(trainer._batch.loader.plan, most)
    assert len(choices) == len(set(choices)) and (len(choices) == 4) == (most == 1)
    assert all((choice.orders is None) == (most == 1) for choice in choices)
