"""Native calls written down with sizes as parameters: recorded at several sizes, replayed at those of a batch.

Comes in: one computation as several :class:`Case` s, which differ in sizes, in inputs and in the key of draws. Goes
out: a :class:`SizedTape` that runs the calls of the first one for other sizes without Python between the calls; None
where a number follows from the sizes in another way. A number that is the same in all cases stays. One that is a size
of its case, or the key, in all of them becomes a cell that is set before a replay; so do addresses within inputs and
the structures of graphs. Results lie where the first case had them, so it is the largest. The kernels do exactly what
they do without a tape: the same bits, and no work for rows that are not there. Called by ``graph_tape.py`` and
``cpu/captured.py``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from graphweft import _native
from graphweft.runtime.packed_calls import Follows, PackedCalls, Place, Unpacked
from graphweft.runtime.tape import ELEMENTWISE, PAUSE, Tape

_PLAIN = (ctypes.c_double, ctypes.c_int64)  # what a call leaves a number in


class Refused(Exception):
    """An argument of a call cannot be followed."""


def _none() -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Case:
    """One run of the computation.

    Attributes:
        body: Runs it.
        sizes: Numbers by name, the key of draws among them.
        inputs: Gives rows that lie elsewhere in every replay, by name. Asked after the run, as ``forms``.
        forms: Gives structures of graphs that are others in every replay, by name.
    """

    body: Callable[[], Any]
    sizes: Mapping[str, int]
    inputs: Callable[[], Mapping[str, Tensor]] = _none
    forms: Callable[[], Mapping[str, _native.Adjacency]] = _none

    @cached_property
    def _places(self) -> list[tuple[str, int, int]]:
        return [(name, rows.data_ptr(), rows.nbytes) for name, rows in self.inputs().items()]

    @cached_property
    def structures(self) -> dict[int, str]:
        """Names of forms by where they are; where two are one, that of the first."""
        made = self.forms()
        return {ctypes.addressof(form): name for name, form in reversed(list(made.items()))}

    def input(self, address: int | None) -> Follows | None:
        """Which input an address lies in, if it does, and how many bytes from its beginning."""
        for name, begin, size in self._places:
            if address is not None and 0 <= address - begin < size:
                return Follows(name, address - begin)
        return None

    def multiples(self, value: Any) -> set[Follows]:
        """Which sizes a number is, or a multiple of, as a count of elements is of rows."""
        if type(value) is not int:
            return set()
        return {
            Follows(name, times=value // size)
            for name, size in self.sizes.items()
            if size and value % size == 0 != value
        }


class _Leaf(NamedTuple):
    """Something that a call reads: where it is, what it is, and its value; of a structure of a graph its name."""

    holder: Any
    at: Any
    kind: str  # "number", "address" or "form"
    value: Any


class SizedTape:
    """See above; made by :meth:`record`."""

    def __init__(self, tapes: Sequence[Tape], cases: Sequence[Case], known: Callable[[int], bool] | None) -> None:
        self._tape, self._cases, self._known = tapes[0], cases, known
        self._arenas = [tape.keeps for tape in tapes]
        self._places: list[Place] = []
        self._forms: dict[str, _native.Adjacency] = {}
        if len({len(tape.calls) for tape in tapes}) != 1:
            raise Refused
        calls = [self._call(together) for together in zip(*(tape.calls for tape in tapes), strict=True)]
        pause = next((at for at, (function, _) in enumerate(calls) if function is PAUSE), len(calls))
        parts = calls[:pause], calls[pause + 1 :]
        self.launches = len(parts[0]) + len(parts[1])
        try:
            self._parts = [PackedCalls(part, self._places, strict=True) for part in parts]
        except Unpacked as failure:
            raise Refused from failure
        del self._cases, self._known, self._arenas  # nothing of the other cases lives on

    @classmethod
    def record(
        cls,
        cases: Sequence[Case],
        alive: list[Any],
        nbytes: float | None = None,
        known: Callable[[int], bool] | None = None,
    ) -> SizedTape | None:
        """The tape of the first of ``cases``; None where a replay with other sizes would not be the same.

        Args:
            cases: The same computation at several sizes.
            alive: What addresses point into.
            nbytes: How much memory any of them may take; None: any.
            known: Whether an address that is no input and none of the tape's memory stays; None: all do.
        """
        tapes = []
        for case in cases:
            tape = Tape.record(case.body, alive, nbytes)
            if tape is None:
                return None
            tapes.append(tape)
        try:
            return cls(tapes, cases, known)
        except Refused:
            return None

    @property
    def result(self) -> Any:
        """What the computation returned; its tensors hold the latest replay's numbers."""
        return self._tape.result

    @property
    def nbytes(self) -> int:
        """Memory that it takes between its calls."""
        return self._tape.arena.stats().mapped

    def is_ready(self) -> bool:
        """Whether nobody else holds memory of the tape."""
        return self._tape.is_ready()

    def replay(
        self,
        sizes: Mapping[str, int],
        place: Callable[[str], int] | None = None,
        form: Callable[[str], _native.Adjacency] | None = None,
        part: int | None = None,
    ) -> Any:
        """Runs all calls for such sizes, and for inputs and graphs that lie where these say; returns ``result``.

        ``part``: only the calls before the pause (0) or after it (1).
        """
        held = {} if form is None else {name: form(name) for name in self._forms}

        def value(name: str) -> int:
            if name in held:
                return ctypes.addressof(held[name])
            return sizes[name] if name in sizes or place is None else place(name)

        for packed in self._parts if part is None else self._parts[part : part + 1]:
            packed.replay(value)
        return self.result

    def _call(self, together: Sequence[tuple[Any, tuple[Any, ...]]]) -> tuple[Any, tuple[Any, ...]]:
        """One call with cells. Raises: Refused where the cases differ in another way."""
        functions, given = [call[0] for call in together], [list(call[1]) for call in together]
        kinds = getattr(functions[0], "argtypes", None)
        if kinds is None:
            if functions[0] is not PAUSE:
                self._check_torch(functions)
            return functions[0], ()
        if any(function is not functions[0] for function in functions):
            raise Refused
        leaves = [list(_leaves(case, one, kinds)) for case, one in zip(self._cases, given, strict=True)]
        if len({len(each) for each in leaves}) != 1:
            raise Refused
        for same in zip(*leaves, strict=True):
            self._follow(same, given[0])
        return functions[0], tuple(given[0])

    def _follow(self, same: Sequence[_Leaf], given: list[Any]) -> None:
        """Makes a cell of what changes from case to case. Raises: Refused."""
        leaf = same[0]
        if any(other.kind != leaf.kind for other in same):
            raise Refused
        if leaf.kind == "form":
            if any(other.value != leaf.value for other in same):
                raise Refused
            structure = self._forms.get(leaf.value)
            if structure is None:
                structure = self._forms[leaf.value] = _native.Adjacency()
                self._places.append(Place(ctypes.addressof(structure), ctypes.sizeof(structure), Follows(leaf.value)))
            if isinstance(leaf.at, str):
                setattr(leaf.holder, leaf.at, ctypes.pointer(structure))
            else:
                leaf.holder[leaf.at] = structure
            return
        found = self._address(same) if leaf.kind == "address" else _number(same, self._cases)
        if found is None:
            return
        if leaf.holder is given:
            given[leaf.at] = found
        else:
            self._places.append(_within(leaf.holder, leaf.at, found))

    def _address(self, same: Sequence[_Leaf]) -> Follows | None:
        """The input that an address points into; None for memory that stays. Raises: Refused."""
        values = [leaf.value for leaf in same]
        if all(value is None for value in values):
            return None
        if any(value is None for value in values):
            raise Refused
        found = {case.input(value) for case, value in zip(self._cases, values, strict=True) if type(value) is int}
        if found and found != {None}:
            if len(found) > 1:
                raise Refused
            return found.pop()
        if self._known is not None:
            for keeps, value in zip(self._arenas, values, strict=True):
                if not (type(value) is int and (self._known(value) or keeps(value))):
                    raise Refused
        return None

    def _check_torch(self, functions: Sequence[Any]) -> None:
        """An operation of torch is on memory that stays and, but for one of elements, of one shape. Raises: Refused."""
        name = getattr(functions[0], "operation", "")
        operands = [getattr(function, "operands", None) for function in functions]
        if not name or any(getattr(function, "operation", "") != name for function in functions):
            raise Refused
        for each in zip(*operands, strict=True):
            if isinstance(each[0], Tensor):
                if name not in ELEMENTWISE and any(x.shape != each[0].shape for x in each):
                    raise Refused
                if self._known is not None:
                    leaves = [_Leaf(None, 0, "address", x.data_ptr()) for x in each if x.numel()]
                    if leaves and (len(leaves) != len(each) or self._address(leaves) is not None):
                        raise Refused
            elif any(x != each[0] for x in each):
                raise Refused


