"""What a module's forward reads beside tensors: attributes of all modules in it, and globals of code that is a user's.

Comes in: a module. Goes out: a hashable description, equal while forward does the same to tensors of equal kinds, read
anew in every call at the cost of a few comparisons. Called by ``compiled_call.py``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import (
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Set,
)
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from graphweft.frontend.captured import Identity, globals_of, imported_by, is_installed, is_library, names_of
from graphweft.frontend.side_effects import Surroundings
from graphweft.nn.edge_arguments import parts_of
from graphweft.nn.settings import plain
from graphweft.runtime.constants import is_declared
from graphweft.storage.fingerprint import fingerprint

_HELD = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_FLAT = ("_flat_weights", "_flat_weight_refs")  # of recurrent layers: their parameters in another order
_OF_FUNCTION = ("__defaults__", "__kwdefaults__", "__dict__")  # what a function holds beside its code
_CONTAINERS = (dict, OrderedDict, list, set)
_SIMPLE = frozenset({bool, int, float, complex, str, bytes, type(None)})
_STEADY = (bool, int, float, complex, str, bytes, type(None), type, FunctionType)


class Guard:
    """Watches one module.

    Args:
        root: The module.

    Attributes:
        left: Attributes, as (module, name), that forward sets and does not read; tensors in them are not watched.
        unsteady: What forward reads that differs from call to call, such as an iterator; None for nothing.

    Example:
        >>> drop = nn.Dropout(0.5)
        >>> guard = Guard(drop)
        >>> before = guard.read()
        >>> drop.p = 0.1
        >>> guard.read() == before
        False
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._held: list[tuple[dict[str, Any], list[str], list[Any], list[Any], frozenset[str]]] | None = None
        self._slots: list[tuple[Mapping[str, Any], list[Any]]] = []
        self._empty: list[Any] = []
        self._mutable: list[tuple[Any, Hashable]] = []
        self._outside: list[Place] = []
        self._code: list[Any] = []
        self._key: Hashable = None
        self.left: set[tuple[str, str]] = set()
        self.unsteady: str | None = None

    def read(self) -> Hashable:
        """The description now."""
        if not self._stands():
            self._key = self._describe()
        return self._key

    def _stands(self) -> bool:
        """Whether all is as it was when it was last described."""
        if self._held is None:
            return False
        for attributes, names, values, modules, left in self._held:
            read = _without(attributes, left) if left else attributes
            if list(read) != names or not all(map(is_, read.values(), values)):
                return False
            inner = attributes["_modules"]
            if len(inner) != len(modules) or not all(map(is_, inner.values(), modules)):
                return False
        for slots, filled in self._slots:
            if _filled(slots) != filled:
                return False
        if any(self._empty) or any(described(value) != before for value, before in self._mutable):
            return False
        return all(plain(_look(place, name)) == before for place, name, before in self._outside)

    def _describe(self) -> Hashable:
        self._held, self._slots, self._empty, self._mutable, self._outside = [], [], [], [], []
        parts: list[Hashable] = []
        for name, module in self._root.named_modules():
            left = frozenset(attribute for path, attribute in self.left if path == name)
            read = _without(module.__dict__, left)
            held = _held_by(module)
            items = tuple(read.items())
            self._held.append((module.__dict__, list(read), list(read.values()), list(module._modules.values()), left))
            told = [(k, None if k in held else described(v)) for k, v in items]
            self._watch((v, before) for (k, v), (_, before) in zip(items, told, strict=True) if k not in held)
            empty: list[Hashable] = []  # which parameters and buffers there are, and which of them are None
            for slots in (module._parameters, module._buffers):
                filled = _filled(slots)
                self._slots.append((slots, filled))
                empty.append(tuple(filled))
            parts.append((name, type(module), Identity(module), tuple(empty), *told))
        seen: dict[int, Any] = {}
        for kind in dict.fromkeys(type(module) for module in self._root.modules()):
            self._outside += _of_class(kind, seen)
        for _, names, values, _, _ in self._held:
            for code in _code_in(v for k, v in zip(names, values, strict=True) if k not in _HELD):
                self._outside += _reads(code, seen) if isinstance(code, FunctionType) else _of_class(code, seen)
        self._code = list(seen.values())
        moving = next((name for place, name, _ in self._outside if isinstance(_look(place, name), Iterator)), None)
        if moving is not None:
            self.unsteady = f"the iterator {moving}, which moves on"
        parts += [(str(name), before) for _, name, before in self._outside]
        return tuple(parts)

    def leave(self, places: Iterable[tuple[str, str]]) -> None:
        """Stops watching tensors in these attributes."""
        self.left.update(places)
        self._held = None

    def changeable(self) -> list[Any]:
        """Containers, objects, functions and classes that code may change: what was described holds them."""
        found: dict[int, Any] = {}
        _find(self._empty, found)
        _find((value for value, _ in self._mutable), found)
        _find((_look(place, name) for place, name, _ in self._outside), found)
        return [*found.values(), *self._code]

    def _watch(self, values: Iterable[tuple[Any, Hashable]]) -> None:
        """Notes attributes, with their descriptions, whose content may change while they stay the same objects."""
        for value, before in values:
            if type(value) in _SIMPLE or isinstance(value, _STEADY):
                continue
            if isinstance(value, Iterator):
                self.unsteady = "an iterator among the attributes, which moves on"
            if type(value) in _CONTAINERS and not value:
                self._empty.append(value)
            elif not isinstance(before, Identity):
                self._mutable.append((value, before))


