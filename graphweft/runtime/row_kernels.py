"""Launchers of generated elementwise kernels.

Comes in: a region of IR values computed together. Goes out: a callable from matrices to the result, compiled by the
system's compiler once per machine; None without one, and the caller runs the values one by one. Called by ``lower.py``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft._native import declare
from graphweft.codegen.cpp import render
from graphweft.codegen.loops import RowNest, row_nest
from graphweft.ir.program import Value
from graphweft.runtime import build

Kernel = Callable[..., None]
_RUN = declare("gw_run_rows")


def row_kernel(region: Sequence[Value]) -> tuple[Callable[[Sequence[Tensor]], Tensor], tuple[Value, ...]] | None:
    """The kernel of a region and the values it takes, or None where nothing can be compiled."""
    nest, read = row_nest(region)
    kernel = _compiled(nest)
    if kernel is None:
        return None
    pointers = ctypes.c_void_p * len(read)

    def run(tensors: Sequence[Tensor]) -> Tensor:
        given = [t if t.is_contiguous() else t.contiguous() for t in tensors]
        out = empty(tuple(given[0].shape), torch.float32)
        kernel(out.numel(), pointers(*(t.data_ptr() for t in given)), out.data_ptr())
        return out

    return run, read


@functools.cache
def _compiled(nest: RowNest) -> Kernel | None:
    library = build.load(render(nest))
    if library is None:
        return None
    return functools.partial(_RUN, ctypes.cast(library.gw_rows, ctypes.c_void_p))  # libraries are never unloaded
