"""Elementwise functions that programs have no operation for, written with those that they have.

Comes in: operands of one ATen operation while a module is recorded. Goes out: its result. Looked up by ``recorder.py``
in the table of ``sum_forms.py``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphweft.frontend.sum_forms import FORMS

aten = torch.ops.aten


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    """One half times the sigmoid of the other."""
    half = x.shape[dim] // 2
    made: Tensor = aten.slice.Tensor(x, dim, 0, half) * torch.sigmoid(aten.slice.Tensor(x, dim, half, 2 * half))
    return made


FORMS[aten.glu.default] = _glu
FORMS[aten.exp2.default] = lambda x: torch.exp(x * math.log(2))
FORMS[aten.log2.default] = lambda x: torch.log(x) * (1 / math.log(2))
FORMS[aten.log10.default] = lambda x: torch.log(x) * (1 / math.log(10))
FORMS[aten.tan.default] = lambda x: torch.sin(x) / torch.cos(x)

__all__: list[str] = []
