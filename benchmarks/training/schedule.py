"""Batches shared out between the CPU and an emulated device, on the proportions of the paper's machines A, B and C.

    python benchmarks/training/schedule.py --seconds 3
    python benchmarks/training/schedule.py --machines A --data PA

A SAGE is really trained, its batches really sampled, on both sides; each step then takes at least as long as the
machine that is emulated. How long that is follows from the tables of MorphGL: SALIENT's epoch is the CPU's sampling,
DUCATI's is the device's sampling and the model, and what sharing out by the printed buffers saves of it is the device's
sampling of the CPU's share; sending is the link's use in SALIENT's epoch on machine B, which all machines are taken to
have. ``--seconds`` is how long an epoch is in which the device does everything.

A run of an epoch is that of the trainer with ``schedule=``: all by the CPU, all by the device, halves, and the plan
that it measures and chooses by itself. All four must have the same loss, bit for bit. Columns: ``measured_s`` and
``predicted_s``, the simulation of the profile that was measured; ``times_ours``, the epoch over that of the chosen
plan, beside ``paper_times``; ``prepare_epochs``, measuring and choosing over the epoch, start of the process not
counted; ``longer``, the step that took longest against its machine over that; ``repeat``, by how much the means of a
second profile differ at most; ``largest_variation``, of a step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import RESULTS, BenchError, show, stamp, write_csv

import graphweft as gw
from graphweft.schedule.dual_buffer import simulate
from graphweft.schedule.emulated import Link, Speed
from graphweft.schedule.profiler import Profiler
from graphweft.schedule.split import STEPS, Plan, Profile, least_seconds
from graphweft.train.scheduled import ScheduledMiniBatch


class Printed(NamedTuple):
    """Seconds an epoch of SALIENT, DUCATI and MorphGL (table V, GraphSAGE), and MorphGL's buffers (table VII)."""

    salient: float
    ducati: float
    morphgl: float
    cpu: int
    device: int


PRINTED = {
    ("A", "PA"): Printed(29.12, 22.75, 17.02, 15, 10),
    ("A", "TW"): Printed(10.89, 16.69, 10.33, 20, 10),
    ("A", "UK"): Printed(18.62, 35.59, 16.62, 30, 10),
    ("B", "PA"): Printed(53.63, 20.44, 19.40, 5, 10),
    ("B", "TW"): Printed(19.34, 14.11, 10.14, 8, 10),
    ("B", "UK"): Printed(33.40, 30.49, 21.24, 12, 10),
    ("C", "PA"): Printed(56.58, 38.30, 31.57, 11, 10),
    ("C", "TW"): Printed(22.27, 26.04, 19.22, 24, 10),
    ("C", "UK"): Printed(38.33, 51.47, 34.65, 28, 10),
}
SENDING = {"PA": 0.261, "TW": 0.394, "UK": 0.343}  # of SALIENT's epoch on machine B: table VI, PCIe
WAYS: dict[str, str | Plan] = {"cpu": "cpu", "device": "device", "halves": Plan(10, 10), "chosen": "auto"}


def proportions(machine: str, data: str) -> dict[str, float]:
    """Seconds an epoch of every step, if it took all batches.

    Example:
        >>> {step: round(seconds, 1) for step, seconds in proportions("A", "PA").items()}
        {'cpu_batch': 29.1, 'device_batch': 9.5, 'send': 14.0, 'model': 13.2}
    """
    row = PRINTED[machine, data]
    own = (row.ducati - row.morphgl) * (row.cpu + row.device) / row.cpu
    send = SENDING[data] * PRINTED["B", data].salient
    return {"cpu_batch": row.salient, "device_batch": own, "send": send, "model": row.ducati - own}


def run(share: str | Plan, ds: Any, steps: dict[str, float], batch_size: int) -> tuple[gw.Trainer, ScheduledMiniBatch]:
    """A trainer after one epoch under a schedule, on a machine whose steps take so long."""
    link, times = Link(latency=steps["send"]), {"sampling": Speed(least=steps["device_batch"])}
    cores = (max(os.sched_getaffinity(0)),)
    device = gw.schedule.EmulatedDevice(cores, link, model=Speed(least=steps["model"]), uncached=0.0, **times)
    torch.manual_seed(0)
    model = gw.nn.SAGE(ds.num_features, 16, ds.num_classes)
    drawn: dict[str, Any] = {"fanouts": (10, 5), "batch_size": batch_size}
    trainer = gw.Trainer(
        model, ds, mode="mini", schedule=gw.schedule.Schedule(device, share), eval_every=10**6, **drawn
    )
    batch = trainer._batch
    assert isinstance(batch, ScheduledMiniBatch)
    make = batch.loader.make

    def slowly(places: torch.Tensor, epoch: int) -> Any:
        begin = time.perf_counter()
        made = make(places, epoch)
        while (left := begin + steps["cpu_batch"] - time.perf_counter()) > 0:
            time.sleep(left)
        return made

    batch.loader.make = slowly  # type: ignore[method-assign, assignment]
    trainer.fit(1)
    return trainer, batch


