"""Changes that a user function makes to Python objects it captures: put back after it was recorded, and told.

Comes in: what a walk over captured things visited. Goes out: the same objects with the contents they had, and the name
of what changed. A recorded function does not run again, so one with side effects must not be recorded; and what it
stored meanwhile are symbols. Called by ``trace.py`` and the reference executor.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

from graphweft.frontend.layout import UnraisableError
from graphweft.frontend.source import code_of, first_line

_MISSING = object()
_SCALARS = (bool, int, float, complex, str, bytes)


@dataclass(frozen=True)
class _Place:
    """Something with contents: how they are read, by name, and how those of before are put back."""

    what: str
    read: Callable[[], dict[Any, Any]]
    write: Callable[[dict[Any, Any]], None]


def _places(item: Any) -> Iterator[_Place]:
    """Where ``item`` holds what code can change."""
    if isinstance(item, FunctionType):
        yield from map(_cell, item.__code__.co_freevars, item.__closure__ or ())
        names = _stored_globals(item.__code__)
        if names:
            yield _globals(item.__globals__, names)
    if isinstance(item, MutableMapping):
        yield _Place("a captured dict", lambda: dict(item), lambda old: _refill(item, old, item.update))
    elif isinstance(item, MutableSequence):
        yield _Place(
            f"a captured {type(item).__name__}",
            lambda: dict(enumerate(item)),
            lambda old: _refill(item, old.values(), item.extend),
        )
    elif isinstance(item, MutableSet):
        yield _Place(
            "a captured set",
            lambda: {id(part): part for part in item},
            lambda old: _refill(item, old.values(), lambda parts: [item.add(part) for part in parts]),
        )
    elif isinstance(item, type):
        own = functools.partial(_own, item)
        yield _Place(f"the class {item.__name__}", own, functools.partial(_set_all, item, own))
    elif isinstance(getattr(item, "__dict__", None), dict):
        held = [item._parameters, item._buffers, item._modules] if isinstance(item, nn.Module) else []
        for part in (vars(item), *held):
            yield _Place(type(item).__name__, part.copy, functools.partial(_replace, part))
    for base in () if isinstance(item, type) else type(item).__mro__:
        slots = vars(base).get("__slots__", ())
        if slots and not base.__module__.startswith(("torch", "collections", "builtins")):
            names = frozenset([slots] if isinstance(slots, str) else slots)
            read = functools.partial(_attributes, item, names)
            yield _Place(type(item).__name__, read, functools.partial(_set_all, item, read))


def _cell(name: str, cell: CellType) -> _Place:
    def read() -> dict[Any, Any]:
        with contextlib.suppress(ValueError):
            return {name: cell.cell_contents}
        return {}

    def write(old: dict[Any, Any]) -> None:
        if old:
            cell.cell_contents = old[name]
        else:
            del cell.cell_contents

    return _Place("a captured variable", read, write)


def _globals(namespace: dict[str, Any], names: frozenset[str]) -> _Place:
    def write(old: dict[Any, Any]) -> None:
        for name in names:
            namespace.pop(name, None)
        namespace.update(old)

    return _Place("a global variable", lambda: {name: namespace[name] for name in names if name in namespace}, write)


def _attributes(item: Any, names: frozenset[str]) -> dict[Any, Any]:
    return {name: getattr(item, name) for name in names if hasattr(item, name)}


def _own(item: type) -> dict[Any, Any]:
    return dict(vars(item))


def _set_all(item: Any, read: Callable[[], dict[Any, Any]], old: dict[Any, Any]) -> None:
    now = read()
    for name in now.keys() - old.keys():
        delattr(item, name)
    for name, value in old.items():
        if now.get(name, _MISSING) is not value:
            setattr(item, name, value)


def _replace(part: dict[Any, Any], old: dict[Any, Any]) -> None:
    part.clear()
    part.update(old)


def _refill(item: Any, old: Any, add: Callable[[Any], Any]) -> None:
    item.clear()
    add(old)


@functools.lru_cache(maxsize=4096)
def _stores(code: CodeType) -> tuple[tuple[str, str, int | None], ...]:
    """Operation, name and line of every assignment in ``code`` and the functions written in it."""
    found = [
        (part.opname, str(part.argval), part.positions.lineno if part.positions else None)
        for part in dis.get_instructions(code)
        if part.opname.startswith(("STORE_", "DELETE_"))
    ]
    inner = (_stores(const) for const in code.co_consts if isinstance(const, CodeType))
    return (*found, *(part for parts in inner for part in parts))


def _stored_globals(code: CodeType) -> frozenset[str]:
    return frozenset(name for operation, name, _ in _stores(code) if operation.endswith("_GLOBAL"))


class Surroundings:
    """The contents of everything that ``visited`` holds, as they are now."""

    def __init__(self, visited: Sequence[Any]) -> None:
        self._before = [(place, place.read()) for item in visited for place in _places(item)]

    def restore(self) -> tuple[str, str | None] | None:
        """Puts the contents back; what was changed and the name in it, None where nothing was."""
        change: tuple[str, str | None] | None = None
        for place, old in self._before:
            name = _difference(old, place.read())
            if name is not _MISSING:
                change = change or (place.what, name if isinstance(name, str) else None)
                place.write(old)
        return change


def _difference(old: dict[Any, Any], new: dict[Any, Any]) -> Any:
    """A name whose contents differ."""
    for name in (*new, *old):
        one, two = old.get(name, _MISSING), new.get(name, _MISSING)
        if one is not two and not (type(one) is type(two) and isinstance(one, _SCALARS) and one == two):
            return name
    return _MISSING


@contextlib.contextmanager
def refusing_changes(visited: Sequence[Any], function: Callable[..., Any]) -> Iterator[None]:
    """Runs ``function`` once without its side effects.

    Raises: UnraisableError where it had some.
    """
    before = Surroundings(visited)
    try:
        yield
    except BaseException:
        before.restore()
        raise
    change = before.restore()
    if change is not None:
        what, name = change
        code = code_of(function)
        lines = [line for _, stored, line in (_stores(code) if code else ()) if stored == name and line]
        line = f"{code.co_filename}:{lines[0]}" if code and lines else first_line(function)
        raise UnraisableError(f"a change of {what}" + (f", {name!r}" if name else ""), line)


__all__ = ["Surroundings", "refusing_changes"]
