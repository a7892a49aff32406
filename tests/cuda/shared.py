"""Loaders and trainers that draw where they are told to, and batches shared out between the CPU and the device."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from cuda import recorded
from zoo import random_edges

import graphweft as gw
from graphweft._errors import ConfigError, FallbackWarning
from graphweft.runtime.captures import CUDA
from graphweft.runtime.cuda import jit, walks
from graphweft.runtime.cuda.graphs import GraphStep
from graphweft.schedule.device_place import DevicePlace
from graphweft.schedule.places import Schedule
from graphweft.schedule.run import Executor
from graphweft.schedule.split import Plan
from graphweft.train import shared_batches
from graphweft.train.device_batches import DeviceMiniBatch
from graphweft.train.replayed import Replays
from graphweft.train.shared_batches import SharedMiniBatch

NUMBERS = ("model", "optimizer", "best_model")


def data() -> gw.Dataset:
    """40 nodes, of which 20 train."""
    edges, every = random_edges(40, 160, 3), torch.arange(40)
    graph = gw.Graph(edges.src, edges.dst, num_nodes=40)
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    return gw.Dataset("small", graph, x, every % 3, every[:20], every[20:30], every[30:], 3)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Steps of workers, and launches of any threads, exclude each other: the interpreter keeps its place in globals."""
    lock, launch, steps, step = threading.Lock(), jit.launch, threading.Lock(), Executor.step

    def locked(*given: Any, **fixed: Any) -> None:
        with lock:
            launch(*given, **fixed)

    def alone(self: Executor, *given: Any) -> Any:
        with steps:
            return step(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        for module in (jit, walks):
            patch.setattr(module, "launch", locked)
        patch.setattr(Executor, "step", alone)
        yield


def trainer(schedule: Any, **options: Any) -> gw.Trainer:
    torch.manual_seed(0)
    net = gw.nn.SAGE(6, 4, 3, num_layers=2, dropout=0.3)
    given = {"fanouts": (3, 2), "batch_size": 4, "progress": False, "eval_every": 9, **options}
    return gw.Trainer(net, data(), lr=0.05, mode="mini", schedule=schedule, **given)


def assert_same(one: gw.Trainer, other: gw.Trainer) -> None:
    """Weights, what the optimiser keeps, and losses, bit for bit."""
    assert [record.loss for record in one.history] == [record.loss for record in other.history]
    mine, wanted = one.state_dict(), other.state_dict()
    for name in NUMBERS:
        for (_, left), (_, right) in zip(_tensors(mine[name]), _tensors(wanted[name]), strict=True):
            assert torch.equal(left, right), name


def _tensors(item: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(item, torch.Tensor):
        yield name, item
    elif isinstance(item, dict):
        for key, part in item.items():
            yield from _tensors(part, f"{name}.{key}")


def shared(trainer: gw.Trainer) -> SharedMiniBatch:
    batch = trainer._batch
    assert isinstance(batch, SharedMiniBatch)
    return batch


def either_side_prepares_the_same_batches() -> None:
    """Every plan gives the numbers of the device alone; a run goes on where it stopped, within an epoch, too."""
    with gw.config(target="cuda", certify=False), one_at_a_time():
        for graphs, plan in (("off", Plan(1, 1)), ("auto", Plan(2, 1, 1)), ("auto", Plan(3, 0))):  # blocks, compiled
            if plan.device:  # else that of the plan before
                alone = trainer("auto", cuda_graphs=graphs)
                assert type(alone._batch) is DeviceMiniBatch
                alone.fit(1)
            found = trainer(Schedule(DevicePlace(), plan), cuda_graphs=graphs)
            found.fit(1)
            assert_same(found, alone)
            line = shared(found).line
            assert line is not None and [s.route for s in line.spans if s.step == "model"] == plan.routes(5)
            assert {s.step for s in line.spans} >= {"cpu_batch", "send", "model"}
            assert found.scheduled.startswith(f"cuda: {plan.shown()}: a plan was asked for\ncuda: 5 batches (")
        stopped = trainer(Schedule(DevicePlace(), Plan(2, 1, 1)), callbacks=[StopAfter(2)])
        with pytest.raises(RuntimeError, match="stopped here"):
            stopped.fit(1)
        assert shared(stopped).batches_done == 2
        later, state = trainer("auto"), copy.deepcopy(stopped.state_dict())
        later.load_state_dict(state)  # goes on by the device alone
        for each in (stopped, later):
            each.fit(1)
            assert_same(each, found)


class StopAfter:
    """Fails once, after some batch of the first epoch."""

    def __init__(self, batch: int) -> None:
        self.batch, self.stops = batch, True

    def on_batch_end(self, trainer: gw.Trainer, batch: int, loss: float) -> None:
        if batch == self.batch and self.stops:
            self.stops = False
            raise RuntimeError("stopped here")


def shared_batches_are_replayed_as_graphs() -> None:
    """The same batches are replayed, whichever side prepared them."""
    with gw.config(target="cuda", certify=False), one_at_a_time():
        CUDA.captures(partial(GraphStep.capture, recorder=recorded.Recorder))
        found = [trainer(way, batch_size=8) for way in ("auto", Schedule(DevicePlace(), Plan(1, 1)))]
        for each in found:
            each.fit(2)
        CUDA.captures(GraphStep.capture)
        assert_same(found[1], found[0])
        assert found[1].history["replayed"] == found[0].history["replayed"] and sum(found[1].history["replayed"]) > 0


def a_share_is_measured_on_replayed_steps() -> None:
    """The first epoch shows their bounds, so the plan is chosen after it; measuring leaves no trace in the numbers."""
    with gw.config(target="cuda", certify=False), one_at_a_time(), pytest.MonkeyPatch.context() as patch:
        for name, count in (("_MEASURED", 2), ("_WARM", 1), ("_TRIED", 3)):
            patch.setattr(shared_batches, name, count)
        CUDA.captures(partial(GraphStep.capture, recorder=recorded.Recorder))
        measured = list[int]()

        def measure(self: Replays, *given: Any) -> Any:
            found = replay(self, *given)
            measured[-1:] = [measured[-1] + (found is not None)] if measured else []
            return found

        def choose(self: SharedMiniBatch, place: str) -> None:
            measured.append(0)
            inner(self, place)

        replay, inner = Replays.__call__, SharedMiniBatch._choose
        patch.setattr(Replays, "__call__", measure)
        patch.setattr(SharedMiniBatch, "_choose", choose)
        patch.setattr(shared_batches, "_GAIN", float("inf"))  # shared out whatever was tried
        found = trainer(Schedule(DevicePlace(), "auto"), batch_size=2)
        found.fit(1)
        assert not measured and "in the first epoch; the plan is measured then" in found.scheduled
        found.fit(1)
        CUDA.captures(GraphStep.capture)
        assert measured and measured[0] >= 3 and shared(found).plan is not None and "device alone" in found.scheduled
        assert sum(found.history["replayed"]) > 0
        alone = trainer("auto", batch_size=2, cuda_graphs="off")  # the fake would record its loader's launches, too
        alone.fit(1)
        alone.fit(1)
        assert_same(found, alone)


def a_share_is_measured_and_explained() -> None:
    """Measuring leaves no trace in the numbers; where it fails, and of few batches, the device prepares all."""
    with gw.config(target="cuda", certify=False), one_at_a_time(), pytest.MonkeyPatch.context() as fewer:
        for name, count in (("_MEASURED", 2), ("_WARM", 1), ("_TRIED", 3)):
            fewer.setattr(shared_batches, name, count)
        alone = trainer("auto", batch_size=2)
        alone.fit(1)
        found = trainer(Schedule(DevicePlace(), "auto"), batch_size=2, cuda_graphs="off")
        found.fit(1)
        assert_same(found, alone)
        steps = shared(found)
        assert steps.profile is not None and min(steps.profile.cpu_batch, steps.profile.send) > 0
        assert "device alone" in found.scheduled and found.scheduled.startswith("cuda: ")
        tried = steps.rehearsed  # nothing, where the device alone is the fastest of the simulation
        assert steps.plan in tried if tried else steps.plan is not None and steps.plan.mode == "device"
        few = trainer(Schedule(DevicePlace(), "auto"), batch_size=10)
        few.fit(1)
        assert few.scheduled == "cuda: all batches by the device: an epoch of 2 batches is not worth measuring"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CUDA, "sender", lambda device: _no_memory)
            broken = trainer(Schedule(DevicePlace(), "auto"), batch_size=2, cuda_graphs="off")
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                broken.fit(1)
        assert_same(broken, alone)
        assert any(issubclass(w.category, FallbackWarning) and "no pinned memory" in str(w.message) for w in told)
        assert "measuring failed" in broken.scheduled
        for share, options in (("cpu", {"accumulate": 2}), (Plan(1, 1), {"memory": "4GB"})):
            with pytest.raises(ConfigError, match="cannot be combined with schedule="):
                trainer(Schedule(DevicePlace(), share), **options)
        assert type(trainer(Schedule(DevicePlace(), "auto"), accumulate=2)._batch) is DeviceMiniBatch
        assert type(trainer(Schedule(DevicePlace(), "device"))._batch) is DeviceMiniBatch
    with pytest.raises(ConfigError, match="device=cuda cannot be combined with a model on cpu"):
        trainer(Schedule(DevicePlace(), "auto"))


def a_loader_draws_where_it_is_told_to() -> None:
    """Batches of all epochs; hot rows of features lie there, as many as fit."""
    ds = data()
    given: dict[str, object] = {"fanouts": (3, 2), "batch_size": 8, "shuffle": True, "seed": 4, "prefetch": 0}
    wanted = gw.Loader(ds, **given)
    structure = ds.graph.csc.nbytes + 4 * 40
    with gw.config(target="cuda"):
        found = gw.Loader(ds, **given, device="cpu", device_memory=structure + 15 * 24 + 4 * 40, far_rows="read")
        for _ in range(2):
            for mine, other in zip(found, wanted, strict=True):
                for name in ("n_id", "edge_index", "e_id", "x", "y", "input_id"):
                    assert torch.equal(getattr(mine, name), getattr(other, name)), name
        rows = found.device_rows
        assert rows is not None and rows.nbytes == 15 * 24 + 4 * 40 and 0.4 < rows.hit_ratio < 0.9, rows.hit_ratio
        state = found.state_dict()
    wanted.load_state_dict(state)  # the same batches: either continues the other


def a_trainer_draws_where_the_model_is() -> None:
    """The losses of the CPU's batches and kernels."""
    losses = []
    for target in ("cuda", "cpu"):
        torch.manual_seed(0)
        net = gw.nn.SAGE(6, 4, 3, num_layers=2)
        with gw.config(target=target, certify=False):
            trainer = gw.Trainer(net, data(), lr=0.05, mode="mini", fanouts=(3, 2), batch_size=10, progress=False)
            losses.append([record.loss for record in trainer.fit(epochs=2)])
        name = "DeviceMiniBatch" if target == "cuda" else "MiniBatch"
        assert type(trainer._batch).__name__ == name
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5, atol=1e-6)


def _no_memory(*arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
    raise RuntimeError("no pinned memory")


def attention_drops_what_the_cpu_drops() -> None:
    """Of batches whose steps are not replayed."""
    losses = []
    for target in ("cuda", "cpu"):
        torch.manual_seed(0)
        net = gw.nn.GAT(6, 4, 3, heads=2, num_layers=1, dropout=0.4)
        with gw.config(target=target, certify=False):
            given: dict[str, Any] = {"fanouts": (3,), "batch_size": 10, "progress": False, "cuda_graphs": "off"}
            trainer = gw.Trainer(net, data(), lr=0.05, mode="mini", eval_every=9, **given)
            losses.append([record.loss for record in trainer.fit(epochs=1)])
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5, atol=1e-6)


TRIALS = (
    attention_drops_what_the_cpu_drops,
    a_loader_draws_where_it_is_told_to,
    a_trainer_draws_where_the_model_is,
    either_side_prepares_the_same_batches,
    shared_batches_are_replayed_as_graphs,
    a_share_is_measured_on_replayed_steps,
    a_share_is_measured_and_explained,
)
