"""Mode "auto" over a store: batches of memory with rows from disk, or groups of parts, and why not the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_kinds import academic

import graphweft as gw
from graphweft.cli import main
from graphweft.cost import CostModel
from graphweft.run import complete
from graphweft.runtime.machine import Machine
from graphweft.storage.row_cache import epoch_reads
from graphweft.train import stored_plan
from graphweft.train.calibration import joining

PARTS = 16
DRAWN: dict[str, Any] = {"fanouts": (4, 4), "batch_size": 128}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gw.macro.Store:
    found = gw.synthetic("default", scale=0.3, seed=0)
    ds = replace(found, x=torch.randn(found.num_nodes, 1024, generator=torch.Generator().manual_seed(0)))
    return gw.macro.prepare_store(ds, tmp_path_factory.mktemp("mode") / "store", parts=PARTS)


def _model(data: Any) -> gw.nn.SAGE:
    torch.manual_seed(0)
    return gw.nn.SAGE(data.num_features, 16, data.num_classes, num_layers=2, dropout=0.3)


def _trainer(data: Any, **more: Any) -> gw.Trainer:
    return gw.Trainer(_model(data), data, **{"mode": "auto", "seed": 0, **DRAWN, **more})


def _losses(trainer: gw.Trainer) -> list[float]:
    return [record.loss for record in trainer.history]


@pytest.fixture(scope="module")
def leasts(store: gw.macro.Store) -> dict[str, int]:
    """The least budget that each mode names, once the process has all that runs load and compile."""
    found = {}
    for mode in ("macro", "mini"):
        _trainer(store, memory="1GB", mode=mode).fit(1)
        with pytest.raises(gw.errors.MemoryBudgetError) as refused:
            _trainer(store, memory=1 << 20, mode=mode)
        found[mode] = refused.value.least
    return found


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of a machine on which reading takes longer than all else."""
    found = tmp_path_factory.mktemp("slow") / "machine.json"
    Machine.known(disk_bytes_per_second=1e6).write(found)
    return found


def test_with_room_for_the_structure_batches_are_those_of_memory(store: gw.macro.Store, slow: Path) -> None:
    trainer, asked = _trainer(store, memory="1GB"), _trainer(store, memory="1GB", mode="mini")
    assert trainer.mode == "mini" and trainer.plan is not None and trainer.plan.mode == "mini" and asked.plan is None
    trainer.fit(2)
    asked.fit(2)
    in_memory = _trainer(gw.load(str(store.path)), mode="mini")
    in_memory.fit(2)
    assert _losses(trainer) == _losses(asked) == _losses(in_memory)
    plan = gw.plan(_model(store), store, memory="1GB", machine=slow, **DRAWN)
    assert plan.mode == "mini" and "structure in memory" in plan.strategy.batches and plan.strategy.disk == 0
    (groups,) = (other for other in plan.others if other.strategy.mode == "macro")
    assert groups.reason.endswith(" x the seconds, most of them reading") and groups.strategy.disk == store.nbytes


def test_without_room_for_the_structure_groups_are_taken(store: gw.macro.Store, leasts: dict[str, int]) -> None:
    assert 1.1 * leasts["macro"] < 0.9 * leasts["mini"]
    memory = (leasts["macro"] + leasts["mini"]) // 2
    trainer = _trainer(store, memory=memory)
    assert trainer.mode == "macro" and trainer.plan is not None
    (rows,) = (other for other in trainer.plan.others if other.strategy.mode == "mini")
    assert rows.reason.startswith("needs ") and rows.reason.endswith(f" of {-(-memory // 10**6)} MB")
    again = _trainer(store, memory=memory, mode="macro", macro="neighbours:auto")
    trainer.fit(2)
    again.fit(2)
    assert _losses(trainer) == _losses(again)
    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        _trainer(store, memory=1 << 20)
    assert refused.value.least == pytest.approx(leasts["macro"], rel=0.05)


def test_where_rows_are_read_again_and_again_groups_are_taken(
    store: gw.macro.Store, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_plan, "epoch_reads", lambda *_: 3 * store.nbytes)
    plan = gw.plan(_model(store), store, memory="1GB", machine=slow, **DRAWN)
    (rows,) = (other for other in plan.others if other.strategy.mode == "mini")
    assert plan.mode == "macro" and rows.reason == "3.0 x the seconds, most of them reading"
    assert rows.strategy.disk == 3 * plan.strategy.disk == 3 * store.nbytes
    fast = Machine.known(disk_bytes_per_second=1e15)
    assert gw.plan(_model(store), store, memory="1GB", machine=fast, **DRAWN).mode == "mini"


def test_joining_parts_costs_what_the_profile_says(store: gw.macro.Store) -> None:
    """Where joining takes longer than training, an epoch of groups takes what it costs, by edge and by byte."""
    whole = [joining(store, PARTS)[0][0][0], joining(store, 3)[0][0][0]]
    assert [work.amount for work in whole] == [store.num_edges, int(store.edge_counts[:3].sum())]
    assert whole[0].bytes == store.nbytes > whole[1].bytes > 0
    for cost in ((1.0, 0.0, 0.0), (0.0, 1e-2, 0.0)):
        costs = CostModel({**CostModel().coefficients, "join": cost})
        machine = Machine.known(disk_bytes_per_second=1e15, costs=costs)
        plan = gw.plan(_model(store), store, mode="macro", macro=f"parts:2/{PARTS}", machine=machine, **DRAWN)
        assert plan.epoch_seconds == pytest.approx(costs.seconds(whole[0]), rel=1e-6)


