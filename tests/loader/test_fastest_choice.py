"""The choice of how batches are prepared: pure, and followed by the loader."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphweft._machine import processors
from graphweft.data.synthetic import synthetic
from graphweft.loader import epochs as epochs_module
from graphweft.loader.fastest_choice import CoreSplit, FastestChoice
from graphweft.loader.loader import Loader
from graphweft.loader.pipeline import Pipeline
from graphweft.nn.sage import SAGE
from graphweft.train.trainer import Trainer

WAYS = [CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4), CoreSplit(1, 2, 3)]


@given(st.lists(st.floats(0.01, 10.0), min_size=4, max_size=4))
def test_the_fastest_way_is_taken(seconds: list[float]) -> None:
    choice, by_way, count = FastestChoice(WAYS), dict(zip(WAYS, seconds, strict=True)), 0
    while not choice.settled:
        choice.record(choice.way, by_way[choice.way])
        count += 1
    assert by_way[choice.way] == min(seconds)
    assert count <= 8 * len(WAYS)


def test_a_slow_way_is_given_up_early() -> None:
    choice, tries = FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2)]), {CoreSplit(0, 0): 0, CoreSplit(1, 2): 0}
    while not choice.settled:
        tries[choice.way] += 1
        choice.record(choice.way, 1.0 if choice.way.workers == 0 else 2.0)
    assert tries == {CoreSplit(0, 0): 8, CoreSplit(1, 2): 3} and choice.way == CoreSplit(0, 0)


@pytest.mark.parametrize(
    ("beside", "taken"), [(1.03, CoreSplit(1, 2)), (0.9, CoreSplit(1, 2)), (1.06, CoreSplit(0, 0))]
)
def test_of_ways_that_are_level_the_preferred_one_is_taken(beside: float, taken: CoreSplit) -> None:
    choice = FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4)], prefers=lambda way: way.workers > 0)
    seconds = {CoreSplit(0, 0): 1.0, CoreSplit(1, 2): beside, CoreSplit(2, 4): 1.2}
    while not choice.settled:
        choice.record(choice.way, seconds[choice.way])
    assert choice.way == taken


def test_one_way_needs_no_try() -> None:
    assert FastestChoice([CoreSplit(1, 2)]).settled


def test_the_model_gets_the_threads_of_its_way_and_the_caller_gets_them_back() -> None:
    ds = synthetic("default", scale=0.1)
    loader = Loader(ds, fanouts=[2], batch_size=8)
    before = torch.get_num_threads()
    loader._fastest = FastestChoice([CoreSplit(1, 2, 1)])
    assert [torch.get_num_threads() for _ in loader] == [1] * len(loader)
    assert torch.get_num_threads() == before
    for _ in loader:
        break
    assert torch.get_num_threads() == before


def test_splits_of_the_cores_are_tried_where_bits_do_not_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = synthetic("default", scale=0.1)
    options = {"mode": "mini", "fanouts": (3, 2), "batch_size": 8}
    monkeypatch.setattr("graphweft.loader.epochs.processors", lambda: 8)
    compiled = Trainer(SAGE(ds.num_features, 8, ds.num_classes), ds, **options)
    assert {CoreSplit(1, 2, 7), CoreSplit(2, 4, 6), CoreSplit(4, 8, 4)} <= set(compiled._batch.loader._fastest.ways)
    plain = Trainer(_Mean(ds.num_features, ds.num_classes), ds, mode="mini")
    assert all(way.model == 0 for way in plain._batch.loader._fastest.ways)


class _Mean(torch.nn.Linear):
    """Stands in for a model of the user's own."""

    def forward(self, graph, x):
        return super().forward(x)


def test_every_way_trains_to_the_same_bits() -> None:
    ds, states = synthetic("default", scale=0.1), []
    for way in (CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 3), CoreSplit(1, 2, 1)):
        torch.manual_seed(0)
        trainer = Trainer(SAGE(ds.num_features, 8, ds.num_classes), ds, mode="mini", fanouts=(4, 3), batch_size=32)
        trainer._batch.loader._fastest = FastestChoice([way])
        trainer.fit(epochs=2)
        states.append(trainer.model.state_dict())
    for other in states[1:]:
        assert all(torch.equal(tensor, other[name]) for name, tensor in states[0].items())


def test_measured_ways_are_told() -> None:
    loader = Loader(synthetic("default", scale=0.3), fanouts=[2], batch_size=2)
    while not loader._fastest.settled:
        for _ in loader:
            pass
    seconds = loader.seconds_by_way
    assert seconds[loader.way] <= 1.04 * min(seconds.values())  # a preferred way may be level with the fastest
    assert processors() >= 1


def test_a_slow_way_is_given_up_early_where_it_comes_first() -> None:
    choice, tries = (
        FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4)]),
        dict.fromkeys([CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4)], 0),
    )
    while not choice.settled:
        tries[choice.way] += 1
        choice.record(choice.way, {0: 2.0, 1: 1.1, 2: 1.0}[choice.way.workers])
    assert tries == {CoreSplit(0, 0): 3, CoreSplit(1, 2): 8, CoreSplit(2, 4): 8} and choice.way == CoreSplit(2, 4)


