"""Which items an epoch takes beside all of them in turn: drawn by weight, or one rank's share.

Comes in: what a loader was asked for, and an epoch. Goes out: places of items. Called by the loaders' base. All ranks
compute the same order, so nothing is sent between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError
from graphweft.sample.keyed import keyed_uniforms
from graphweft.sample.weights import as_weights

_ATTEMPTS = 64  # rounds of draws that skip repeats; then the smallest keys of what is left are taken
_DRAWS = 1 << 33  # keyed apart from the draws of samplers


def as_item_weight(who: str, weight: Any, labels: Tensor | None, count: int, batch_size: int) -> Tensor | None:
    """float64 (count,) weights of the items, checked; "balanced": one over the number of items of the same class.

    Items without a class, -1, have weight 0 then.

    Raises: ConfigError where classes are wanted and there are none, or where fewer items than a batch has can be drawn;
    DtypeError, ShapeError.

    Example:
        >>> as_item_weight("Loader", "balanced", torch.tensor([0, 0, 1]), 3, 1).tolist()
        [0.5, 0.5, 1.0]
    """
    if weight is None:
        return None
    if isinstance(weight, str):
        if weight != "balanced":
            raise ConfigError(f"{who}: expected item_weight as 'balanced' or one number per item, got {weight!r}")
        if labels is None or labels.dim() != 1 or labels.is_floating_point() or labels.numel() != count:
            got = "none" if labels is None else f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise ConfigError(f"{who}: expected one class per item for item_weight='balanced', got {got}; give numbers")
        values = torch.zeros(count, dtype=torch.float64)
        known = labels >= 0
        values[known] = 1.0 / torch.bincount(labels[known])[labels[known]].double()
    else:
        values = as_weights(who, weight, count, "item").double()
    able = int((values > 0).sum())
    if able < min(batch_size, count):
        raise ConfigError(f"{who}: expected {min(batch_size, count)} items of weight above 0, a batch, got {able}")
    return values


def as_share(who: str, share: Any, count: int) -> tuple[int, int] | None:
    """(rank, number of ranks), of a pair or of ``gw.dist.Ranks``. Raises: ConfigError."""
    if share is None:
        return None
    pair = (share.rank, share.size) if hasattr(share, "rank") and hasattr(share, "size") else share
    numbers = [as_integer(number) for number in pair] if isinstance(pair, tuple | list) and len(pair) == 2 else [None]
    if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None and 0 <= numbers[0] < numbers[1]:
        if count < numbers[1]:
            raise ConfigError(f"{who}: expected an item for every rank, got {count} for {numbers[1]}")
        return numbers[0], numbers[1]
    raise ConfigError(
        f"{who}: expected share as (rank, number of ranks) with 0 <= rank, or gw.dist.Ranks, got {share!r}"
    )


def share_of_order(order: Tensor, share: tuple[int, int]) -> Tensor:
    """Every ``size``-th item from the rank on; the first items come again so that all ranks have equally many.

    Example:
        >>> [share_of_order(torch.arange(5), (rank, 2)).tolist() for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 0]]
    """
    rank, size = share
    missing = -order.numel() % size
    return torch.cat([order, order[:missing]])[rank::size]


def drawn_order(weight: Tensor, batch_size: int, total: int, seed: int, epoch: int, share: tuple[int, int]) -> Tensor:
    """int64 (total,) places: batch after batch drawn by weight, an item at most once a batch.

    A batch is what draws one after the other give, each with chances proportional to the weights that are left.

    Example:
        >>> drawn_order(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64), 2, 4, 0, 0, (0, 1)).sort().values.tolist()
        [1, 1, 2, 2]
    """
    values = weight.numpy()
    running = np.cumsum(values)
    count, batches = len(values), -(-total // batch_size)
    found = np.full((batches, batch_size), -1)
    numbers = np.arange(batches) * share[1] + share[0]  # of the batches among those of all ranks
    for attempt in range(_ATTEMPTS):
        batch, place = np.nonzero(found < 0)
        if not len(batch):
            break
        marks = keyed_uniforms((seed, epoch, _DRAWS, attempt), numbers[batch], place)
        item = np.minimum(np.searchsorted(running, marks * running[-1], "right"), count - 1)
        codes = batch * count + item
        taken, where = np.nonzero(found >= 0)
        new = ~np.isin(codes, taken * count + found[taken, where]) & (values[item] > 0)
        _, first = np.unique(codes, return_index=True)  # of equal draws the first place has it
        once = np.zeros(len(codes), np.bool_)
        once[first] = True
        kept = new & once
        found[batch[kept], place[kept]] = item[kept]
    for row in np.flatnonzero((found < 0).any(axis=1)):
        _fill(found[row], values, (seed, epoch, _DRAWS, _ATTEMPTS, int(numbers[row])))
    return torch.from_numpy(found.reshape(-1)[:total])


def _fill(places: NDArray[np.int64], values: NDArray[np.float64], key: tuple[int, ...]) -> None:
    """The rest of one batch, by the smallest exponential keys of the items that it does not have."""
    left = values > 0
    left[places[places >= 0]] = False
    items = np.flatnonzero(left)
    keys = -np.log(keyed_uniforms(key, items)) / values[items]
    empty = np.flatnonzero(places < 0)
    places[empty] = items[np.argsort(keys, kind="stable")[: len(empty)]]
