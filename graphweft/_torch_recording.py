"""Private parts of torch that recording needs: stand-ins without memory, graphs of operations, symbolic sizes.

Comes in: torch. Goes out: its own classes and functions. Apart from ``_torch_private.py`` because importing these takes
longer, and a program whose functions are all in the cache folder records none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = [
    "SYMBOLIC",
    "DimDynamic",
    "FakeTensor",
    "FakeTensorMode",
    "PythonReferenceAnalysis",
    "ShapeEnv",
    "Source",
    "applies_function",
    "decomposition_table",
    "get_proxy_mode",
    "is_of_stand_ins",
    "make_fx",
    "results_without_memory",
    "sympy",
    "sympy_interp",
]

# functions of symbolic numbers, by the names of Python's math
SYMBOLIC: dict[str, Callable[[Any], Any]] = {
    name: getattr(torch, f"_sym_{name}") for name in ("sqrt", "log2", "sin", "cos", "tanh")
}

# Symbolic sizes and sympy below them take half a second to import: they are imported when a function is recorded.
_SYMBOLIC_HOMES = {
    "DimDynamic": "torch.fx.experimental.symbolic_shapes",
    "ShapeEnv": "torch.fx.experimental.symbolic_shapes",
    "sympy_interp": "torch.utils._sympy.interp",
    "PythonReferenceAnalysis": "torch.utils._sympy.reference",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A part of symbolic sizes, imported from its home."""
        if name == "sympy":
            value = importlib.import_module(name)
        elif name in _SYMBOLIC_HOMES:
            value = getattr(importlib.import_module(_SYMBOLIC_HOMES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


# native since torch 2.15
_APPLY = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)


def applies_function(called: Any) -> bool:
    """Whether a call of this code object or native function applies a custom ``autograd.Function``."""
    if isinstance(called, CodeType):
        return called is _APPLY
    owner = getattr(called, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function) and called.__name__ == "apply"


def is_of_stand_ins(failure: BaseException) -> bool:
    """Whether ``failure`` is torch's own, of tensors without memory."""
    return type(failure).__module__.startswith("torch._subclasses")


_HOST, _NOWHERE = torch.device("cpu"), torch.device("meta")


def results_without_memory(mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stand-ins on the host for what ``func`` gives, by its kernel for tensors without memory alone.

    For operations that make one tensor, new or a view. Operands may be lists of tensors.
    """

    def bare(item: Any) -> Any:
        if isinstance(item, FakeTensor):
            return item
        if isinstance(item, Tensor):
            return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=_NOWHERE)
        return [bare(part) for part in item] if isinstance(item, list | tuple) else item

    given, named = [bare(item) for item in args], {name: bare(item) for name, item in kwargs.items()}
    with in_kernel_invocation_manager(mode):
        made = func(*given, **named)
    return FakeTensor(mode, made, _HOST)
