"""Times of steps: one at a time by a clock of our own, and beside each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from graphweft._errors import ConfigError
from graphweft.schedule.operators import Operators
from graphweft.schedule.profiler import Profiler

pytestmark = pytest.mark.filterwarnings("ignore::graphweft._errors.UnsteadyWarning")
STEPS = ("batch_cpu_a", "batch_npu_a", "send_npu_a", "model_npu_a")


def counting(seen: dict[str, list[int]]) -> Operators:
    table = Operators()
    for name in STEPS:

        def operator(batch: int, given: Any, name: str = name) -> str:
            with LOCK:
                seen.setdefault(name, []).append(batch)
            return name

        table.register(name)(operator)
    return table


LOCK = threading.Lock()


def test_one_at_a_time_every_batch_takes_both_routes_and_the_first_are_not_counted() -> None:
    seen: dict[str, list[int]] = {}
    now = iter(float(tick * tick) for tick in range(10_000))  # every look at the clock takes longer
    profile = Profiler(counting(seen), "npu", batches=4, warm=2, clock=lambda: next(now)).measure()
    assert seen["batch_cpu_a"] == seen["batch_npu_a"] == seen["send_npu_a"] == [0, 1, 0, 1, 2, 3]
    assert seen["model_npu_a"] == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3]
    ticks = [21 + 10 * batch for batch in range(4)]  # begin of the counted batches; a step is two looks, squares apart
    assert profile.cpu_batch == pytest.approx(sum(2 * tick + 1 for tick in ticks) / 4)
    assert profile.send == pytest.approx(sum(2 * (tick + 2) + 1 for tick in ticks) / 4)


def test_beside_each_other_each_batch_takes_one_route() -> None:
    seen: dict[str, list[int]] = {}
    profiler = Profiler(counting(seen), "npu", batches=6, warm=2)
    profile = profiler.measure_beside(1000)
    assert sorted(seen["batch_cpu_a"] + seen["batch_npu_a"]) == list(range(16)) == seen["model_npu_a"]
    assert len(seen["batch_cpu_a"]) == len(seen["batch_npu_a"]) == 8 and seen["send_npu_a"] == seen["batch_cpu_a"]
    assert min(profile.cpu_batch, profile.device_batch, profile.send, profile.model) > 0 and profiler.seconds > 0


def test_too_few_batches_for_both_routes_are_measured_one_at_a_time() -> None:
    seen: dict[str, list[int]] = {}
    Profiler(counting(seen), "npu", batches=1, warm=0).measure_beside(1)
    assert set(seen["batch_cpu_a"]) == {0} and seen["batch_npu_a"] == [0]
    with pytest.raises(ConfigError, match="expected at least 1 to measure"):
        Profiler(counting(seen), "npu", batches=0)
