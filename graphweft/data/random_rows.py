"""The split of a dataset that has none: labelled rows at random.

Comes in: labels and a seed. Goes out: the ids of three parts. Called by :class:`Dataset` and the readers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def random_rows(y: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """60/20/20 of the labelled rows at random by ``seed``, ascending; the same on every machine.

    Shape: y (N,) class ids with -1 for none, or (N, C) with rows of not-a-number for none.

    Example:
        >>> [part.numel() for part in random_rows(torch.tensor([0, 1, 0, -1, 1, 1]), 0)]
        [3, 1, 1]
    """
    known = y.numpy() >= 0 if y.dim() == 1 else ~np.isnan(y.numpy()).all(axis=1)
    rows = np.flatnonzero(known)
    order = rows[np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))]
    train, val = -(-len(rows) * 6 // 10), len(rows) * 2 // 10
    parts = (order[:train], order[train : train + val], order[train + val :])
    first, second, third = (torch.from_numpy(np.sort(part).astype(np.int64)) for part in parts)
    return first, second, third
