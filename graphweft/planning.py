"""``gw.plan``: how a model would be trained on some data, before anything is trained.

Comes in: a model or a spec, data, a budget, a machine's profile. Goes out: a :class:`Plan`. Called by users and by the
command ``graphweft plan``. The trainer's mode "auto" takes the same decision by the same procedure.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any

from torch import nn

from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.data.load import load
from graphweft.data.stored import StoredDataset
from graphweft.model_of_spec import make_model
from graphweft.run import load_dataset, run_settings
from graphweft.runtime.machine import Machine
from graphweft.schedule.known_places import as_schedule, is_apart
from graphweft.storage.store import Store, is_store
from graphweft.train.device import on_device
from graphweft.train.embedding_task import for_loss
from graphweft.train.graph_task import for_rows
from graphweft.train.macro import as_macro
from graphweft.train.option_table import check_drawn
from graphweft.train.options import MODES, USUAL_BATCH, check_choice, check_fanouts, check_integer
from graphweft.train.plan import Considered, Plan
from graphweft.train.plan_in_memory import plan_in_memory
from graphweft.train.setup import Drawn
from graphweft.train.spec import TrainSpec
from graphweft.train.steps import PLANNED
from graphweft.train.stored_plan import StoredRun, stored_plan

Model = nn.Module | TrainSpec | str
Data = Dataset | Store | str | os.PathLike[str]


def plan(
    model: Model,
    data: Data | None = None,
    memory: int | str | None = None,
    machine: Machine | str | os.PathLike[str] | None = None,
    ranks: int = 1,
    *,
    mode: str = "auto",
    fanouts: Any = None,
    batch_size: int | None = None,
    macro: str | None = None,
    device: str | None = None,
    schedule: Any = "auto",
    epochs: int | None = None,
) -> Plan:
    """Plans how ``model`` is trained on ``data``: the mode, predicted seconds and memory, and the alternatives.

    Programs are compiled and one batch is drawn for its sizes, but nothing is trained, and ``model`` stays unchanged.
    ``print`` shows the plan as a table.

    Args:
        model: A model, the name of one ("gcn", "gat"), or a :class:`gw.TrainSpec` with its options.
        data: A dataset, a store, a known name or a path; None: the data of the spec.
        memory: Memory budget of the run, in bytes or as a text such as "8GB".
        machine: A profile, or its file from ``graphweft doctor --calibrate --out``; None: the profile of this machine.
        ranks: Number of processes to consider.
        mode: The mode to plan; "auto": the fastest mode that fits.
        fanouts: For mini-batches, as for :class:`gw.Trainer`.
        batch_size: For mini-batches, as for :class:`gw.Trainer`.
        macro: For a store, how groups are made, such as "parts:B/P"; None: "neighbours:auto" if mode "auto" uses
            groups. For data in memory, macro-batches of mode "mini", such as "large:1/8". One macro-batch and one of
            its batches are made to measure memory and seconds.
        device: For mode "mini", a device that takes batches, as for :class:`gw.Trainer`; it is started and measured.
        schedule: For mode "mini" with a device, where batches are prepared, as for :class:`gw.Trainer`.
        epochs: Planned number of epochs, for the choice of an order of the nodes; None: as in the spec, else unknown.

    Raises: ConfigError for an unknown model, an invalid size or a damaged profile; DataError for data that are not
    found; MemoryBudgetError if nothing fits, with the smallest sufficient budget.

    Example:
        >>> from graphweft.data.synthetic import synthetic
        >>> found = plan("gcn", synthetic("cora", scale=0.2))
        >>> found.mode, found.peak_bytes > 0, [other.strategy.mode for other in found.others]
        ('full', True, ['mini', 'macro'])
    """
    check_choice("mode", mode, tuple(known for known in MODES if known != "mapped"))
    check_integer("ranks", ranks, 1, 4096)
    if epochs is not None:
        check_integer("epochs", epochs, 0)
    profile = Machine.here() if machine is None else machine
    profile = profile if isinstance(profile, Machine) else Machine.read(os.fspath(profile))
    if isinstance(model, str):
        model = TrainSpec(model=model)
    keep_features = not isinstance(model, TrainSpec)  # as gw.Trainer and the command do
    order: tuple[str, int | None] = ("auto", epochs)
    if isinstance(model, TrainSpec):
        spec = _with(model, data, memory, mode, fanouts, batch_size, macro)
        memory, mode, order = spec.memory, spec.mode, (spec.order, spec.epochs if epochs is None else epochs)
        fanouts, batch_size, macro = check_fanouts(spec.fanouts), spec.batch_size, spec.macro
        device, schedule = device or spec.device, spec.schedule if schedule == "auto" else schedule
        ds = _read(spec, data)
        built: nn.Module = make_model(spec, ds)
    else:
        ds, built = _opened(data), copy.deepcopy(model)
    if isinstance(ds, StoredDataset):
        run = StoredRun(built, ds, memory, check_fanouts(fanouts), batch_size or USUAL_BATCH, macro)
        return stored_plan(run, profile, mode, ranks)
    task = for_rows(*for_loss(built, "nodes", "full", ds), None)[0]
    if task != "nodes":
        raise ConfigError(f"task: expected nodes for a plan, got {task}, which is that of the model or the data")
    if mode == "macro":
        text = "expected full, mini or auto for data in memory, got macro; graphweft prepare makes a store"
        raise ConfigError(f"mode: {text}")
    if is_apart(device):
        on_device(built, device, mode)
    shared = as_schedule(schedule, device, "full") or "auto"  # prices are those of the CPU
    drawn = Drawn(check_fanouts(fanouts), batch_size or USUAL_BATCH, as_macro(macro), 1, "neighbor", "whole", shared)
    check_drawn(TrainSpec, mode, {"macro": drawn.macro})
    found = plan_in_memory(
        built, ds, memory, profile, drawn, PLANNED if mode == "auto" else (mode,), keep_features, order
    )
    if ranks > 1:
        found = replace(found, others=(*found.others, _shared(found, ranks)))
    return found


def plan_run(spec: TrainSpec, machine: str | None, ranks: int) -> Plan:
    """As :func:`plan`, with the threads that a run of ``spec`` has."""
    with run_settings(spec):
        return plan(spec, machine=machine, ranks=ranks, mode=spec.mode)


def _with(
    spec: TrainSpec, data: Any, memory: Any, mode: str, fanouts: Any, batch_size: int | None, macro: str | None
) -> TrainSpec:
    """``spec`` with what was given beside it."""
    given: dict[str, Any] = {"memory": memory, "batch_size": batch_size, "macro": macro}
    given["mode"] = mode if mode != "auto" or spec.mode == "full" else None
    given["fanouts"] = ",".join(map(str, fanouts)) if isinstance(fanouts, list | tuple) else fanouts
    given["data"] = os.fspath(data) if isinstance(data, str | os.PathLike) else None
    made = replace(spec, **{name: value for name, value in given.items() if value is not None})
    if made.task != "nodes":
        raise ConfigError(f"task: expected nodes for a plan, got {made.task}")
    return made


def _read(spec: TrainSpec, data: Any) -> Dataset:
    """The data that were given, or those that the spec names. Raises: DataError, ConfigError."""
    if data is None or isinstance(data, str | os.PathLike):
        stored = not spec.has_tables and spec.scale is None and is_store(spec.data)
        return StoredDataset(Store(spec.data)) if stored else load_dataset(spec)
    return _opened(data)


def _opened(data: Any) -> Dataset:
    if data is None:
        raise ConfigError("data: expected a dataset, a name or a path, got none")
    if isinstance(data, str | os.PathLike):
        data = Store(data) if is_store(os.fspath(data)) else load(os.fspath(data))
    if isinstance(data, Store):
        return StoredDataset(data)
    return data  # type: ignore[no-any-return]


def _shared(found: Plan, ranks: int) -> Considered:
    """Several ranks on this machine. Their exchange over a network is not priced."""
    shared = replace(found.strategy, ranks=ranks, seconds={}, needs=None)
    return Considered(shared, "ranks of one machine share its cores, and exchange rows and gradients as well")


__all__ = ["Machine", "Plan", "plan"]
