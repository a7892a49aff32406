"""Builds and runs the native tests under sanitizers, one build after the other.

``python tests/cpp/run.py [--build DIR] [configuration ...]``; needs cmake and a C++ compiler. Exit status 0 only if
every configuration that this CPU can run passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Configuration(NamedTuple):
    """One build: what is sanitised, for which instruction set, with which threads."""

    sanitize: str
    arch: str
    flags: tuple[str, ...]  # of /proc/cpuinfo that the instruction set needs
    std_threads: bool = False


# Address and undefined-behaviour checks are built apart: together they make the widest kernels take minutes to compile.
# Checks of threads and of undefined behaviour are both made on portable code, and are built together; the latter are
# traps there, "undefined" alone has messages.
CONFIGURATIONS = {
    "address-portable": Configuration("address", "", ()),
    "address-avx2": Configuration("address", "x86-64-v3", ("avx2", "fma", "bmi2")),
    "address-avx512": Configuration("address", "x86-64-v4", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "undefined": Configuration("undefined", "", ()),
    "thread": Configuration("thread", "", (), std_threads=True),
    "thread-undefined": Configuration("thread,undefined", "", (), std_threads=True),
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "4",
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return set(line.split())
    return set()


def _tool(name: str) -> str:
    """The one beside this interpreter (installed with the test extra), else the system's."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


def _usual(flags: set[str]) -> list[str]:
    """Memory checks at the best instruction set this CPU has, the other checks at the portable one."""
    levels = [name for name in CONFIGURATIONS if name.startswith("address")]
    best = [name for name in levels if flags.issuperset(CONFIGURATIONS[name].flags)][-1]
    return [best, "thread-undefined"]


def _run(name: str, configuration: Configuration, build: Path) -> bool:
    define = {
        "GW_SANITIZE": configuration.sanitize,
        "GW_ARCH": configuration.arch,
        "GW_THREADS_STD": "ON" if configuration.std_threads else "OFF",
        "CMAKE_BUILD_TYPE": "None",
    }
    folder = build / name
    options = [f"-D{key}={value}" for key, value in define.items()]
    steps = [
        [_tool("cmake"), "-S", str(HERE), "-B", str(folder), *options],
        [_tool("cmake"), "--build", str(folder), "--parallel", str(min(4, os.cpu_count() or 1))],
        [str(folder / "graphweft_tests")],
    ]
    for step in steps:
        done = subprocess.run(step, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
        if done.returncode:
            if done.returncode == -signal.SIGILL:
                print(f"{name}: a trap, which stands for undefined behaviour: the configuration undefined says where")
            print(f"{name}: FAILED {' '.join(step)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
            return False
    print(f"{name}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    return True


def main() -> int:
    """Runs the configurations named, or the usual ones; stops at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, help="keep the build trees here")
    parser.add_argument("configurations", nargs="*", choices=[[], *CONFIGURATIONS], default=[])
    arguments = parser.parse_args()
    flags = _cpu_flags()
    with tempfile.TemporaryDirectory(prefix="graphweft-cpp-") as scratch:
        for name in arguments.configurations or _usual(flags):
            configuration = CONFIGURATIONS[name]
            if not flags.issuperset(configuration.flags):
                print(f"{name}: not run, this CPU lacks {', '.join(sorted(set(configuration.flags) - flags))}")
                continue
            if not _run(name, configuration, arguments.build or Path(scratch)):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
