"""Mini-batches that are trained on the device of the model, and prepared there and on the CPU as a plan says.

Comes in: what a :class:`DeviceMiniBatch` takes, and a :class:`Schedule`. Goes out: the same updates, bit for bit: what
a batch holds follows from its number, and batches are trained by ascending number. Made by ``steps.py``. Unlike at a
place apart the model itself is trained; after measuring it has its weights back. The plan is chosen once, before the
first epoch: the best of a simulation of what was measured, unless the device's own loop is as fast on some batches.
"""

from __future__ import annotations

import contextlib
import copy
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from graphweft._draws import keyed
from graphweft._errors import FallbackWarning, GraphWeftError, UnsteadyWarning
from graphweft.graph.placed import send_forms
from graphweft.runtime.staged import StagedPlan
from graphweft.runtime.targets import target_of
from graphweft.schedule.feedback import choose
from graphweft.schedule.profiler import Profiler
from graphweft.schedule.run import Executor
from graphweft.schedule.split import USUAL_BUFFER, Plan
from graphweft.train.batch_gradients import weight_of
from graphweft.train.batch_steps import AnyLoader
from graphweft.train.device_batches import DeviceMiniBatch
from graphweft.train.mini_batch import MiniBatch
from graphweft.train.node_batches import NodeBatches
from graphweft.train.scheduled import ScheduledMiniBatch, put_state, state_of
from graphweft.train.setup import Setup

_MEASURED, _WARM, _TRIED = 8, 4, 30  # batches, at most
_FEW = 8  # batches of an epoch that are not worth measuring
_GAIN = 0.97  # times the seconds of the device alone, below which its batches are shared out
_ALONE = Plan(0, USUAL_BUFFER)
Loss = Callable[[], float]


class Drawn(NamedTuple):
    """A batch that the CPU drew: blocks in host memory."""

    plan: StagedPlan
    seeds: Tensor
    key: tuple[int, int]
    sample: Any


class DrawnByCpu(NodeBatches):
    """The same batches, drawn by the CPU; of compiled ones nothing else is computed yet."""

    def make(self, places: Tensor, epoch: int) -> Any:
        """The draw of a compiled batch, or a batch on blocks."""
        if self.plan is None:
            return super().make(places, epoch)
        seeds, key = self.seeds[places], (self.seed, epoch)
        return Drawn(self.plan, seeds, key, self.plan.draw(seeds, key))