def repeated(batch: ScheduledMiniBatch) -> float:
    """By how much the means of a second profile differ from the first, at most."""
    assert batch.profile is not None
    again = Profiler(batch._operators, "emulated", 20, warm=5).measure_beside(len(batch.loader))
    return max(abs(getattr(again, step) / getattr(batch.profile, step) - 1) for step in STEPS)


def cell(machine: str, data: str, seconds: float, ds: Any, batch_size: int) -> list[dict[str, Any]]:
    """Rows of one machine and one of the paper's graphs."""
    printed, whole = PRINTED[machine, data], proportions(machine, data)
    batches = -(-ds.train_idx.numel() // batch_size)
    steps = {step: taken * seconds / printed.ducati / batches for step, taken in whole.items()}
    rows, losses, profile = [], {}, Profile(**steps)
    for way, share in reversed(WAYS.items()):  # the chosen one first: it measures the profile
        trainer, batch = run(share, ds, steps, batch_size)
        assert batch.line is not None and batch.plan is not None
        more: dict[str, Any] = {"repeat": "", "largest_variation": "", "prepare_epochs": ""}
        if way == "chosen":
            assert batch.profile is not None
            profile, plan = batch.profile, batch.plan
            measuring = batch.choose_seconds
            more["repeat"] = round(repeated(batch), 4)
            more["largest_variation"] = round(max(profile.variation.values()), 4)
            more["prepare_epochs"] = round(measuring / batch.line.seconds, 2)
            ours = batch.line.seconds
            show_choice = batch.scheduled().splitlines()[0]
        losses[way] = trainer.history[-1].loss
        predicted = simulate(profile, batch.plan, batches).seconds
        paper = {"cpu": printed.salient, "device": printed.ducati, "chosen": printed.morphgl}.get(way)
        rows.append(
            {
                **{"machine": machine, "data": data, "way": way, "batches": batches},
                **{f"{step}_ms": round(1e3 * taken, 3) for step, taken in steps.items()},
                "longer": round(max(getattr(profile, step) / taken for step, taken in steps.items()), 3),
                **{"cpu": batch.plan.cpu, "device": batch.plan.device, "extra": batch.plan.extra},
                **{"measured_s": round(batch.line.seconds, 3), "predicted_s": round(predicted, 3)},
                "off": round(predicted / batch.line.seconds - 1, 4),
                "bound_s": round(least_seconds(profile, batches), 3),
                "times_ours": round(batch.line.seconds / ours, 3),
                "paper_times": "" if paper is None else round(paper / printed.morphgl, 3),
                **{f"{place}_busy": round(batch.line.busy(place), 3) for place in ("cpu", "link", "device")},
                **more,
            }
        )
        batch.close()
    if len(set(losses.values())) != 1:
        raise BenchError(f"{machine} {data}: expected one loss of all ways, got {losses}")
    sys.stdout.write(f"{machine} {data}: {show_choice}; {plan.shown()}, printed {printed.cpu} and {printed.device}\n")
    return rows


def main() -> None:
    """Runs the cells that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--machines", default="A,B,C")
    parser.add_argument("--data", default="PA,TW,UK")
    parser.add_argument("--seconds", type=float, default=3.0, help="of an epoch in which the device does everything")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS / "schedule.csv")
    given = parser.parse_args()
    ds = gw.synthetic("arxiv", scale=0.02)
    rows = []
    for machine in given.machines.split(","):
        for data in given.data.split(","):
            rows += cell(machine, data, given.seconds, ds, given.batch_size)
    write_csv(given.out, [{**row, **stamp(torch.get_num_threads())} for row in rows])
    columns = ["machine", "data", "way", "cpu", "device", "extra", "measured_s", "predicted_s", "off", "times_ours"]
    show("epochs by who prepares the batches", rows, [*columns, "paper_times", "cpu_busy", "link_busy", "device_busy"])
    worst = max(abs(row["off"]) for row in rows)
    sys.stdout.write(f"simulation off by at most {100 * worst:.1f} %\n")


if __name__ == "__main__":
    main()
