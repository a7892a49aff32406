"""Mini-batches trained at an emulated device: the same bits as on the CPU, at either place; options and errors."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphweft as gw
from graphweft._errors import ConfigError, GraphWeftError
from graphweft.schedule.emulated import EmulatedDevice, Speed
from graphweft.schedule.known_places import PLACES
from graphweft.schedule.operators import Operators
from graphweft.schedule.packing import pack, unpack
from graphweft.schedule.places import Schedule
from graphweft.schedule.split import Plan, Profile
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.scheduled import ScheduledMiniBatch

DS = gw.synthetic("cora", scale=0.3)
WEIGHTED = dataclasses.replace(DS, edge_weight=torch.rand(DS.num_edges, generator=torch.Generator().manual_seed(1)))
WIDTHS = (DS.num_features, 8, DS.num_classes)
MIXED = Schedule(EmulatedDevice(), Plan(2, 1, 1))


def trained(make: Callable[[], nn.Module], epochs: int = 2, ds: Any = DS, **options: Any) -> gw.Trainer:
    torch.manual_seed(0)
    trainer = gw.Trainer(make(), ds, mode="mini", batch_size=8, seed=3, **options)
    trainer.fit(epochs)
    return trainer


def steps(trainer: gw.Trainer) -> ScheduledMiniBatch:
    batch = trainer._batch
    assert isinstance(batch, ScheduledMiniBatch)
    return batch


def numbers(trainer: gw.Trainer) -> dict[str, Any]:
    """All that training made: weights, what the optimiser keeps, averages, losses and scores of every epoch."""
    state = trainer.state_dict()
    seen = [(record.loss, record.val_acc, record.val_loss, record.test_acc) for record in trainer.history]
    return {name: state[name] for name in ("model", "optimizer", "best_model")} | {"seen": seen}


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


RUNS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "gcn, dropout": (lambda: gw.nn.GCN(*WIDTHS, dropout=0.5), {}),
    "sage, batch norm, averages, clipping, cosine": (
        lambda: gw.nn.SAGE(*WIDTHS, norm="batch"),
        {"ema": 0.9, "clip": 1.0, "scheduler": "cosine"},
    ),
    "gat, adamw": (lambda: gw.nn.GAT(*WIDTHS), {"optimizer": "adamw"}),
    "gin, whole samples as graphs": (lambda: gw.nn.GIN(*WIDTHS), {"sampler": "shadow", "eval_every": 2}),
    "gcn, saint": (lambda: gw.nn.GCN(*WIDTHS), {"sampler": "saint-node"}),
    "gcn, weights of edges": (lambda: gw.nn.GCN(*WIDTHS), {"ds": WEIGHTED}),
    "gcn, nodes of a layer, class weights, a metric": (
        lambda: gw.nn.GCN(*WIDTHS),
        {"sampler": "layer", "fanouts": (64, 32), "class_weight": "balanced", "metrics": "f1_macro"},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_over_two_places_is_the_cpu_s_bit_for_bit(name: str) -> None:
    make, options = RUNS[name]
    found = trained(make, schedule=MIXED, **options)
    assert_same(numbers(trained(make, **options)), numbers(found))
    line = steps(found).line
    assert line is not None and {span.route for span in line.spans} == {"cpu", "device"}
    steps(found).close()


@pytest.mark.parametrize("share", ["auto", "cpu", "device"])
def test_runs_are_the_same_for_every_share(share: str) -> None:
    make = RUNS["gcn, dropout"][0]
    found = trained(make, device="emulated", schedule=share)
    assert_same(numbers(trained(make)), numbers(found))
    routes = {span.route for span in steps(found).line.spans}  # type: ignore[union-attr]
    assert share == "auto" or routes == {share}
    assert found.scheduled.startswith("emulated: ") and "prepared by the cpu" in found.scheduled
    assert ("device alone" in found.scheduled) == (share == "auto")
    busy = [found.history[-1].metrics[f"{place}_busy"] for place in ("cpu", "link", "device")]
    assert all(value is not None and 0 <= value <= 1 for value in busy)
    plan = [found.history[-1].metrics[f"plan_{name}"] for name in ("cpu", "device", "extra")]
    assert Plan(*map(int, plan)) == steps(found).plan  # type: ignore[arg-type]
    counts = [found.history[-1].metrics[f"{side}_batches"] for side in ("cpu", "device")]
    assert sum(counts) == len(steps(found).loader)  # type: ignore[arg-type]
    steps(found).close()


def test_auto_shares_out_where_that_is_faster() -> None:
    """A device that prepares and trains slowly enough for its speeds to decide: it prepares nothing, or all."""
    slow = Schedule(EmulatedDevice(sampling=Speed(least=0.2), model=Speed(least=0.05)))
    found = trained(RUNS["gcn, dropout"][0], epochs=1, schedule=slow)
    assert steps(found).plan is not None and steps(found).plan.mode == "cpu"  # type: ignore[union-attr]
    steps(found).close()


def test_a_plan_of_unsteady_times_is_tried_beside_either_side_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "unsteady", lambda profile: ["model"])
    found = trained(RUNS["gcn, dropout"][0], device="emulated")
    seen = steps(found).rehearsed
    assert {Plan(10, 0), Plan(0, 10)} <= set(seen) and steps(found).plan == min(seen, key=seen.__getitem__)
    assert "tried on some batches" in found.scheduled
    assert_same(numbers(trained(RUNS["gcn, dropout"][0])), numbers(found))  # on a copy of the model
    monkeypatch.setattr(Profile, "unsteady", lambda profile: [])
    assert steps(trained(RUNS["gcn, dropout"][0], device="emulated")).rehearsed == {}


def test_without_a_device_nothing_is_started_and_a_device_is_asked_for_in_one_line() -> None:
    for share in ("auto", "cpu"):
        trainer = gw.Trainer(RUNS["gcn, dropout"][0](), DS, mode="mini", schedule=share)
        assert type(trainer._batch) is MiniBatch and trainer.scheduled == ""
    with pytest.raises(ConfigError, match=r"expected a device that prepares batches \(emulated, cuda\), got none$"):
        gw.Trainer(RUNS["gcn, dropout"][0](), DS, mode="mini", schedule="device")
    with pytest.raises(ConfigError, match=r"^schedule: expected one of auto, cpu, device, got 'gpu'$"):
        gw.Trainer(RUNS["gcn, dropout"][0](), DS, mode="mini", schedule="gpu")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulate": 2}, "accumulate cannot be combined with device=emulated"),
        ({"macro": "large:1/8"}, "macro cannot be combined with device=emulated"),
        ({"prepare": "subtasks"}, "prepare cannot be combined with device=emulated"),
        ({"memory": "4GB"}, "memory cannot be combined with device=emulated"),
        ({"task": "link"}, "task=link cannot be combined with device=emulated"),
        ({"mode": "full"}, "device='emulated' cannot be combined with mode='full'; it trains mini-batches"),
    ],
)
def test_options_that_only_the_cpu_has_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gw.Trainer(RUNS["gcn, dropout"][0](), DS, **{"mode": "mini", "device": "emulated", **options})
    assert str(caught.value) == said


def test_a_run_goes_on_where_it_stopped_with_its_plan_with_or_without_the_device(tmp_path: Path) -> None:
    make = RUNS["sage, batch norm, averages, clipping, cosine"][0]
    options: dict[str, Any] = {"ema": 0.9, "optimizer": "adamw"}
    whole = trained(make, epochs=3, **options)
    first = trained(make, epochs=1, device="emulated", out=tmp_path / "run", **options)
    plan = steps(first).plan
    steps(first).close()
    state = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert plan is not None and Plan(**state["mini_batch"]["schedule"]) == plan
    for device in ("emulated", None):
        torch.manual_seed(1)
        given = {"device": device, "out": tmp_path / "run", **options}
        again = gw.Trainer(make(), DS, mode="mini", batch_size=8, seed=3, **given)
        assert again.resume()
        if device:
            assert steps(again).plan == plan
        again.fit(1)
        if device:
            assert steps(again).plan == plan and steps(again).profile is None  # nothing was measured anew
            assert "as the checkpoint says" in again.scheduled
            steps(again).close()
    assert_same(numbers(whole)["seen"], numbers(again)["seen"])
    assert_same(numbers(whole)["model"], numbers(again)["model"])
    assert_same(numbers(whole)["optimizer"], numbers(again)["optimizer"])


def test_a_trace_has_both_places(tmp_path: Path) -> None:
    found = trained(RUNS["gcn, dropout"][0], schedule=MIXED, trace=tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {
        event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"
    }
    steps_of = {(rows[event["tid"]], event["name"]) for event in events if event["ph"] == "X"}
    assert {("graphweft-cpu", "cpu_batch"), ("graphweft-link", "send")} <= steps_of
    assert {"device_batch", "model"} <= {name for row, name in steps_of if not row.startswith("graphweft-")}
    assert found.verdict is not None
    steps(found).close()


class StopAfter:
    """Takes the state between two batches, then fails."""

    def __init__(self, batch: int) -> None:
        self.batch, self.state, self.stops = batch, None, True

    def on_batch_end(self, trainer: gw.Trainer, batch: int, loss: float) -> None:
        if batch == self.batch and trainer.epoch == 1 and self.stops:
            self.state = copy.deepcopy(trainer.state_dict())
            raise RuntimeError("stopped here")


def test_a_state_taken_within_an_epoch_is_that_of_the_batches_done() -> None:
    """Also where the run fails afterwards: the same trainer, and a new one of the state, end with the same bits."""
    make = RUNS["gcn, dropout"][0]
    whole = trained(make, epochs=3)
    stop = StopAfter(3)
    torch.manual_seed(0)
    trainer = gw.Trainer(make(), DS, mode="mini", batch_size=8, seed=3, schedule=MIXED, callbacks=[stop])
    with pytest.raises(RuntimeError, match="stopped here"):
        trainer.fit(3)
    assert steps(trainer).batches_done == 3
    stop.stops = False
    trainer.fit(2)
    assert_same(numbers(whole)["model"], numbers(trainer)["model"])
    steps(trainer).close()
    other = gw.Trainer(make(), DS, mode="mini", batch_size=8, seed=3)
    assert stop.state is not None and stop.state["batches"] == 3
    other.load_state_dict(stop.state)
    other.fit(2)
    assert_same(numbers(whole)["model"], numbers(other)["model"])
    assert_same(numbers(whole)["seen"], numbers(other)["seen"])


def test_data_changed_in_place_are_those_of_the_device_too() -> None:
    def run(**options: Any) -> gw.Trainer:
        ds = gw.synthetic("cora", scale=0.3)
        trainer = trained(RUNS["gcn, dropout"][0], epochs=1, ds=ds, **options)
        ds.y[ds.train_idx] = (ds.y[ds.train_idx] + 1) % ds.num_classes
        trainer.fit(1)
        return trainer

    found = run(schedule=MIXED)
    assert_same(numbers(run())["seen"], numbers(found)["seen"])
    steps(found).close()


def test_a_loss_that_the_device_cannot_have_is_one_line() -> None:
    trainer = gw.Trainer(
        RUNS["gcn, dropout"][0](), DS, mode="mini", device="emulated", loss=lambda logits, labels: logits.sum()
    )
    with pytest.raises(ConfigError, match=r"^emulated: expected work that pickle can send to a process, got "):
        trainer.fit(1)


def test_a_device_that_dies_ends_the_run_and_the_next_fit_starts_another() -> None:
    make = RUNS["gcn, dropout"][0]
    trainer = trained(make, epochs=1, schedule=MIXED)
    opened: Any = steps(trainer)._opened
    opened._process.kill()
    with pytest.raises(GraphWeftError, match="emulated: expected the device's process to go on"):
        trainer.fit(1)
    trainer.fit(1)
    assert_same(numbers(trained(make, epochs=2))["model"], numbers(trainer)["model"])
    steps(trainer).close()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "graphweft", *words], capture_output=True, text=True, check=False, timeout=300
    )


def test_the_command_trains_there_and_says_why(tmp_path: Path) -> None:
    data = ("--data", "cora", "--scale", "0.2", "--mode", "mini", "--batch-size", "16")
    done = command("train", *data, "--epochs", "2", "--device", "emulated", "--out", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert "device alone" in summary["schedule"][0] and "epochs" in summary["schedule"][-1]
    refused = command("train", *data, "--schedule", "device", "--out", str(tmp_path / "none"))
    assert refused.returncode != 0
    told = "graphweft train: --schedule: expected a device that prepares batches (emulated, cuda), got none"
    assert refused.stderr.splitlines()[-1] == told


def test_a_model_changed_between_fits_is_changed_at_the_device() -> None:
    def run(**options: Any) -> gw.Trainer:
        trainer = trained(RUNS["gcn, dropout"][0], epochs=2, **options)
        if options:
            opened.append(steps(trainer)._opened)
        trainer.model.dropout = 0.1
        trainer.fit(1)
        next(trainer.model.parameters()).requires_grad_(False)
        trainer.fit(1)
        return trainer

    opened: list[Any] = []
    found = run(schedule=MIXED)
    assert_same(numbers(run())["seen"], numbers(found)["seen"])
    assert steps(found)._opened is not opened[0]
    now = steps(found)._opened
    found.fit(2)
    assert steps(found)._opened is now  # nothing else starts it anew
    steps(found).close()


class Nearby:
    """A place that needs no process: a copy of the work in this one."""

    name = "nearby"

    def open(self, work: Callable[[Any], Any], given: Any, known: Any) -> Nearby:
        self.known, self.work = known, work(unpack(*copied(pack(given))))
        return self

    def register(self, operators: Operators) -> None:
        operators.register("batch_nearby_a")(lambda batch, _: self.work.prepare(batch))
        operators.register("send_nearby_a")(
            lambda batch, made: unpack(*copied(pack(made, self.known)), self.work.known)
        )
        operators.register("model_nearby_a")(self.work.train)

    def call(self, name: str, *given: Any) -> Any:
        return unpack(*copied(pack(getattr(self.work, name)(*unpack(*copied(pack(given)))))))

    def close(self) -> None:
        self.work = None


def copied(packed: tuple[bytes, list[memoryview]]) -> tuple[bytes, list[memoryview]]:
    return packed[0], [memoryview(bytearray(buffer)) for buffer in packed[1]]


@pytest.mark.parametrize("share", ["auto", "device"])
def test_another_kind_of_device_joins_by_registration_alone(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLACES, "nearby", Nearby)
    make = RUNS["gcn, dropout"][0]
    found = trained(make, device="nearby", schedule=share)
    assert_same(numbers(trained(make)), numbers(found))
    assert found.scheduled.startswith("nearby: ")