def test_what_joining_parts_costs_is_found_from_groups(store: gw.macro.Store) -> None:
    truth = CostModel({**CostModel().coefficients, "join": (2e-7, 4e-10, 0.0)})
    samples = [(works, truth.seconds(works[0][0])) for works, _ in (joining(store, count) for count in (1, 3, PARTS))]
    found = CostModel().fit_sums(samples, weight=1e-3)
    for works, seconds in samples:
        assert found.seconds(works[0][0]) == pytest.approx(seconds, rel=0.01)
    assert {kind for kind, cost in found.coefficients.items() if cost != CostModel().coefficients[kind]} == {"join"}


def test_what_was_asked_for_is_no_choice(store: gw.macro.Store) -> None:
    for given, reason in (
        ({"macro": "parts:2/16"}, "macro=parts:2/16 was asked for"),
        ({"mode": "macro"}, "mode macro was asked for"),
    ):
        plan = gw.plan(_model(store), store, memory="1GB", **given)
        assert plan.mode == "macro"
        assert [other.reason for other in plan.others if other.strategy.mode == "mini"] == [reason]
    assert _trainer(store, memory="1GB", macro="parts:2/16").mode == "macro"
    asked = gw.plan(_model(store), store, memory="1GB", mode="mini", **DRAWN)
    assert asked.mode == "mini" and asked.epoch_seconds is not None and asked.peak_bytes is not None


@pytest.mark.parametrize("begun", ["mini", "macro"])
def test_a_run_goes_on_in_its_mode_whatever_the_budget(
    store: gw.macro.Store, leasts: dict[str, int], begun: str, tmp_path: Path
) -> None:
    memory: list[Any] = ["1GB", (leasts["macro"] + leasts["mini"]) // 2]
    memory = memory if begun == "mini" else memory[::-1]
    whole = _trainer(store, memory=memory[0])
    whole.fit(3)
    first = _trainer(store, memory=memory[0], out=tmp_path / "run")
    first.fit(1)
    assert first.mode == begun
    other = _trainer(store, memory=memory[1] if begun == "macro" else "2GB", out=tmp_path / "run")
    assert other.resume() and other.mode == begun
    other.fit(2)
    assert _losses(other) == _losses(whole)


def test_a_typed_store_without_seconds_is_read_row_by_row_where_that_is_not_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = academic()
    store = gw.macro.prepare_store(ds, tmp_path / "store", parts=4)
    sizes = (store.num_features, 8, store.num_classes)
    relations = len(ds.graph.relations)
    model = gw.nn.RGCN(*sizes, num_relations=relations, num_layers=2)
    plan = gw.plan(model, store, memory="1GB", fanouts=(3, 3), batch_size=50)
    (groups,) = (other for other in plan.others if other.strategy.mode == "macro")
    assert (plan.mode, plan.epoch_seconds, groups.reason) == ("mini", None, "its seconds are not known")
    monkeypatch.setattr(stored_plan, "epoch_reads", lambda *_: 5 * store.nbytes)
    other = gw.plan(model, store, memory="1GB", fanouts=(3, 3), batch_size=50)
    (rows,) = (other for other in other.others if other.strategy.mode == "mini")
    assert other.mode == "macro" and rows.reason.startswith("reads ") and " an epoch of a store of " in rows.reason


@pytest.mark.own_process
def test_bytes_of_an_epoch_are_at_most_about_those_that_are_told(store: gw.macro.Store) -> None:
    drawn: dict[str, Any] = {"mode": "mini", "batch_size": 32, "eval_every": 9}
    with pytest.raises(gw.errors.MemoryBudgetError) as refused:
        _trainer(store, memory=1 << 20, **drawn)
    trainer = _trainer(store, memory=refused.value.least, **drawn)
    batch: Any = trainer._batch
    record = trainer.fit(4)[-1]
    counts, cache = batch.loader.disk, batch.loader._feed.cache
    assert cache.capacity < 0.9 * store.num_nodes
    told = epoch_reads(counts.needed // 4, cache.capacity, store.num_nodes, 4 * store.num_features)
    assert 1 < told / record.metrics["bytes_read"] < 4  # some nodes are drawn more than others


def test_the_command_follows_the_plan(store: gw.macro.Store, leasts: dict[str, int], tmp_path: Path) -> None:
    asked = {"data": str(store.path), "mode": "auto"}
    assert [complete(asked).mode, complete(asked).macro] == ["auto", None]
    assert [complete({**asked, "macro": "parts:2/16"}).mode, complete({**asked, "task": "link"}).mode] == ["macro"] * 2
    sizes = ["--hidden", "16", "--layers", "2", "--dropout", "0.3", "--fanouts", "4,4", "--batch-size", "128"]
    command = ["train", "--data", str(store.path), "--mode", "auto", "--model", "sage", "--quiet", *sizes]
    for memory, kind in (("1GB", "mini"), (str((leasts["macro"] + leasts["mini"]) // 2), "macro")):
        out = ["--out", str(tmp_path / kind)]
        assert main([*command, *out, "--memory", memory, "--epochs", "1"]) == 0
        saved = torch.load(tmp_path / kind / "last.pt", weights_only=False)
        assert ("group" in saved["config"]) == (kind == "macro") and saved["options"]["mode"] == "auto"
        assert main(["train", *out, "--resume", "--memory", "1GB", "--epochs", "2", "--quiet"]) == 0
        assert len((tmp_path / kind / "metrics.jsonl").read_text().splitlines()) == 2
