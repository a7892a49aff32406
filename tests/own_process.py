"""Processes of their own for tests with the mark ``own_process``: children of one that has read the packages, no more.

Comes in: the id of a test. Goes out: the exit status and what was printed. The heap of each child is that of a process
that has just started; what takes its seconds, to read torch, the package and pytest, was done once. Called by
``conftest.py``. As a program it is the parent: a line ``["id", "file for what is printed"]`` in, a line with the status
out, until nobody asks any more.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import graphweft

INSIDE = "GRAPHWEFT_TEST_OWN_PROCESS"  # set in such processes
ROOT = Path(__file__).resolve().parents[1]


class Parent:
    """The process whose children run tests; it is started by the first test."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, test: str) -> tuple[int, str]:
        """The exit status of pytest on one test alone, and what it printed; -1 where the parent itself ended."""
        with tempfile.NamedTemporaryFile("r", suffix=".txt") as told:
            try:
                status = self._asked(json.dumps([test, told.name]))
            except BaseException:  # the time of the test is up: its process would go on
                self.end()
                raise
            return status, told.read()

    def _asked(self, line: str) -> int:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "own_process.py")],
                cwd=ROOT, env={**os.environ, INSIDE: "1"}, text=True, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        return int(answer) if answer else -1

    def end(self) -> None:
        """Ends it, and a child that runs."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None


def _serve() -> None:
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    for name in graphweft.__all__:
        getattr(graphweft, name)
    gc.collect()
    gc.freeze()  # a child that looked at all of these objects would get a copy of their memory
    read_before = "ignore::pytest.PytestAssertRewriteWarning"  # plugins, of whose assertions no more is to be told
    while line := sys.stdin.readline():
        test, told = json.loads(line)
        child = os.fork()
        if child == 0:
            out = os.open(told, os.O_WRONLY)
            os.dup2(out, 1)
            os.dup2(out, 2)
            status = pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "-W", read_before, test])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # to free all of them takes as long as a test
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
