"""Calls that ``torch.compile`` takes as they are: compiled here already, by way of native code it cannot see into.

Comes in: a public call. Goes out: the same one, at which torch's tracer ends one graph and begins the next. Used by
modules and by the primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from graphweft._torch_private import eval_frame_callback

P = ParamSpec("P")
R = TypeVar("R")


def traced() -> bool:
    """Whether ``torch.compile`` watches the calling code: traces it, where the first test is a constant, or runs it."""
    return torch.compiler.is_compiling() or eval_frame_callback() is not None


def opaque(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, left out of graphs that ``torch.compile`` makes, with all that it calls."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return untraced(function)(*args, **kwargs) if traced() else function(*args, **kwargs)

    return left_out(call)


def left_out(function: Callable[P, R]) -> Callable[P, R]:
    """Marks ``function`` as one that the tracer calls and does not look into; what it calls is looked into."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, run with the tracer off."""
    made: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return made
