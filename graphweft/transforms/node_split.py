"""The labelled rows of a dataset in three parts at random.

Comes in: a dataset, and how many rows each part takes. Goes out: the same dataset with another split. Called by users.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.data.random_rows import rows_by_class
from graphweft.sample.permutation import permutation


def split_nodes(
    ds: Dataset,
    *,
    val: float = 0.2,
    test: float | None = 0.2,
    per_class: int | None = None,
    seed: int = 0,
) -> Dataset:
    """The same dataset with a random split of its labelled rows. The split is the same on every machine.

    Args:
        ds: A dataset whose rows are nodes or pairs of nodes.
        val: Validation rows: a number, or a share of the labelled rows.
        test: Test rows, as ``val``; None, with ``per_class``: all remaining rows.
        per_class: Training rows of every class; None: all remaining rows. Further rows are in no part.
        seed: Of the split.

    Raises: ConfigError for parts that do not fit.

    Example:
        >>> from graphweft.graph.graph import Graph
        >>> ds = Dataset("ring", Graph([0, 1, 2, 3], [1, 2, 3, 0]), torch.eye(4), [0, 0, 1, 1])
        >>> ds = split_nodes(ds, per_class=1, val=1, test=None)
        >>> [ds.idx(part).numel() for part in ("train", "val", "test")], ds.y[ds.train_idx].tolist()
        ([2, 1, 1], [0, 1])
    """
    if not isinstance(ds, Dataset):
        raise ConfigError(f"split_nodes: expected a gw.Dataset, got {type(ds).__name__}")
    by_class = rows_by_class(ds.y, seed) if ds.num_classes else torch.zeros(0, dtype=torch.int64)
    rows = by_class.sort().values
    first = torch.zeros(0, dtype=torch.int64)
    if per_class is not None:
        first = _of_every_class(ds.y, by_class, per_class)
        rows = rows[~torch.isin(rows, first)]
    elif test is None:
        raise ConfigError("split_nodes: expected per_class with test=None, got None")
    rows = rows[permutation(rows.numel(), seed)]
    labelled = by_class.numel()
    val_count = _count("val", val, labelled)
    test_count = rows.numel() - val_count if test is None else _count("test", test, labelled)
    train = first if per_class is not None else rows[val_count + test_count :]
    if val_count + max(test_count, 0) > rows.numel() or test_count < 0 or train.numel() == 0:
        asked = f"val={val} and test={test}" + ("" if per_class is None else f" beside per_class={per_class}")
        raise ConfigError(f"split_nodes: expected parts that fit {labelled} labelled rows, got {asked}")
    parts: dict[str, Any] = {
        "train_idx": train,
        "val_idx": rows[:val_count],
        "test_idx": rows[val_count : val_count + test_count],
    }
    return replace(ds, **{name: idx.sort().values for name, idx in parts.items()})


def _of_every_class(y: Tensor, by_class: Tensor, per_class: int) -> Tensor:
    """The first ``per_class`` rows of every class. Raises: ConfigError for labels that are no classes, or too few."""
    number = as_integer(per_class)
    if number is None or number < 1:
        raise ConfigError(f"split_nodes: expected per_class as an integer >= 1, got {per_class!r}")
    if y.is_floating_point():
        raise ConfigError(f"split_nodes: per_class={per_class} cannot be combined with labels that are no classes")
    classes, counts = torch.unique_consecutive(y[by_class], return_counts=True)
    if classes.numel() and int(counts.min()) < number:
        at = int(counts.argmin())
        raise ConfigError(
            f"split_nodes: expected per_class <= {int(counts[at])}, the rows of class {int(classes[at])}, got {number}"
        )
    place = torch.arange(by_class.numel()) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return by_class[place < number]


def _count(name: str, value: float, rows: int) -> int:
    """A number of rows, or a share of them. Raises: ConfigError."""
    number = as_integer(value)
    if number is not None and number >= 0:
        return number
    if isinstance(value, float) and 0 <= value < 1:
        return round(value * rows)
    raise ConfigError(f"split_nodes: expected {name} as a number of rows >= 0 or a share in [0, 1), got {value!r}")
