"""Functions of torch a piece at a time, each piece the work of one thread.

Comes in: a function of elements, or a tensor to add up. Goes out: the same with bits that do not follow from the number
of threads. Torch cuts tensors beyond a grain at places that do: partial sums then differ, and for some functions
(``elu``, ``sigmoid``, ``pow``) the last elements of a cut go through other code than the rest. Called by the oracle,
the launchers and the losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GRAIN = 1 << 15  # elements that torch leaves to one thread


def in_pieces(apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``apply``, a function of elements in the same places, whose tensors broadcast against each other.

    Example:
        >>> in_pieces(torch.pow)(torch.full((3,), 2.0), torch.tensor(3.0)).tolist()
        [8.0, 8.0, 8.0]
    """

    def call(*operands: Tensor, **options: Any) -> Tensor:
        shape = np.broadcast_shapes(*(x.shape for x in operands))  # torch's imports 30 MB of symbolic sizes
        count = math.prod(shape)
        if count <= _GRAIN:
            return apply(*operands, **options)
        pieces = -(-count // _GRAIN)
        cut = [[x] * pieces if x.dim() == 0 else torch.split(x.expand(shape).reshape(-1), _GRAIN) for x in operands]
        return torch.cat([apply(*piece, **options) for piece in zip(*cut, strict=True)]).reshape(shape)

    return call


def total(x: Tensor) -> Tensor:
    """The sum of all elements, shape ().

    Example:
        >>> float(total(torch.ones(3, 100_000)))
        300000.0
    """
    if x.numel() <= _GRAIN:
        return x.sum()
    return total(torch.stack([piece.sum() for piece in torch.split(x.reshape(-1), _GRAIN)]))


def mean(x: Tensor) -> Tensor:
    """The mean of all elements, shape (); NaN where there is none.

    Example:
        >>> float(mean(torch.ones(3, 100_000)))
        1.0
    """
    return total(x) / x.numel()
