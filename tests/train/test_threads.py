"""Counting cores on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphweft.train.threads import usable_cores


def _machine(path: Path, cores: dict[int, int]) -> Path:
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
    machine = _machine(tmp_path, {0: 0, 1: 1, 2: 0, 3: 1})
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
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    assert usable_cores(tmp_path, quota) == expected


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("0", 2), ("x", 2), ("", 2)])
def test_the_environment_wins_where_it_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert usable_cores(tmp_path, tmp_path / "none") == expected
