"""Which of PyTorch Geometric's own tests pass with ``gw.compile`` around the modules that they construct.

Comes in: ``--tests FOLDER``, the folder ``test`` of a checkout of PyTorch Geometric of the installed version, and the
folders inside it to run. Goes out: the tests that pass without and fail with, on standard output; with ``--csv FILE``
the counts per folder. Each test runs twice, in two processes: with the modules as they are, then with every class of
modules that the test's file or parameters name replaced by a factory that compiles what it makes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import graphweft as gw
from graphweft.nn import compiled_call

FOLDERS = ("nn/conv", "nn/aggr", "nn/models", "nn/pool", "nn/norm", "explain")


class Compiling:
    """Stands where a class of modules was: makes compiled ones, and is the class for everything else."""

    def __init__(self, original: type[nn.Module]) -> None:
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return gw.compile(self.original(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (self.original,)

    def __instancecheck__(self, made: Any) -> bool:
        return isinstance(made, self.original)


class Outcomes:
    """A pytest plugin: how each test ended, and how its calls of compiled modules ran.

    Args:
        compiled: Whether modules are compiled.
        seed: Of torch, at the beginning of every test.
    """

    def __init__(self, compiled: bool, seed: int) -> None:
        self.compiled, self.seed = compiled, seed
        self.found: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.counted: dict[str, dict[str, int]] = {}
        if compiled:
            compiled_call.CompiledCalls.__call__ = self._counted(compiled_call.CompiledCalls.__call__)  # type: ignore[method-assign]

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(calls: Any, *given: Any) -> Any:
            if getattr(compiled_call.NOW, "recording", False):
                return call(calls, *given)
            result = call(calls, *given)
            self.calls[f"not compiled: {calls.reason}" if calls.last is None else "compiled"] += 1
            return result

        return counted

    @pytest.hookimpl(hookwrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Iterator[None]:
        """Gives a test other globals and parameters, in which classes are replaced."""
        self.calls.clear()
        torch.manual_seed(self.seed)
        if self.compiled:
            given = pyfuncitem.funcargs
            pyfuncitem.obj = _elsewhere(pyfuncitem.obj)
            given.update({name: Compiling(value) for name, value in given.items() if _is_tested(value)})
        yield
        self.counted[pyfuncitem.nodeid] = dict(self.calls)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keeps the worst of a test's phases, and the last line of its error."""
        if report.when == "call" or report.outcome != "passed":
            text = "" if report.longrepr is None else str(report.longrepr)
            if isinstance(report.longrepr, tuple):
                text = report.longrepr[2]
            elif getattr(report.longrepr, "reprcrash", None) is not None:
                text = report.longrepr.reprcrash.message
            calls = self.counted.get(report.nodeid, {})
            error = (text.splitlines() or [""])[0]
            self.found[report.nodeid] = {"outcome": report.outcome, "error": error, "calls": calls}


def _is_tested(kind: Any) -> bool:
    """Whether modules of a class are under test: those of PyTorch Geometric and those that a test's file defines."""
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return False
    return not kind.__module__.startswith("torch.") and kind is not nn.Module


def _elsewhere(test: Any) -> Any:
    """A test, and the functions of its file, with compiling classes among their globals.

    The file itself keeps its classes: pickle looks for them there.
    """
    there: dict[str, Any] = {}

    def moved(function: FunctionType) -> FunctionType:
        made = FunctionType(function.__code__, there, function.__name__, function.__defaults__, function.__closure__)
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    for name, value in test.__globals__.items():
        own = isinstance(value, FunctionType) and value.__globals__ is test.__globals__
        there[name] = Compiling(value) if _is_tested(value) else moved(value) if own else value
    return moved(test)


def _run(tests: Path, folders: list[str], compiled: bool, seed: int, result: Path, more: list[str]) -> None:
    """Runs the tests in this process and writes how they ended."""
    plugin = Outcomes(compiled, seed)
    where = [str(tests / folder) for folder in folders]
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={tests}", "-c", os.devnull, *more]
    pytest.main([*where, *options], plugins=[plugin])
    result.write_text(json.dumps(plugin.found))


