"""What this machine has, what it lacks, and how to get it.

Comes in: nothing. Goes out: findings with advice, as a list, a table or JSON. Called by ``graphweft doctor``. Looks
only, but for :func:`profile`: downloads nothing and writes nothing but one probe file in the cache folder.
"""

from __future__ import annotations

import importlib.metadata
import json as json_format
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphweft import _machine
from graphweft._config import current
from graphweft._first_use import compile_all, not_compiled
from graphweft._native import LEVEL, LEVELS
from graphweft.runtime import calibrate
from graphweft.train.calibration import measure

_FLAGS = ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16")
_OPTIONAL = {
    "torch_geometric": "pip install torch_geometric==2.8.1, for `graphweft bench` and converters",
    "networkx": "pip install networkx, for converters",
    "triton": "comes with CUDA builds of torch, for GPU kernels",
}


class Finding(NamedTuple):
    """One thing looked at: its topic, what was found, and what to do about it (empty: nothing)."""

    topic: str
    finding: str
    advice: str = ""


def report() -> list[Finding]:
    """Everything found, in the order a reader needs it.

    Example:
        >>> [finding.topic for finding in report()][:3]
        ['graphweft', 'python', 'torch']
    """
    return [
        *_versions(),
        *_processor(),
        *_memory(),
        _openmp(),
        _compiler(),
        *_caches(),
        *_devices(),
        *_optional(),
    ]


def main(json: bool = False) -> int:
    """Prints the report as a table, or as one JSON list; returns the exit status."""
    findings = report()
    if json:
        sys.stdout.write(json_format.dumps([finding._asdict() for finding in findings]) + "\n")
        return 0
    table = Table("topic", "found", "advice", title="graphweft doctor")
    for finding in findings:
        cells = (finding.topic, finding.finding, finding.advice or "-")
        table.add_row(*(Text(cell) for cell in cells), style="yellow" if finding.advice else None)
    Console().print(table)
    return 0


def profile(out: Path | None, threads: int, json: bool) -> list[str]:
    """Measures this machine with ``threads`` threads (0: as a run has), writes the profile to ``out``, and tells of it.

    Raises: OSError where ``out`` cannot be written.
    """
    if out is not None:
        out.parent.resolve(strict=True)  # found out before a minute of measuring
    torch.set_num_threads(threads or _machine.usable_cores())
    found = measure()
    if out is not None:
        found.write(out)
    if json:
        return [json_format.dumps({"out": None if out is None else str(out), **found.facts()})]
    kept = f"{out}: {found}" if out is not None else f"{found}"
    return [f"{kept}; mean error {found.error:.0%}, disk {found.disk_bytes_per_second / 1e6:.0f} MB/s"]


def compile_kernels(json: bool) -> list[str]:
    """Compiles the kernels that an install from source leaves to their first use, and tells which.

    Raises: MissingPackageError without a C++ compiler; OSError where the package's folder cannot be written.
    """
    names = compile_all(LEVEL)
    if json:
        return [json_format.dumps({"compiled": names})]
    return [f"kernels: compiled {', '.join(names)}" if names else "kernels: all are compiled"]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> list[Finding]:
    torch_version = torch.__version__
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2])
    old = "" if numbers >= (2, 11) else "pip install 'torch>=2.11'"
    own = _version("graphweft")
    return [
        Finding("graphweft", own or f"from the source tree {Path(__file__).parents[1]}"),
        Finding("python", f"{platform.python_version()} at {sys.executable}"),
        Finding("torch", torch_version, old),
        Finding("numpy, scipy", f"{_version('numpy')}, {_version('scipy')}"),
    ]


