"""How much rounding may move a result: the same program again, every value and gradient in it shaken in its last bits.

Comes in: results of a program as computed, and of runs with shaken values. Goes out: per element, the difference that
counts as rounding. A value is multiplied by 1 + eta, |eta| <= SHAKE, where eta follows from its bits: equal numbers
stay equal and opposite ones opposite, so ties, sums that cancel exactly and zeros remain what they are, while the small
difference of two large numbers moves as far as it is uncertain. Called by ``certificate.py``.
Source: Monte Carlo arithmetic (Parker, 1997); CESTAC (Vignes, 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphweft.storage.feature import is_dense

SHAKE = 2.0**-46  # 128 units of rounding in double precision: programs order their operations in other ways
RUNS = 3
_ELEMENT, _ROW, _ALL = 1.0, 8.0, 2.0**-4  # shares of the noise of an element, its row, and the whole tensor
_EXACT = 1e-14  # of the largest element: always rounding
_MIX, _STEP = -7046029254386353131, 1442695040888963407  # odd multipliers of a linear congruence modulo 2^64


def shaken(item: Any, run: int, size: float = SHAKE) -> Any:
    """``item`` moved by at most ``size`` of itself, differently in every ``run``; its gradient is changed alike."""
    if not is_dense(item) or item.dtype != torch.float64:
        return item
    bits = item.detach().contiguous().view(torch.int64) & torch.iinfo(torch.int64).max  # opposite numbers alike
    mixed = (bits ^ (bits >> 31)) * _MIX + run * _STEP
    mixed = (mixed ^ (mixed >> 29)) * _MIX
    eta = (mixed >> 33).to(torch.float64) * (size * 2.0**-30)
    return item * (1.0 + eta)


def shaken_by_place(item: Any, run: int) -> Any:
    """As :func:`shaken`, where equal and opposite numbers do not stay so."""
    if not is_dense(item) or item.dtype != torch.float64:
        return item
    places = torch.arange(1.0, item.numel() + 1.0, dtype=torch.float64).reshape(item.shape)
    return item * (shaken(places, run) / places)


def noise(plain: Tensor, shaken_runs: Sequence[Tensor]) -> Tensor:
    """The largest move of every element, infinite where a shaken run is not finite."""
    moved = torch.zeros_like(plain)
    for run in shaken_runs:
        moved = torch.maximum(moved, (run - plain).abs().nan_to_num(torch.inf))
    return moved


def allowed(moved: Tensor) -> Tensor:
    """The difference that counts as rounding where elements moved by ``moved``."""
    row = moved.amax(tuple(range(1, moved.dim())), keepdim=True) if moved.dim() > 1 else moved
    return _ELEMENT * moved + _ROW * row + _ALL * torch.where(moved.isfinite(), moved, 0.0).max()


def is_exact(wanted: Tensor, got: Tensor) -> bool:
    """Whether two finite results differ by a few units in the last place of their largest element at most."""
    apart, largest = (torch.linalg.vector_norm(x, torch.inf) for x in (wanted - got, wanted))
    return bool(apart <= _EXACT * largest)


__all__ = ["RUNS", "SHAKE", "allowed", "is_exact", "noise", "shaken", "shaken_by_place"]
