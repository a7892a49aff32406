"""``gw.compile``: any module over an edge list, with its own code, run through programs and kernels of this package.

Comes in: an ``nn.Module`` whose forward takes an ``edge_index``. Goes out: a module of a class below the module's own,
with the same parameters, buffers, attributes and modules, whose calls are recorded and compiled. Called by users.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, TypeVar, cast

from torch import nn

from graphweft._errors import ConfigError
from graphweft.graph.derived import derived
from graphweft.nn.compiled_call import ORIGINALS, CompiledCalls
from graphweft.nn.module import CompiledModule
from graphweft.nn.opaque import opaque

M = TypeVar("M", bound=nn.Module)
_SET_UP = ("forward", "reset_parameters", "extra_repr")


def compile(module: M, *, seeds_only: bool = False) -> M:
    """Returns a module that runs ``module`` through compiled programs.

    Gathers and scatters by ``edge_index``, and the operations between them, become programs over a graph, with kernels
    and gradients of this package. Results equal those of the module up to rounding. Values that depend only on integer
    arguments (self-loops, degrees, coefficients) are computed once for each content of these arguments. Contents are
    compared in every call, and the last 16 are kept. Code that is not supported runs as written, with one warning per
    place.

    Args:
        module: Takes an ``edge_index`` (2, E) of int64 on the CPU among its arguments, as modules of PyTorch Geometric
            do, and calls torch for the rest.
        seeds_only: Whether to compute only the rows of the seeds, ``[:batch_size]`` of the full result, on a batch of a
            loader. Rows that they do not depend on are not computed. A batch is recognised by its ``edge_index``.
            Results on any other ``edge_index`` have all rows.

    Returns: a module that shares parameters, buffers, attributes and inner modules with ``module``; an instance of its
    class. Changes of either are seen by both.

    Raises: ConfigError for anything but a module.

    Example:
        >>> import torch
        >>> class Sum(nn.Module):
        ...     def forward(self, x, edge_index):
        ...         return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        >>> compile(Sum())(torch.ones(3, 1), torch.tensor([[0, 1], [2, 2]])).tolist()
        [[0.0], [0.0], [2.0]]
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"compile: expected an nn.Module, got {type(module).__name__}")
    if isinstance(module, CompiledModule):
        return module
    original = original_of(module) if is_compiled(module) else type(module)
    kind = _class_of(cast(Any, original), seeds_only)
    if type(module) is kind:
        return module
    made: Any = object.__new__(kind)
    object.__setattr__(made, "__dict__", module.__dict__)
    return cast(M, made)


def is_compiled(module: Any) -> bool:
    """Whether a module came from :func:`compile`."""
    return any(kind in ORIGINALS for kind in type(module).__mro__)


def calls_of(module: nn.Module) -> CompiledCalls:
    """The calls of a module that :func:`compile` gave."""
    return derived(module, _new_calls)


def _new_calls(module: nn.Module) -> CompiledCalls:
    made = CompiledCalls(module, original_of(module).forward)
    made.seeds_only = any(kind in _OF_SEEDS for kind in type(module).__mro__)
    return made


def original_of(module: nn.Module) -> type[nn.Module]:
    """The class of the module that was compiled."""
    return next(ORIGINALS[kind] for kind in type(module).__mro__ if kind in ORIGINALS)


_OF_SEEDS: set[type] = set()  # classes of modules that give rows of seeds alone


@functools.cache
def _class_of(original: Any, seeds_only: bool = False) -> type[nn.Module]:
    """A class below ``original`` whose forward is compiled."""

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return calls_of(self)(args, kwargs)

    def reduce(self: nn.Module, protocol: Any = None) -> Any:
        return _again, (original, dict(self.__dict__), seeds_only)

    def prepare_scriptable(self: nn.Module) -> Any:
        """What ``torch.jit.script`` compiles: the module as it is written."""
        plain: Any = object.__new__(original)
        object.__setattr__(plain, "__dict__", self.__dict__)
        return plain.__prepare_scriptable__() if hasattr(original, "__prepare_scriptable__") else plain

    body = {
        **{name: _compiled(function) for name, function in _other_methods(original)},
        "forward": opaque(forward),
        "__reduce_ex__": reduce,
        "__prepare_scriptable__": prepare_scriptable,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__class__": property(lambda self: original),  # for code that looks it up
    }
    made: type[nn.Module] = type(original)(original.__name__, (original,), body)
    ORIGINALS[made] = original
    if seeds_only:
        _OF_SEEDS.add(made)
    return made


def _other_methods(original: Any) -> Iterator[tuple[str, FunctionType]]:
    """Methods beside forward that may call modules inside, such as ``encode`` of an autoencoder."""
    if hasattr(original, "propagate"):
        return
    seen = {*vars(nn.Module), *_SET_UP}
    for base in original.__mro__:
        for name, value in vars(base).items():
            if name not in seen and not name.startswith("_") and isinstance(value, FunctionType):
                yield name, value
        seen.update(vars(base))


def _compiled(function: FunctionType) -> Callable[..., Any]:
    """A method that is compiled as forward is."""

    @functools.wraps(function)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return calls_of(self).of_method(function)(args, kwargs)

    return opaque(call)


def _again(original: type[nn.Module], state: dict[str, Any], seeds_only: bool = False) -> nn.Module:
    """A copied or unpickled module."""
    plain = original.__new__(original)
    if hasattr(plain, "__setstate__"):
        plain.__setstate__(copy.copy(state))  # type: ignore[no-untyped-call]
    else:
        plain.__dict__.update(state)
    return compile(plain, seeds_only=seeds_only)
