"""Batches shared out between two places: closed form, buffers, simulated epochs, rules, feedback."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from graphweft._errors import ConfigError, GraphWeftError
from graphweft.schedule.dual_buffer import Span, Timeline, simulate
from graphweft.schedule.feedback import MOST_ROUNDS, choose, explain
from graphweft.schedule.operators import Operators, measure
from graphweft.schedule.rules import check_schedule
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
    assert choose(Profile(0.1, 9.0, 0.1, 1.0), 50).plan.mode == "cpu"
    assert choose(Profile(900.0, 0.5, 0.1, 1.0), 50).plan.mode == "device"
    with pytest.raises(ConfigError, match="expected seconds > 0, got 0"):
        Profile(0, 1, 1, 1)


def test_no_batch_is_lost_or_trained_twice_for_any_remainder() -> None:
    for plan in (Plan(3, 2), Plan(1, 4), Plan(5, 0), Plan(0, 3)):
        for batches in range(2 * (plan.cpu + plan.device) + 2):
            for seed in range(4):
                line = simulate(drawn(seed), plan, batches)
                assert sorted(line.trained()) == list(range(batches)), (plan, batches, seed)
                check_schedule(line.spans, plan, batches)


def test_random_delays_break_no_rule_and_block_nothing_for_ever() -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        plan, batches, profile = Plan(rng.randint(0, 6), rng.randint(1, 6)), rng.randint(0, 30), drawn(seed)
        line = simulate(profile, plan, batches, lambda step, batch, r=rng: 10 ** r.uniform(-3, 1))
        assert sorted(line.trained()) == list(range(batches))
        check_schedule(line.spans, plan, batches)


def test_no_epoch_is_shorter_than_the_bound_or_longer_than_its_multiple() -> None:
    """The published factor is 3 + PCIe over device bandwidth; 3.1 for hardware of today."""
    for seed in range(1, 500, 2):
        profile, batches = drawn(seed), 60
        least = least_seconds(profile, batches)
        best = choose(profile, batches)
        assert best.seconds >= least * (1 - 1e-9)
        assert best.seconds <= 3.1 * least + 2 * (profile.cpu_batch + profile.device_batch + profile.model)


def test_feedback_ends_and_never_ends_worse_than_it_began() -> None:
    for seed in range(300):
        profile = drawn(seed)
        found = choose(profile, 40)
        assert found.seconds <= found.tried[0][1] and len(found.tried) <= MOST_ROUNDS + 2
        assert found.seconds == min(seconds for _, seconds in found.tried)
        assert simulate(profile, found.plan, 40).seconds == found.seconds


@pytest.mark.parametrize("times", [(1.5, 2.0, 0.5, 0.5), (4.0, 1.0, 0.4, 0.6), (3.0, 2.5, 1.0, 0.8)])
def test_sharing_beats_either_side_alone_and_halves(times: tuple[float, ...]) -> None:
    """Proportions as of the paper's machines A, B and C: many cores, few cores, and between."""
    profile, batches = Profile(*times), 400
    found = choose(profile, batches).seconds
    others = [simulate(profile, plan, batches).seconds for plan in (Plan(10, 0), Plan(0, 10), Plan(10, 10))]
    assert found < min(others[:2]) and found <= others[2]
    assert "by the CPU" in explain(profile, batches)


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
        "no spans": [],
    }
    return found


def test_the_rules_find_every_mutant() -> None:
    profile, plan = Profile(1.5, 2.0, 0.5, 0.5), Plan(3, 2)
    spans = simulate(profile, plan, 20).spans
    check_schedule(spans, plan, 20)
    wrong = mutants(spans, plan)
    assert len(wrong) == 20
    for name, mutant in wrong.items():
        with pytest.raises(GraphWeftError, match="schedule: expected"):
            check_schedule(mutant, plan, 20)
            pytest.fail(name)
    with pytest.raises(GraphWeftError, match="in the cpu buffer"):
        check_schedule(spans, Plan(1, 2), 20)


def test_operators_join_by_name_and_are_measured_by_a_clock() -> None:
    table, now = Operators(), [0.0]

    def work(seconds: float, spread: float) -> object:
        def operator(batch: int) -> None:
            now[0] += seconds * (1 + spread * (-1) ** batch)

        return operator

    for name, seconds, spread in (("batch_cpu_x", 4.0, 0.0), ("batch_npu_x", 2.0, 0.5), ("send_link_x", 1.0, 0.0)):
        table.register(name)(work(seconds, spread))  # type: ignore[arg-type]
    table.register("model_npu_x")(work(1.0, 0.0))  # type: ignore[arg-type]
    steps = [table[name] for name in ("batch_cpu_x", "batch_npu_x", "send_link_x", "model_npu_x")]
    profile = measure(*steps, clock=lambda: now[0])
    assert (profile.cpu_batch, profile.device_batch, profile.send) == (4.0, 2.0, 1.0)
    assert profile.unsteady() == ["device_batch"] and "times vary: device_batch" in explain(profile, 10)
    assert table.of("batch", "npu") == ["batch_npu_x"]
    with pytest.raises(ConfigError, match="expected phase_place_name"):
        table.register("train_gpu")
    with pytest.raises(ConfigError, match="expected one of batch_cpu_x"):
        table["batch_gpu_y"]


def test_the_report_says_how_busy_every_place_was() -> None:
    line = simulate(Profile(4.0, 2.0, 1.0, 1.0), Plan(5, 10), 100)
    assert "100 batches in" in line.report() and 0 < line.busy("cpu") <= 1 and 0 < line.busy("device") <= 1
    assert Timeline().seconds == 0.0 and Timeline().busy("cpu") == 0.0
