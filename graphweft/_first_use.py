"""Kernels that an install from source leaves out: compiled for this machine when one of them is first called.

Comes in: the name of such kernels and the core that was compiled without them. Goes out: their entry points are bound
to a library of their own, found in the package, in the cache, or compiled now; without a compiler to those of the
portable core, with a warning. Which kernels these are, and how they are compiled, lies beside the core
(``lib/first_use.json``, written by ``CMakeLists.txt``); there is no such file where the core has all. Called by
``_native.py`` when an entry point says that it is not compiled.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from graphweft import _config, _libraries
from graphweft._abi import FIRST_USE
from graphweft._errors import FallbackWarning, MissingPackageError
from graphweft._machine import Compiler, find_compiler, usable_cores

_PACKAGE = Path(__file__).parent
_LIB = _PACKAGE / "lib"
_REMEDY = "install a C++ compiler (g++ or clang++), or reinstall with -C cmake.define.GRAPHWEFT_KERNELS=all"


class Recipe(NamedTuple):
    """How kernels are compiled: their sources under ``csrc/core``, and the options of the compiler."""

    name: str
    level: str
    sources: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        """The sources."""
        return [_PACKAGE / "csrc" / "core" / name for name in self.sources]

    @property
    def file(self) -> str:
        """The library's name, which tells its content."""
        digest = hashlib.sha256("\0".join(self.options).encode())
        for path in (*self.paths, *sorted((_PACKAGE / "csrc" / "core").glob("*.h")), *_headers()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return f"libgraphweft_{self.level}_{self.name}_{digest.hexdigest()[:16]}.so"


def _headers() -> list[Path]:
    return sorted((_PACKAGE / "include" / "graphweft").glob("*.h"))


@functools.cache
def recipes(level: str) -> dict[str, Recipe]:
    """Kernels that the core of this level lacks, by name."""
    try:
        told: dict[str, Any] = json.loads((_LIB / "first_use.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if told["level"] != level:
        return {}
    return {
        name: Recipe(
            name,
            level,
            (*files["sources"], *files.get("shared", ()), "abi.cpp"),  # which holds the library's own last error
            (*told["options"], *told["of_each"][name]),
        )
        for name, files in told["kernels"].items()
    }


class FirstUse:
    """The kernels that one core lacks, and which of them are loaded.

    Args:
        core: The library that was compiled without them.
        portable: The one that has slow ones of all.
        level: The core's instruction set.
    """

    def __init__(self, core: ctypes.CDLL, portable: ctypes.CDLL, level: str) -> None:
        self.missing = recipes(level) if hasattr(core, "gw_first_use_bind") else {}
        self._core, self._portable = core, portable
        self._kernels_of = {entry: name for name in self.missing for entry in FIRST_USE[name]}
        self._lock = threading.Lock()

    def see_to(self, entry: str) -> None:
        """Loads the kernels of an entry point unless it can be called already."""
        name = self._kernels_of.get(entry)
        if name is not None:
            self.load(name)

    def load(self, name: str) -> None:
        """Binds the entry points of ``name``, compiling them if there is no other way."""
        with self._lock:
            if name not in self.missing:
                return  # another thread was first
            library = _library(self.missing[name])
            self._bind(name, self._portable if library is None else library)
            self._kernels_of = {entry: of for entry, of in self._kernels_of.items() if of != name}
            self.missing = {other: recipe for other, recipe in self.missing.items() if other != name}

    def _bind(self, name: str, library: ctypes.CDLL) -> None:
        last_error = ctypes.cast(library.gw_last_error, ctypes.c_void_p)
        for entry in FIRST_USE[name]:
            function = ctypes.cast(getattr(library, entry), ctypes.c_void_p)
            self._core.gw_first_use_bind(entry.encode(), function, last_error)


def not_compiled(level: str) -> list[str]:
    """Names of kernels that the core of ``level`` lacks and no library on this machine has yet."""
    return [name for name, recipe in recipes(level).items() if _found(recipe.file) is None]


def _found(file: str) -> Path | None:
    """The library in the package or in the cache, if it is there and whole."""
    return next((path for path in (_LIB / file, _kept(file)) if _libraries.whole(path)), None)


def _library(recipe: Recipe) -> ctypes.CDLL | None:
    """The library of ``recipe``, compiled if it is nowhere; None, after a warning, where that is not possible."""
    file = recipe.file
    found = _found(file)
    if found is not None:
        return ctypes.CDLL(str(found), mode=os.RTLD_LOCAL)
    compiler = find_compiler()
    if compiler is None:
        _warn(recipe.name, f"no C++ compiler was found; {_REMEDY}")
        return None
    try:
        failure = _made([recipe], _kept(file).parent, compiler)
        if not failure:
            return ctypes.CDLL(str(_kept(file)), mode=os.RTLD_LOCAL)
    except OSError:  # the folder cannot be written: the library lives as long as this process
        with tempfile.TemporaryDirectory() as passing:
            failure = _made([recipe], Path(passing), compiler)
            if not failure:
                return ctypes.CDLL(str(Path(passing) / file), mode=os.RTLD_LOCAL)
    _warn(recipe.name, f"{compiler.command[0]} failed ({failure}); {_REMEDY}")
    return None


def _kept(file: str) -> Path:
    return _config.current().cache_path / "kernels" / file


def _warn(name: str, reason: str) -> None:
    warnings.warn(
        f"{name} kernels: {reason}; the portable ones are used, with the same results, many times slower",
        FallbackWarning,
        stacklevel=2,
    )


def compile_all(level: str, folder: Path = _LIB) -> list[str]:
    """Compiles what the core of ``level`` lacks, into the package, where every process finds it.

    Returns: The names of the kernels that were compiled now.

    Raises: MissingPackageError without a compiler that compiles them; OSError where the folder cannot be written.
    """
    wanted = [recipe for recipe in recipes(level).values() if not _libraries.whole(folder / recipe.file)]
    if not wanted:
        return []
    compiler = find_compiler()
    if compiler is None:
        raise MissingPackageError("kernels: expected a C++ compiler, got none; install g++ or clang++")
    failure = _made(wanted, folder, compiler)
    if failure:
        raise MissingPackageError(
            f"kernels: expected a C++17 compiler with OpenMP, got {failure} from {compiler.command[0]}"
        )
    return [recipe.name for recipe in wanted]


def _made(wanted: Sequence[Recipe], folder: Path, compiler: Compiler) -> str:
    """Compiles libraries into ``folder``, all their sources at the same time as far as there are processors."""
    names = ", ".join(recipe.name for recipe in wanted)
    sys.stderr.write(f"graphweft: compiling {names} kernels for this machine, once, which may take a minute\n")
    sys.stderr.flush()
    started = time.perf_counter()
    with ThreadPoolExecutor(usable_cores()) as compilers, ThreadPoolExecutor(len(wanted)) as libraries:
        making = [functools.partial(_make, recipe, compiler, compilers) for recipe in wanted]
        files = [folder / recipe.file for recipe in wanted]
        failures = list(libraries.map(_libraries.made, files, making))
    failure = next(filter(None, failures), "")
    if not failure:
        sys.stderr.write(f"graphweft: compiled {names} kernels in {time.perf_counter() - started:.0f} s\n")
    return failure


def _make(recipe: Recipe, compiler: Compiler, compilers: ThreadPoolExecutor, folder: Path) -> str:
    """Makes ``unit.so`` in ``folder``; returns the first error, or an empty text."""
    options = [*recipe.options, f"-I{_PACKAGE / 'include'}"]
    objects = [folder / f"{path.stem}.o" for path in recipe.paths]
    commands = [
        [*compiler.command, *options, "-c", str(path), "-o", str(made)]
        for path, made in zip(recipe.paths, objects, strict=True)
    ]
    failure = next(filter(None, compilers.map(_libraries.run, commands)), "")
    linking = ["-shared", "-fopenmp", *([] if sys.platform == "darwin" else ["-Wl,-z,defs"])]
    return failure or _libraries.run([*compiler.command, *linking, *map(str, objects), "-o", str(folder / "unit.so")])


__all__ = ["FirstUse", "compile_all", "not_compiled", "recipes"]
