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
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from graphweft import _config, _libraries, _native
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
LEVEL_FLAGS = {
    "portable": (),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
_STARTED: dict[str, Future[None]] = {}  # by text


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
    return (*_FLAGS, *LEVEL_FLAGS[_native.LEVEL], "-DGW_GENERATED", f"-I{INCLUDE}")


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
    """Builds the library at ``path`` if it is not whole. Returns an error message, or an empty text on success."""
    return _libraries.made(path, functools.partial(_compile, source, compiler))


def _compile(source: str, compiler: Compiler, folder: Path) -> str:
    text = folder / "unit.cpp"
    text.write_text(source, encoding="utf-8")
    return _libraries.run([*compiler.command, *_flags(), str(text), "-o", str(folder / "unit.so")])


@functools.cache
def _warn_once(reason: str) -> None:
    """One message a process and reason."""
    warnings.warn(
        f"kernels: {reason}; programs run on the kernels that came with graphweft, or on the reference executor",
        FallbackWarning,
        stacklevel=2,
    )
