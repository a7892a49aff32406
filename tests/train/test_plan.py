"""The choice among priced ways, the accounts and costs that it rests on, and what is said when a prediction is off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphweft as gw
from graphweft import _machine
from graphweft.cost import CostModel, Work, gather_work, product_work, rows_work
from graphweft.data.dataset import Dataset
from graphweft.loader.multistage import MultistageLoader
from graphweft.runtime import rehearsal
from graphweft.runtime.machine import Machine
from graphweft.runtime.rehearsal import taken_bytes
from graphweft.sample.stages import LargeBatch
from graphweft.storage.memory_size import shown_bytes
from graphweft.train.history import History
from graphweft.train.macro import Macro
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.mini_needs import batch_taken
from graphweft.train.needs import Needs, rehearse
from graphweft.train.needs_by_running import _measured
from graphweft.train.plan import GraphStatistics, Strategy, choose
from graphweft.train.promise import Promise
from graphweft.train.strategies import statistics_of

MB = 10**6
OF = GraphStatistics("twin", 9, 9, (1,) * 6, 2, 1.0, 2, (5, 2, 2))
FULL = Strategy("full", "1 step", {"gather": 1.0, "product": 2.0}, Needs(step=100 * MB))
MINI = Strategy("mini", "9 of 64", {"sampling": 2.0}, Needs(batches=10 * MB))


def _taken(*ways: Strategy, limit: int | None = None) -> str:
    return choose(ways, OF, limit).mode


def test_the_fastest_way_that_fits_is_taken_and_the_simpler_of_level_ones() -> None:
    slow = replace(MINI, seconds={"sampling": 9.0})
    level = replace(MINI, seconds={"sampling": 2.8})
    assert [_taken(FULL, way) for way in (MINI, slow, level)] == ["mini", "full", "full"]
    assert _taken(FULL, slow, limit=50 * MB) == "mini"
    assert _taken(replace(FULL, refused="no"), slow) == "mini"
    assert _taken(replace(FULL, seconds={}), MINI) == "full"  # nothing to compare by
    assert _taken(replace(FULL, seconds={}), MINI, limit=50 * MB) == "mini"


def test_a_plan_says_what_dominates_and_why_others_were_not_taken() -> None:
    plan = choose([FULL, replace(MINI, seconds={"sampling": 9.0}), Strategy("macro", refused="holds it all")], OF)
    assert [other.reason for other in plan.others] == ["3.0 x the seconds, most of them sampling", "holds it all"]
    assert (plan.strategy.slowest, plan.strategy.largest, plan.epoch_seconds) == ("product", "step", 3.0)
    short = choose([FULL, MINI], OF, 50 * MB)
    assert FULL.needs is not None and MINI.needs is not None
    assert short.others[0].reason == f"needs {shown_bytes(FULL.needs.least)} of 50 MB, most of it step"
    assert str(short).count("\n") == 10 and "->  mini" in str(short)
    told = short.to_dict()
    assert told["predicted_peak_bytes"]["memory"] == MINI.peak_bytes and told["others"][0]["mode"] == "full"
    with pytest.raises(gw.errors.MemoryBudgetError, match=r"^memory: expected at least 19 MB .*got 1 MB$") as caught:
        choose([FULL, MINI], OF, MB)
    assert caught.value.least == MINI.needs.least
    assert choose([FULL, MINI], OF, caught.value.least).mode == "mini"


def test_the_least_of_several_strategies_is_the_smallest_budget_that_would_do() -> None:
    """What planning took is part of a peak and of no budget, and what was measured needs more to spare."""
    measured = Strategy("full", needs=Needs(step=100 * MB, measured=True))
    planned = Strategy("mini", needs=Needs(step=105 * MB, planning=300 * MB))
    assert measured.needs is not None and planned.needs is not None
    assert planned.needs.least < measured.needs.least
    with pytest.raises(gw.errors.MemoryBudgetError) as caught:
        choose([measured, planned], OF, MB)
    assert caught.value.least == planned.needs.least


@pytest.mark.parametrize("nodes", [1, 7, 400])
def test_statistics_are_quantiles_of_the_in_degrees(nodes: int) -> None:
    src, dst = torch.randint(0, nodes, (2, 9 * nodes), generator=torch.Generator().manual_seed(nodes))
    of = gw.Dataset("drawn", gw.Graph(src, dst, num_nodes=nodes), torch.zeros(nodes, 1), torch.zeros(nodes).long())
    degrees = np.sort(np.bincount(dst.numpy(), minlength=nodes))
    wanted = [int(degrees[round(q * (nodes - 1))]) for q in (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)]
    assert list(statistics_of(of).in_degrees) == wanted


def test_costs_are_found_from_sums_of_calls() -> None:
    truth = CostModel({**CostModel().coefficients, "product": (3e-11, 4e-11, 5e-5), "draw": (4e-8, 4e-10, 2e-3)})
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(40):
        works = [(Work(kind, *10 ** rng.uniform(3, 8, 2)), float(rng.integers(1, 5))) for kind in ("product", "draw")]
        samples.append((works, sum(count * truth.seconds(work) for work, count in works)))
    found = CostModel().fit_sums(samples, weight=1e-3)
    for works, seconds in samples:
        assert sum(count * found.seconds(work) for work, count in works) == pytest.approx(seconds, rel=0.02)
    assert found.coefficients["attention mid"] == CostModel().coefficients["attention mid"]  # no sample tells of it


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return gw.synthetic("arxiv", scale=0.05, seed=0)


def _model(kind: str, ds: Dataset, hidden: int = 64) -> Any:
    return getattr(gw.nn, kind)(ds.num_features, hidden, ds.num_classes, num_layers=2)


@pytest.mark.parametrize("kind", ["SAGE", "GAT"])
def test_the_account_of_a_batch_is_near_what_it_takes(kind: str, ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_KEPT_FREE", 0)  # that of former steps is not measured here
    steps = gw.Trainer(_model(kind, ds, 128), ds, mode="mini", batch_size=1024)._batch
    assert isinstance(steps, MiniBatch)
    steps.prepare()
    taken_by_account = batch_taken(steps)
    held = sum(taken_by_account.held)
    making, step = held + sum(taken_by_account.making), taken_bytes(taken_by_account.step)
    measured = rehearse(lambda: steps.loader.make(torch.arange(1024), 0), steps.gradients)
    assert held <= making <= 1.25 * measured[1] + MB
    assert held == pytest.approx(measured[0], rel=0.3, abs=MB)
    batch = steps.loader.make(torch.arange(1024), 0)
    taken = _measured(lambda _: steps.gradients(batch), lambda: torch.empty(0)).taken.total  # of pool and heap
    assert 0.6 * taken <= step <= 1.1 * taken + 6 * MB


def test_auto_follows_the_plan_and_few_labels_make_batches_faster(ds: Dataset, tmp_path: Path) -> None:
    with gw.config(cache_dir=str(tmp_path)):  # the built-in costs
        few = replace(ds, train_idx=ds.train_idx[:8])
        planned = gw.plan(_model("GCN", ds), few, fanouts=(2, 2), batch_size=8)
        trainer = gw.Trainer(_model("GCN", ds), few, mode="auto", fanouts=(2, 2), batch_size=8)
        assert trainer.plan is not None
        assert trainer.mode == planned.mode == "mini"
        assert trainer.plan.strategy.seconds == planned.strategy.seconds
        assert [o.strategy.seconds for o in trainer.plan.others] == [o.strategy.seconds for o in planned.others]
        assert gw.plan(_model("GCN", ds), ds).mode == gw.Trainer(_model("GCN", ds), ds, mode="auto").mode == "full"


@pytest.mark.parametrize("macro", ["large:1/4", "parts:2/8"])
def test_the_memory_of_macro_batches_is_planned_as_the_trainer_finds_it(macro: str, ds: Dataset) -> None:
    given: dict[str, Any] = {"mode": "mini", "memory": "2GB", "fanouts": (5, 5), "batch_size": 256}
    plan, without = (gw.plan(_model("SAGE", ds), ds, **given, macro=text) for text in (macro, None))
    trainer = gw.Trainer(_model("SAGE", ds), ds, macro=macro, **given)
    assert macro in plan.strategy.batches and macro not in without.strategy.batches
    planned, plain, found = plan.strategy.needs, without.strategy.needs, trainer.needs
    assert planned is not None and plain is not None and found is not None
    assert planned.data == pytest.approx(found.data, rel=0.05) and planned.data > plain.data + MB
    assert planned.running - planned.program == pytest.approx(found.running - found.program, rel=0.1)
    with pytest.raises(gw.errors.ConfigError, match=r"^macro: expected mode mini as well, got mode 'full'"):
        gw.plan(_model("SAGE", ds), ds, mode="full", macro=macro)


@pytest.mark.parametrize("macro", ["large:1/4", "parts:2/8"])
def test_the_seconds_of_macro_batches_are_those_of_their_draws_rows_and_layers(macro: str, ds: Dataset) -> None:
    """Against what is made: one macro-batch and one of its batches, each as often as an epoch has them."""
    given: dict[str, Any] = {"fanouts": (5, 5), "batch_size": 256}
    plan = gw.plan(_model("SAGE", ds), ds, mode="mini", macro=macro, **given)
    steps = gw.Trainer(_model("SAGE", ds), ds, mode="mini", macro=macro, **given)._batch
    assert isinstance(steps, MiniBatch) and isinstance(steps.loader, MultistageLoader)
    found = steps.works()
    assert found is not None and plan.epoch_seconds is not None and plan.strategy.slowest
    loader, (made, batch) = steps.loader, steps.loader.made(0)
    groups, steps_of_epoch = len({planned.path for planned in loader.plan(0).batches}), len(loader)
    draws = sorted(count for work, count in found[0] if work.kind.startswith("draw"))
    assert draws == sorted([groups, steps_of_epoch]) and groups > 1
    (drawn,) = {work.amount for work, count in found[0] if work.kind.startswith("draw") and count == groups}
    assert drawn * groups == pytest.approx(made.level.graph.num_edges * loader.num_items / made.level.seeds.numel())
    losses = [work for work, count in found[0] if work.kind == "loss" and count == steps_of_epoch]
    assert [work.amount for work in losses] == [batch.num_seeds * ds.num_classes]
    twice = gw.plan(_model("SAGE", ds), ds, mode="mini", macro=macro, fanouts=(5, 5), batch_size=64)
    assert twice.epoch_seconds is not None and twice.epoch_seconds > plan.epoch_seconds  # more steps, the same seeds


def test_macro_batches_that_change_or_nest_have_no_seconds(ds: Dataset) -> None:
    nested, measured = Macro([LargeBatch(0.5), LargeBatch(0.25)]), Macro("large:1/4", quality=0.5)
    for macro in (nested, measured, Macro("parts:2/8", refresh=2)):
        steps = gw.Trainer(_model("SAGE", ds), ds, mode="mini", macro=macro, fanouts=(5, 5), batch_size=256)._batch
        assert steps.works() is None


def test_planning_changes_neither_model_nor_bits(ds: Dataset) -> None:
    torch.manual_seed(0)
    first = _model("SAGE", ds)
    torch.manual_seed(0)
    second = _model("SAGE", ds)
    weights = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    gw.plan(first, ds, memory="1GB")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in first.state_dict().items())
    losses = [[r.loss for r in gw.Trainer(m, ds, mode=how).fit(2)] for m, how in ((first, "auto"), (second, "full"))]
    assert losses[0] == losses[1]


def test_history_has_both_figures(ds: Dataset) -> None:
    trainer = gw.Trainer(_model("GCN", ds), ds, mode="auto")
    assert trainer.plan is not None
    history = trainer.fit(3)
    assert history.predicted == {"epoch_seconds": trainer.plan.epoch_seconds, "peak_bytes": trainer.plan.peak_bytes}
    assert set(history.measured) == set(history.predicted) and history.measured["epoch_seconds"] > 0


def test_a_deviation_is_said_once_with_its_term() -> None:
    promise, said = Promise(choose([FULL], OF)), list[str]()
    for seconds in (9.0, 3.0, 3.2, 3.1):
        promise.end_epoch(seconds, History(), said.append)
    assert not [line for line in said if "an epoch takes" in line]  # the first epoch does not count
    for seconds in (9.0, 9.0, 9.0, 9.0, 9.0):
        promise.end_epoch(seconds, History(), said.append)
    about = [line for line in said if "an epoch takes" in line]
    assert len(about) == 1 and len(said) == len(set(said)) <= 2
    assert "predicted were 3.0 s, most of them product" in about[0]


def test_a_run_that_was_off_corrects_the_profile_and_the_next_plan_is_nearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [
        (product_work(10_000, 128, 64), 3.0),
        (gather_work(10_000, 80_000, 64, 10_000), 2.0),
        (rows_work(1e6), 4.0),
    ]

    def planned(costs: CostModel) -> float:
        return sum(count * costs.seconds(work) for work, count in works)

    def trained(times: float, busy: bool) -> float:
        """Measured over what the next plan predicts, after a run that took so many times what its plan said."""
        predicted = planned(Machine.here().costs)
        promise = Promise(choose([replace(FULL, seconds={"all": predicted})], OF), works=lambda: (works, 0.0))
        monkeypatch.setattr(_machine, "is_busy", lambda: busy)
        for _ in range(6):
            promise.end_epoch(times * predicted, History(), None)
        promise.correct_profile()
        return times * predicted / planned(Machine.here().costs)

    with gw.config(cache_dir=str(tmp_path)):
        assert trained(3.0, busy=False) == 3.0 and not list(tmp_path.iterdir())  # never calibrated: no profile
        Machine.known(costs=CostModel(), error=0.1).remember()
        assert trained(3.0, busy=True) == 3.0
        assert trained(1.2, busy=False) == 1.2  # within the bound
        assert trained(3.0, busy=False) == pytest.approx(1.0, abs=0.25)
        assert trained(0.4, busy=False) == pytest.approx(1.0, abs=0.25)


def test_a_profile_is_a_file(tmp_path: Path, ds: Dataset) -> None:
    costs = CostModel({kind: tuple(10 * c for c in known) for kind, known in CostModel().coefficients.items()})
    slow = Machine("slow", "portable", 2, 1 << 30, costs=costs, error=0.1)
    file = tmp_path / "machine.json"
    slow.write(file)
    assert Machine.read(file) == slow
    here, there = (gw.plan(_model("GCN", ds), ds, machine=m) for m in (replace(slow, costs=CostModel()), file))
    assert here.epoch_seconds is not None
    assert there.epoch_seconds == pytest.approx(10 * here.epoch_seconds)
    text = file.read_text()
    for bad, words in (
        ("{", "which is no JSON"),
        ("[]", "without format"),
        (text.replace('"threads": 2', '"threads": 0'), "a number that is negative or not finite"),
        (text.replace('"threads": 2', '"threads": "2"'), "with "),
        (text.replace('"memory"', '"memories"'), "memories"),
        (text.replace('"costs": {', '"costs": [{').replace("},", "}],"), "with "),
    ):
        file.write_text(bad)
        with pytest.raises(gw.errors.ConfigError, match=f"^machine: expected a file of graphweft doctor.*{words}"):
            Machine.read(file)