_GONE = object()


def _without(attributes: dict[str, Any], left: frozenset[str]) -> dict[str, Any]:
    """Attributes but for tensors that forward left; anything else in their place is watched."""
    return {name: value for name, value in attributes.items() if name not in left or type(value) is not Tensor}


def _filled(slots: Mapping[str, Any]) -> list[Any]:
    """The names in ``slots``, and which of them hold something."""
    return [*slots, *[item is None for item in slots.values()]]


def _held_by(module: nn.Module) -> tuple[str, ...]:
    """Attributes whose content is watched elsewhere."""
    return _HELD + _FLAT if isinstance(module, nn.RNNBase) else _HELD


def _is_flat(value: Any) -> bool:
    """Whether a value holds nothing: most attributes of modules are numbers, texts and empty tables of hooks."""
    kind = type(value)
    return kind in _SIMPLE or (kind in _CONTAINERS and not value)


def described(value: Any) -> Hashable:
    """An attribute by content; tensors in it, which a recording reads as constants, by identity and version."""
    if _is_flat(value):
        return plain(value)
    held = tuple((Identity(tensor), tensor._version, _content(tensor)) for tensor in tensors_in(value))
    return (plain(value), held) if held else plain(value)


def _content(tensor: Tensor) -> Hashable:
    """The bytes of a tensor, which may change behind torch's back; nothing where it is declared constant."""
    if type(tensor) is not Tensor or is_declared(tensor) or tensor.device.type != "cpu":
        return None
    parts = (tensor,) if tensor.layout == torch.strided else parts_of(tensor) or ()
    return tuple(map(fingerprint, parts))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors that an attribute holds, also within lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def _find(roots: Iterable[Any], found: dict[int, Any]) -> None:
    """Adds what ``roots`` lead to and code may change: containers, and objects of classes that are no library's."""
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        own = _is_own_object(value)
        if own or isinstance(value, MutableMapping | MutableSequence | MutableSet):
            if id(value) in found:
                continue
            found[id(value)] = value
        waiting += _parts_of(value)
        waiting += vars(value).values() if own and hasattr(value, "__dict__") else ()


def _parts_of(value: Any) -> Iterator[Any]:
    """What a container, a bound method or a partial function holds, but for numbers and texts."""
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | Set):
        parts = value
    elif isinstance(value, MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
    return (part for part in parts if type(part) not in _SIMPLE)


def _is_own_object(value: Any) -> bool:
    """Whether a value is an object of a class that the user wrote; modules and tensors are looked at elsewhere."""
    kept = isinstance(value, type | FunctionType | MethodType | ModuleType | nn.Module | Tensor)
    return not kept and not _is_others(type(value).__module__)


def _code_in(values: Iterable[Any]) -> Iterator[FunctionType | type]:
    """Functions that attributes hold, and classes of the user's objects among them."""
    waiting, seen = [value for value in values if not _is_flat(value)], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, FunctionType):
            yield value
        elif _is_own_object(value):
            yield type(value)
        if id(value) not in seen:
            seen.add(id(value))
            waiting += _parts_of(value)


