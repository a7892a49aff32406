"""Epochs with two buffers on real threads: order, routes, failures, shutdown."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from graphweft._errors import ConfigError
from graphweft.schedule.operators import Operators
from graphweft.schedule.rules import check_schedule
from graphweft.schedule.run import Executor, OperatorError
from graphweft.schedule.split import Plan

STEPS = ("batch_cpu_a", "batch_npu_a", "send_npu_a", "model_npu_a")


def traced(seed: int | None = None, fails: tuple[str, int] | None = None, failure: type = ValueError) -> Operators:
    """Operators that write down what they were given; with a seed each takes a random while."""
    table = Operators()
    rng = random.Random(seed)

    def made(name: str) -> Any:
        def operator(batch: int, given: str | None) -> str:
            if seed is not None:
                time.sleep(rng.choice((0.0, 0.0, 0.0002, 0.001)))
            if fails == (name, batch):
                raise failure("no more\nmemory")
            return f"{given or batch}>{name[:5]}"

        return operator

    for name in STEPS:
        table.register(name)(made(name))
    return table


def others() -> list[str]:
    """Threads of executors that still run."""
    return [thread.name for thread in threading.enumerate() if thread.name in ("graphweft-cpu", "graphweft-link")]


@pytest.mark.parametrize("seed", range(40))
def test_real_threads_train_every_batch_once_in_the_order_of_the_plan(seed: int) -> None:
    rng = random.Random(seed)
    device = rng.randint(0, 5)
    plan = Plan(rng.randint(0 if device else 1, 5), device, rng.randint(0, 3) if device else 0)
    batches = rng.randint(0, 40)
    line = Executor(traced(seed), plan, "npu").run(batches)
    routes = plan.routes(batches)
    steps = {"cpu": "batch>send_>model", "device": "batch>model"}
    assert line.results == [f"{batch}>{steps[route]}" for batch, route in enumerate(routes)]
    check_schedule(line.spans, plan, batches)
    assert not others()


def test_the_rest_of_an_epoch_has_the_numbers_that_are_left() -> None:
    told: list[tuple[int, str]] = []
    executor = Executor(traced(), Plan(2, 3), "npu", on_trained=lambda batch, result: told.append((batch, result)))
    line = executor.run(10, first=4)
    assert [result.split(">")[0] for result in line.results] == ["4", "5", "6", "7", "8", "9"]
    assert told == list(zip(range(4, 10), line.results, strict=True))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("batch", [0, 3, 11, 19])
def test_a_failure_has_the_name_of_its_operator_and_ends_every_thread(step: str, batch: int) -> None:
    plan = Plan(2, 2)
    route = "cpu" if step in ("batch_cpu_a", "send_npu_a") else "device"
    if step != "model_npu_a" and plan.routes(20)[batch] != route:
        batch += 2
    if batch >= 20 or (step != "model_npu_a" and plan.routes(20)[batch] != route):
        batch = plan.routes(20).index(route)
    with pytest.raises(OperatorError, match=f"^{step}: batch {batch}: ValueError: no more memory$") as caught:
        Executor(traced(3, (step, batch)), plan, "npu").run(20)
    assert isinstance(caught.value.__cause__, ValueError) and not others()


def test_errors_of_ours_keep_their_words_and_interrupts_stay_what_they_are() -> None:
    with pytest.raises(OperatorError, match=r"^model_npu_a: batch 2: no more memory$"):
        Executor(traced(None, ("model_npu_a", 2), ConfigError), Plan(2, 2), "npu").run(20)
    with pytest.raises(KeyboardInterrupt):
        Executor(traced(None, ("model_npu_a", 2), KeyboardInterrupt), Plan(2, 2), "npu").run(20)

    def stop(batch: int, result: object) -> None:
        raise ConfigError("lr: expected another")

    with pytest.raises(ConfigError, match=r"^lr: expected another$"):  # not an operator's
        Executor(traced(), Plan(2, 2), "npu", on_trained=stop).run(20)
    assert not others()


def test_models_are_trained_by_the_caller_and_batches_prepared_beside() -> None:
    threads: dict[str, set[str]] = {}
    table = Operators()
    for name in STEPS:

        def operator(batch: int, given: Any, name: str = name) -> None:
            threads.setdefault(name, set()).add(threading.current_thread().name)

        table.register(name)(operator)
    Executor(table, Plan(2, 2), "npu").run(12)
    here = {threading.current_thread().name}
    assert threads["model_npu_a"] == threads["batch_npu_a"] == here
    assert threads["batch_cpu_a"] == {"graphweft-cpu"} and threads["send_npu_a"] == {"graphweft-link"}


def test_the_cpu_does_not_prepare_beyond_its_buffer() -> None:
    """Nor does anything hold a batch that was trained."""
    held, most, lock = [0], [0], threading.Lock()
    table = traced(7)
    prepare, send = table["batch_cpu_a"], table["send_npu_a"]

    def change(by: int) -> None:
        with lock:
            held[0] += by
            most[0] = max(most[0], held[0])

    @table.register("batch_cpu_a")
    def _(batch: int, given: Any) -> Any:
        change(1)
        return prepare(batch, given)

    @table.register("send_npu_a")
    def _(batch: int, given: Any) -> Any:
        made = send(batch, given)
        change(-1)
        return made

    Executor(table, Plan(3, 2), "npu").run(50)
    assert most[0] == 3 and held[0] == 0