def _cpu_lines() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _processor() -> list[Finding]:
    lines = _cpu_lines()
    flags = set(lines.get("flags", "").split())
    wanted = os.environ.get("GRAPHWEFT_CPU_LEVEL")
    best = {"avx512f": 2, "avx2": 1}
    level = max((rank for flag, rank in best.items() if flag in flags), default=0)
    remedy = "unset GRAPHWEFT_CPU_LEVEL" if wanted else "install graphweft from source on this machine"
    lower = f"{remedy} to use {LEVELS[level]}" if LEVELS.index(LEVEL) < level else ""
    usable, threads = _machine.processors(), torch.get_num_threads()
    cores = f"{psutil.cpu_count(logical=False)} cores, {os.cpu_count()} logical, {usable} usable, {threads} threads"
    many = f"more threads than usable processors: torch.set_num_threads({usable})" if threads > usable else ""
    binding = os.environ.get("OMP_PROC_BIND")
    return [
        Finding("processor", lines.get("model name", platform.processor() or platform.machine())),
        Finding("instruction sets", " ".join(flag for flag in _FLAGS if flag in flags) or "none of those looked for"),
        Finding("kernel level", f"{LEVEL} of {', '.join(LEVELS)}", lower),
        Finding("kernels", _kernels()),
        Finding("threads", cores, many),
        Finding(
            "thread binding",
            f"OMP_PROC_BIND={binding}" if binding else "threads are not bound to processors",
            "" if binding else "for steady timings: OMP_PROC_BIND=true",
        ),
    ]


def _kernels() -> str:
    """Which kernels are compiled when they are first used."""
    names = not_compiled(LEVEL)
    if not names:
        return "all are compiled"
    return f"{', '.join(names)}: compiled when they are first used, or now by graphweft doctor --compile"


def _memory() -> list[Finding]:
    found = f"{_machine.memory() / 2**30:.1f} GiB, {_machine.free_memory() / 2**30:.1f} GiB available"
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        chosen = re.findall(r"\[(\w+)\]", setting.read_text(encoding="utf-8"))[0]
    except (OSError, IndexError):
        return [Finding("memory", found), Finding("huge pages", "not offered by this kernel")]
    advice = f"echo madvise > {setting}, as root: random row reads then cost half" if chosen == "never" else ""
    return [Finding("memory", found), Finding("huge pages", chosen, advice)]


def mapped_openmp() -> list[str]:
    """Paths of the OpenMP runtimes mapped into this process; more than one means two pools of threads."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    files = {parts[5] for line in lines if len(parts := line.split(maxsplit=5)) == 6}
    return sorted(file for file in files if re.match(r"lib\w*omp\d*[.-].*so|lib\w*omp\d*\.so", Path(file).name))


def _openmp() -> Finding:
    mapped = mapped_openmp()
    advice = ""
    if len(mapped) > 1:
        advice = "two thread pools compete: import torch before other packages that bring an OpenMP runtime"
    return Finding("OpenMP", ", ".join(mapped) or "no runtime mapped", advice)


def _compiler() -> Finding:
    found = _machine.find_compiler()
    if found is None:
        advice = "install g++ or clang++ to build from source; the installed kernels work without"
        return Finding("C++ compiler", "none found", advice)
    told = found.version.splitlines()[0] if found.version else "no version"
    return Finding("C++ compiler", f"{' '.join(found.command)}: {told}")


def _writable(folder: Path) -> bool:
    """A file can be made in ``folder``, or in the nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _caches() -> list[Finding]:
    settings = current()
    findings = []
    for topic, folder, variable in (
        ("cache", settings.cache_path, "GRAPHWEFT_CACHE_DIR"),
        ("datasets", Path(settings.data_dir).expanduser(), "GRAPHWEFT_DATA_DIR"),
    ):
        writable = _writable(folder)
        state = "" if folder.is_dir() else ", not made yet"
        findings.append(
            Finding(
                topic,
                f"{folder.absolute()}{state}, {'writable' if writable else 'not writable'}",
                "" if writable else f"set {variable} to a folder that can be written",
            )
        )
    return [*findings, _calibration()]


def _calibration() -> Finding:
    if calibrate.is_calibrated():
        return Finding("calibration", f"{calibrate.cache_file().name}: sparse from {calibrate.threshold():.2f} zeros")
    return Finding("calibration", "none yet: made during the first training run")


def _devices() -> list[Finding]:
    if not torch.cuda.is_available():
        return [Finding("CUDA", "no device visible to this torch; the CPU is used")]
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [Finding("CUDA", f"{', '.join(names)} (torch built for {torch.version.cuda})")]


def _optional() -> list[Finding]:
    findings = []
    for name, advice in _OPTIONAL.items():
        version = _version(name)
        findings.append(Finding(f"optional: {name}", version or "not installed", "" if version else advice))
    return findings
