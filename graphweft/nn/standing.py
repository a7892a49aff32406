"""Whether a module stands as it did, at the price of a look at it.

Comes in: a module. Goes out: a :class:`Standing`, or None where something could change unseen. Called before every
epoch of small batches, where descriptions as :mod:`graphweft.nn.settings` makes them would take longer than a step. The
loops over modules and tensors are those of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any, Self

import torch
from torch import Tensor, nn

from graphweft import _config
from graphweft.frontend.captured import all_are_watched

_FIXED = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_BY_IDENTITY = (FunctionType, BuiltinFunctionType, type, nn.Module)
_TENSORS = ("_parameters", "_buffers")  # compared by identity
_OWN = ("_function", "_pieces", "training")  # what is compiled, and what train() and eval() set
_facts = attrgetter("requires_grad", "dtype", "shape", "device", "_backward_hooks", "_post_accumulate_grad_hooks")
_kept_in = attrgetter(*_TENSORS)


class Standing:
    """A module and all in it as they are now, in training."""

    def __init__(self, modules: list[nn.Module], values: list[tuple[Any, ...]]) -> None:
        self._modules, self._kinds, self._values = modules, list(map(type, modules)), values
        self._names = [tuple(module.__dict__) for module in modules]
        self._compared = [itemgetter(*_compared(module)) for module in modules]
        self._tensors = list(_tensors_in(modules))
        self._facts = _facts_of(self._tensors)
        self._numbers = [(read, read()) for read in map(_reader_of, modules) if read is not None]
        self._around = _around()

    @classmethod
    def of(cls, root: nn.Module) -> Self | None:
        """``root`` as it stands; None where an attribute is an object that may change, or a gradient is watched."""
        modules = list(root.modules())
        if all_are_watched() or not all(map(_is_known, modules)):
            return None
        if any(one[-2:] != (None, None) for one in _facts_of(list(_tensors_in(modules)))):
            return None
        try:
            return cls(modules, [tuple(_frozen(one.__dict__[name]) for name in _compared(one)) for one in modules])
        except TypeError:
            return None

    def holds(self) -> bool:
        """Whether nothing has changed but what training changes; puts the module into training."""
        if self._around != _around() or self._kinds != list(map(type, self._modules)):
            return False
        held = [module.__dict__ for module in self._modules]
        if self._names != list(map(tuple, held)):
            return False
        if any(get(one) != values for get, one, values in zip(self._compared, held, self._values, strict=True)):
            return False
        found = list(_tensors_in(self._modules))
        if len(found) != len(self._tensors) or not all(map(is_, found, self._tensors)):
            return False
        if _facts_of(found) != self._facts:
            return False
        if any(read() != numbers for read, numbers in self._numbers):
            return False
        for one in held:
            one["training"] = True
        return True


def _is_known(module: nn.Module) -> bool:
    """Whether its class is ours or torch's, and goes into training as all do."""
    is_ours = type(module).__module__.startswith(("graphweft.", "torch."))
    return is_ours and type(module).train is nn.Module.train and "train" not in module.__dict__


def _compared(module: nn.Module) -> list[str]:
    return [name for name in module.__dict__ if name not in _TENSORS and name not in _OWN]


def _tensors_in(modules: list[nn.Module]) -> Iterator[Tensor | None]:
    return chain.from_iterable(held.values() for both in map(_kept_in, modules) for held in both)


def _facts_of(tensors: list[Tensor | None]) -> list[tuple[Any, ...]]:
    return [_facts(tensor) for tensor in tensors if tensor is not None]


def _reader_of(module: nn.Module) -> Callable[[], Hashable] | None:
    return getattr(module, "read_numbers", None)


def _around() -> tuple[Any, ...]:
    """What beside the module decides how it runs."""
    return _config.current(), torch.is_autocast_enabled("cpu"), all_are_watched()


def _frozen(value: Any) -> Any:
    """A copy that stays as it is. Raises: TypeError for an object that may change in place."""
    if isinstance(value, (*_FIXED, *_BY_IDENTITY)):
        return value
    if isinstance(value, tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, list):
        return list(map(_frozen, value))
    if isinstance(value, set | frozenset):
        return set(map(_frozen, value))
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    raise TypeError(type(value))


__all__ = ["Standing"]