def _both(
    tests: Path, folder: str, options: list[str], more: list[str], place: Path, at_once: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outcomes as the modules are, and compiled: of a folder's files, so many in one process."""
    files = sorted(str(file.relative_to(tests)) for file in (tests / folder).rglob("test_*.py"))
    found: list[dict[str, Any]] = [{}, {}]
    for start in range(0, len(files), at_once):
        part = files[start : start + at_once]
        for outcomes, word in zip(found, ("plain", "compiled"), strict=True):
            result = place / f"{folder.replace('/', '-')}-{at_once}-{start}-{word}.json"
            if not result.exists():
                command = [sys.executable, __file__, "--tests", str(tests), "--as", word, "--result", str(result)]
                subprocess.run([*command, *options, *part, "--", *more], check=True, stdout=subprocess.DEVNULL)
            outcomes.update(json.loads(result.read_text()))
    return found[0], found[1]


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Puts rows into a file, in the place of those of the same folders."""
    before = list(csv.DictReader(file.open())) if file.exists() else []
    new = {(row["dtype"], row["folder"]) for row in rows}
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows([*(row for row in before if (row["dtype"], row["folder"]) not in new), *rows])


def main() -> None:
    """The command."""
    own, _, more = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=list(FOLDERS))
    parser.add_argument("--tests", type=Path, required=True, help="the folder test of a checkout")
    parser.add_argument("--csv", type=Path, help="where the counts go, beside those of other folders")
    parser.add_argument("--at-once", type=int, default=1000, help="how many files of tests run in one process")
    parser.add_argument("--keep", type=Path, help="a folder for results of single runs, which are not run again")
    parser.add_argument("--seed", type=int, default=0, help="of torch, at the beginning of every test")
    parser.add_argument("--reasons", action="store_true", help="print why calls were not compiled")
    parser.add_argument("--as", dest="kind", choices=("plain", "compiled"), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--double", action="store_true", help="float64 by default, where rounding decides nothing")
    args = parser.parse_args(own.split())
    if args.double:
        torch.set_default_dtype(torch.float64)
    tests = args.tests.resolve()
    if args.kind:
        _run(tests, args.folders, args.kind == "compiled", args.seed, args.result, more.split())
        return
    rows = []
    for folder in args.folders:
        options = ["--seed", str(args.seed), *(["--double"] if args.double else [])]
        with tempfile.TemporaryDirectory() as temporary:
            place = args.keep or Path(temporary)
            plain, compiled = _both(tests, folder, options, more.split(), place, args.at_once)
        rows.append({"dtype": str(torch.get_default_dtype())[6:], **_row(folder, plain, compiled)})
        if args.reasons:
            reasons: Counter[str] = Counter()
            for found in compiled.values():
                reasons.update(found.get("calls", {}))
            for reason, count in reasons.most_common():
                print(f"  {count:6} {reason}")
        if args.reasons:
            skips = Counter(found["error"] for found in compiled.values() if found["outcome"] == "skipped")
            for reason, count in skips.most_common(12):
                print(f"  {count:6} {reason}")
    print(json.dumps(rows, indent=1))
    if args.csv:
        _write(args.csv, rows)


def _row(folder: str, plain: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
    """Counts of a folder; prints tests that fail compiled only."""
    passed = [name for name, found in plain.items() if found["outcome"] == "passed"]
    lost = [name for name in passed if compiled.get(name, {}).get("outcome") != "passed"]
    for name in lost:
        print(f"{name}: {compiled.get(name, {}).get('error', 'did not run')}")
    ran = [found.get("calls", {}) for found in compiled.values()]
    return {
        "folder": folder,
        "tests": len(plain),
        "pass as they are": len(passed),
        "pass compiled too": len(passed) - len(lost),
        "skipped": sum(found["outcome"] == "skipped" for found in plain.values()),
        "compiled calls": sum(calls.get("compiled", 0) for calls in ran),
        "calls as they stand or in parts": sum(sum(calls.values()) - calls.get("compiled", 0) for calls in ran),
    }


if __name__ == "__main__":
    main()
