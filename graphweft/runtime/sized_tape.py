"""A tape whose sizes are those of the batch at hand: recorded at the bounds, replayed at what a batch has.

Comes in: a step over buffers that hold the most, written down twice, with other sizes and another key of draws each
time. Goes out: a :class:`SizedTape`: numbers that differ between both are sizes or the key, by which of the two pairs
they are; pointers stay. A replay puts the batch's numbers there, so the kernels do exactly what they do for the batch
without buffers: the same bits, and no work for rows that are not there. Called by ``captured.py``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from graphweft import _native
from graphweft.runtime.tape import Tape

_PLAIN = (ctypes.c_double, ctypes.c_int64)  # what a call leaves a number in
_KEY = "key"


class Cell(NamedTuple):
    """A number that a call reads: where it is, whether it is an address, and what it was."""

    holder: Any
    at: Any
    is_pointer: bool
    value: Any

    def put(self, value: int) -> None:
        """Another number."""
        if isinstance(self.at, str):
            setattr(self.holder, self.at, value)
        else:
            self.holder[self.at] = value


class SizedTape:
    """See above; made by :meth:`record`."""

    def __init__(self, tape: Tape, calls: list[tuple[Any, list[Any]]], cells: list[tuple[Cell, str]]) -> None:
        self._tape, self._calls, self._cells = tape, calls, cells

    @classmethod
    def record(
        cls,
        bodies: tuple[Callable[[], Any], Callable[[], Any]],
        alive: list[Any],
        names: tuple[Mapping[str, int], Mapping[str, int]],
        keys: tuple[int, int],
        nbytes: float,
    ) -> SizedTape | None:
        """The tape of the first of ``bodies``; None where a replay with other sizes would not be the same.

        Args:
            bodies: The same step over buffers of two sizes.
            alive: What addresses point into.
            names: The two sizes by symbol.
            keys: Of the draws of either.
            nbytes: How much memory either may take.
        """
        tapes = [Tape.record(body, alive, nbytes) for body in bodies]
        if tapes[0] is None or tapes[1] is None or any(tape.moves_rows for tape in tapes if tape is not None):
            return None
        pairs = {(names[0][name], names[1][name]): name for name in names[0] if names[0][name] != names[1][name]}
        if len(pairs) < sum(names[0][name] != names[1][name] for name in names[0]):
            return None
        pairs[keys[0], keys[1]] = _KEY
        calls, others = ([(f, list(given)) for f, given in tape.calls] for tape in tapes if tape is not None)
        found = _sizes_among(calls, others, pairs)
        return None if found is None else cls(tapes[0], calls, found)

    @property
    def result(self) -> Any:
        """What the step returned; its tensors hold the latest replay's numbers."""
        return self._tape.result

    @property
    def nbytes(self) -> int:
        """Memory that the step takes between its calls."""
        return self._tape.arena.stats().mapped

    @property
    def launches(self) -> int:
        """Calls of a replay."""
        return len(self._calls)

    def is_ready(self) -> bool:
        """Whether nobody else holds memory of the step."""
        return self._tape.is_ready()

    def replay(self, sizes: Mapping[str, int], key: int) -> Any:
        """Runs all calls for a batch of such sizes, by symbol; returns ``result``."""
        for cell, name in self._cells:
            cell.put(key if name is _KEY else sizes[name])
        for function, arguments in self._calls:
            status = function(*arguments)
            if status:
                _native.check(status)
        return self.result


def _sizes_among(calls: Any, others: Any, pairs: Mapping[tuple[int, int], str]) -> list[tuple[Cell, str]] | None:
    """The numbers that follow from sizes or the key; None where calls differ in anything else."""
    if len(calls) != len(others):
        return None
    found: dict[tuple[int, Any], tuple[Cell, str]] = {}
    for (function, given), (other, more) in zip(calls, others, strict=True):
        if getattr(function, "argtypes", None) is None and not given:
            continue  # of torch, on memory of the bounds
        if function is not other:
            return None
        kinds = function.argtypes
        mine, theirs = list(_cells(given, kinds)), list(_cells(more, kinds))
        if len(mine) != len(theirs):
            return None
        for one, two in zip(mine, theirs, strict=True):
            if one.is_pointer:
                if (one.value is None) != (two.value is None):
                    return None
            elif one.value != two.value:
                name = pairs.get((one.value, two.value))
                if name is None:
                    return None
                found[_place(one)] = one, name
    return list(found.values())


def _place(cell: Cell) -> tuple[int, Any]:
    """Which memory a number lies in."""
    holder = cell.holder
    return (id(holder) if isinstance(holder, list) else ctypes.addressof(holder)), cell.at


def _cells(given: list[Any], kinds: Any) -> Iterator[Cell]:
    """The numbers of a call, those of structures that it reads by reference as well."""
    for at, (item, kind) in enumerate(zip(given, kinds, strict=True)):
        target = getattr(item, "_obj", item)
        if isinstance(target, ctypes.Structure | ctypes.Array | ctypes._Pointer):
            yield from _inside(target)
        elif isinstance(target, _PLAIN):
            continue
        else:
            yield Cell(given, at, kind is ctypes.c_void_p or not isinstance(item, int | float), item)


def _inside(item: Any) -> Iterator[Cell]:
    """The numbers of a structure, an array of them, or what a pointer points to."""
    if isinstance(item, ctypes._Pointer):
        if item:
            yield from _inside(item.contents)
    elif isinstance(item, ctypes.Array):
        for at, part in enumerate(item):
            if isinstance(part, ctypes.Structure):
                yield from _inside(part)
            else:
                yield Cell(item, at, item._type_ is ctypes.c_void_p, part)
    else:
        for name, kind, *_ in item._fields_:
            value = getattr(item, name)
            if isinstance(value, ctypes.Structure | ctypes.Array | ctypes._Pointer):
                yield from _inside(value)
            else:
                yield Cell(item, name, kind is ctypes.c_void_p, value)


__all__ = ["SizedTape"]
