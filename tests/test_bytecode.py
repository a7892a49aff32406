"""Bytecode that a second process writes on the first start after an install."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from graphweft import _bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that was never imported."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(_bytecode, "_cores", lambda: 2)
    folder = tmp_path / "package"
    for name in ("__init__.py", "train/__init__.py", "train/trainer.py", "other.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x = 1\n")
    (folder / "broken.py").write_text("x = \n")  # an import would tell of it
    return folder


def _written(package: Path) -> set[str]:
    return {path.stem for path in package.rglob("*.py") if Path(importlib.util.cache_from_source(str(path))).exists()}


def test_all_modules_of_the_package_are_compiled_once(package: Path) -> None:
    started = _bytecode.compile_beside(package)
    assert started is not None
    os.waitpid(started, 0)
    assert _written(package) == {"__init__", "trainer", "other"}
    assert _bytecode.compile_beside(package) is None


@pytest.mark.parametrize("why", ["no bytecode is wanted", "one core"])
def test_nothing_is_started_where_it_serves_nobody(package: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "one core":
        monkeypatch.setattr(_bytecode, "_cores", lambda: 1)
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert _bytecode.compile_beside(package) is None
    assert _written(package) == set()


def test_a_missing_interpreter_is_no_failure(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(package / "none"))
    assert _bytecode.compile_beside(package) is None
