"""Mini-batches that are trained at another place, and prepared there and on the CPU in the share that a plan says.

Comes in: what a :class:`MiniBatch` takes, and a :class:`Schedule`. Goes out: the same updates, bit for bit: batches are
trained by ascending number, and what one holds follows from its number. Made by ``steps.py`` where a schedule has a
place. The place has a copy of the model and of the data; before an epoch it is given the weights, afterwards it gives
them back. The plan is chosen once, before the first epoch, kept in checkpoints and taken up by a resumed run.
"""

from __future__ import annotations

import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor

from graphweft import _config
from graphweft._draws import keyed
from graphweft._errors import ConfigError, UnsteadyWarning
from graphweft._torch_private import mark_stepped
from graphweft.nn.edges import EdgeInputs
from graphweft.schedule.dual_buffer import Timeline
from graphweft.schedule.feedback import Choice, choose, explain
from graphweft.schedule.operators import Operators
from graphweft.schedule.packing import pack
from graphweft.schedule.places import Opened, Schedule
from graphweft.schedule.profiler import Profiler
from graphweft.schedule.run import Executor
from graphweft.schedule.split import USUAL_BUFFER, Plan, Profile
from graphweft.storage.fingerprint import fingerprint
from graphweft.train.batch_gradients import batch_key, weight_of
from graphweft.train.edge_data import EdgeData
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.needs import RunBudget
from graphweft.train.node_batches import NodeBatches
from graphweft.train.setup import Setup
from graphweft.train.update import Update

_MEASURED, _WARM, _REHEARSED = 20, 5, 60  # batches, at most
_SIDES = {"cpu": Plan(USUAL_BUFFER, 0), "device": Plan(0, USUAL_BUFFER)}


