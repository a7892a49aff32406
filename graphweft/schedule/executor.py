"""Threads that work off graphs of tasks, several graphs at once.

Comes in: task graphs, each with a rank. Goes out: the same graphs, done. Called by the preparation of batches. A thread
takes the first ready task of the graph with the lowest rank, so that earlier batches are ready earlier; which task runs
when changes no result. Time in which a thread found work only behind a held lock is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from graphweft._errors import ConfigError, GraphWeftError
from graphweft._trace import span
from graphweft._workers import become_worker, join_workers, start_worker
from graphweft.schedule.tasks import Ran, Task, TaskGraph


class Executor:
    """``threads`` threads, started when they are first needed, ended with the executor.

    Attributes:
        lock_wait: Seconds that threads stood still because what they would have done held for another task.

    Example:
        >>> done = []
        >>> one, two = Task("one", "s", lambda: done.append(1)), Task("two", "s", lambda: done.append(2), ("one",))
        >>> graph = TaskGraph([two, one])
        >>> with Executor(2) as executor:
        ...     executor.run(graph)
        >>> done
        [1, 2]
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._board = _Board(clock)
        self.threads = as_count("threads", threads)
        self._workers: list[threading.Thread] = []
        self._starting = threading.Lock()

    @property
    def lock_wait(self) -> float:
        """See above."""
        return self._board.lock_wait

    def run(self, graph: TaskGraph, rank: int = 0) -> None:
        """Works the graph off; from any thread, several at once. Raises: whatever a task raised."""
        with self._starting:
            while len(self._workers) < self.threads:
                name = f"graphweft-task-{len(self._workers)}"
                self._workers.append(start_worker(name, self._board.stop, _work, self._board))
        self._board.finish(_Job(graph, rank))

    def close(self) -> None:
        """Ends the threads once each has finished what it is at."""
        self._board.stop()
        join_workers(self._workers)
        self._workers = []

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Executor], tuple[int, Callable[[], float]]]:
        return Executor, (self.threads, self._board.clock)  # a copy has threads of its own, once it needs them

    def __del__(self) -> None:
        self._board.stop()


def as_count(name: str, value: object) -> int:
    """``value`` as a number of things, at least one. Raises: ConfigError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}: expected an integer >= 1, got {value!r}")
    return value


@dataclass(eq=False)
class _Job:
    """A graph under way."""

    graph: TaskGraph
    rank: int
    held: set[str] = field(default_factory=set)
    failure: BaseException | None = None
    running: int = 0

    @property
    def is_over(self) -> bool:
        """Done, or failed and nothing of it still runs."""
        return self.running == 0 and (self.failure is not None or self.graph.is_done)


class _Board:
    """What threads share."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock_wait = 0.0
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._stopped = False

    def finish(self, job: _Job) -> None:
        """Waits until a job is over."""
        with self._changed:
            if self._stopped:
                raise GraphWeftError("schedule: expected an executor that is open, got one that was closed")
            self._jobs.append(job)
            self._jobs.sort(key=lambda other: other.rank)
            self._changed.notify_all()
            while not job.is_over:
                if job.graph.is_stuck and job.running == 0:
                    job.failure = GraphWeftError(
                        "schedule: expected tasks without a circle, got some that wait for none"
                    )
                    break
                self._changed.wait()
            self._jobs.remove(job)
        if job.failure is not None:
            raise job.failure

    def claim(self) -> tuple[_Job, Task] | None:
        """The next task, once there is one; None when the executor ends."""
        with self._changed:
            while not self._stopped:
                is_held = False
                for job in self._jobs:
                    for task in job.graph.ready() if job.failure is None else ():
                        if task.holds is None or task.holds not in job.held:
                            return job, self._begin(job, task)
                        is_held = True
                begun = self.clock()
                self._changed.wait()
                if is_held:
                    self.lock_wait += self.clock() - begun
            return None

    def _begin(self, job: _Job, task: Task) -> Task:
        job.graph.start(task)
        job.running += 1
        if task.holds is not None:
            job.held.add(task.holds)
        return task

    def end(self, job: _Job, ran: Ran, more: list[Task], failure: BaseException | None) -> None:
        """A task has ended."""
        with self._changed:
            job.running -= 1
            job.held.discard(ran.task.holds or "")
            try:
                job.graph.end(ran, more)
            except GraphWeftError as wrong:
                failure = failure or wrong
            job.failure = job.failure or failure
            self._changed.notify_all()

    def stop(self) -> None:
        """No further task is given out."""
        with self._changed:
            self._stopped = True
            for job in self._jobs:
                job.failure = job.failure or GraphWeftError(
                    "schedule: expected to go on, got an executor that was closed"
                )
            self._changed.notify_all()


def _work(board: _Board) -> None:
    """Runs tasks until the executor ends."""
    become_worker()
    name = threading.current_thread().name
    while (claimed := board.claim()) is not None:
        job, task = claimed
        more: list[Task] = []
        failure: BaseException | None = None
        begin = board.clock()
        try:
            with span(task.name, task.stage):
                more = list(task.run() or ())
        except BaseException as error:
            failure = error
        board.end(job, Ran(task, begin, board.clock(), name), more, failure)
        del claimed, job, task, more, failure
