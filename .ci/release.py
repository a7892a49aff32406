"""Builds the files of a release: a source archive, and from it a wheel with all instruction set levels.

``python .ci/release.py [--out dist] [--aarch64]``, with the extra ``release`` installed, in a checkout without changes.
The wheel is audited: its libraries want glibc and libgomp alone, and it gets the oldest manylinux tag that its symbols
allow. libgomp is not copied into it, since torch brings one and a process should have one pool of threads. Then the
wheel is installed in a fresh environment, where it trains the README's first model. ``--aarch64`` cross-compiles a
wheel for aarch64 Linux as well (Debian: ``apt install g++-aarch64-linux-gnu qemu-user``) and runs the C++ tests for it
in user-mode emulation. Exit status 0 only if all of it passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parent.parent
TOOLCHAIN = ROOT / "csrc/aarch64.cmake"
# glibc, its dynamic loaders among them, and OpenMP.
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
WANTED = GLIBC | {"libgomp.so.1"}


def _run(*command: str | Path, **env: str) -> None:
    """Runs a command outside the checkout, whose sources would hide the package; its failure ends the release."""
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT.parent, env=os.environ | env)


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _sources(out: Path) -> Path:
    """The source archive of the last commit."""
    status = ["git", "status", "--porcelain"]
    if changed := subprocess.run(status, cwd=ROOT, check=True, capture_output=True, text=True).stdout:
        raise SystemExit(f"release: expected a checkout without changes, got {changed.splitlines()[0].strip()}")
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT, PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
    (archive,) = out.glob("graphweft-*.tar.gz")
    return archive


def _wheel(archive: Path, out: Path, *defines: str, **env: str) -> Path:
    """A wheel from the source archive, with all levels of its processor."""
    before = set(out.glob("*.whl"))
    defines = ("GRAPHWEFT_LEVELS=all", "GRAPHWEFT_STATIC=ON", *defines)
    settings = [f"--config-settings=cmake.define.{text}" for text in defines]
    pinned = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")} | env
    # where the platform is another one, tools of the build would be looked for as built for that: they are the extra's
    here = ("--no-build-isolation",) if "_PYTHON_HOST_PLATFORM" in env else ()
    _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", out, *here, *settings, archive, **pinned)
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def _audit(wheel: Path, scratch: Path) -> None:
    """The libraries of a wheel want nothing that a plain system lacks."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(scratch, libraries)
    if not libraries:
        raise SystemExit(f"release: expected libraries in {wheel.name}, got none")
    for name in libraries:
        with (scratch / name).open("rb") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            foreign = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")} - WANTED
        if foreign:
            raise SystemExit(f"release: {wheel.name}: expected {name} to want glibc and libgomp, got {sorted(foreign)}")
    print(f"{wheel.name}: {len(libraries)} libraries want glibc and libgomp alone", flush=True)


def _tagged(wheel: Path, out: Path) -> Path:
    """The wheel under the oldest manylinux tag that its symbols allow."""
    before = set(out.glob("*.whl"))
    _run(_tool("auditwheel"), "repair", "--exclude", "libgomp.so.1", "--wheel-dir", out, wheel)
    (tagged,) = set(out.glob("*.whl")) - before
    if "manylinux" not in tagged.name:
        raise SystemExit(f"release: expected a manylinux tag, got {tagged.name}")
    return tagged


def _train(wheel: Path, scratch: Path) -> None:
    """A fresh environment with the wheel trains the README's first model."""
    begin = time.monotonic()
    venv.create(scratch / "venv", with_pip=True)
    python = scratch / "venv/bin/python"
    _run(python, "-m", "pip", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", wheel)
    _run(scratch / "venv/bin/graphweft", "train", "--epochs", "100", "--out", scratch / "runs/first")
    print(f"from the wheel to a trained model: {time.monotonic() - begin:.0f} s", flush=True)


def _native_tests_on_aarch64(scratch: Path) -> None:
    """The C++ tests, cross-compiled and run by QEMU."""
    folder = scratch / "cpp"
    kind = (f"-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}", "-DCMAKE_BUILD_TYPE=None")
    _run(_tool("cmake"), "-S", ROOT / "tests/cpp", "-B", folder, *kind)
    _run(_tool("cmake"), "--build", folder, "--parallel", str(os.cpu_count() or 1))
    _run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", folder / "graphweft_tests", OMP_NUM_THREADS="2")


def main() -> None:
    """Builds, audits and tries the files of a release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="for the files (default: dist)")
    parser.add_argument("--aarch64", action="store_true", help="for aarch64 as well; its C++ tests run in emulation")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="graphweft-release-") as name:
        scratch = Path(name)
        archive = _sources(out)
        plain = _wheel(archive, scratch / "plain")
        _audit(plain, scratch / "audit")
        _train(_tagged(plain, out), scratch)
        if arguments.aarch64:
            _native_tests_on_aarch64(scratch)
            cross = _wheel(
                archive,
                scratch / "cross",
                f"CMAKE_TOOLCHAIN_FILE={TOOLCHAIN}",
                _PYTHON_HOST_PLATFORM="linux-aarch64",
            )
            _audit(cross, scratch / "audit-aarch64")
            _tagged(cross, out)
    print(*sorted(path.name for path in out.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
