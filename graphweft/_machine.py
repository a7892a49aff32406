"""The machine as this process may use it: processors, memory, the C++ compiler.

Comes in: the system's view, control groups of containers included. Goes out: counts, bytes, a command. Everything that
depends on the machine asks here; what is decided from free memory is refused or warned about, never computed otherwise.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

_CPUS = Path("/sys/devices/system/cpu")
_GROUP = Path("/sys/fs/cgroup")


def processors() -> int:
    """Logical processors that this process may run on."""
    return len(_allowed())


def is_busy() -> bool:
    """Whether more runs on the machine than it has processors for, so that times say little of it."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) + 0.5


def usable_cores(cpus: Path = _CPUS, group: Path = _GROUP) -> int:
    """Physical cores that this process may run on, at most the container's share of the machine; at least 1.

    ``OMP_NUM_THREADS`` wins where it is set to a number.
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isascii() and named.isdigit() and int(named) > 0:
        return int(named)
    return max(1, min(len({_core(cpus, cpu) for cpu in _allowed()}), _share(group / "cpu.max")))


def _allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _core(cpus: Path, cpu: int) -> tuple[str, str]:
    """Names the physical core of a logical processor; the processor itself where the system does not say."""
    topology = cpus / f"cpu{cpu}" / "topology"
    try:
        return (topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip()
    except OSError:
        return "cpu", str(cpu)


def _share(quota: Path) -> int:
    """Whole processors of the control group's quota, rounded up; very many where there is none."""
    try:
        limit, period = quota.read_text().split()
        return -(-int(limit) // int(period))
    except (OSError, ValueError):
        return 1 << 20


def memory(group: Path = _GROUP) -> int:
    """Bytes of memory: the machine's, or the container's limit where that is lower."""
    total = int(psutil.virtual_memory().total)
    limit = _bytes_of(group, "memory.max", "memory/memory.limit_in_bytes")
    return total if limit is None else min(total, limit)


def free_memory(group: Path = _GROUP) -> int:
    """Bytes that may still be taken without swapping; the system's caches count as free."""
    free = int(psutil.virtual_memory().available)
    limit = _bytes_of(group, "memory.max", "memory/memory.limit_in_bytes")
    used = _bytes_of(group, "memory.current", "memory/memory.usage_in_bytes")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _cached(group)))


def _bytes_of(group: Path, *names: str) -> int | None:
    """The number in the first of the files that there is; None where that says "max"."""
    for name in names:
        try:
            return int((group / name).read_text())
        except (OSError, ValueError):
            continue
    return None


def _cached(group: Path) -> int:
    """Bytes of files in the control group's memory that were not read lately."""
    for name in ("memory.stat", "memory/memory.stat"):
        try:
            lines = (group / name).read_text().splitlines()
        except OSError:
            continue
        return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return 0


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the words that start it, and what it says of its version."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler | None:
    """The first of ``$CXX``, ``g++`` and ``clang++`` that runs."""
    return _find(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@functools.cache
def _find(named: str, path: str) -> Compiler | None:
    for words in (shlex.split(named), ["g++"], ["clang++"]):
        if not words or shutil.which(words[0], path=path) is None:
            continue
        try:
            answer = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return Compiler(tuple(words), answer.stdout)
    return None