class SharedMiniBatch(ScheduledMiniBatch, DeviceMiniBatch):
    """As :class:`DeviceMiniBatch`; the CPU prepares some of its batches.

    Args:
        setup: With a schedule whose place is the device.

    Raises: ConfigError for options and samplers that only the CPU has.
    """

    stores_half = True  # as on the device alone
    tried_as = "tried on some batches"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        target = target_of(self.device)
        self._later, self._send = target.later, target.sender(self.device)
        self._over: Callable[[Tensor], float] = float
        self._why = ""

    def _load(self) -> tuple[AnyLoader, None]:
        """The loader that draws on the device, and beside it one of the same batches on the CPU."""
        loader, _ = DeviceMiniBatch._load(self)
        batch_size, seed = self.drawn.batch_size, self.seed
        assert isinstance(loader, NodeBatches)  # as loaders of a device are
        self._by_cpu = DrawnByCpu(self._tables, loader.seeds, None, batch_size, True, seed, sampler=self.sampler)
        return loader, None

    # -- the plan

    def prepare(self) -> None:
        """Compiles, and chooses the plan where it is left open."""
        DeviceMiniBatch.prepare(self)
        if self._opened is None:
            self._opened = self._place.open(OwnWork, weakref.proxy(self), {})
            self._opened.register(self._operators)
        if self.plan is None and not self._awaits_bounds():
            begun = time.perf_counter()
            self._choose(self._place.name)
            self.prepare_seconds = self.choose_seconds = time.perf_counter() - begun

    def _awaits_bounds(self) -> bool:
        """Whether steps will be replayed and the first epoch has still to show their bounds: what is measured now
        would be steps that run as they come, which take the host longer.
        """
        replays = self.replays
        return replays is not None and replays.counts and replays.bounds is None and len(self.loader) >= _FEW

    def _choose(self, place: str) -> None:
        """Measures the first batches, and tries the best plan of a simulation beside the device alone."""
        self.plan, total = _ALONE, len(self.loader)
        if total < _FEW:
            self._why = f"an epoch of {total} batches is not worth measuring"
            return
        try:
            with self._rehearsing():
                self._begin(self.loader.epoch, self.loader._preparer(self.loader.epoch))
                self._measure(place, total)
        except (GraphWeftError, RuntimeError) as failure:
            said = " ".join(str(failure).split())[:200]
            self.plan, self._why = _ALONE, f"measuring failed: {said}"
            warnings.warn(f"schedule: the device prepares all batches, as {self._why}", FallbackWarning, stacklevel=4)

    def _measure(self, place: str, total: int) -> None:
        """Profile, choice and trial."""
        with warnings.catch_warnings(), self._waiting():
            warnings.simplefilter("ignore", UnsteadyWarning)  # which the explanation tells
            self.profile = Profiler(self._operators, place, _MEASURED, warm=_WARM).measure_beside(total)
        self.choice = choose(self.profile, total)
        if self.choice.plan.mode == "device":
            return
        count = min(total, _TRIED)
        shared = min(self._together(self.choice.plan, place, count) for _ in range(2))
        self.rehearsed = {self.choice.plan: shared, _ALONE: self._alone(count)}
        self.plan = self.choice.plan if shared < _GAIN * self.rehearsed[_ALONE] else _ALONE

    def _together(self, plan: Plan, place: str, count: int) -> float:
        """Seconds of some batches by a plan."""
        begun = time.perf_counter()
        Executor(self._operators, plan, place, on_trained=lambda _, result: self._leave(result)).run(count)
        self._read()
        return time.perf_counter() - begun

    def _alone(self, count: int) -> float:
        """Seconds of them in the device's own loop, in the best way of preparing ahead that was tried."""
        state, begun = self.loader.state_dict(), time.perf_counter()
        batches = iter(self.loader)
        try:
            for done, batch in enumerate(batches, 1):
                self._leave((self._trained_on(batch, self.loader.epoch, done), weight_of(batch)))
                if done == count:
                    break
            self._read()
        finally:
            batches.close()  # type: ignore[attr-defined]
            self.loader.load_state_dict(state)
        medians = [seconds * count for seconds in self.loader.seconds_by_way.values()]
        return min([time.perf_counter() - begun, *medians])

    @contextlib.contextmanager
    def _rehearsing(self) -> Iterator[None]:
        """Inside steps are made for their times: weights, what the optimiser keeps, and counts are as before
        afterwards.
        """
        state, sums, replays = copy.deepcopy(state_of(self)), (self._sum, self._count), self.replays
        counts = (replays.replayed, replays.fallbacks) if replays is not None else (0, 0)
        try:
            yield
        finally:
            self._unread = None
            self._sum, self._count = sums
            if replays is not None:
                replays.replayed, replays.fallbacks = counts
            put_state(self, state)
            self.optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Inside a step returns when all of its work is over, so that it can be timed."""
        later, self._later = self._later, None
        self._over = float if later is None else lambda number: later(number)()
        try:
            yield
        finally:
            self._later, self._over = later, float

    # -- an epoch

    def step(self) -> Tensor:
        """One epoch, or the rest of one; the mean of its losses before their updates, shape ()."""
        self.prepare()
        if self.plan is None or self.plan.mode == "device":
            self.line = None
            return MiniBatch.step(self)
        if self.replays is not None and self.batches_done == 0:
            self.replays.begin_epoch()
        make, first = self.loader.begin_elsewhere()
        self._begin(self.loader.epoch, make)
        try:
            executor = Executor(self._operators, self.plan, self._place.name, on_trained=self._launched)
            self.line = executor.run(len(self.loader), first)
        except BaseException:
            self.loader.load_state_dict(self.loader.state_dict())  # the next epoch goes on here
            raise
        self._read()
        if self.replays is not None:
            self.replays.end_epoch()
        self.loader.end_epoch()
        return self._mean()

    def _begin(self, epoch: int, make: Callable[[int], Any]) -> None:
        """Both sides prepare batches of an epoch by the plan of now."""
        assert self._opened is not None and isinstance(self.loader, NodeBatches)  # prepare() came before
        self._by_cpu.plan = self.loader.plan
        on_cpu = self._by_cpu._preparer(epoch)
        self._operators.register("batch_cpu_loader")(lambda batch, _: on_cpu(batch))
        self._opened.call("begin", epoch, make)

    def received(self, made: Any) -> Any:
        """A batch that the CPU drew, on the device, which computes the rest as for one that was drawn there."""
        if not isinstance(made, Drawn):
            return made.to(self.device)
        send_forms(made.sample.blocks, self._send)
        return made.plan.prepare(made.seeds, made.key, lambda *_: made.sample)

    def _trained_on(self, batch: Any, epoch: int, done: int) -> Loss:
        """One update, and what reads the loss before it; the loss of the batch before is read by then."""
        with keyed(self._key(epoch, done)):
            loss = self._train_on(batch)
        self._read()
        if self._later is not None:
            return self._later(loss)
        return partial(float, self._over(loss))

    def _leave(self, result: tuple[Loss, int]) -> None:
        """What reads a loss, and its weight, until the next batch is launched."""
        self._unread = result

    def _launched(self, batch: int, result: tuple[Loss, int]) -> None:
        """A batch was trained: what reads its loss, and its weight among others."""
        done, total = batch + 1, len(self.loader)
        self.loader.trained_to(done)
        self._leave(result)
        if self._later is None or done == total or self._count == 0:
            self._read()
        self.after_batch(done, total, self._sum / max(self._count, 1))

    def _take_back(self) -> None:
        """The weights are the trainer's own."""

    def refresh(self) -> bool:
        """As on the device alone."""
        return DeviceMiniBatch.refresh(self)

    def close(self) -> None:
        """Nothing is held apart; the next epoch opens the place anew."""
        self._opened = None

    # -- reports

    def measured(self) -> dict[str, float]:
        """As on the device alone, with what a shared epoch showed."""
        return {**MiniBatch.measured(self), **ScheduledMiniBatch.measured(self)}

    def scheduled(self) -> str:
        """Which plan is followed and why, and what the last epoch showed."""
        place = self._place.name
        if self.plan is None:
            return f"{place}: {_ALONE.shown()} in the first epoch; the plan is measured then, on replayed steps"
        if self._why:
            return f"{place}: {self.plan.shown()}: {self._why}"
        told = ScheduledMiniBatch.scheduled(self)
        is_other = self.choice is not None and self.choice.plan != self.plan
        return f"{told}\n{place}: followed: {self.plan.shown()}" if is_other else told


class OwnWork:
    """The steps of a run as the work of the device where its model lies."""

    def __init__(self, steps: SharedMiniBatch) -> None:
        self.known: Mapping[str, Any] = {}  # batches are not packed
        self._steps, self._epoch = steps, 0
        self._make: Callable[[int], Any] | None = None

    def begin(self, epoch: int, make: Callable[[int], Any]) -> None:
        """An epoch begins, or goes on."""
        self._epoch, self._make = epoch, make

    def prepare(self, batch: int) -> Any:
        """What the loader makes of the batch on the device."""
        assert self._make is not None  # an epoch has begun
        return self._make(batch)

    def receive(self, batch: int, prepared: Any) -> Any:
        """The batch with its arrays on the device."""
        return self._steps.received(prepared)

    def train(self, batch: int, prepared: Any) -> tuple[Loss, int]:
        """One update; what reads the loss before it, and the weight of the batch among others."""
        return self._steps._trained_on(prepared, self._epoch, batch + 1), weight_of(prepared)


__all__ = ["OwnWork", "SharedMiniBatch"]