def test_the_batches_that_fill_the_queue_are_not_measured() -> None:
    """Of the batches under one way the first two do not count."""
    loader, found = Loader(synthetic("default", scale=0.3), fanouts=[2], batch_size=2), list[CoreSplit]()
    assert len(loader) >= 20
    loader._fastest = FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2)], tries=100)
    loader._fastest.record = lambda way, seconds: found.append(way)  # type: ignore[method-assign]
    for place, _ in enumerate(loader):
        if place == 19:
            break
    assert found == [CoreSplit(0, 0)] * 17  # the last was let go before it was measured


@pytest.mark.parametrize("slow", [CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4)])
def test_few_batches_go_by_under_a_slow_way(slow: CoreSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that fill the queue, three that are measured and what was begun by then; no batch is made twice."""
    clock = _Clock()
    monkeypatch.setattr(epochs_module, "time", clock)
    ds = synthetic("default", scale=0.3)
    loader = Loader(ds, fanouts=[2], batch_size=2)
    loader._fastest = FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4)])
    make, made = loader.make, list[int]()
    monkeypatch.setattr(loader, "make", lambda places, epoch: made.append(int(places[0])) or make(places, epoch))
    under, seen, stays = dict.fromkeys(loader._fastest.ways, 0), list[torch.Tensor](), list[CoreSplit]()
    init = epochs_module._Stay.__init__
    monkeypatch.setattr(
        epochs_module._Stay, "__init__", lambda stay, choice: (init(stay, choice), stays.append(stay.way))[0]
    )
    for batch in loader:
        under[stays[-1]] += 1
        clock.now += 2.0 if stays[-1] == slow else 1.0
        seen.append(batch.n_id)
    assert loader._fastest.settled and loader.way != slow
    assert under[slow] <= 2 + 3 + slow.ahead
    assert sorted(made) == sorted(set(made)) and len(made) == len(loader)
    plain = [batch.n_id for batch in Loader(ds, fanouts=[2], batch_size=2, prefetch=0)]
    assert all(map(torch.equal, seen, plain)) and len(seen) == len(plain)


def test_a_thread_that_prepares_runs_its_loops_alone() -> None:
    pipeline = Pipeline(lambda _: torch.get_num_threads(), 0, 4, workers=2, ahead=4)
    assert list(pipeline) == [1] * 4
    pipeline.close()


class _Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_what_the_model_waits_for_batches_is_counted_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch prepared when asked for is waited for as long as it takes; the model's own time is no waiting."""
    clock = _Clock()
    monkeypatch.setattr(epochs_module, "time", clock)
    loader = Loader(synthetic("default", scale=0.1), fanouts=[2], batch_size=8, prefetch=0)
    make = loader.make

    def slowly(places: torch.Tensor, epoch: int) -> Any:
        clock.now += 3.0
        return make(places, epoch)

    monkeypatch.setattr(loader, "make", slowly)
    for _ in range(2):
        for _ in loader:
            clock.now += 7.0
    assert loader.stall_seconds == 3.0 * 2 * len(loader)


def test_what_lies_ready_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, made = _Clock(), threading.Semaphore(0)
    monkeypatch.setattr(epochs_module, "time", clock)
    loader = Loader(synthetic("default", scale=0.1), fanouts=[2], batch_size=8, prefetch=1000, workers=1)
    make = loader.make

    def slowly(places: torch.Tensor, epoch: int) -> Any:
        clock.now += 3.0  # by the one thread that prepares
        batch = make(places, epoch)
        made.release()
        return batch

    monkeypatch.setattr(loader, "make", slowly)
    batches = iter(loader)
    next(batches)
    for _ in range(len(loader)):
        assert made.acquire(timeout=60)
    waited = loader.stall_seconds  # for the first batch, and what else was prepared before it was asked for
    assert waited > 0
    for _ in batches:
        clock.now += 7.0
    assert loader.stall_seconds == waited


@pytest.mark.parametrize("busy", [False, True])
def test_one_thread_beside_a_caller_that_only_waits_is_not_tried(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(epochs_module, "time", clock)
    loader = Loader(synthetic("default", scale=0.3), fanouts=[2], batch_size=2)
    loader._fastest = FastestChoice([CoreSplit(0, 0), CoreSplit(1, 2), CoreSplit(2, 4)])
    make = loader.make

    def made(places, epoch):
        clock.now += 1.0
        return make(places, epoch)

    monkeypatch.setattr(loader, "make", made)
    for _ in loader:
        clock.now += 0.5 if busy else 0.01
        if loader._fastest.settled:
            break
    assert (CoreSplit(1, 2) in loader.ways) == busy
    assert CoreSplit(2, 4) in loader.ways
