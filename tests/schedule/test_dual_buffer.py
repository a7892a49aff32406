"""Batches shared out between two places: closed form, buffers, simulated epochs, rules, feedback."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from graphweft._errors import ConfigError, GraphWeftError, UnsteadyWarning
from graphweft.schedule.dual_buffer import Span, Timeline, simulate
from graphweft.schedule.feedback import MOST_ROUNDS, Partitioner, Scheduler, choose, explain
from graphweft.schedule.operators import Operators
from graphweft.schedule.profiler import Profiler
from graphweft.schedule.rules import check_schedule
from graphweft.schedule.run import Executor
from graphweft.schedule.split import Plan, Profile, best_ratio, buffers, epoch_seconds, least_seconds

# MorphGL, tables VII and X: sizes of the CPU's and the device's buffer
PRINTED = [(15, 10), (5, 10), (11, 10), (20, 10), (8, 10), (24, 10), (30, 10), (12, 10), (28, 10)]
PRINTED += [(10, 8), (7, 10), (5, 10)]


def drawn(seed: int) -> Profile:
    """Times over four orders of magnitude; on every other seed the device prepares as paper machines do."""
    rng = random.Random(seed)
    times = [10 ** rng.uniform(-2, 2) for _ in range(4)]
    if seed % 2:
        times[1] = times[2] * rng.uniform(1.0, 2.0)  # preparing on the device reads what sending sends
    return Profile(*times)


def test_the_closed_form_is_the_minimum_of_a_grid() -> None:
    """Over shares, in NumPy, from the three lines written out again; 10,000 profiles."""
    share = np.linspace(0.0, 1.0, 2001)
    for seed in range(10_000):
        profile = drawn(seed)
        cpu, device, send, model = profile.cpu_batch, profile.device_batch, profile.send, profile.model
        grid = np.maximum(np.maximum(share * cpu, share * send + (1 - share) * device), model + (1 - share) * device)
        found = epoch_seconds(profile, best_ratio(profile))
        assert found <= grid.min() * (1 + 1e-12)
        if cpu > model and device >= send:  # equation 6, where the printed closed form holds
            x = best_ratio(profile)
            printed = x * device / (1 + x) + max(send / (1 + x), model, (cpu - x * device) / (1 + x))
            assert math.isclose(found, printed, rel_tol=1e-9)


@pytest.mark.parametrize(("cpu", "device"), PRINTED)
def test_the_printed_buffers_follow_from_their_ratios(cpu: int, device: int) -> None:
    assert buffers(device / cpu, device) == Plan(cpu, device)


def test_the_ends_are_one_side_alone() -> None:
    assert buffers(math.inf) == Plan(0, 10) and buffers(0.0) == Plan(10, 0) and buffers(99.0) == Plan(1, 10)
    assert best_ratio(Profile(0.1, 1.0, 0.1, 1.0)) == 0.0  # the model takes longest: a plain pipeline
    assert epoch_seconds(Profile(3.0, 1.0, 1.0, 1.0), math.inf) == 2.0
    found = choose(Profile(0.1, 9.0, 0.1, 1.0), 50)
    assert found.plan == Plan(10, 0) and [plan for plan, _ in found.tried] == [Plan(10, 0), Plan(0, 10)]
    assert choose(Profile(900.0, 0.5, 0.1, 1.0), 50).plan.mode == "device"
    with pytest.raises(ConfigError, match="expected seconds > 0, got 0"):
        Profile(0, 1, 1, 1)


PLANS = (Plan(3, 2), Plan(1, 4), Plan(5, 0), Plan(0, 3), Plan(2, 2, 3), Plan(1, 1), Plan(15, 10))


def test_no_batch_is_lost_or_trained_twice_for_any_remainder() -> None:
    for plan in PLANS:
        for batches in range(2 * (plan.cpu + plan.device + plan.extra) + 2):
            for seed in range(4):
                line = simulate(drawn(seed), plan, batches)
                assert line.trained() == list(range(batches)), (plan, batches, seed)
                check_schedule(line.spans, plan, batches)


def test_10000_random_delays_break_no_rule_and_block_nothing_for_ever() -> None:
    """And change neither the order of training nor who prepares a batch: both follow from the plan."""
    for seed in range(10_000):
        rng = random.Random(seed)
        device = rng.randint(0, 6)
        cpu = rng.randint(0 if device else 1, 6)
        plan, batches = Plan(cpu, device, rng.randint(0, 4) if device else 0), rng.randint(0, 30)
        line = simulate(drawn(seed), plan, batches, lambda step, batch, r=rng: 10 ** r.uniform(-3, 1))
        assert line.trained() == list(range(batches))
        assert [span.route for span in line.spans if span.step == "model"] == plan.routes(batches)
        check_schedule(line.spans, plan, batches)


def test_the_phases_follow_from_the_plan() -> None:
    """Written out by hand from algorithms 1 to 4: rounds of 2 + 1 batches by the device and 2 by the CPU, then 3."""
    line = simulate(Profile(1.0, 1.0, 0.5, 0.5), Plan(2, 2, 1), 8)
    assert line.phases == [
        *(("filling", 0, 0), ("blocking", 0, 0), ("flushing", 0, 1)),
        *(("filling", 1, 5), ("drain", 1, 5)),
    ]
    device = [(span.step, span.batch) for span in line.spans if span.place == "device"]
    fill, block = [("device_batch", 0), ("device_batch", 1)], [("model", 0), ("device_batch", 2)]
    assert device[:4] == fill + block and device[4:8] == [("model", batch) for batch in (1, 2, 3, 4)]
    assert Plan(2, 2, 1).routes(8) == ["device"] * 3 + ["cpu"] * 2 + ["device"] * 2 + ["cpu"]


def test_sending_goes_on_beside_training_and_the_cpu_beside_both() -> None:
    profile = Profile(1.5, 2.0, 0.5, 0.5)
    line = simulate(profile, choose(profile, 200).plan, 200)
    sends = [span for span in line.spans if span.step == "send"]
    trains = [(span.begin, span.end) for span in line.spans if span.step == "model"]
    beside = sum(max(0.0, min(s.end, e) - max(s.begin, b)) for s in sends for b, e in trains)
    assert beside > 0.8 * sum(s.end - s.begin for s in sends)
    assert line.busy("cpu") > 0.9 and line.busy("device") > 0.9


def test_no_epoch_is_shorter_than_the_bound_or_longer_than_its_multiple() -> None:
    """The published factor is 3 + PCIe over device bandwidth; 3.1 for hardware of today. 10,000 epochs under a plan."""
    for seed in range(10_000):
        profile, batches = drawn(seed), 40
        least, plan = least_seconds(profile, batches), Partitioner(profile)(None, None)
        seconds = simulate(profile, plan, batches).seconds
        first = 2 * (profile.cpu_batch + profile.device_batch + profile.send + profile.model)
        assert least * (1 - 1e-9) <= seconds
        if seed % 2 and profile.cpu_batch > max(profile.send, profile.model):  # what the theorem assumes
            assert seconds <= 3.1 * least + first, (seed, plan)


def test_feedback_is_close_to_the_bound_on_long_epochs() -> None:
    for seed in range(300):
        profile, batches = drawn(seed), 200
        least, best = least_seconds(profile, batches), choose(profile, batches)
        assert least * (1 - 1e-9) <= best.seconds <= 1.1 * least


def test_feedback_ends_and_never_ends_worse_than_it_began() -> None:
    for seed in range(1000):
        profile = drawn(seed)
        found = choose(profile, 40)
        assert found.seconds <= found.tried[0][1] and len(found.tried) <= MOST_ROUNDS
        assert found.tried[0][0] == Partitioner(profile)(None, None)
        assert found.seconds == min(seconds for _, seconds in found.tried)
        assert simulate(profile, found.plan, 40).seconds == found.seconds


def test_feedback_of_real_epochs_tries_no_neighbours_and_keeps_the_best() -> None:
    """A machine other than its profile: the plan that ends up is the best of those that were run."""
    profile, real = Profile(4.0, 2.0, 1.0, 1.0), Profile(8.0, 2.0, 1.0, 1.0)
    ran = []

    def run(plan: Plan) -> Timeline:
        ran.append(plan)
        return simulate(real, plan, 60)

    found = choose(profile, 60, run=run)
    assert found.seconds == min(simulate(real, plan, 60).seconds for plan in ran) and len(set(ran)) == len(ran)
    assert found.plan.cpu < 10 == found.tried[0][0].cpu and found.seconds < found.tried[0][1]


@pytest.mark.parametrize("times", [(1.5, 2.0, 0.5, 0.5), (4.0, 1.0, 0.4, 0.6), (3.0, 2.5, 1.0, 0.8)])
def test_sharing_beats_either_side_alone_and_halves(times: tuple[float, ...]) -> None:
    """Many cores, few cores, and between."""
    profile, batches = Profile(*times), 400
    found = choose(profile, batches)
    others = [simulate(profile, plan, batches).seconds for plan in (Plan(10, 0), Plan(0, 10), Plan(10, 10))]
    assert found.seconds < min(others[:2]) and found.seconds <= others[2]
    assert "by the CPU" in explain(profile, batches) and "never below" in explain(profile, batches, found)


def mutants(spans: list[Span], plan: Plan) -> dict[str, list[Span]]:
    """Schedules that are wrong, one way each."""
    change = dataclasses.replace
    first = {step: next(i for i, s in enumerate(spans) if s.step == step) for step in ("cpu_batch", "send", "model")}
    own = next(i for i, s in enumerate(spans) if s.step == "device_batch")

    def but(at: int, **changes: object) -> list[Span]:
        return [change(s, **changes) if i == at else s for i, s in enumerate(spans)]  # type: ignore[arg-type]

    found = {f"{step} left out": [s for i, s in enumerate(spans) if i != at] for step, at in first.items()}
    found |= {f"{step} twice": [*spans, spans[at]] for step, at in first.items()}
    found |= {f"{step} elsewhere": but(at, place="nowhere") for step, at in first.items()}
    found |= {f"{step} backwards": but(at, begin=spans[at].end + 1) for step, at in first.items()}
    found |= {
        "model before it is there": but(first["model"], begin=-9.0, end=-8.0),
        "sent before prepared": but(first["send"], begin=-9.0, end=-8.0),
        "all on one link at once": [change(s, begin=0.0, end=9e9) if s.step == "send" else s for s in spans],
        "route of another": but(own, route="cpu"),
        "batch of another": but(own, batch=spans[first["cpu_batch"]].batch),
        "number out of range": but(first["model"], batch=99),
        "device at two things": but(own, begin=-9.0, end=9e9),
        "trained before the one before it": [change(s, batch={4: 5, 5: 4}.get(s.batch, s.batch)) for s in spans],
        "no spans": [],
    }
    return found


def test_the_rules_find_every_mutant() -> None:
    profile, plan = Profile(1.5, 2.0, 0.5, 0.5), Plan(3, 2)
    spans = simulate(profile, plan, 20).spans
    check_schedule(spans, plan, 20)
    wrong = mutants(spans, plan)
    assert len(wrong) == 21
    for name, mutant in wrong.items():
        with pytest.raises(GraphWeftError, match="schedule: expected"):
            check_schedule(mutant, plan, 20)
            pytest.fail(name)
    for side in ("cpu", "device"):  # a side that prepares all of its batches at once
        early = [
            dataclasses.replace(s, begin=s.batch / 1000 - 9, end=s.batch / 1000 - 8.9999)
            if s.step == f"{side}_batch"
            else s
            for s in spans
        ]
        with pytest.raises(GraphWeftError, match=f"in the {side} buffer"):
            check_schedule(early, plan, 20)


def table_of(seconds: dict[str, float], now: list[float], spread: float = 0.0) -> Operators:
    """Operators that take time of a clock of their own."""
    table = Operators()
    for name, taken in seconds.items():
        wide = spread if name.startswith("batch_npu") else 0.0

        def work(batch: int, given: object, taken: float = taken, wide: float = wide) -> None:
            now[0] += taken * (1 + wide * (-1) ** batch)

        table.register(name)(work)
    return table


SECONDS = {"batch_cpu_x": 4.0, "batch_npu_x": 2.0, "send_npu_x": 1.0, "model_npu_x": 1.0}


def test_operators_join_by_name_and_are_measured_by_a_clock() -> None:
    now = [0.0]
    table = table_of(SECONDS, now, 0.5)
    profiler = Profiler(table, "npu", clock=lambda: now[0])
    with pytest.warns(UnsteadyWarning, match=r"Profiler: times of steps vary.*device_batch 0\.50"):
        profile = profiler.measure()
    assert (profile.cpu_batch, profile.device_batch, profile.send, profile.model) == (4.0, 2.0, 1.0, 1.0)
    assert profile.unsteady() == ["device_batch"] and "times vary: device_batch" in explain(profile, 10)
    assert profiler.seconds == 3 * 9.0 + 1.0 + 10 * 9.0  # three to warm up, whose device steps take 3, 1 and 3
    assert table.of("batch", "npu") == ["batch_npu_x"]
    with pytest.raises(ConfigError, match="expected phase_place_name"):
        table.register("train_gpu")
    with pytest.raises(ConfigError, match="expected one of batch_cpu_x"):
        table["batch_gpu_y"]
    with pytest.raises(ConfigError, match=r"expected one operator batch_gpu_\*, got none"):
        table.steps_of("gpu")
    table.register("model_npu_y")(lambda batch, given: None)
    with pytest.raises(ConfigError, match="got model_npu_x, model_npu_y"):
        Profiler(table, "npu")


def test_the_listing_of_the_paper() -> None:
    now = [0.0]
    operators = table_of(SECONDS, now)
    profile = Profiler(operators, "npu", clock=lambda: now[0]).measure()
    partitioner, scheduler = Partitioner(profile), Scheduler(profile, 40)
    feedback, plan, done = None, None, False
    while not done:
        plan = partitioner(feedback, plan)
        feedback, best, done = scheduler(plan)
    executor = Executor(operators, best, "npu")
    for _ in range(3):
        assert executor.run(40).trained() == list(range(40))
    assert best == scheduler.choice.plan and best.mode == "both"


def test_the_report_says_how_busy_every_place_was() -> None:
    line = simulate(Profile(4.0, 2.0, 1.0, 1.0), Plan(5, 10), 100)
    assert "100 batches (33 prepared by the cpu, 67 by the device) in" in line.report()
    work = {"cpu": 33 * 4.0, "link": 67 * 2.0 + 33 * 1.0, "device": 67 * 2.0 + 100 * 1.0}
    for place, seconds in work.items():
        assert line.busy(place) == pytest.approx(seconds / line.seconds)
    assert Timeline().seconds == 0.0 and Timeline().busy("cpu") == 0.0
