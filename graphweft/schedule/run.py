"""Epochs with two buffers, for real: the workers of ``dual_buffer.py`` on threads, with operators for their steps.

Comes in: a table of operators, the name of a place, a plan. Goes out: trained batches, and what every place did when.
Called by the trainer, and by users with operators of their own. The caller's thread is that of the device: models are
trained where the caller is. Which batch is trained when follows from the plan; the clock is only read for the report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from graphweft._errors import GraphWeftError
from graphweft._machine import processors
from graphweft._trace import span
from graphweft._workers import become_worker, join_workers, set_width, start_worker
from graphweft.schedule.dual_buffer import PLACE_OF, Epoch, Span, Step, Timeline, Until
from graphweft.schedule.operators import Operator, Operators
from graphweft.schedule.split import Plan

_STAGES = {"cpu_batch": "prepare", "device_batch": "prepare", "send": "transfer", "model": "forward"}  # of traces


class OperatorError(GraphWeftError, RuntimeError):
    """An operator failed; names it, the batch and the reason, and has the failure as its cause."""


class Executor:
    """Trains epochs by a plan.

    Args:
        operators: The table; see :meth:`Operators.steps_of`.
        plan: How batches are shared out.
        place: The place beside the CPU.
        clock: Seconds.
        threads: Of the parallel loops of the CPU's operator; None: one a processor.
        on_trained: Called with a batch and what training it returned, by the caller's thread, before the next step.

    Example:
        >>> table = Operators()
        >>> for name in ("batch_cpu_a", "batch_npu_a", "send_npu_a", "model_npu_a"):
        ...     _ = table.register(name)(lambda batch, made, name=name: f"{made or ''} {name[:9]}")
        >>> line = Executor(table, Plan(1, 2), "npu").run(3)
        >>> line.trained(), line.results[0], line.results[2]
        ([0, 1, 2], ' batch_npu model_npu', ' batch_cpu send_npu_ model_npu')
    """

    def __init__(
        self,
        operators: Operators,
        plan: Plan,
        place: str,
        clock: Callable[[], float] = time.perf_counter,
        threads: int | None = None,
        on_trained: Callable[[int, Any], None] | None = None,
    ) -> None:
        self.names = operators.steps_of(place)
        self._steps = {step: operators[name] for step, name in self.names.items()}
        self.plan, self._clock, self._threads = plan, clock, threads or processors()
        self.on_trained = on_trained or (lambda batch, result: None)

    def run(self, batches: int, first: int = 0) -> Timeline:
        """Trains the batches from ``first`` to ``batches - 1``, each once, by ascending number.

        Raises: OperatorError, once every thread has ended what it was at; KeyboardInterrupt and errors that end a
            program as they are.
        """
        drive = _Drive(self, Epoch(self.plan, batches - first), first)
        others = [
            start_worker(f"graphweft-{place}", drive.stop, _work, drive, place, width)
            for place, width in (("cpu", self._threads), ("link", 1))
        ]
        try:
            drive.work("device")
        finally:
            drive.stop()
            join_workers(others)
        if drive.failure is not None:
            raise drive.failure
        return drive.epoch.line

    def step(self, name: str, batch: int, given: Any) -> Any:
        """Runs an operator. Raises: OperatorError."""
        operator: Operator = self._steps[name]
        try:
            return operator(batch, given)
        except Exception as failure:
            said = " ".join(str(failure).split())
            kind = "" if isinstance(failure, GraphWeftError) else f"{type(failure).__name__}: "
            raise OperatorError(f"{self.names[name]}: batch {batch}: {kind}{said}") from failure

    def clock(self) -> float:
        """Seconds."""
        return self._clock()


class _Drive:
    """Drives the three workers of an epoch, one thread each; one of them goes on at a time, steps run beside."""

    def __init__(self, executor: Executor, epoch: Epoch, first: int) -> None:
        self.executor, self.epoch, self.first = executor, epoch, first
        self.failure: BaseException | None = None
        self._routes = epoch.plan.routes(epoch.batches)
        self._made: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._begun = executor.clock()

    def work(self, place: str) -> None:
        """What a place does in the epoch; leaves a failure where there was one."""
        worker = self.epoch.workers[place]
        try:
            with self._changed:
                while not self._stopped and (asked := next(worker, None)) is not None:
                    self._changed.notify_all()
                    if isinstance(asked, Until):
                        self._wait(place, asked)
                    else:
                        self._step(place, asked)
                self._changed.notify_all()
        except BaseException as failure:
            self.failure = self.failure or failure
            self.stop()

    def stop(self) -> None:
        """No further step is begun."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _wait(self, place: str, until: Until) -> None:
        begin = self.executor.clock()
        with span(f"{place} waits", "wait"):
            self._changed.wait_for(lambda: self._stopped or until.holds())
        if not self._stopped:
            self.epoch.line.waited(place, self.executor.clock() - begin)

    def _step(self, place: str, step: Step) -> None:
        """Runs a step while the other workers go on."""
        batch = self.first + step.batch
        given = self._made.pop(step.batch, None)
        self._changed.release()
        try:
            begin = self.executor.clock()
            with span(step.name, _STAGES[step.name], batch=batch):
                made = self.executor.step(step.name, batch, given)
            end = self.executor.clock()
            if step.name == "model":
                self.executor.on_trained(batch, made)
        finally:
            del given
            self._changed.acquire()
        line = self.epoch.line
        times = (begin - self._begun, end - self._begun)
        line.spans.append(Span(step.batch, step.name, PLACE_OF[step.name], self._routes[step.batch], *times))
        if step.name == "model":
            line.results.append(made)
        else:
            self._made[step.batch] = made


def _work(drive: _Drive, place: str, threads: int) -> None:
    """A worker that is not the caller's."""
    become_worker()
    set_width(threads)
    drive.work(place)


__all__ = ["Executor", "OperatorError"]
