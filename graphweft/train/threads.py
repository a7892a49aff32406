"""How many threads this process may well use.

Comes in: the system's view of the machine. Goes out: a count. Called by :mod:`graphweft.run` when the user names none.
"""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cpus: Path = _CPUS, quota: Path = _QUOTA) -> int:
    """Physical cores that this process may run on, at most the container's share of the machine; at least 1.

    ``OMP_NUM_THREADS`` wins where it is set to a number.
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isascii() and named.isdigit() and int(named) > 0:
        return int(named)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_core(cpus, cpu) for cpu in allowed}
    return max(1, min(len(cores), _share(quota)))


def _core(cpus: Path, cpu: int) -> tuple[str, str]:
    """Names the physical core of a logical CPU; the CPU itself where the system does not say."""
    topology = cpus / f"cpu{cpu}" / "topology"
    try:
        return (topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip()
    except OSError:
        return "cpu", str(cpu)


def _share(quota: Path) -> int:
    """Whole CPUs of the control group's quota, rounded up; very many where there is none."""
    try:
        limit, period = quota.read_text().split()
        return -(-int(limit) // int(period))
    except (OSError, ValueError):
        return 1 << 20
