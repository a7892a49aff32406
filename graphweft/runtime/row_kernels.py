"""Launchers of elementwise kernels: activations that the library has, and generated ones.

Comes in: a region of IR values computed together. Goes out: a callable from matrices to the result, compiled by the
system's compiler once per machine where the library does not have it; None without a compiler, and the caller runs the
values one by one. Called by ``lower.py``.
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
from graphweft.codegen.loops import Operand, RowNest, Statement, row_nest
from graphweft.ir.program import Value
from graphweft.runtime import build

Kernel = Callable[..., None]
_RUN = declare("gw_run_rows")
_BUILT = {
    ("elu", 1): declare("gw_elu_f32"),
    ("elu", 2): declare("gw_elu_grad_f32"),
    ("leaky_relu", 1): declare("gw_leaky_relu_f32"),
    ("leaky_relu", 2): declare("gw_leaky_relu_grad_f32"),
}


def is_built(region: Sequence[Value]) -> bool:
    """Whether the library has the kernel of a region, so that matrices of any size take it."""
    return _built(row_nest(region)[0]) is not None


def row_kernel(region: Sequence[Value]) -> tuple[Callable[[Sequence[Tensor]], Tensor], tuple[Value, ...]] | None:
    """The kernel of a region and the values it takes, or None where nothing can be compiled."""
    nest, read = row_nest(region)
    kernel = _built(nest) or _compiled(nest)
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


@functools.cache
def _built(nest: RowNest) -> Kernel | None:
    """The library's kernel of an activation or of its gradient, with the bits of the generated one."""
    first, count = nest.statements[0], len(nest.statements)
    if count == 1:
        fn, alpha, made = first.fn, first.alpha, _activation
    else:
        fn, alpha, made = "leaky_relu" if count == 3 else "elu", nest.statements[1].operands[-1].number, _gradient
    call = _BUILT.get((fn, nest.inputs))
    if call is None or nest != made(fn, alpha):
        return None
    return lambda count, given, out: call(count, alpha, *given, out)


def _activation(fn: str, alpha: float) -> RowNest:
    return RowNest(1, (Statement(fn, (Operand("input", 0),), alpha),))


def _gradient(fn: str, alpha: float) -> RowNest:
    """As ``ir/elementwise_grad.py`` writes it, of an elu by its result."""
    given, slope, number = Operand("input", 0), Operand("input", 1), Operand("number", number=alpha)
    above = Statement("gt", (given, Operand("number", number=0.0)))
    if fn == "elu":
        below: tuple[Statement, ...] = (
            Statement("add", (given, number)),
            Statement("mul", (slope, Operand("result", 1))),
        )
    else:
        below = (Statement("mul", (slope, number)),)
    last = Statement("where", (Operand("result", 0), slope, Operand("result", len(below))))
    return RowNest(2, (above, *below, last))
