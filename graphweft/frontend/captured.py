"""What user functions close over: tensors, which become inputs, and everything else, which becomes part of the key.

Comes in: functions. Goes out: :class:`Captured`: tensors in a fixed order and a hashable key of all scalars, flags,
modes and code that the functions can read. It is taken anew at every call, so nothing a user changes between calls is
ever baked in. Called by ``udf.py``.
"""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import dis
import functools
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from graphweft.storage.feature import SparseFeatures

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range)
NUMBERS = {"float", "int", "float64"}  # classes of numbers that may become inputs; NumPy's is a float, too
_VALUES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_SEQUENCES = (list, tuple, set, frozenset, collections.deque, collections.UserList)
_NAMESPACES = (SimpleNamespace, argparse.Namespace)  # of the library, with contents of the user's
_LOOKS_OUTSIDE = {f"{step}_GLOBAL" for step in ("LOAD", "STORE", "DELETE")} | {"LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
LIBRARY_MODULE = "library module"  # stands before its name in a key
_RANDOM = ("random", "time", "secrets", "numpy.random")  # modules whose results differ from call to call
_HOOKS = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}  # run in a call
_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_NOT_RUN = {"__init__", "__new__", "__repr__", "__str__", "__del__", "__reduce__", "__getstate__", "__setstate__"}
_OF_CLASS = (FunctionType, Tensor, nn.Module, *_PLAIN, *_VALUES, *_SEQUENCES, *_NAMESPACES, Mapping, np.ndarray, type)


class Identity:
    """An object that counts as itself only; kept alive so that its id is not used again.

    ``described``: the key tells beside it what code of the class may read.
    """

    __slots__ = ("described", "target")

    def __init__(self, target: Any, described: bool = False) -> None:
        self.target, self.described = target, described

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.target is self.target

    def __hash__(self) -> int:
        return id(self.target)


@dataclass
class Captured:
    """What a set of functions reads from outside.

    Attributes:
        tensors: Every tensor once, in the order in which it was found.
        buffers: Ids of those that are buffers of modules, and of parameters that this call makes.
        key: Everything else; equal keys mean equal behaviour on tensors of equal kinds. A number stands there with
            its position in ``numbers``.
        numbers: Every Python number, in the order in which it was found.
        refused: Why the functions cannot be compiled at all, if so.
        unmade: Whether this call makes a parameter, as the first one of lazy modules does.
        visited: Every object that the functions can reach.
        names: Every global and attribute that their code names.
    """

    tensors: list[Tensor] = field(default_factory=list)
    buffers: set[int] = field(default_factory=set)
    key: tuple[Any, ...] = ()
    numbers: list[Any] = field(default_factory=list)
    refused: str | None = None
    unmade: bool = False
    visited: list[Any] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def capture(roots: tuple[Any, ...]) -> Captured:
    """What ``roots`` (functions, methods, modules, parameters) read."""
    walk = Walk(frozenset(map(_package, roots)))
    walk.found.key = tuple(walk.visit(root) for root in roots)
    for name, reason in walk.suspects:
        if name in walk.names:
            walk.refuse(reason)
    return walk.found


@functools.lru_cache(maxsize=4096)
def names_of(code: CodeType) -> frozenset[str]:
    """Names of globals and attributes that ``code`` and the functions written in it read."""
    inner = (names_of(const) for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(code.co_names).union(*inner)


@functools.lru_cache(maxsize=4096)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """Names that ``code`` and the functions written in it look up outside, in order; attributes are not among them."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in _LOOKS_OUTSIDE}
    return tuple(sorted(found.union(*(globals_of(const) for const in code.co_consts if isinstance(const, CodeType)))))


@functools.lru_cache(maxsize=4096)
def _imports(code: CodeType) -> tuple[tuple[str, int], ...]:
    """Modules that ``code`` and the functions written in it import themselves, with the number of leading dots."""
    steps = list(dis.get_instructions(code))
    found = {(step.argval, steps[at - 2].argval) for at, step in enumerate(steps) if step.opname == "IMPORT_NAME"}
    return tuple(sorted(found.union(*(_imports(const) for const in code.co_consts if isinstance(const, CodeType)))))


def imported_by(function: FunctionType) -> list[str]:
    """Modules that a function imports itself, and those that they are inside of, as ``sys.modules`` names them."""
    found: list[str] = []
    for name, dots in _imports(function.__code__):
        around = str(function.__globals__.get("__package__") or "").rsplit(".", dots - 1)[0] if dots else ""
        whole = f"{around}.{name}".strip(".")
        found += [whole] if dots else _beginnings(whole)
    return found


def _beginnings(name: str) -> list[str]:
    """``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[: at + 1]) for at in range(len(parts))]


@functools.lru_cache(maxsize=4096)
def is_library(name: str | None) -> bool:
    """Whether a module is torch's, Python's or our own: its code does not change between calls."""
    top = name.partition(".")[0] if isinstance(name, str) else ""  # some classes of extensions have none
    return top in ("torch", "numpy", "graphweft") or (top in sys.stdlib_module_names and top != "__main__")