class ScheduledMiniBatch(MiniBatch):
    """As :class:`MiniBatch`, trained at the place of ``schedule``.

    Args:
        setup: With a schedule: the place, and who prepares batches.

    Raises: ConfigError for options that only the CPU has.
    """

    stores_half = False  # both places read the features of the dataset
    tried_as = "as times vary, tried on some batches"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        schedule = setup.drawn.schedule
        assert isinstance(schedule, Schedule)  # by which the kind was chosen
        assert schedule.place is not None  # as_schedule found one
        for name, usual in (("macro", None), ("accumulate", 1), ("prepare", "whole")):
            if getattr(self.drawn, name) != usual:
                raise ConfigError(f"{name} cannot be combined with device={schedule.place.name}")
        self._place, self._share = schedule.place, schedule.share
        self._sent = {name: getattr(setup, name) for name in ("model", "ds", "optimizer", "seed")}
        self._sent |= {"drawn": self.drawn._replace(schedule="auto"), "target": self.target}
        self._opened: Opened | None = None
        self._operators = Operators()
        self.plan: Plan | None = schedule.share if isinstance(schedule.share, Plan) else _SIDES.get(schedule.share)
        self.profile: Profile | None = None
        self.choice: Choice | None = None
        self.rehearsed: dict[Plan, float] = {}  # seconds of some batches, by plan
        self.line: Timeline | None = None
        self.prepare_seconds = self.choose_seconds = 0.0
        self._model_mark = (0, 0)
        self._given_back, self._mark = self.loader.state_dict(), fingerprint(self.x)

    # -- the place

    def prepare(self) -> None:
        """Compiles, starts the place, and chooses the plan where it is left open."""
        super().prepare()
        mark = self._mark_of_model()
        if self._opened is not None and mark == self._model_mark:
            return
        self.close()
        begun, self._model_mark = time.perf_counter(), mark
        given = {
            **self._sent,
            "x": self.x,
            "edges": (self.edge_data.weight, self.edge_data.attr, self.edge_data.compiled),
            "config": asdict(_config.current()),
        }
        self._opened = self._place.open(DeviceWork, given, known_of(self))
        self._close = weakref.finalize(self, self._opened.close)
        self._operators = Operators()
        self._opened.register(self._operators)
        if self.plan is None:
            self._choose(self._place.name)
        self.prepare_seconds += time.perf_counter() - begun

    def _mark_of_model(self) -> tuple[int, int]:
        """What a copy of the model depends on beside the numbers that it is given every epoch."""
        plan = self.loader.plan if isinstance(self.loader, NodeBatches) else None
        if not self.model.training:  # as the first batch will
            self.model.train()
        try:
            return id(plan), zlib.crc32(pack(self.model)[0])
        except Exception:
            return id(plan), 0  # opening the place says why it cannot be sent

    def _choose(self, place: str) -> None:
        """Measures the first batches on a copy of the model, and takes the best plan of a simulation."""
        begun, epoch = time.perf_counter(), self.loader.epoch
        self._begin(epoch, self.loader._preparer(epoch))
        total = len(self.loader)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsteadyWarning)  # which the explanation tells
            self.profile = Profiler(self._operators, place, _MEASURED, warm=_WARM).measure_beside(total)
        self.choice = choose(self.profile, total)
        self.plan = self.choice.plan
        if self.profile.unsteady():
            self._rehearse(place, min(total, _REHEARSED))
        self.choose_seconds = time.perf_counter() - begun

    def _rehearse(self, place: str, count: int) -> None:
        """Where times vary a simulation says little: some batches are run under its plan and on either side alone."""
        assert self.plan is not None  # the simulation's
        for plan in dict.fromkeys((self.plan, *_SIDES.values())):
            self.rehearsed[plan] = Executor(self._operators, plan, place).run(count).seconds
        self.plan = min(self.rehearsed, key=self.rehearsed.__getitem__)

    def _begin(self, epoch: int, make: Callable[[int], Any]) -> None:
        """The place has the weights of now, and both sides prepare batches of an epoch."""
        assert self._opened is not None  # prepare() came before
        self._operators.register("batch_cpu_loader")(lambda batch, _: make(batch))
        self._opened.call("begin", epoch, state_of(self))

    def _take_back(self) -> None:
        """Weights, and what the optimiser keeps, are those of the place."""
        assert self._opened is not None  # there was an epoch
        put_state(self, self._opened.call("state"))
        if isinstance(self.optimizer, Update):
            mark_stepped(self.optimizer.optimizer)
        self._given_back = self._standing()

    def _standing(self) -> dict[str, Any]:
        return {**self.loader.state_dict(), "loss_sum": self._sum, "loss_count": self._count}

    def close(self) -> None:
        """Ends the place; the next epoch starts it anew."""
        if self._opened is not None:
            self._close()
            self._opened = None

    # -- an epoch

    def step(self) -> Tensor:
        """One epoch, or the rest of one, at the place; the mean of its losses before their updates, shape ()."""
        self.prepare()
        assert self.plan is not None  # chosen by now
        make, first = self.loader.begin_elsewhere()
        total = len(self.loader)
        self._given_back = self._standing()
        try:
            self._begin(self.loader.epoch, make)
            executor = Executor(self._operators, self.plan, self._place.name, on_trained=self._trained)
            self.line = executor.run(total, first)
            self._take_back()
        except BaseException:
            state = dict(self._given_back)
            self._sum, self._count = state.pop("loss_sum"), state.pop("loss_count")
            self.loader.load_state_dict(state)
            self.close()
            raise
        self.loader.end_epoch()
        return self._mean()

    def _trained(self, batch: int, result: tuple[float, int]) -> None:
        """A batch was trained: its loss, and its weight among others."""
        loss, share = result
        self.loader.trained_to(batch + 1)
        self._sum += loss * share
        self._count += share
        self.after_batch(batch + 1, len(self.loader), self._sum / max(self._count, 1))

    def refresh(self) -> bool:
        """As before; a place with other data, or other labels, is started anew."""
        changed, mark = super().refresh(), fingerprint(self.x)
        if changed or mark != self._mark:
            self.close()
            self._mark = mark
        return changed

    # -- checkpoints, reports

    def within_epoch(self) -> dict[str, Any]:
        """Where the epoch under way stands, for checkpoints, once the weights are those of the place."""
        if self._opened is not None and 0 < self.batches_done < len(self.loader):
            self._take_back()
        return super().within_epoch()

    def state_dict(self) -> dict[str, Any]:
        """As before, with the plan."""
        plan = {} if self.plan is None else {"schedule": asdict(self.plan)}
        return {**super().state_dict(), **plan}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As before; the plan is that of the state where it was chosen by measuring."""
        super().load_state_dict(state)
        if "schedule" in state and self._share == "auto":
            self.plan = Plan(**state["schedule"])

    def measured(self) -> dict[str, float]:
        """The plan, how the last epoch was shared out, and how busy each place was, as shares of it."""
        line = self.line
        if line is None or self.plan is None:
            return {}
        plan = {f"plan_{name}": float(count) for name, count in asdict(self.plan).items()}
        routes = [span.route for span in line.spans if span.step == "model"]
        counts = {f"{side}_batches": float(routes.count(side)) for side in ("cpu", "device")}
        busy = {f"{place}_busy": round(line.busy(place), 4) for place in ("cpu", "link", "device")}
        return {**plan, **counts, **busy, "cpu_waits": line.cpu_waits, "device_waits": line.device_waits}

    def fit_into(self, budget: RunBudget) -> None:
        """Raises: ConfigError, as another place has memory of its own."""
        raise ConfigError(f"memory cannot be combined with device={self._place.name}")

    def where(self) -> str:
        """As :meth:`scheduled`, once the plan is chosen."""
        self.prepare()
        return self.scheduled()

    def scheduled(self) -> str:
        """Which plan is followed and why, and what the last epoch showed."""
        lines = []
        if self.profile is not None and self.choice is not None:
            lines = [explain(self.profile, len(self.loader), self.choice), str(self.choice)]
            tried = (f"{plan.shown()} {seconds:.3g} s" for plan, seconds in self.rehearsed.items())
            lines += [f"{self.tried_as}: {', '.join(tried)}"] if self.rehearsed else []
        elif self.plan is not None:
            asked = self._share if isinstance(self._share, str) else "a plan"
            why = "as the checkpoint says" if asked == "auto" else f"{asked} was asked for"
            lines = [f"{self.plan.shown()}: {why}"]
        if self.line is not None:
            lines.append(self.line.report())
            started, epoch = self.prepare_seconds - self.choose_seconds, max(self.line.seconds, 1e-9)
            ratios = f"{self.prepare_seconds / epoch:.2g} epochs"
            lines.append(f"started in {started:.3g} s, measured and chosen in {self.choose_seconds:.3g} s: {ratios}")
        return "\n".join(f"{self._place.name}: {line}" for line in lines)


class DeviceWork:
    """A copy of a run's steps, at a place. Made there from what :class:`ScheduledMiniBatch` sends."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._config = given["config"]
        self._key = partial(batch_key, given["seed"])
        weight, attr, compiled = given["edges"]
        own = {name: item for name, item in given.items() if name not in ("config", "edges")}
        self._steps = MiniBatch(Setup(**own, key=self._key))
        if weight is not None or attr is not None:
            self._steps.use(EdgeData(EdgeInputs(weight, attr, fixed=True), compiled))
        with self._within():
            self._steps.prepare()
        self.known = known_of(self._steps)
        self._epoch = 0
        self._make: Callable[[int], Any] = self._steps.loader._preparer(0)

    def begin(self, epoch: int, state: dict[str, Any]) -> None:
        """An epoch begins, or goes on, with these weights."""
        put_state(self._steps, state)
        self._epoch, self._make = epoch, self._steps.loader._preparer(epoch)

    def prepare(self, batch: int) -> Any:
        """What the loader makes of the batch."""
        with self._within():
            return self._make(batch)

    def train(self, batch: int, prepared: Any) -> tuple[float, int]:
        """One update; the loss before it, and the weight of the batch among others."""
        with self._within(), keyed(self._key(self._epoch, batch + 1)):
            return float(self._steps._train_on(prepared)), weight_of(prepared)

    def _within(self) -> AbstractContextManager[object]:
        """The configuration of the run."""
        return _config.config(**self._config)

    def state(self) -> dict[str, Any]:
        """Weights and what the optimiser keeps."""
        return state_of(self._steps)


