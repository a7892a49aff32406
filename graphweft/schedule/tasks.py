"""Subtasks with their dependences, and what must hold of every run of them.

Comes in: tasks by name. Goes out: a :class:`TaskGraph` that an executor works off, and, from the log of a run, what it
did against the rules. Pure, but for the tasks themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from graphweft._errors import GraphWeftError


@dataclass(frozen=True)
class Task:
    """Something to do.

    Attributes:
        name: Distinct within its graph.
        stage: What kind of work it is, for traces.
        run: Does it; may return further tasks, whose number was not known before.
        after: Names of tasks that must have ended, also of ones that are to come.
        holds: Something that only one task at a time may have.
    """

    name: str
    stage: str
    run: Callable[[], Iterable[Task] | None]
    after: tuple[str, ...] = ()
    holds: str | None = None


@dataclass(frozen=True)
class Ran:
    """A task that ran, in seconds of the executor's clock."""

    task: Task
    begin: float
    end: float
    thread: str


class TaskGraph:
    """Tasks of one batch; whoever runs them asks for those that are ready, in the order in which they were added.

    Raises: GraphWeftError for a name that comes twice.

    Example:
        >>> graph = TaskGraph([Task("b", "s", lambda: None, after=("a",)), Task("a", "s", lambda: None)])
        >>> [task.name for task in graph.ready()]
        ['a']
        >>> graph.start(graph.ready()[0])
        >>> graph.end(Ran(graph.tasks["a"], 0.0, 1.0, "main"), ())
        >>> [task.name for task in graph.ready()], graph.is_done
        (['b'], False)
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks: dict[str, Task] = {}
        self.log: list[Ran] = []
        self._left: dict[str, set[str]] = {}  # of tasks that have not begun: what they still wait for
        self._ended: set[str] = set()
        self._running: set[str] = set()
        self._add(tasks)

    @property
    def is_done(self) -> bool:
        """Whether all tasks have ended."""
        return len(self._ended) == len(self.tasks)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing runs or can begin, though tasks are left: some wait for each other or for none."""
        return not self.is_done and not self._running and not self.ready()

    def ready(self) -> list[Task]:
        """Tasks that wait for nothing, in order."""
        return [self.tasks[name] for name, waits in self._left.items() if not waits]

    def start(self, task: Task) -> None:
        """A task begins."""
        del self._left[task.name]
        self._running.add(task.name)

    def end(self, ran: Ran, more: Iterable[Task]) -> None:
        """A task has ended and asks for ``more``."""
        self._running.discard(ran.task.name)
        self._ended.add(ran.task.name)
        self.log.append(ran)
        self._add(more)
        for waits in self._left.values():
            waits.discard(ran.task.name)

    def _add(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if task.name in self.tasks:
                raise GraphWeftError(f"schedule: expected distinct tasks, got {task.name!r} twice")
            self.tasks[task.name] = task
            self._left[task.name] = set(task.after) - self._ended


def violations(log: Sequence[Ran]) -> list[str]:
    """What a run did against dependences and holds; empty for a right one.

    Example:
        >>> a, b = Task("a", "s", lambda: None), Task("b", "s", lambda: None, after=("a",))
        >>> violations([Ran(a, 0.0, 2.0, "one"), Ran(b, 1.0, 3.0, "two")])
        ['b began before a had ended']
    """
    found = []
    by_name = {ran.task.name: ran for ran in log}
    for ran in log:
        for name in ran.task.after:
            if name not in by_name:
                found.append(f"{ran.task.name} ran without {name}")
            elif by_name[name].end > ran.begin:
                found.append(f"{ran.task.name} began before {name} had ended")
    holders = sorted((ran for ran in log if ran.task.holds is not None), key=lambda ran: ran.begin)
    for place, one in enumerate(holders):
        for two in holders[place + 1 :]:
            if one.task.holds == two.task.holds and two.begin < one.end:
                found.append(f"{one.task.name} and {two.task.name} both held {one.task.holds}")
    return found


def makespan(log: Sequence[Ran]) -> tuple[float, float]:
    """Seconds from the first begin to the last end, and the sum of what all tasks took."""
    span = max(ran.end for ran in log) - min(ran.begin for ran in log)
    return span, sum(ran.end - ran.begin for ran in log)
