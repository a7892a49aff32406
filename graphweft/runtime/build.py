"""From C++ text to a loaded library: the system's compiler and a cache keyed by content.

Comes in: the text of one translation unit over the headers in ``graphweft/include``. Goes out: a library, compiled at
most once per machine, or None where that is not possible, after one warning; the caller then takes its other way. The
key covers the text, every header, the compiler's version and the flags, so nothing stale is ever loaded. Nothing is
written into the package. Called by the launchers of generated kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from graphweft import _config, _native
from graphweft._errors import FallbackWarning
from graphweft._machine import Compiler, find_compiler
from graphweft._workers import become_worker

INCLUDE = Path(__file__).parents[1] / "include"
# As CMakeLists.txt compiles the core: products and sums may be fused, by any compiler; nothing is reassociated.
_FLAGS = (
    "-std=gnu++17",
    "-O3",
    "-DNDEBUG",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-w",
)
_LEVEL_FLAGS = {
    "portable": (),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
_STARTED: dict[str, Future[None]] = {}  # by text
_DIGEST_BYTES = hashlib.sha256().digest_size


@functools.cache
def load(source: str) -> ctypes.CDLL | None:
    """The library of ``source``, from this process, from the cache, or compiled now; None with a warning if impossible.

    Raises: nothing; a compiler that fails, a full disk and a damaged file in the cache all end in a library or None.
    """
    compiler = find_compiler()
    if compiler is None:
        _warn_once("no C++ compiler was found (CXX, g++, clang++)")
        return None
    started = _STARTED.pop(source, None)
    if started is not None:
        started.result()
    path = _path(source, compiler)
    try:
        return _from_cache(source, compiler, path)
    except OSError:  # the folder cannot be written: the library lives as long as this process
        with tempfile.TemporaryDirectory() as passing:
            return _from_cache(source, compiler, Path(passing) / path.name)


def load_all(sources: Sequence[str]) -> list[ctypes.CDLL | None]:
    """As :func:`load` for each, compiled at the same time on all processors that the process may use."""
    if len(sources) > 1:
        start(sources)
    return [load(source) for source in sources]


def start(sources: Sequence[str]) -> None:
    """Begins to compile what :func:`load` will be asked for, while the caller goes on; what fails is left to it."""
    compiler = find_compiler()
    waiting = [source for source in dict.fromkeys(sources) if source not in _STARTED]
    if compiler is None or not waiting:
        return
    pool = ThreadPoolExecutor(len(waiting), initializer=become_worker)  # a compiler is bound as who starts it
    for source in waiting:
        _STARTED[source] = pool.submit(_make, source, compiler, _path(source, compiler))
    pool.shutdown(wait=False)


def key(source: str) -> str:
    """What a library of ``source`` depends on, as one text; empty where there is no compiler."""
    compiler = find_compiler()
    return "" if compiler is None else _key(source, compiler)


def _path(source: str, compiler: Compiler) -> Path:
    return _config.current().cache_path / "kernels" / f"{_key(source, compiler)}.so"


def _make(source: str, compiler: Compiler, path: Path) -> None:
    with contextlib.suppress(OSError):
        _made(source, compiler, path)


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, *_LEVEL_FLAGS[_native.LEVEL], "-DGW_GENERATED", f"-I{INCLUDE}")


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
    """The library at ``path``, compiled now if it is not there or not whole."""
    failure = _made(source, compiler, path)
    if failure:
        _warn_once(f"{compiler.command[0]} failed ({failure})")
        return None
    return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL)


def _made(source: str, compiler: Compiler, path: Path) -> str:
    """Builds the library at ``path`` under a file lock. Returns an error message, or an empty text on success."""
    if _whole(path):
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        return "" if _whole(path) else _compile(source, compiler, path)


def _compile(source: str, compiler: Compiler, path: Path) -> str:
    """Writes the library and its digest beside ``path``, then moves it there in one step; why it could not."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        text, made = Path(scratch) / "unit.cpp", Path(scratch) / "unit.so"
        text.write_text(source, encoding="utf-8")
        command = [*compiler.command, *_flags(), str(text), "-o", str(made)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        except subprocess.CalledProcessError as failure:
            lines = [line for line in failure.stderr.splitlines() if "error" in line]
            return lines[0].strip() if lines else f"status {failure.returncode}"
        except (OSError, subprocess.SubprocessError) as failure:
            return str(failure) or type(failure).__name__
        content = made.read_bytes()
        with made.open("ab") as file:  # the loader does not look behind the last section
            file.write(hashlib.sha256(content).digest())
        made.replace(path)  # a new file: another process may have the old one mapped
    return ""


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
