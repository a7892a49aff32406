"""Products with one matrix per head, ``nhf,fhc->nhc``, and the gradients of the matrices, ``nhf,nhc->fhc``.

Comes in: rows and matrices. Goes out: rows or matrices. Every head is a native product on rows where they lie, so
results do not depend on the number of threads. Called by ``cpu/attention.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft._memory import empty
from graphweft.runtime.dense import matmul, matmul_tn


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
