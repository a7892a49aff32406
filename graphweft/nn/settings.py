"""What a compiled module's ``define`` may read beside tensors: every attribute of the module and of those in it.

Comes in: a module. Goes out: a hashable description, equal while a new description of the program would be the same;
and whether the modules inside have to be called one by one. Called by ``module.py`` for every call, so that a changed
attribute, a replaced layer or a hook counts at once, as in torch.
"""

from __future__ import annotations

import argparse
import array
import functools
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from graphweft.frontend.captured import Identity, all_are_watched, capture, is_installed, is_library
from graphweft.storage.feature import is_dense
from graphweft.storage.fingerprint import fingerprint

_KINDS = (bool, int, float, complex, str, bytes, type(None), range, torch.dtype, torch.device, torch.Size)
_EXACT = frozenset({bool, int, str, type(None)})
_CALLED = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_DEEPEST = 4  # objects within objects
_KEPT_BYTES = 4096  # of an array; of a longer one a fingerprint
_DEPTH = threading.local()
_OWN = frozenset({"_parameters", "_buffers", "_modules", "_function", "_pieces"})


def settings_of(root: nn.Module) -> Hashable:
    """The attributes of ``root`` and of all modules in it, tensors left out.

    Example:
        >>> drop = nn.Dropout(0.5)
        >>> before = settings_of(drop)
        >>> drop.p = 0.1
        >>> settings_of(drop) == before
        False
    """
    return tuple(_of_module(module) for module in root.modules())


def _of_module(module: nn.Module) -> Hashable:
    kind = type(module)
    parts: list[Any] = [kind, tuple(module._modules), tuple(n for n, p in module._parameters.items() if p is None)]
    for name, value in module.__dict__.items():
        if name not in _OWN and not name.endswith("_hooks"):
            parts.append((name, plain(value)))
    read = getattr(module, "read_numbers", None)  # of tensors whose values are written into the program
    if read is not None:
        parts.append(("numbers", read()))
    if not kind.__module__.startswith(("graphweft.", "torch.")):
        parts.append(_of_code(kind))
    return tuple(parts)


def _of_code(kind: type[nn.Module]) -> Hashable:
    """The code of a class that is not ours, and what it reads from outside."""
    define = getattr(kind, "define", None)
    return capture((define,)).key if isinstance(define, FunctionType) else None


def plain(value: Any) -> Hashable:
    """``value`` as something that compares by content where it has one, else by identity."""
    kind = type(value)
    if kind in _EXACT:
        return kind, value
    if isinstance(value, float):
        return float, repr(value)  # a value that is not a number equals itself here
    if isinstance(value, _KINDS):
        return kind, value
    if isinstance(value, Tensor):
        return Tensor, value.dtype, value.shape, value.requires_grad
    if isinstance(value, Mapping):
        return type(value), tuple((plain(key), plain(item)) for key, item in value.items())
    if isinstance(value, np.ndarray | np.generic | array.array | bytearray):
        return _of_array(value)
    if isinstance(value, Sequence):
        return type(value), tuple(map(plain, value))
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(plain, value))
    if isinstance(value, SimpleNamespace | argparse.Namespace) or (is_dataclass(value) and not isinstance(value, type)):
        return type(value), plain(dict(vars(value)))
    if isinstance(value, functools.partial):
        return functools.partial, plain((value.func, value.args, value.keywords))
    if isinstance(value, MethodType):
        return MethodType, plain(value.__func__), plain(value.__self__)
    return _of_object(value)


def _of_array(value: Any) -> Hashable:
    """Numbers that lie side by side, by their bytes; a memory map, which may be larger than memory, by identity."""
    if isinstance(value, np.memmap):
        return Identity(value)
    facts = getattr(value, "shape", None), str(getattr(value, "dtype", ""))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return type(value), facts, plain(value.tolist())
    if isinstance(value, np.ndarray) and value.nbytes > _KEPT_BYTES:
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return type(value), facts, fingerprint(torch.from_numpy(flat if flat.flags.writeable else flat.copy()))
    return type(value), facts, value.tobytes() if hasattr(value, "tobytes") else bytes(value)


def _of_object(value: Any) -> Hashable:
    """An object of a class that the user wrote, by its attributes; any other by identity."""
    kind = type(value)
    by_itself = isinstance(value, type | FunctionType | ModuleType | nn.Module | Iterator)
    if by_itself or is_library(kind.__module__) or is_installed(kind.__module__):
        return Identity(value)
    depth = getattr(_DEPTH, "now", 0)
    if depth >= _DEEPEST:
        return Identity(value)
    _DEPTH.now = depth + 1
    try:
        named = dict(getattr(value, "__dict__", {}))
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    named[name] = getattr(value, name)
        return (Identity(kind), plain(named)) if named else Identity(value)
    finally:
        _DEPTH.now = depth


def has_hooks(module: nn.Module) -> bool:
    """Whether something wants to be told when ``module`` itself is called."""
    return any(getattr(module, name, None) for name in _CALLED)


def is_watched(root: nn.Module) -> bool:
    """Whether a module inside ``root`` has hooks, or every module of the process."""
    return all_are_watched() or any(has_hooks(module) for module in root.modules() if module is not root)


def is_parametrized(root: nn.Module) -> bool:
    """Whether a parameter of ``root``, or of a module in it, is computed from others (torch.nn.utils.parametrize)."""
    return any(parametrize.is_parametrized(module) for module in root.modules())


def tensors_of(root: nn.Module) -> dict[str, Tensor]:
    """All that ``define`` may read as a tensor, by full name: parameters, floating buffers, and attributes in the place
    of either, as weight norm and other parametrizations leave them.
    """
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    seen: set[int] = set()  # as named_parameters() and named_buffers(): one in several places has its first name
    for prefix, module in root.named_modules():
        start = f"{prefix}." if prefix else ""
        for held, found in ((module._parameters, parameters), (module._buffers, buffers)):
            for name, tensor in held.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    if found is parameters or tensor.is_floating_point():
                        found[start + name] = tensor
        for name, value in module.__dict__.items():
            if is_dense(value) and value.is_floating_point():
                others[start + name] = value
        if parametrize.is_parametrized(module):
            made = module.parametrizations
            assert isinstance(made, nn.ModuleDict)  # torch keeps them so
            others |= {start + name: getattr(module, name) for name in made}
    return {**parameters, **buffers, **others}


__all__ = ["has_hooks", "is_parametrized", "is_watched", "plain", "settings_of", "tensors_of"]