@functools.lru_cache(maxsize=4096)
def is_installed(name: str | None) -> bool:
    """Whether a module is a package of others, whose classes do not change between calls."""
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def all_are_watched() -> bool:
    """Whether every module of the process has hooks."""
    return any(getattr(torch_module, name, None) for name in _GLOBAL)


def own_packages(roots: tuple[Any, ...]) -> frozenset[str]:
    """Packages that the functions themselves come from."""
    return frozenset(map(_package, roots))


def _package(root: Any) -> str:
    """Where a function or module was written."""
    while isinstance(root, functools.partial):
        root = root.func
    return str(getattr(root, "__module__", "")).partition(".")[0]


class Walk:
    """One walk over everything that can be reached."""

    def __init__(self, own: frozenset[str]) -> None:
        self.found = Captured()
        self._own = own  # packages of the functions themselves, installed ones too
        self.names = self.found.names
        self.suspects: list[tuple[str, str]] = []  # attributes whose reading cannot be compiled
        self._seen: dict[int, int] = {}
        self._around: list[ModuleType] = []  # modules whose content is being visited
        self._in_foreign = False  # whether code of somebody else's package is being visited

    def visit(self, item: Any) -> Any:
        """The key of ``item``; tensors are collected."""
        kind = type(item)
        if kind is FunctionType or kind is Tensor:  # most of what a call reaches
            known = self._seen.get(id(item))
            if known is not None:
                return ("seen", known)
            self._see(item)
            return self._function(item) if kind is FunctionType else self._tensor(item)
        if isinstance(item, _PLAIN):
            name = kind.__name__
            if name not in NUMBERS:
                return (name, repr(item))
            self.found.numbers.append(item)
            return (name, repr(item), len(self.found.numbers) - 1)
        if isinstance(item, _VALUES):
            return item
        if id(item) in self._seen:
            return ("seen", self._seen[id(item)])
        self._see(item)
        if isinstance(item, Tensor):
            return self._tensor(item)
        if isinstance(item, nn.Module):
            return self._module(item)
        if isinstance(item, MethodType):
            return ("method", self.visit(item.__func__), self.visit(item.__self__))
        if isinstance(item, functools.partial):
            return ("partial", self.visit(item.func), self.visit(item.args), self.visit(item.keywords))
        if isinstance(item, _SEQUENCES):
            return (type(item).__name__, *(self.visit(part) for part in item))
        if isinstance(item, Mapping):
            return ("dict", *((self.visit(key), self.visit(part)) for key, part in item.items()))
        if isinstance(item, np.ndarray | np.generic):
            return ("numpy", str(item.dtype), item.shape, item.tobytes())
        if isinstance(item, array.array | bytearray):
            return (type(item).__name__, getattr(item, "typecode", ""), bytes(item))
        if isinstance(item, contextvars.ContextVar):
            return ("context", self.visit(item.get(None)))
        return self._other(item)

    def _see(self, item: Any) -> None:
        self._seen[id(item)] = len(self.found.visited)
        self.found.visited.append(item)

    def refuse(self, reason: str) -> None:
        """Nothing that reads this can be compiled."""
        self.found.refused = self.found.refused or reason

    def _is_foreign(self, module: str | None) -> bool:
        """Whether a module is of a package that somebody else wrote."""
        return is_installed(module) and (module or "").partition(".")[0] not in self._own

    def _attribute(self, name: str, value: Any) -> tuple[str, Any]:
        """An attribute of an object, which code may or may not read."""
        reason = _unsteady(value)
        if reason is None:
            return name, self.visit(value)
        self.suspects.append((name, reason))
        return name, Identity(value)

    def _tensor(self, item: Tensor) -> Any:
        if isinstance(item, SparseFeatures):
            self.refuse("it captures SparseFeatures; capture x.to_dense() or pass x as ndata")
            return ("sparse",)
        if is_lazy(item):
            self.found.unmade = True
            self.found.buffers.add(id(item))  # it is written into
            return ("unmade",)
        self.found.tensors.append(item)
        kind = (item.dtype, tuple(item.shape), item.requires_grad, item.device, id(item) in self.found.buffers)
        return ("tensor", len(self.found.tensors) - 1, kind)

    def _function(self, item: FunctionType) -> Any:
        if is_library(item.__module__):
            return Identity(item)
        around, self._in_foreign = self._in_foreign, self._is_foreign(item.__module__)
        try:
            return self._read_by(item)
        finally:
            self._in_foreign = around

    def _read_by(self, item: FunctionType) -> Any:
        """A function's code and what it reads."""
        names = names_of(item.__code__)
        self.names |= names
        cells = [cell.cell_contents for cell in item.__closure__ or () if _is_filled(cell)]
        around = item.__globals__
        read = [name for name in globals_of(item.__code__) if name in around]
        outside = tuple((name, self._global(around[name], names)) for name in read)
        outside += tuple((name, self._imported(name, names)) for name in imported_by(item))
        held: tuple[Any, ...] = ()
        if item.__defaults__ or item.__kwdefaults__ or item.__dict__:
            held = self.visit(item.__defaults__ or ()), self.visit(item.__kwdefaults__ or {}), self.visit(item.__dict__)
        return ("function", item.__code__, tuple(self._global(cell, names) for cell in cells), held, outside)

    def _global(self, item: Any, names: frozenset[str]) -> Any:
        """What stands under a name that a function does not hold itself; of a module, what it may read there."""
        if not isinstance(item, ModuleType):
            return self.visit(item)
        if _is_random(item.__name__) or (item.__name__ == "numpy" and "random" in names):
            self.refuse(f"it reads the module {item.__name__}")
        if item is os and not names.isdisjoint(("environ", "getenv")):
            return (LIBRARY_MODULE, item.__name__, self.visit(os.environ))
        if is_library(item.__name__):
            return (LIBRARY_MODULE, item.__name__)
        if item in self._around:
            return (item.__name__,)
        self._around.append(item)  # a module inside may name the ones that it is in
        inside = [(name, item.__dict__[name]) for name in sorted(names) if name in item.__dict__]
        read = tuple((name, self._global(value, names)) for name, value in inside)
        self._around.pop()
        return (item.__name__, *read)

    def _imported(self, name: str, names: frozenset[str]) -> Any:
        """What code reads of a module that it imports where it runs; the first run may load the module."""
        if _is_random(name):
            self.refuse(f"it reads the module {name}")
        return self._global(sys.modules.get(name), names)

    def _module(self, item: nn.Module) -> Any:
        if all_are_watched():
            self.refuse("every module has hooks")
        self.found.buffers |= {id(buffer) for buffer in item._buffers.values() if buffer is not None}
        parts: list[Any] = [type(item).__qualname__, Identity(type(item), described=True), item.training]
        own = (item._parameters, item._buffers, item._modules)
        parts += [(name, self.visit(part)) for held in own for name, part in held.items()]
        library = is_library(type(item).__module__)
        hidden = {"training", "_parameters", "_buffers", "_modules"}
        for name, value in item.__dict__.items():
            hooks = name.endswith("_hooks") and isinstance(value, Mapping)
            if name in _HOOKS and value:
                self.refuse(f"{type(item).__name__} has hooks")
            if name not in hidden and not hooks and (library or not name.startswith("_") or name in self.names):
                parts.append(self._attribute(name, value))
        return ("module", *parts, *self._of_class(type(item)))

    def _of_class(self, kind: type, made: bool = False) -> list[Any]:
        """Methods and class attributes that code written by the user may read; ``made``: it may make instances."""
        parts = []
        for base in (*inspect.getmro(type(kind)), *inspect.getmro(kind)):
            if is_library(base.__module__) or (base not in kind.__mro__ and self._is_foreign(base.__module__)):
                continue
            for name, value in base.__dict__.items():
                if isinstance(value, property):
                    value = value.fget
                if isinstance(value, staticmethod | classmethod):
                    value = value.__func__
                runs = isinstance(value, FunctionType) and (made or name not in _NOT_RUN)
                if isinstance(value, _OF_CLASS) and (runs or not name.startswith("__")):
                    parts.append(self._attribute(name, value))
        return parts

    def _other(self, item: Any) -> Any:
        reason = _unsteady(item)
        if reason is not None:
            self.refuse(reason)
        if isinstance(item, type) and not is_library(item.__module__) and not self._is_foreign(item.__module__):
            return (Identity(item, described=True), *self._of_class(item, made=True))
        if isinstance(item, type | BuiltinFunctionType | ModuleType):
            return Identity(item)
        if is_library(type(item).__module__) and not isinstance(item, _NAMESPACES):
            return Identity(item)
        if self._in_foreign and self._is_foreign(type(item).__module__):
            del self._seen[id(item)]  # the user's own code may read it, too
            return Identity(item)  # a package's own objects may lead anywhere: to all that runs
        read = dict(getattr(item, "__dict__", {}))
        for base in type(item).__mro__:
            slots = base.__dict__.get("__slots__", ())
            read |= {name: getattr(item, name) for name in _slots(slots) if hasattr(item, name)}
        parts = [self._attribute(name, value) for name, value in read.items() if not name.startswith("__")]
        return (Identity(type(item), described=True), *parts, *self._of_class(type(item)))


def _slots(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_random(module: str | None) -> bool:
    """Whether a module is, or is part of, one whose results differ from call to call."""
    return any(module == name or (module or "").startswith(f"{name}.") for name in _RANDOM)


def _unsteady(item: Any) -> str | None:
    """Why reading ``item`` gives something else in every call, if so."""
    owner = getattr(item, "__self__", None) if isinstance(item, BuiltinFunctionType) else item
    for module in (getattr(item, "__module__", None), type(owner).__module__):
        if _is_random(module) and not isinstance(item, ModuleType | type):
            return f"it reads the module {module}"
    return f"it reads a {type(item).__name__}" if isinstance(item, Iterator) else None


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
