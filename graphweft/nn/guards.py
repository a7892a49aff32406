"""What a module's forward reads beside tensors: attributes of all modules in it, and globals of code that is a user's.

Comes in: a module. Goes out: a hashable description, equal while forward does the same to tensors of equal kinds, read
anew in every call at the cost of a few comparisons. Called by ``compiled_call.py``.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from graphweft.frontend.captured import Identity, is_installed, is_library, names_of
from graphweft.nn.settings import plain

_HELD = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_FLAT = ("_flat_weights", "_flat_weight_refs")  # of recurrent layers: their parameters in another order
_CONTAINERS = (dict, OrderedDict, list, set)
_STEADY = (bool, int, float, complex, str, bytes, type(None), type, FunctionType)


class Guard:
    """Watches one module.

    Args:
        root: The module.

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
        self._held: list[tuple[dict[str, Any], list[str], list[Any], list[Any]]] | None = None
        self._slots: list[tuple[Mapping[str, Any], list[Any]]] = []
        self._empty: list[Any] = []
        self._mutable: list[tuple[Any, Hashable]] = []
        self._outside: list[tuple[Any, Any, Hashable]] = []
        self._key: Hashable = None

    def read(self) -> Hashable:
        """The description now."""
        if not self._stands():
            self._key = self._describe()
        return self._key

    def _stands(self) -> bool:
        """Whether all is as it was when it was last described."""
        if self._held is None:
            return False
        for attributes, names, values, modules in self._held:
            if list(attributes) != names or not all(map(is_, attributes.values(), values)):
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
            attributes = module.__dict__
            held = _held_by(module)
            items = tuple(attributes.items())
            self._held.append((attributes, list(attributes), list(attributes.values()), list(module._modules.values())))
            self._watch(value for name, value in items if name not in held)
            empty: list[Hashable] = []  # which parameters and buffers there are, and which of them are None
            for slots in (module._parameters, module._buffers):
                filled = _filled(slots)
                self._slots.append((slots, filled))
                empty.append(tuple(filled))
            parts.append(
                (
                    name,
                    type(module),
                    Identity(module),
                    tuple(empty),
                    *((k, None if k in held else described(v)) for k, v in items),
                )
            )
        seen: set[int] = set()
        for kind in dict.fromkeys(type(module) for module in self._root.modules()):
            for function in _written_by_user(kind):
                self._outside += _reads(function, seen)
        parts += [(str(name), before) for _, name, before in self._outside]
        return tuple(parts)

    def _watch(self, values: Iterable[Any]) -> None:
        """Notes attributes whose content may change while they stay the same objects."""
        for value in values:
            if isinstance(value, _STEADY):
                continue
            before = described(value)
            if type(value) in _CONTAINERS and not value:
                self._empty.append(value)
            elif not isinstance(before, Identity):
                self._mutable.append((value, before))


_GONE = object()


def _filled(slots: Mapping[str, Any]) -> list[Any]:
    """The names in ``slots``, and which of them hold something."""
    return [*slots, *[item is None for item in slots.values()]]


def _held_by(module: nn.Module) -> tuple[str, ...]:
    """Attributes whose content is watched elsewhere."""
    return _HELD + _FLAT if isinstance(module, nn.RNNBase) else _HELD


def described(value: Any) -> Hashable:
    """An attribute by content; tensors in it, which a recording reads as constants, by identity and version."""
    held = tuple((Identity(tensor), tensor._version) for tensor in tensors_in(value))
    return (plain(value), held) if held else plain(value)


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


class Attributes:
    """The attributes of all modules in one, to see and repeat what a recorded run set.

    Args:
        root: The module, before the run.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._before = {name: dict(vars(module)) for name, module in root.named_modules()}
        self._described = Guard(root).read()

    def tensors_set(self) -> list[Tensor]:
        """Tensors that are in attributes now and were not before."""
        found: list[Tensor] = []
        for path, before in self._before.items():
            module = self._root.get_submodule(path)
            kept = _held_by(module)
            new = (v for name, v in vars(module).items() if name not in kept and v is not before.get(name, _GONE))
            found.extend(tensors_in(list(new)))
        return found

    def put_back(self) -> list[tuple[str, str, Any]] | None:
        """Undoes what was set. Gives it as (module, name, value); None where a change was another than setting one."""
        assigned: list[tuple[str, str, Any]] = []
        for path, before in self._before.items():
            module = self._root.get_submodule(path)
            now = vars(module)
            kept = _held_by(module)
            for name in [name for name in now if name not in kept and now[name] is not before.get(name, _GONE)]:
                assigned.append((path, name, now[name]))
            if any(name not in now for name in before):
                return None
            now.clear()
            now.update(before)
        return assigned if Guard(self._root).read() == self._described else None


def _written_by_user(kind: type) -> Iterator[FunctionType]:
    """Methods of a class and of those above it that are no library's."""
    for base in inspect.getmro(kind):
        if is_library(base.__module__) or is_installed(base.__module__):
            continue
        for value in vars(base).values():
            value = value.fget if isinstance(value, property) else value
            value = value.__func__ if isinstance(value, staticmethod | classmethod | MethodType) else value
            if isinstance(value, FunctionType):
                yield value


def _reads(function: FunctionType, seen: set[int]) -> Iterator[tuple[Any, Any, Hashable]]:
    """Globals and captured variables that a function reads, and those of the user's functions among them."""
    if id(function) in seen or is_library(function.__module__) or is_installed(function.__module__):
        return
    seen.add(id(function))
    names = names_of(function.__code__)
    places: list[tuple[Any, Any]] = [(function.__globals__, name) for name in names if name in function.__globals__]
    places += [(cell, None) for cell in function.__closure__ or ()]
    for place, name in places:
        value = _look(place, name)
        if isinstance(value, ModuleType):
            continue
        if isinstance(value, FunctionType):
            yield from _reads(value, seen)
        yield place, name, plain(value)


def _look(place: Mapping[str, Any] | CellType, name: Any) -> Any:
    try:
        return place.cell_contents if isinstance(place, CellType) else place.get(name, _GONE)
    except ValueError:
        return _GONE