class Attributes:
    """The attributes of all modules in one, to see and repeat what a recorded run set.

    Args:
        root: The module, before the run.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._before = {name: dict(vars(module)) for name, module in root.named_modules()}
        guard = Guard(root)
        self._described = guard.read()
        self._surroundings = Surroundings(guard.changeable())

    def values_set(self) -> dict[tuple[str, str], Any]:
        """What is in attributes now and was not before, by (module, name)."""
        found: dict[tuple[str, str], Any] = {}
        for path, before in self._before.items():
            module = self._root.get_submodule(path)
            kept = _held_by(module)
            new = {k: v for k, v in vars(module).items() if k not in kept and v is not before.get(k, _GONE)}
            found.update({(path, name): value for name, value in new.items()})
        return found

    def put_back(self) -> list[tuple[str, str, Any]] | None:
        """Undoes what was set. Gives it as (module, name, value); None where a change was another than setting one."""
        assigned: list[tuple[str, str, Any]] = []
        gone = False
        for path, before in self._before.items():
            module = self._root.get_submodule(path)
            now = vars(module)
            kept = _held_by(module)
            for name in [name for name in now if name not in kept and now[name] is not before.get(name, _GONE)]:
                assigned.append((path, name, now[name]))
            gone = gone or any(name not in now for name in before)
            now.clear()
            now.update(before)
        kept_all = not gone and Guard(self._root).read() == self._described
        changed = self._surroundings.restore()
        return assigned if kept_all and changed is None else None


Place = tuple[Any, Any, Hashable]  # where something is read, by which name, and its description


def _of_class(kind: type, seen: dict[int, Any]) -> Iterator[Place]:
    """Attributes of a class and of those above it that are no library's, and what their methods read."""
    for base in inspect.getmro(kind):
        if _is_others(base.__module__) or id(base) in seen:
            continue
        seen[id(base)] = base
        for name, value in vars(base).items():
            if name.startswith("__") and not isinstance(value, FunctionType):
                continue
            yield vars(base), name, plain(value)
            value = value.fget if isinstance(value, property) else value
            value = value.__func__ if isinstance(value, staticmethod | classmethod | MethodType) else value
            if isinstance(value, FunctionType):
                yield from _reads(value, seen)


def _is_others(module: str | None) -> bool:
    """Whether code of a module does not change between calls."""
    return is_library(module) or is_installed(module)


def _reads(function: FunctionType, seen: dict[int, Any]) -> Iterator[Place]:
    """Globals and captured variables that a function reads, and those of the user's functions among them."""
    if id(function) in seen or _is_others(function.__module__):
        return
    seen[id(function)] = function
    names = names_of(function.__code__)
    around = function.__globals__
    places: list[tuple[Any, Any]] = [(around, name) for name in globals_of(function.__code__) if name in around]
    places += [(sys.modules, name) for name in imported_by(function)]
    places += [(cell, None) for cell in function.__closure__ or ()]
    places += [(function, held) for held in _OF_FUNCTION if not _is_steady(getattr(function, held))]
    for place, name in places:
        yield from _read_at(place, name, names, seen)


def _read_at(place: Any, name: Any, names: frozenset[str], seen: dict[int, Any]) -> Iterator[Place]:
    """What is there; of the user's modules and classes what the code names."""
    value = _look(place, name)
    if isinstance(value, ModuleType):
        if not _is_others(value.__name__) and id(value) not in seen:
            seen[id(value)] = value
            for inner in sorted(names & vars(value).keys()):
                yield from _read_at(vars(value), inner, names, seen)
            del seen[id(value)]
        return
    yield place, name, plain(value)
    if isinstance(value, FunctionType):
        yield from _reads(value, seen)
    elif isinstance(value, type) and not issubclass(value, nn.Module):
        yield from _of_class(value, seen)


def _is_steady(held: Any) -> bool:
    """Whether nothing that a function holds beside its code can change in place."""
    values = held.values() if isinstance(held, dict) else held or ()
    return all(isinstance(value, _STEADY) for value in values) and not (isinstance(held, dict) and held)


def _look(place: Mapping[str, Any] | CellType | FunctionType, name: Any) -> Any:
    if isinstance(place, FunctionType):
        return getattr(place, name)
    try:
        return place.cell_contents if isinstance(place, CellType) else place.get(name, _GONE)
    except ValueError:
        return _GONE
