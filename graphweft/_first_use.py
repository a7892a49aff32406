"""Kernels that an install from source leaves out: compiled for this machine when one of them is first called.

Comes in: the name of such kernels and the core that was compiled without them. Goes out: their entry points are bound
to a library of their own, found in the package, in the cache, or compiled now; without a compiler they are refused.
The portable core, which runs on every machine, is such a library as a whole. Which kernels these are, and how they are
compiled, lies beside the core (``lib/first_use.json``, written by ``CMakeLists.txt``); a wheel has all libraries and no
such file. Called by ``_native.py`` when an entry point says that it is not compiled.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from graphweft import _config, _libraries
from graphweft._abi import FIRST_USE
from graphweft._errors import MissingPackageError
from graphweft._machine import Compiler, find_compiler, usable_cores

_PACKAGE = Path(__file__).parent
_LIB = _PACKAGE / "lib"
_LAST_ERROR = "abi.cpp"  # every library has its own
_REMEDY = "install a C++ compiler (g++ or clang++), or reinstall with -C cmake.define.GRAPHWEFT_KERNELS=all"


class Recipe(NamedTuple):
    """How kernels are compiled: sources under ``csrc/core`` by unit of translation, and options of the compiler."""

    name: str
    level: str
    units: tuple[tuple[str, ...], ...]
    options: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        """The sources."""
        return [_PACKAGE / "csrc" / "core" / name for unit in self.units for name in unit]

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
    told = _told()
    if told.get("level") != level:
        return {}
    return {
        name: Recipe(
            name,
            level,
            tuple((file,) for file in (*files["sources"], *files.get("shared", ()), _LAST_ERROR)),
            (*told["options"], *told["of_each"][name]),
        )
        for name, files in told["kernels"].items()
    }


def _told() -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((_LIB / "first_use.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return told


def portable() -> ctypes.CDLL | None:
    """The portable core of an install for this machine alone, compiled now if it is nowhere; None for a wheel.

    Raises: MissingPackageError where it cannot be compiled.
    """
    return None if (recipe := _portable_recipe()) is None else _library(recipe)


def _portable_recipe() -> Recipe | None:
    told = _told().get("portable")
    return told and Recipe("portable", "any", tuple(map(tuple, told["units"])), tuple(told["options"]))


class FirstUse:
    """The kernels that one core lacks, and which of them are loaded.

    Args:
        core: The library that was compiled without them.
        level: Its instruction set.
    """

    def __init__(self, core: ctypes.CDLL, level: str) -> None:
        self.missing = recipes(level) if hasattr(core, "gw_first_use_bind") else {}
        self._core = core
        self._kernels_of = {entry: name for name in self.missing for entry in FIRST_USE[name]}
        self._lock = threading.Lock()

    def see_to(self, entry: str) -> None:
        """Loads the kernels of an entry point unless it can be called already."""
        name = self._kernels_of.get(entry)
        if name is not None:
            self.load(name)

    def load(self, name: str) -> None:
        """Binds the entry points of ``name``, compiled now if they are nowhere.

        Raises: MissingPackageError where they cannot be compiled.
        """
        with self._lock:
            if name not in self.missing:
                return  # another thread was first
            self._bind(name, _library(self.missing[name]))
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


def _library(recipe: Recipe) -> ctypes.CDLL:
    """The library of ``recipe``, compiled if it is nowhere."""
    file = recipe.file
    found = _found(file)
    if found is not None:
        return ctypes.CDLL(str(found), mode=os.RTLD_LOCAL)
    compiler = find_compiler()
    if compiler is None:
        raise MissingPackageError(f"{recipe.name} kernels: expected a C++ compiler, got none; {_REMEDY}")
    try:
        failure = _made([recipe], _kept(file).parent, compiler)
        if not failure:
            return ctypes.CDLL(str(_kept(file)), mode=os.RTLD_LOCAL)
    except OSError:  # the folder cannot be written: the library lives as long as this process
        with tempfile.TemporaryDirectory() as passing:
            failure = _made([recipe], Path(passing), compiler)
            if not failure:
                return ctypes.CDLL(str(Path(passing) / file), mode=os.RTLD_LOCAL)
    got = f"{failure} from {compiler.command[0]}"
    raise MissingPackageError(f"{recipe.name} kernels: expected a C++17 compiler with OpenMP, got {got}; {_REMEDY}")


def _kept(file: str) -> Path:
    return _config.current().cache_path / "kernels" / file


def compile_all(level: str, folder: Path = _LIB, with_portable: bool = False) -> list[str]:
    """Compiles what the core of ``level`` lacks, into the package, where every process finds it.

    Args:
        level: An instruction set.
        folder: Where libraries belong.
        with_portable: Also compile the portable core if there is none.

    Returns: The names of the kernels that were compiled now.

    Raises: MissingPackageError without a compiler that compiles them; OSError where the folder cannot be written.
    """
    lacking = [*recipes(level).values(), *([recipe] if with_portable and (recipe := _portable_recipe()) else [])]
    wanted = [recipe for recipe in lacking if not _libraries.whole(folder / recipe.file)]
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
    sources, core = folder / "units", _PACKAGE / "csrc" / "core"
    sources.mkdir()
    options = [*recipe.options, f"-I{_PACKAGE / 'include'}", f"-I{core}"]
    objects, commands = [], []
    for number, unit in enumerate(recipe.units):
        source = sources / f"{number}.cpp"
        source.write_text("".join(f'#include "{core / name}"\n' for name in unit), encoding="utf-8")
        objects.append(source.with_suffix(".o"))
        commands.append([*compiler.command, *options, "-c", str(source), "-o", str(objects[-1])])
    failure = next(filter(None, compilers.map(_libraries.run, commands)), "")
    linking = ["-shared", "-fopenmp", *([] if sys.platform == "darwin" else ["-Wl,-z,defs"])]
    return failure or _libraries.run([*compiler.command, *linking, *map(str, objects), "-o", str(folder / "unit.so")])


__all__ = ["FirstUse", "compile_all", "not_compiled", "portable", "recipes"]
