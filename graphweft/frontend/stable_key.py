"""What a key of captured things says, as text that means the same in another process.

Comes in: keys of ``captured.py``, which compare objects of this process. Goes out: their text, or None where a key
holds something that only this process can tell from its like, or code that may read something the key does not hold
(files, the environment, the clock). Called by ``stored.py``.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import sys
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphweft._torch_private import NATIVE_FUNCTIONS
from graphweft.frontend.captured import LIBRARY_MODULE, Identity, is_library

# nothing outside is read; code that reads numpy.random is refused before
_STEADY = {"torch", "numpy", "math", "functools", "operator", "itertools", "typing", "collections"}
_READS_OUTSIDE = {
    "open", "input", "eval", "exec", "compile", "__import__", "globals", "locals", "vars", "id", "hash", "getenv",
    "environ", "load", "from_file", "fromfile", "loadtxt", "genfromtxt", "memmap", "get_num_threads", "initial_seed",
    "is_available", "is_initialized",
}  # fmt: skip
_VALUES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_CALLED = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_PLACES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": nn.functional,
    "torch.Tensor": Tensor,
    "torch._C._nn": NATIVE_FUNCTIONS,
    "math": math,
    "operator": operator,
}
# of a class: what says nothing of how its instances behave in a call, or is visited through them
_SILENT = {
    "__init__", "__call__", "__repr__", "__module__", "__doc__", "__annotations__", "__qualname__", "__dict__",
    "__weakref__", "__parameters__", "__orig_bases__", "__static_attributes__", "__firstlineno__",
}  # fmt: skip


class _Unstable(Exception):
    """A part that has no text."""


def stable_text(key: Any) -> str | None:
    """The text of ``key``: equal texts, in any process of this installation, mean equal behaviour."""
    try:
        return f"{_text(key)}|{torch.get_default_dtype()}|{_installation()}"
    except _Unstable:
        return None


@functools.cache
def _installation() -> str:
    """A digest of what turns functions into programs: Python, torch, NumPy, this room and the IR."""
    digest = hashlib.sha256(f"{sys.version}\0{torch.__version__}\0{np.__version__}".encode())
    rooms = Path(__file__).parents[1]
    for room in ("frontend", "ir"):
        for path in sorted((rooms / room).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _text(item: Any) -> str:
    if isinstance(item, tuple):
        if item[:1] == (LIBRARY_MODULE,) and item[1].partition(".")[0] not in _STEADY:
            raise _Unstable
        if type(item) is tuple:
            return f"({','.join(map(_text, item))})"
    if isinstance(item, CodeType):
        return _code(item)
    if isinstance(item, Identity):
        return _named(item)
    if isinstance(item, bytes):
        return hashlib.sha256(item).hexdigest()
    if isinstance(item, (*_VALUES, str, bool, int, float, complex, type(None), type(Ellipsis))):
        return f"{type(item).__name__} {item!r}"
    if isinstance(item, frozenset):
        return f"frozenset {sorted(map(_text, item))}"
    raise _Unstable


def _code(code: CodeType) -> str:
    if not _READS_OUTSIDE.isdisjoint(code.co_names):
        raise _Unstable
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    exceptions = code.co_exceptiontable.hex()
    return f"code {code.co_code.hex()} {exceptions} {counts} {names} {_text(code.co_consts)}"


def _named(identity: Identity) -> str:
    """A function, class or module by where it is found."""
    item = identity.target
    if isinstance(item, ModuleType):
        place = item.__name__
    elif isinstance(item, type) and not is_library(item.__module__):
        if not identity.described:
            raise _Unstable
        for base in item.__mro__:
            if not is_library(base.__module__) and not all(_is_told(*entry) for entry in base.__dict__.items()):
                raise _Unstable
        return f"class {item.__module__}.{item.__qualname__}"
    elif isinstance(item, (*_CALLED, type)):
        place = _place(item)
    else:
        raise _Unstable
    if place.partition(".")[0] not in (*_STEADY, *(("graphweft",) if identity.described else ())):
        raise _Unstable
    return f"library {place}"


def _is_told(name: str, value: Any) -> bool:
    """Whether a key tells of a class's attribute, or it does not matter."""
    told = (FunctionType, staticmethod, classmethod, Tensor, nn.Module, bool, int, float, str, list, tuple, dict, set)
    if isinstance(value, property):
        return value.fget is not None and not name.startswith("__")
    return name in _SILENT or (isinstance(value, told) and not name.startswith("__"))


def _place(item: Any) -> str:
    name = getattr(item, "__qualname__", item.__name__)
    module = getattr(item, "__module__", None) or ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is item:
        return f"{module}.{name}"
    for owner, place in _PLACES.items():
        if getattr(place, name.rpartition(".")[2], None) is item:
            return f"{owner}.{name}"
    raise _Unstable


__all__ = ["stable_text"]
