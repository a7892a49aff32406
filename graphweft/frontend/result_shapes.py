"""Shapes, strides and dtypes of an operation's results, as stand-ins.

Comes in: an operation on stand-ins and structure. Goes out: stand-ins of its results. For common operations the
kernels that torch has for tensors without memory are called at once; everything else goes through torch's mode for
stand-ins, which takes twenty times as long and knows the operations whose results depend on numbers. Called by
``recorder.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from graphweft._torch_recording import FakeTensorMode, results_without_memory

aten = torch.ops.aten

# Not here: operations whose stand-ins torch makes by rules of its own (views by ``view``, copies to a dtype or device,
# indices), and those that give back what they got.
_AT_ONCE = {
    *(getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
    *(getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(
        getattr(aten, name).default
        for name in (
            "abs", "addmm", "amax", "amin", "bmm", "cat", "clamp", "clamp_min", "cos", "elu", "exp", "expand", "gelu",
            "index_add", "index_select", "leaky_relu", "log", "log1p", "maximum", "minimum", "mm", "neg", "permute",
            "reciprocal", "relu", "rsqrt", "scatter_add", "sigmoid", "silu", "sin", "softplus", "sqrt", "stack", "t",
            "tanh", "unsqueeze", "zeros_like",
        )
    ),
    aten.mean.dim, aten.pow.Tensor_Scalar, aten.scatter_reduce.two, aten.select.int, aten.slice.Tensor,
    aten.squeeze.dim, aten.sum.dim_IntList, aten.transpose.int, aten.where.self,
}  # fmt: skip


def results_of(fakes: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives, without numbers. Raises: as torch for operands that do not fit."""
    if func in _AT_ONCE and fakes.shape_env is None:
        return results_without_memory(fakes, func, args, kwargs)
    with fakes:
        return func(*args, **kwargs)


__all__ = ["results_of"]
