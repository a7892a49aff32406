"""The split of a dataset that has none: labelled rows at random.

Comes in: labels and a seed. Goes out: the ids of three parts. Called by :class:`Dataset` and the readers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft.data.given import given_rows

_PARTS = ("train", "val", "test")


def random_rows(y: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """60/20/20 of the labelled rows at random by ``seed``, ascending; the same on every machine.

    Shape: y (N,) class ids with -1 for none; or numbers, (N,) or (N, C), with (rows of) not-a-number for none.

    Example:
        >>> [part.numel() for part in random_rows(torch.tensor([0, 1, 0, -1, 1, 1]), 0)]
        [3, 1, 1]
    """
    rows = np.flatnonzero(_known(y))
    order = rows[np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))]
    train, val = -(-len(rows) * 6 // 10), len(rows) * 2 // 10
    parts = (order[:train], order[train : train + val], order[train + val :])
    first, second, third = (torch.from_numpy(np.sort(part).astype(np.int64)) for part in parts)
    return first, second, third


def split_rows(
    given: tuple[Any, Any, Any], y: Tensor, classes: int, rows: int, seed: int
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The parts of the split that were given, else those of :func:`random_rows` where there are labels, and a note."""
    if any(idx is not None for idx in given) or classes == 0:
        return {part: given_rows(f"{part}_idx", idx, rows) for part, idx in zip(_PARTS, given, strict=True)}, ()
    parts = dict(zip(_PARTS, random_rows(y, seed), strict=True))
    return parts, (f"no split was given: the rows with a label are split 60/20/20 at random by seed {seed}",)


def _known(y: Tensor) -> NDArray[np.bool_]:
    """Which rows have a label: a class id, or a number; numbers below 0 are some."""
    values = y.numpy()
    found: NDArray[np.bool_] = values >= 0
    return ~np.isnan(values.reshape(len(values), -1)).all(axis=1) if y.is_floating_point() else found


def rows_by_class(y: Tensor, seed: int) -> Tensor:
    """The labelled rows, class after class, in random order by ``seed`` within each; every k-th has all classes alike.

    Labels that are no class ids are one class.

    Shape: y as in :func:`random_rows` -> (labelled rows,) int64.

    Example:
        >>> order = rows_by_class(torch.tensor([1, 0, -1, 0, 1, 0]), 0)
        >>> sorted(order[:3].tolist()), sorted(order[3:].tolist())
        ([1, 3, 5], [0, 4])
    """
    values = y.numpy()
    rows = np.flatnonzero(_known(y))
    rows = rows[np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))]
    if not y.is_floating_point():
        rows = rows[np.argsort(values[rows], kind="stable")]
    return torch.from_numpy(rows.astype(np.int64))


def mixed_rows(y: Tensor, seed: int) -> Tensor:
    """The rows of :func:`rows_by_class` in an order in which every stretch has the classes in proportion.

    Example:
        >>> (mixed_rows(torch.tensor([0, 0, 0, 0, 1, 1]), 0) > 3).tolist()
        [False, True, False, False, True, False]
    """
    rows = rows_by_class(y, seed)
    if y.is_floating_point():
        return rows
    counts = torch.bincount(y[rows])
    counts = counts[counts > 0]
    place = torch.cat([(torch.arange(int(count)) + 0.5) / count for count in counts])
    return rows[torch.argsort(place, stable=True)]
