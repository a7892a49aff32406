"""Orders of parts in which an epoch begins with the parts that the one before ended with, which are not read again.

Comes in: how many parts there are and how many stay in memory, and the key of an epoch. Goes out: its order. A pure
function of its arguments, so that an epoch can be taken up without those before it. Each epoch is an order of all
parts; which of them stay is drawn anew every time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweft._errors import ConfigError
from graphweft.sample.permutation import permutation

_PIECES = 4  # permutations of an epoch
_CHAIN = 64  # epochs after which none is shared, so that an order follows from few others


def shared_order(parts: int, held: int, seed: int, epoch: int) -> Tensor:
    """int64 (parts,): the order of an epoch.

    Its last ``held`` parts, any but those that it begins with, are the first ones of the next epoch in another order.
    Every 64th epoch begins with others.

    Args:
        parts: Number of parts.
        held: Parts that stay in memory from an epoch to the next, at most half of them.
        seed: Of the run.
        epoch: Counts from 0.

    Raises: ConfigError for more than half of the parts.

    Example:
        >>> first, second = (shared_order(8, 2, 0, epoch).tolist() for epoch in (0, 1))
        >>> sorted(first) == sorted(second) == list(range(8)), set(first[-2:]) == set(second[:2])
        (True, True)
    """
    if not 0 <= held <= parts // 2:
        raise ConfigError(f"held: expected at most {parts // 2} of {parts} parts, got {held}")
    begin = end = torch.empty(0, dtype=torch.int64)
    for earlier in range(epoch - epoch % _CHAIN, epoch + 1):
        begin, end = end, _ends(parts, held, end, seed, earlier)
    left = torch.ones(parts, dtype=torch.bool)
    left[begin] = left[end] = False
    middle = left.nonzero().reshape(-1)
    pieces = (begin, middle, end)
    orders = [permutation(len(piece), seed, _PIECES * epoch + place) for place, piece in enumerate(pieces)]
    return torch.cat([piece[order] for piece, order in zip(pieces, orders, strict=True)])


def _ends(parts: int, held: int, begin: Tensor, seed: int, epoch: int) -> Tensor:
    """The parts that an epoch ends with, none of those that it begins with."""
    left = torch.ones(parts, dtype=torch.bool)
    left[begin] = False
    others = left.nonzero().reshape(-1)
    return others[permutation(len(others), seed, _PIECES * epoch + 3)[:held]]