def known_of(steps: MiniBatch) -> Mapping[str, Any]:
    """What a place has as well, by name: batches refer to it."""
    ds, loader = steps.ds, steps.loader
    found = {"graph": ds.graph, "csc": ds.graph.csc, "x": steps.x, "y": ds.y, "tables": steps._tables, "ds": ds}
    if isinstance(loader, NodeBatches) and loader.plan is not None:
        found["plan"] = loader.plan
    return found


def state_of(steps: MiniBatch) -> dict[str, Any]:
    """Weights, and what the optimiser keeps, where they are."""
    update = steps.optimizer
    assert isinstance(update, Update)  # as the trainer has it
    states = {"optimizer": update.optimizer.state_dict(), "averages": update.state_dict()}
    return {"model": {name: value.detach() for name, value in steps.model.state_dict().items()}, **states}


def put_state(steps: MiniBatch, state: dict[str, Any]) -> None:
    """Copies what :func:`state_of` gave into ``steps``."""
    update = steps.optimizer
    assert isinstance(update, Update)  # as the trainer has it
    steps.model.load_state_dict(state["model"])
    update.optimizer.load_state_dict(state["optimizer"])
    update.load_state_dict(state["averages"])


__all__ = ["DeviceWork", "ScheduledMiniBatch", "known_of", "put_state", "state_of"]
