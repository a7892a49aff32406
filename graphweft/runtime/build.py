"""From C++ text to a loaded library: the system's compiler and a cache keyed by content.

Comes in: the text of one translation unit over the headers in ``graphweft/include``. Goes out: a library, compiled at
most once per machine, or None where that is not possible, after one warning; the caller then takes its other way. The
key covers the text, every header, the compiler's version and the flags, so nothing stale is ever loaded. Nothing is
written into the package. Called by the launchers of generated kernels.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from graphweft import _config, _native
from graphweft._errors import FallbackWarning
from graphweft._workers import become_worker

INCLUDE = Path(__file__).parents[1] / "include"
# As CMakeLists.txt compiles the core: no arithmetic beyond what is written.
_FLAGS = ("-std=gnu++17", "-O3", "-DNDEBUG", "-fno-math-errno", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_LEVEL_FLAGS = {
    "portable": (),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the words that start it, and what it says of its version."""

    command: tuple[str, ...]
    version: str


@functools.cache
def load(source: str) -> ctypes.CDLL | None:
    """The library of ``source``, from this process, from the cache, or compiled now; None with a warning if impossible.

    Raises: nothing; a compiler that fails, a full disk and a damaged file in the cache all end in a library or None.
    """
    compiler = find_compiler()
    if compiler is None:
        _warn_once("no C++ compiler was found (CXX, g++, clang++)")
        return None
    name = f"{_key(source, compiler)}.so"
    folder = _config.current().cache_path / "kernels"
    try:
        return _from_cache(source, compiler, folder / name)
    except OSError:  # the folder cannot be written: the library lives as long as this process
        with tempfile.TemporaryDirectory() as passing:
            return _from_cache(source, compiler, Path(passing) / name)


def load_all(sources: Sequence[str]) -> list[ctypes.CDLL | None]:
    """As :func:`load` for each, compiled at the same time on all processors that the process may use."""
    if len(sources) < 2:
        return [load(source) for source in sources]
    with ThreadPoolExecutor(len(sources), initializer=become_worker) as pool:  # a compiler is bound as who starts it
        waiting = [pool.submit(contextvars.copy_context().run, load, source) for source in sources]
        return [each.result() for each in waiting]


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


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, *_LEVEL_FLAGS[_native.LEVEL], "-DGW_THREADS_HOST", f"-I{INCLUDE}")


def _key(source: str, compiler: Compiler) -> str:
    parts = [source, headers_digest(), compiler.version, *compiler.command, *_flags()[:-1]]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def headers_digest() -> str:
    """One digest of all headers that generated code may include."""
    digest = hashlib.sha256()
    for path in sorted((INCLUDE / "graphweft").glob("*.h")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _from_cache(source: str, compiler: Compiler, path: Path) -> ctypes.CDLL | None:
    """The library at ``path``; compiled by whoever holds its lock first, if it is not there or not whole."""
    if not _whole(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not _whole(path) and not _compile(source, compiler, path):
                return None
    return _native.adopt(ctypes.CDLL(str(path), mode=os.RTLD_LOCAL))


def _compile(source: str, compiler: Compiler, path: Path) -> bool:
    """Writes the library and its digest beside ``path``, then moves it there in one step."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        text, made = Path(scratch) / "unit.cpp", Path(scratch) / "unit.so"
        text.write_text(source, encoding="utf-8")
        command = [*compiler.command, *_flags(), str(text), "-o", str(made)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        except subprocess.CalledProcessError as failure:
            lines = [line for line in failure.stderr.splitlines() if "error" in line] or [
                f"status {failure.returncode}"
            ]
            _warn_once(f"{compiler.command[0]} failed ({lines[0].strip()})")
            return False
        except (OSError, subprocess.SubprocessError) as failure:
            _warn_once(f"{compiler.command[0]} failed ({failure})")
            return False
        content = made.read_bytes()
        with made.open("ab") as file:  # the loader does not look behind the last section
            file.write(hashlib.sha256(content).digest())
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)  # a new file: another process may have the old one mapped
    return True


def _whole(path: Path) -> bool:
    """Whether the file ends in the digest of what stands before it: a torn library would kill the process."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


@functools.cache
def _warn_once(reason: str) -> None:
    """One message a process and reason."""
    warnings.warn(
        f"kernels: {reason}; programs run on the kernels that came with graphweft, or on the reference executor",
        FallbackWarning,
        stacklevel=2,
    )
