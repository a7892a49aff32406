"""Processors and memory of made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from graphweft import _machine
from graphweft._machine import usable_cores


def _processors(path: Path, cores: dict[int, int]) -> Path:
    for cpu, core in cores.items():
        topology = path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core}\n")
    return path


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_two_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _processors(tmp_path, {0: 0, 1: 1, 2: 0, 3: 1})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert usable_cores(machine, tmp_path / "none") == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    assert usable_cores(machine, tmp_path / "none") == 1


def test_a_machine_that_says_nothing_counts_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert usable_cores(tmp_path, tmp_path / "none") == 3


@pytest.mark.parametrize(("text", "expected"), [("150000 100000\n", 2), ("max 100000\n", 4), ("50000 100000", 1)])
def test_a_container_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path, tmp_path) == expected


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("0", 2), ("x", 2), ("", 2)])
def test_the_environment_wins_where_it_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert usable_cores(tmp_path, tmp_path / "none") == expected


def _group(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / name.replace("_", ".", 1)).write_text(text)
    return path


def test_memory_is_at_most_the_limit_of_the_container(tmp_path: Path) -> None:
    whole = psutil.virtual_memory().total
    assert _machine.memory(tmp_path) == whole, "no control group"
    assert _machine.memory(_group(tmp_path, memory_max="max\n")) == whole
    assert _machine.memory(_group(tmp_path, memory_max="1048576\n")) == 1 << 20
    assert _machine.memory(_group(tmp_path, memory_max=f"{whole * 2}\n")) == whole


def test_memory_of_the_first_version_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("2097152\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("1048576\n")
    assert (_machine.memory(tmp_path), _machine.free_memory(tmp_path)) == (1 << 21, 1 << 20)


def test_free_memory_counts_files_that_the_system_may_drop(tmp_path: Path) -> None:
    _group(tmp_path, memory_max="1000000", memory_current="900000")
    assert _machine.free_memory(tmp_path) == 100_000
    _group(tmp_path, memory_stat="anon 5\ninactive_file 300000\nactive_file 7\n")
    assert _machine.free_memory(tmp_path) == 400_000
    _group(tmp_path, memory_current="2000000", memory_stat="anon 5\n")
    assert _machine.free_memory(tmp_path) == 0


def test_the_compiler_is_the_first_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in (("broken", "exit 1"), ("g++", "echo fine 1.0")):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "broken -m64")
    assert _machine.find_compiler() == _machine.Compiler(("g++",), "fine 1.0\n")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert _machine.find_compiler() is None
