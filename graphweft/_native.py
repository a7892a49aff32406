"""The native core: a shared library with a plain C ABI, loaded by ctypes.

Comes in: addresses and sizes. Goes out: typed callables that raise :mod:`graphweft._errors` classes. Called by every
layer that owns a kernel. torch is imported first so that its OpenMP runtime is the one the core binds to.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphweft._errors import GraphWeftError, IndexRangeError, NativeError, ShapeError

LEVELS = ("portable", "avx2", "avx512")
_LIB_DIR = Path(__file__).parent / "lib"


class _BadArgument(ShapeError):
    """A size or pointer the core refuses."""


_ERRORS: dict[int, type[Exception]] = {1: _BadArgument, 2: IndexRangeError, 3: MemoryError, 4: OSError, 5: NativeError}


class Adjacency(ctypes.Structure):
    """``gw_adjacency`` of abi.h."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("num_cols", ctypes.c_int64),
        ("num_edges", ctypes.c_int64),
        ("indptr", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("edge_ids", ctypes.c_void_p),
        ("wide", ctypes.c_int32),
    )


class Epilogue(ctypes.Structure):
    """``gw_epilogue_f32`` of abi.h."""

    _fields_ = (
        ("row_scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("addend", ctypes.c_void_p),
        ("ld_addend", ctypes.c_int64),
        ("relu", ctypes.c_int32),
        ("mask", ctypes.c_void_p),
        ("ld_mask", ctypes.c_int64),
        ("col_sum", ctypes.c_void_p),
        ("post_scale", ctypes.c_void_p),
        ("addend_rows", ctypes.c_int64),
    )


class Term(ctypes.Structure):
    """``gw_term_f32`` of abi.h."""

    _fields_ = (
        ("k", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("ldx", ctypes.c_int64),
        ("table_rows", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("edges", ctypes.POINTER(Adjacency)),
        ("row_scale", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("ld_kept", ctypes.c_int64),
        ("w", ctypes.c_void_p),
        ("ldw", ctypes.c_int64),
        ("w_transposed", ctypes.c_int32),
    )


class Left(ctypes.Structure):
    """``gw_left_f32`` of abi.h."""

    _fields_ = (
        ("k", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("ldx", ctypes.c_int64),
        ("table_rows", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("dw", ctypes.c_void_p),
        ("lddw", ctypes.c_int64),
    )


def _path(level: str) -> Path:
    return _LIB_DIR / f"libgraphweft_{level}.so"


def _open(level: str) -> ctypes.CDLL:
    path = _path(level)
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL)
    except OSError as failure:
        raise NativeError(f"native core: cannot load {path} ({failure}); reinstall graphweft") from failure


def _load() -> tuple[ctypes.CDLL, str]:
    _ = torch.get_num_threads()  # torch, and with it libgomp, is mapped before the core is
    portable = _open("portable")
    usable = usable_levels(portable.gw_cpu_level())
    wanted = os.environ.get("GRAPHWEFT_CPU_LEVEL", usable[-1])
    if wanted not in usable:
        raise NativeError(
            f"GRAPHWEFT_CPU_LEVEL: expected one of {', '.join(usable)}, which this CPU runs and this installation has, "
            f"got {wanted!r}"
        )
    return (portable if wanted == "portable" else _open(wanted)), wanted


def usable_levels(best: int) -> tuple[str, ...]:
    """Levels up to number ``best`` whose library is installed: an install from source has this machine's own."""
    return tuple(level for level in LEVELS[: best + 1] if _path(level).exists())


_lib, LEVEL = _load()
_lib.gw_last_error.restype = ctypes.c_char_p


def last_error(library: ctypes.CDLL = _lib) -> str:
    """The message of this thread's last failed call."""
    text: bytes = library.gw_last_error()
    return text.decode(errors="replace")


class Recorder(threading.local):
    """Where this thread's native calls are written down while a tape is recorded; None at other times."""

    calls: list[tuple[Callable[..., int], tuple[Any, ...]]] | None = None


recorder = Recorder()


def check(status: int, library: ctypes.CDLL = _lib) -> None:
    """Raises what a non-zero status stands for."""
    if status:
        raise _ERRORS.get(status, NativeError)(last_error(library))


def declare(name: str, *argtypes: Any, library: ctypes.CDLL = _lib, recorded: bool = True) -> Callable[..., None]:
    """The entry point ``name`` of ``library`` as a callable that raises on a non-zero status.

    ``recorded``: whether its calls are part of what a tape replays.

    Pointers are passed as ``tensor.data_ptr()`` integers or None (``ctypes.c_void_p``); structures as
    ``ctypes.byref``. ctypes releases the interpreter lock for the call.
    """
    function = getattr(library, name)
    function.argtypes = argtypes
    function.restype = ctypes.c_int

    def call(*args: Any) -> None:
        if recorded and recorder.calls is not None:
            recorder.calls.append((function, args))
        check(function(*args), library)

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
    "GraphWeftError",
    "Left",
    "Term",
    "check",
    "declare",
    "last_error",
    "pointer",
    "recorder",
    "usable_levels",
]