def _number(same: Sequence[_Leaf], cases: Sequence[Case]) -> Follows | None:
    """The size that a number is, or a multiple of; None where it stays. Raises: Refused."""
    first = same[0].value
    if all(type(leaf.value) is type(first) and leaf.value == first for leaf in same):
        return None
    found = set.intersection(*(case.multiples(leaf.value) for case, leaf in zip(cases, same, strict=True)))
    if len(found) != 1:
        raise Refused
    return found.pop()


def _within(holder: Any, at: Any, follows: Follows) -> Place:
    """A field of a structure, or an entry of an array."""
    if isinstance(at, str):
        member = getattr(type(holder), at)
        return Place(ctypes.addressof(holder) + member.offset, member.size, follows)
    size = ctypes.sizeof(holder._type_)
    return Place(ctypes.addressof(holder) + at * size, size, follows)


def _leaves(case: Case, given: list[Any], kinds: Any) -> Iterator[_Leaf]:
    """What a call reads, that of structures which it gets by reference as well."""
    for at, (item, kind) in enumerate(zip(given, kinds, strict=True)):
        target = getattr(item, "_obj", item)
        if isinstance(target, ctypes.Structure | ctypes.Array | ctypes._Pointer):
            yield from _inside(case, target, given, at)
        elif not isinstance(target, _PLAIN):
            is_address = kind is ctypes.c_void_p or not isinstance(item, int | float)
            yield _Leaf(given, at, "address" if is_address else "number", item)


def _inside(case: Case, item: Any, holder: Any, at: Any) -> Iterator[_Leaf]:
    """Of a structure, an array, or what a pointer points to; ``holder`` has it at ``at``."""
    if isinstance(item, ctypes._Pointer):
        if item:
            yield from _inside(case, item.contents, holder, at)
    elif isinstance(item, ctypes.Array):
        if getattr(item, "is_result", False):
            return
        for index, part in enumerate(item):
            if isinstance(part, ctypes.Structure):
                yield from _inside(case, part, item, index)
            else:
                yield _Leaf(item, index, "address" if item._type_ is ctypes.c_void_p else "number", part)
    else:
        if case.structures and isinstance(item, _native.Adjacency):
            name = case.structures.get(ctypes.addressof(item))
            if name is None:
                raise Refused  # of another graph
            yield _Leaf(holder, at, "form", name)
            return
        for name, kind, *_ in item._fields_:
            value = getattr(item, name)
            if isinstance(value, ctypes.Structure | ctypes.Array | ctypes._Pointer):
                yield from _inside(case, value, item, name)
            else:
                yield _Leaf(item, name, "address" if kind is ctypes.c_void_p else "number", value)


__all__ = ["Case", "Refused", "SizedTape"]
