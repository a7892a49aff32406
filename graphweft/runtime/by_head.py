"""Products with one matrix per head, ``nhf,fhc->nhc``, and the gradients of the matrices, ``nhf,nhc->fhc``.

Comes in: an EINSUM of node rows. Goes out: a closure over slots, or None for another einsum. Every head is a native
product on rows where they lie, so results do not depend on the number of threads. Called by ``lower.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft.ir.head_product import head_product
from graphweft.ir.program import Value
from graphweft.runtime.dense import matmul, matmul_tn

Slots = list[Any]


def lower(value: Value, out: int, slot: Mapping[Value, int]) -> Callable[[Slots], None] | None:
    """The call of a product by head on float32 rows."""
    found = head_product(value["spec"])
    if found is None or value.tensor.dtype != torch.float32:
        return None
    first, second = (slot[v] for v in (value.inputs[::-1] if found.swapped else value.inputs))
    order = found.order

    def product(env: Slots) -> None:
        env[out] = head_matmul(env[first], env[second].permute(order))

    def outer(env: Slots) -> None:
        env[out] = head_outer(env[first], env[second]).permute(order).contiguous()

    return outer if found.outer else product


def head_matmul(x: Tensor, w: Tensor) -> Tensor:
    """``einsum("nhf,fhc->nhc", x, w)``.

    Shape: x (n, H, F), w (F, H, C), float32 -> (n, H, C).
    """
    x = x.contiguous()
    y = empty((x.shape[0], w.shape[1], w.shape[2]), torch.float32)
    for h in range(w.shape[1]):
        matmul(x[:, h], w[:, h], out=y[:, h])
    return y


def head_outer(x: Tensor, g: Tensor) -> Tensor:
    """``einsum("nhf,nhc->fhc", x, g)``.

    Shape: x (n, H, F), g (n, H, C), float32 -> (F, H, C).
    """
    x, g = x.contiguous(), g.contiguous()
    w = empty((x.shape[2], x.shape[1], g.shape[2]), torch.float32)
    for h in range(x.shape[1]):
        matmul_tn(x[:, h], g[:, h], out=w[:, h])
    return w
