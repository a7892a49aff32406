"""A random order by key: the same on any machine.

Comes in: a length and what keys the draws. Goes out: a permutation. Called by loaders and by splits of edges.
"""

from __future__ import annotations

import torch

from graphweft._native import declare

_permutation = declare("gw_permutation")


def permutation(count: int, seed: int, epoch: int = 0) -> torch.Tensor:
    """int64 (count,): every order of 0 .. count - 1 equally likely over keys (seed, epoch).

    Example:
        >>> sorted(permutation(4, seed=1).tolist())
        [0, 1, 2, 3]
    """
    places = torch.empty(count, dtype=torch.int64)
    _permutation(count, seed, epoch, places.data_ptr())
    return places
