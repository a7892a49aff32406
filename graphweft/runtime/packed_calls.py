"""Recorded calls packed as data, so that one native call makes them all.

Comes in: calls as ``_native.recorder`` notes them, and which of their numbers are others in every replay. Goes out:
:class:`PackedCalls`, whose replay is one native call for every stretch between two calls of Python. Called by
``tape.py`` and ``sized_tape.py``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphweft import _native
from graphweft._abi import SIGNATURES, Call, Cell

_replay = _native.declare("gw_replay", recorded=False)
_NUMBERS = {name: number for number, name in enumerate(sorted(SIGNATURES))}
_WORD = (1 << 64) - 1
_INTEGERS = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64)

Calls = list[tuple[Any, tuple[Any, ...]]]


class Follows(NamedTuple):
    """In the place of an argument: ``times`` the number of this name, and ``more``."""

    name: str
    more: int = 0
    times: int = 1


class Place(NamedTuple):
    """Memory of a call's operand that follows a number, or a whole structure that is copied there.

    Attributes:
        address: Where it is.
        nbytes: 4 or 8 of a number, more of a structure.
        follows: What decides it; of a structure its address is given under the name.
    """

    address: int
    nbytes: int
    follows: Follows


class Unpacked(Exception):
    """An argument of a call is nothing that a word holds."""


class PackedCalls:
    """Calls in order, those of the native core packed.

    Args:
        calls: Functions with their arguments, which may be :class:`Follows`.
        places: What else changes.
        strict: Whether all calls of the core have to be packed.

    Raises: Unpacked.
    """

    def __init__(self, calls: Calls, places: Sequence[Place] = (), strict: bool = False) -> None:
        self._calls = calls  # whose arguments own what words point to
        self._names: dict[str, int] = {}
        self._cells: list[Cell] = []
        self._steps: list[tuple[Any, int] | Callable[..., int]] = []
        stretch: list[tuple[int, Any]] = []
        for function, arguments in calls:
            packed = self._packed(function, arguments, strict)
            if packed is not None:
                stretch.append(packed)
                continue
            self._close(stretch)
            self._steps.append(_as_step(function, arguments))
        self._close(stretch)
        self._cells += [self._cell(*place) for place in places]
        self._table = (Cell * len(self._cells))(*self._cells)
        self._values = (ctypes.c_uint64 * max(len(self._names), 1))()
        self._done = ctypes.c_int64()

    @property
    def done(self) -> int:
        """How many calls of the latest stretch were made: where one failed, those before it."""
        return self._done.value

    @property
    def stretches(self) -> int:
        """Native calls of a replay, those within them not counted."""
        return sum(isinstance(step, tuple) for step in self._steps)

    def replay(self, value: Callable[[str], int] | None = None) -> None:
        """Makes all calls; ``value`` gives the numbers by name. Raises what the first call that fails raises."""
        cells = 0
        if value is not None and self._steps:
            for name, at in self._names.items():
                self._values[at] = value(name)
            cells = len(self._cells)
        for step in self._steps:
            if isinstance(step, tuple):
                _replay(self._table, cells, self._values, *step, ctypes.byref(self._done))
            else:
                if cells:
                    _replay(self._table, cells, self._values, None, 0, ctypes.byref(self._done))
                status = step()
                if status:
                    _native.check(status)
            cells = 0

    def _packed(self, function: Any, arguments: tuple[Any, ...], strict: bool) -> tuple[int, Any] | None:
        """Number and words of a call; None where it is not of the core, or not of words."""
        name = getattr(function, "__name__", "")
        if name not in _NUMBERS or getattr(_native._lib, name) is not function:
            return None
        _native.first_use.see_to(name)  # a plan that another process has kept comes here before its first call
        words = (ctypes.c_uint64 * max(len(arguments), 1))()
        found: list[Cell] = []
        try:
            for at, (item, kind) in enumerate(zip(arguments, SIGNATURES[name], strict=True)):
                if isinstance(item, Follows):
                    if kind is ctypes.c_double:
                        raise Unpacked
                    found.append(self._cell(ctypes.addressof(words) + 8 * at, 8, item))
                else:
                    words[at] = _word(item, kind)
        except Unpacked:
            if strict or found:
                raise
            return None
        self._cells += found
        return _NUMBERS[name], words

    def _cell(self, address: int, nbytes: int, follows: Follows) -> Cell:
        source = self._names.setdefault(follows.name, len(self._names))
        return Cell(address, nbytes, source, follows.times & _WORD, follows.more & _WORD)

    def _close(self, stretch: list[tuple[int, Any]]) -> None:
        """Ends a stretch of packed calls."""
        if stretch:
            table = (Call * len(stretch))(*(Call(number, ctypes.addressof(words)) for number, words in stretch))
            table.owned = [words for _, words in stretch]  # type: ignore[attr-defined]
            self._steps.append((table, len(stretch)))
            stretch.clear()


def _as_step(function: Any, arguments: tuple[Any, ...]) -> Callable[[], int]:
    """A call that is made from Python."""
    return (lambda: function(*arguments)) if arguments else function


def _word(item: Any, kind: Any) -> int:
    """An argument as a native call gets it. Raises: Unpacked."""
    if isinstance(item, ctypes._SimpleCData):
        raise Unpacked  # somebody may write another number there
    if kind is ctypes.c_double:
        return int(struct.unpack("<Q", struct.pack("<d", item))[0])
    if kind in _INTEGERS:
        return int(item) & _WORD
    if item is None:
        return 0
    if isinstance(item, int):
        return item & _WORD
    if isinstance(item, ctypes.Structure):
        return ctypes.addressof(item)
    try:
        return ctypes.cast(item, ctypes.c_void_p).value or 0
    except ctypes.ArgumentError as failure:
        raise Unpacked from failure


__all__ = ["Calls", "Follows", "PackedCalls", "Place", "Unpacked"]
