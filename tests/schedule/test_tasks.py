"""Graphs of tasks and the threads that work them off: dependences, holds, failures, overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphweft._errors import ConfigError, GraphWeftError
from graphweft.schedule.executor import Executor
from graphweft.schedule.tasks import Ran, Task, TaskGraph, makespan, violations


def _nothing() -> None:
    return None


@st.composite
def _graphs(draw: st.DrawFn) -> list[Task]:
    """Acyclic by construction: a task comes after some of those before it."""
    tasks: list[Task] = []
    for index in range(draw(st.integers(1, 14))):
        after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        holds = draw(st.sampled_from([None, None, "table", "buffer"]))
        tasks.append(Task(f"t{index}", "s", _nothing, tuple(f"t{i}" for i in sorted(after)), holds))
    return draw(st.permutations(tasks))


@settings(max_examples=40, deadline=None)
@given(_graphs(), st.integers(1, 4))
def test_every_run_keeps_the_rules(tasks: list[Task], threads: int) -> None:
    graph = TaskGraph(tasks)
    with Executor(threads) as executor:
        executor.run(graph)
    assert graph.is_done and sorted(ran.task.name for ran in graph.log) == sorted(task.name for task in tasks)
    assert violations(graph.log) == []


def test_the_checker_sees_what_is_wrong() -> None:
    a, b = Task("a", "s", _nothing), Task("b", "s", _nothing, ("a",))
    assert violations([Ran(a, 0.0, 1.0, "x"), Ran(b, 1.0, 2.0, "y")]) == []
    assert violations([Ran(a, 0.0, 1.5, "x"), Ran(b, 1.0, 2.0, "y")]) == ["b began before a had ended"]
    assert violations([Ran(b, 1.0, 2.0, "y")]) == ["b ran without a"]
    one, two = Task("one", "s", _nothing, holds="table"), Task("two", "s", _nothing, holds="table")
    assert violations([Ran(one, 0.0, 1.0, "x"), Ran(two, 1.0, 2.0, "y")]) == []
    assert violations([Ran(two, 0.5, 2.0, "y"), Ran(one, 0.0, 1.0, "x")]) == ["one and two both held table"]


def test_tasks_may_ask_for_tasks() -> None:
    seen: list[str] = []

    def more() -> Iterable[Task]:
        return [
            Task(f"late{i}", "s", lambda i=i: seen.append(f"late{i}"), (f"late{i - 1}",) if i else ()) for i in range(3)
        ]

    graph = TaskGraph([Task("last", "s", lambda: seen.append("last"), ("late2",)), Task("first", "s", more)])
    with Executor(2) as executor:
        executor.run(graph)
    assert seen == ["late0", "late1", "late2", "last"]


def test_a_failure_ends_its_graph_alone() -> None:
    def fail() -> None:
        raise ValueError("no")

    ran: list[str] = []
    with Executor(2) as executor:
        with pytest.raises(ValueError, match="no"):
            executor.run(TaskGraph([Task("a", "s", fail), Task("b", "s", lambda: ran.append("b"), ("a",))]))
        executor.run(TaskGraph([Task("c", "s", lambda: ran.append("c"))]))
    assert ran == ["c"]


@pytest.mark.parametrize("tasks", [[("a", "b"), ("b", "a")], [("a", "missing")]])
def test_waiting_in_a_circle_or_for_none_is_an_error(tasks: list[tuple[str, str]]) -> None:
    with Executor(2) as executor, pytest.raises(GraphWeftError, match="circle"):
        executor.run(TaskGraph([Task(name, "s", _nothing, (after,)) for name, after in tasks]))


def test_a_name_comes_once() -> None:
    with pytest.raises(GraphWeftError, match="'a' twice"):
        TaskGraph([Task("a", "s", _nothing), Task("a", "s", _nothing)])
    with Executor(1) as executor, pytest.raises(GraphWeftError, match="'a' twice"):
        executor.run(TaskGraph([Task("a", "s", lambda: [Task("a", "s", _nothing)])]))


def test_threads_are_counted_and_end() -> None:
    with pytest.raises(ConfigError, match=r"^threads: expected an integer >= 1"):
        Executor(0)
    executor = Executor(3)
    executor.run(TaskGraph([Task("a", "s", _nothing)]))
    mine = [t for t in threading.enumerate() if t.name.startswith("graphweft-task")]
    assert len(mine) >= 3
    executor.close()
    assert not any(t.is_alive() for t in executor._workers)
    with pytest.raises(GraphWeftError, match="closed"):
        executor.run(TaskGraph([Task("a", "s", _nothing)]))


def test_an_executor_that_is_let_go_ends_its_threads() -> None:
    executor = Executor(2)
    executor.run(TaskGraph([Task("a", "s", _nothing)]))
    workers = list(executor._workers)
    del executor
    for worker in workers:
        worker.join(timeout=30)
    assert not any(worker.is_alive() for worker in workers)


def test_several_graphs_at_once() -> None:
    seen: list[tuple[int, str]] = []
    with Executor(2) as executor:

        def one(rank: int) -> None:
            tasks = [
                Task(f"{i}", "s", lambda i=i: seen.append((rank, str(i))), (f"{i - 1}",) if i else ())
                for i in range(20)
            ]
            executor.run(TaskGraph(tasks), rank)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for rank in range(4):
        assert [name for r, name in seen if r == rank] == [str(i) for i in range(20)]


def test_the_graph_of_the_lowest_rank_goes_first() -> None:
    """One thread is busy while graphs of ranks 5, 3 and 1 come in: then 1, 3, and what is left of 5."""
    busy, go, order = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        busy.set()
        assert go.wait(60)

    def one(name: str, after: tuple[str, ...] = ()) -> Task:
        return Task(name, "s", lambda: order.append(name), after)

    with Executor(1) as executor:
        graphs = [(TaskGraph([Task("first", "s", hold), one("five", ("first",))]), 5)]
        graphs += [(TaskGraph([one(name)]), rank) for name, rank in (("three", 3), ("one", 1))]
        threads = []
        for place, (graph, rank) in enumerate(graphs):
            threads.append(threading.Thread(target=executor.run, args=(graph, rank)))
            threads[-1].start()
            assert busy.wait(60)
            while len(executor._board._jobs) <= place:
                time.sleep(0.001)
        go.set()
        for thread in threads:
            thread.join()
    assert order == ["one", "three", "five"]


def test_waiting_for_a_lock_is_measured() -> None:
    """Two tasks that hold the same for 50 ms each: the second thread stands still for one of them."""
    tasks = [Task(f"{i}", "s", lambda: time.sleep(0.05), holds="table") for i in range(2)]
    with Executor(2) as executor:
        executor.run(TaskGraph(tasks))
        assert executor.lock_wait >= 0.04
    free = [Task(f"{i}", "s", lambda: time.sleep(0.05)) for i in range(4)]
    with Executor(2) as executor:
        executor.run(TaskGraph(free))
        assert executor.lock_wait == 0.0


def test_subtasks_overlap() -> None:
    """N12 with sleeps in place of work: the batch takes at most 0.7 of what its tasks take one after the other."""

    def work() -> None:
        time.sleep(0.04)

    tasks = []
    for hop in range(3):
        before = (f"H{hop - 1}",) if hop else ()
        tasks += [Task(f"S{hop}.{part}", "sample", work, before) for part in range(2)]
        tasks.append(Task(f"H{hop}", "renumber", _nothing, (f"S{hop}.0", f"S{hop}.1"), "table"))
        tasks.append(Task(f"R{hop}", "renumber", work, (f"H{hop}",), "table"))
        tasks.append(Task(f"K{hop}", "lookup", work, (f"H{hop}",)))
        tasks += [Task(f"T{kind}{hop}", "transfer", work, (f"{kind}{hop}", "H2")) for kind in "RK"]
    graph = TaskGraph(tasks)
    with Executor(2) as executor:
        executor.run(graph)
    assert violations(graph.log) == []
    span, serial = makespan(graph.log)
    assert span <= 0.7 * serial
