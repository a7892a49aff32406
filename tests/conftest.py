"""Fixtures that every folder of tests uses, and what child processes of tests inherit."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from own_process import INSIDE, Parent

from graphweft._first_use import compile_all
from graphweft._native import LEVEL

ROOT = Path(__file__).resolve().parents[1]
_PARENT = Parent()


def pytest_configure(config: pytest.Config) -> None:
    """Child processes import the package that the tests import: never one that merely lies in their working folder.

    Of several workers (``-n``) each has one thread, which sleeps while it waits; tests of threads ask for theirs.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: children would not end
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest listens to loggers that do not propagate, and torch would tell it, at length, of each thing that it traces.
    logging.getLogger("torch.__trace").propagate = True
    if getattr(config.option, "numprocesses", None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if not hasattr(config, "workerinput") and not config.option.collectonly and INSIDE not in os.environ:
        compile_all(LEVEL, with_portable=True)  # no test waits for a compiler where another would not have waited
    if "PYTHONPATH" in os.environ:
        parts = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(part).resolve()) for part in parts if part)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker a processor for the whole suite; none for a part of it, which would wait for their start."""
    return 0 if config.args_source is pytest.Config.ArgsSource.ARGS else len(os.sched_getaffinity(0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The collector of cycles never looks at tests, neither while they are made nor later: none of them is garbage.

    A whole collection takes seconds with them, and budgets, recordings and tests of what is freed ask for many.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of several workers begins with its share of the long tests: one that begins last keeps the others waiting.

    A worker is first given as many tests as any other, in this order; those who are done take from the end of others.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        long, short = ([x for x in items if bool(x.get_closest_marker("slow")) == slow] for slow in (True, False))
        items[:] = [x for k in range(workers) for kind in (long, short) for x in _share(kind, k, workers)]


def _share(items: list[pytest.Item], number: int, of: int) -> list[pytest.Item]:
    return items[number * len(items) // of : (number + 1) * len(items) // of]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test with the mark ``own_process`` in a new process: no other test acts on its memory."""
    if not pyfuncitem.get_closest_marker("own_process") or INSIDE in os.environ:
        return None
    status, told = _PARENT.run(pyfuncitem.nodeid)
    if status:
        pytest.fail(f"in a process of its own, status {status}:\n{told}", pytrace=False)
    return True


def pytest_unconfigure() -> None:
    """Ends what was started for tests with processes of their own, and lets tests be freed."""
    _PARENT.end()
    gc.unfreeze()


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests belong to."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets beside the checkout; GRAPHWEFT_SHARED_DATA names another."""
    named = os.environ.get("GRAPHWEFT_SHARED_DATA")
    places = [Path(named)] if named else [ROOT.parent / "shared" / "data", ROOT.parent.parent / "shared" / "data"]
    for place in places:
        if place.is_dir():
            return place
    pytest.skip(f"no real datasets: {places[0]} is no folder; set GRAPHWEFT_SHARED_DATA")


@pytest.fixture(autouse=True)
def _torch_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Puts torch's number of threads back after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
