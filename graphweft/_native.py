"""The native core: a shared library with a plain C ABI, loaded by ctypes.

Comes in: addresses and sizes. Goes out: typed callables that raise :mod:`graphweft._errors` classes. Called by every
layer that owns a kernel. torch is imported first so that its OpenMP runtime is the one the core binds to.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphweft._abi import HASH, SIGNATURES, Adjacency, Epilogue, FlatCuts, FlatRows, Left, Stretches, Term
from graphweft._errors import FallbackWarning, GraphWeftError, IndexRangeError, NativeError, ShapeError
from graphweft._first_use import FirstUse
from graphweft._first_use import portable as portable_core

LEVELS = ("portable", "avx2", "avx512")
_LIB_DIR = Path(__file__).parent / "lib"


class _BadArgument(ShapeError):
    """A size or pointer the core refuses."""


_NOT_COMPILED = 6
_ERRORS: dict[int, type[Exception]] = {1: _BadArgument, 2: IndexRangeError, 3: MemoryError, 4: OSError, 5: NativeError}


def _path(level: str) -> Path:
    return _LIB_DIR / f"libgraphweft_{level}.so"


def _open(level: str) -> ctypes.CDLL:
    path = _path(level)
    library = portable_core() if level == "portable" and not path.exists() else None
    library = _mapped(path) if library is None else library
    if interface_of(library) != HASH:
        raise NativeError(
            f"native core: expected {path} with the interface {HASH}, got {interface_of(library)}, which other sources "
            "have; reinstall graphweft"
        )
    return library


def _mapped(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL)
    except OSError as failure:
        if not _LIB_DIR.exists() and (_LIB_DIR.parents[1] / "CMakeLists.txt").exists():
            raise NativeError(
                f"native core: {_LIB_DIR.parents[1]} holds the sources, which are not compiled there and hide an "
                "installed graphweft; run Python from another folder"
            ) from failure
        raise NativeError(f"native core: cannot load {path} ({failure}); reinstall graphweft") from failure


def interface_of(library: ctypes.CDLL) -> str:
    """The mark of the entry points that ``library`` was compiled with."""
    try:
        told = library.gw_abi
    except AttributeError:
        return "none"
    told.restype = ctypes.c_char_p
    mark: bytes = told()
    return mark.decode()


def _load() -> tuple[ctypes.CDLL, FirstUse, str]:
    _ = torch.get_num_threads()  # torch, and with it libgomp, is mapped before the core is
    usable = usable_levels(_mapped(_path("cpu")).gw_cpu_level())
    wanted = os.environ.get("GRAPHWEFT_CPU_LEVEL", usable[-1])
    if wanted not in usable:
        raise NativeError(
            f"GRAPHWEFT_CPU_LEVEL: expected one of {', '.join(usable)}, which this CPU runs and this installation has, "
            f"got {wanted!r}"
        )
    if "GRAPHWEFT_CPU_LEVEL" not in os.environ and (text := compiled_elsewhere(usable)):
        warnings.warn(text, FallbackWarning, stacklevel=2)
    core = _open(wanted)
    return core, FirstUse(core, wanted), wanted


def compiled_elsewhere(usable: tuple[str, ...]) -> str:
    """What to tell where nothing but the portable kernels run here, which an install for a better CPU did not optimise.

    A wheel has all levels, optimised; an install from source that of its own machine, and compiles the portable one,
    without optimisation, when it is asked for.
    """
    better = [level for level in LEVELS[1:] if _path(level).exists()]
    if usable != ("portable",) or len(better) != 1:
        return ""
    return (
        f"kernels were compiled on another machine, for {better[0]}, which this CPU does not run: slow ones are used; "
        "reinstall graphweft here, or with -C cmake.define.GRAPHWEFT_LEVELS=all"
    )


def usable_levels(best: int) -> tuple[str, ...]:
    """Levels up to number ``best`` that are installed, and the portable one, which an install from source compiles."""
    return (LEVELS[0], *(level for level in LEVELS[1 : best + 1] if _path(level).exists()))


def _compute_alone() -> None:
    """In a forked process, which has none of the threads of OpenMP: a parallel loop would wait for them forever."""
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_compute_alone)
_lib, first_use, LEVEL = _load()


@functools.cache
def has_tiles() -> bool:
    """Whether the core in use may multiply matrix tiles (AMX): by its level, this processor and its system."""
    return LEVEL == "avx512" and bool(_mapped(_path("cpu")).gw_cpu_has_tiles())


_lib.gw_last_error.restype = ctypes.c_char_p


def last_error() -> str:
    """The message of this thread's last failed call."""
    text: bytes = _lib.gw_last_error()
    return text.decode(errors="replace")


class Recorder(threading.local):
    """Where this thread's native calls are written down while a tape is recorded; None at other times."""

    calls: list[tuple[Callable[..., int], tuple[Any, ...]]] | None = None


recorder = Recorder()


def check(status: int) -> None:
    """Raises what a non-zero status stands for."""
    if status:
        raise _ERRORS.get(status, NativeError)(last_error())


def declare(name: str, recorded: bool = True) -> Callable[..., None]:
    """The entry point ``name`` as a callable that raises on a non-zero status.

    ``recorded``: whether its calls are part of what a tape replays. Not those that map or free: the garbage collector
    may run while a tape is recorded, and what died then must not be freed again by every replay.

    Pointers are passed as ``tensor.data_ptr()`` integers or None (``ctypes.c_void_p``); structures as
    ``ctypes.byref``. ctypes releases the interpreter lock for the call.
    """
    function = getattr(_lib, name)
    function.argtypes = SIGNATURES[name]
    function.restype = ctypes.c_int

    def call(*args: Any) -> None:
        if recorded and recorder.calls is not None:
            recorder.calls.append((function, args))
        status = function(*args)
        if status:
            if status == _NOT_COMPILED:
                first_use.load(last_error())
                status = function(*args)
            check(status)

    call.__name__ = name
    return call


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Address of a tensor's first element; None stays null."""
    return None if tensor is None else tensor.data_ptr()


__all__ = [
    "LEVEL",
    "LEVELS",
    "Adjacency",
    "Epilogue",
    "FlatCuts",
    "FlatRows",
    "GraphWeftError",
    "Left",
    "Stretches",
    "Term",
    "check",
    "declare",
    "first_use",
    "last_error",
    "pointer",
    "recorder",
    "usable_levels",
]
