"""The emulated device: what goes there and comes back, its link and speeds, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_work import Rows

from graphweft._errors import ConfigError, GraphWeftError
from graphweft.schedule.emulated import EmulatedDevice, Link, OpenDevice, Speed
from graphweft.schedule.operators import Operators
from graphweft.schedule.packing import lay_out, pack, unpack
from graphweft.schedule.rules import check_schedule
from graphweft.schedule.run import Executor, OperatorError
from graphweft.schedule.split import Plan
from graphweft.storage.feature import SparseFeatures

TABLE = torch.arange(400.0).reshape(40, 10)


@pytest.fixture
def opened() -> Iterator[OpenDevice]:
    device = EmulatedDevice().open(Rows, {"table": TABLE}, {"table": TABLE})
    yield device
    device.close()


def operators(opened: OpenDevice) -> Operators:
    """Those of the device, and one of the CPU that makes the same batches."""
    table = Operators()
    opened.register(table)
    table.register("batch_cpu_rows")(lambda batch, _: {"row": TABLE[batch].clone(), "of": TABLE, "by": "cpu"})
    return table


def test_both_routes_train_the_same_in_the_order_of_the_plan(opened: OpenDevice) -> None:
    """The sum that training makes depends on its order; it is computed here by itself."""
    table = operators(opened)
    total, sums = torch.zeros(10), []
    for plan in (Plan(3, 5), Plan(4, 0), Plan(0, 4), Plan(1, 2, 3)):
        line = Executor(table, plan, "emulated").run(40)
        check_schedule(line.spans, plan, 40)
        for batch in range(40):
            total = total * 0.5 + TABLE[batch]
            sums.append(float(total.sum()))
        assert [by for by, _ in line.results] == plan.routes(40)
        assert [value for _, value in line.results] == sums[-40:]
    order, state = opened.call("state")
    assert order == [*range(40)] * 4 and torch.equal(state, total)
    by_cpu = sum(plan.routes(40).count("cpu") for plan in (Plan(3, 5), Plan(4, 0), Plan(1, 2, 3)))
    assert opened.bytes == 40 * by_cpu  # ten floats a batch; the table goes by name


def test_a_failure_there_is_an_error_here_and_the_device_goes_on() -> None:
    device = EmulatedDevice().open(Rows, {"table": TABLE, "fails_at": 3}, {"table": TABLE})
    with pytest.raises(OperatorError, match=r"^model_emulated_train: batch 3: ValueError: no batch 3 today$"):
        Executor(operators(device), Plan(2, 2), "emulated").run(20)
    assert device.call("state")[0] == [0, 1, 2]
    device.close()


def test_a_device_that_dies_is_named_and_nothing_waits_for_it() -> None:
    device = EmulatedDevice().open(Rows, {"table": TABLE}, {"table": TABLE})
    with pytest.raises(GraphWeftError, match=r"^emulated: expected the device's process .*, got one that ended with"):
        device.call("die")
    with pytest.raises(OperatorError, match="batch_emulated_prepare: batch 0: emulated: expected the device's process"):
        Executor(operators(device), Plan(2, 2), "emulated").run(20)
    device.close()
    assert device._process.returncode == 7


def test_work_that_cannot_be_sent_or_made_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^emulated: expected work that pickle can send to a process, got .*lambda"):
        EmulatedDevice().open(lambda given: None, None, {})  # type: ignore[arg-type,return-value]
    with pytest.raises(GraphWeftError, match=r"^KeyError: 'table'$"):
        EmulatedDevice().open(Rows, {}, {})


def test_closing_ends_the_process_and_leaves_nothing() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    device = EmulatedDevice().open(Rows, {"table": TABLE}, {"table": TABLE})
    Executor(operators(device), Plan(2, 2), "emulated").run(9)
    device.close()
    assert device._process.returncode == 0 and len(list(Path("/proc/self/fd").iterdir())) == before
    device.close()  # twice does no harm


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processors are chosen on Linux only")
def test_the_process_runs_on_its_own_cores() -> None:
    core = max(os.sched_getaffinity(0))
    device = EmulatedDevice(cores=(core,)).open(Rows, {"table": TABLE}, {"table": TABLE})
    assert os.sched_getaffinity(device._process.pid) == {core}
    device.close()
    with pytest.raises(ConfigError, match=r"^cores: expected some of"):
        EmulatedDevice(cores=(4096,))


def test_steps_take_no_less_than_the_link_and_the_speeds_say(opened: OpenDevice) -> None:
    """Only bounds from below: a machine may always be slower."""
    link = Link(bandwidth=20_000.0, latency=0.002)
    slow = EmulatedDevice(link=link, sampling=Speed(least=0.003), model=Speed(least=0.004))
    device = slow.open(Rows, {"table": TABLE}, {"table": TABLE})
    line = Executor(operators(device), Plan(2, 2), "emulated").run(12)
    device.close()
    least = {"send": link.seconds(40), "device_batch": link.seconds(40), "model": 0.004, "cpu_batch": 0.0}
    assert link.seconds(40) == 0.004
    for span in line.spans:
        assert span.end - span.begin >= least[span.step]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Speed(0.5), "speed: expected times >= 1"),
        (lambda: Speed(1.0, -1.0), "least >= 0"),
        (lambda: Link(0.0), "link: expected bandwidth > 0"),
        (lambda: Link(1.0, float("nan")), "latency >= 0"),
    ],
)
def test_speeds_that_are_none_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (4, 3)])
def test_tensors_arrive_as_they_were(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = (torch.randn(shape, dtype=torch.float64) * 9).to(dtype)
    across = torch.arange(12.0).reshape(3, 4).t()
    leaf = torch.ones(2, requires_grad=True)
    sparse = SparseFeatures.from_dense(torch.eye(3))
    head, buffers = pack({"values": values, "across": across, "sparse": sparse, "leaf": leaf})
    places, size = lay_out(buffers)
    memory = bytearray(size)
    for (begin, count), buffer in zip(places, buffers, strict=True):
        memory[begin : begin + count] = buffer
    found = unpack(head, [memoryview(memory)[begin : begin + count] for begin, count in places])
    assert found["values"].dtype == dtype and torch.equal(found["values"], values)
    assert torch.equal(found["across"], across) and torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert found["leaf"].requires_grad and not found["across"].requires_grad
    assert all(begin % 64 == 0 for begin, _ in places)
