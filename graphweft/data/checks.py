"""Checks of the parts of a dataset, each made once for a tensor that stays as it is.

Comes in: tensors of the dtypes that a dataset has. Goes out: nothing, or one :class:`DataError` with the position of
the first fault. Called by :class:`Dataset` and the readers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, MutableMapping, Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from graphweft._errors import DataError, DataWarning
from graphweft.data.given import Task
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.int8_features import Int8Features

_PASSED: MutableMapping[Tensor, tuple[int, frozenset[Hashable]]] = WeakIdKeyDictionary()  # by version: what it passed


def once(tensor: Tensor, key: Hashable, check: Callable[[], None]) -> None:
    """Runs ``check`` unless this tensor object passed it under ``key`` and was not changed by torch since.

    A dataset is replaced often (another graph, other notes); its features are read for faults once.
    """
    once_together((tensor,), key, check)


def once_together(tensors: Sequence[Tensor], key: Hashable, check: Callable[[], None]) -> None:
    """As :func:`once`, for a check of several tensors."""
    if any(tensor.is_inference() for tensor in tensors):  # they have no version
        check()
        return
    if all(key in _passed(tensor) for tensor in tensors):
        return
    check()
    for tensor in tensors:
        _PASSED[tensor] = (tensor._version, _passed(tensor) | {key})


def _passed(tensor: Tensor) -> frozenset[Hashable]:
    version, passed = _PASSED.get(tensor, (-1, frozenset()))
    return passed if version == tensor._version else frozenset()


def check_disjoint(who: str, parts: dict[str, Tensor], rows: int) -> None:
    """Warns once where rows are in several parts of the split.

    Warns: DataWarning with the number of rows that two parts share.
    """
    text = overlap(parts, rows)
    if text:
        warnings.warn(f"{who}: {text}", DataWarning, stacklevel=4)


def overlap(parts: dict[str, Tensor], rows: int) -> str:
    """Which parts have rows in common, and how many; empty where none have.

    Example:
        >>> overlap({"train": torch.tensor([0, 1]), "test": torch.tensor([1, 2])}, 3)
        'parts of the split have rows in common: 1 in train and test'
    """
    masks = {}
    for name, idx in parts.items():
        masks[name] = torch.zeros(rows, dtype=torch.bool)
        masks[name][idx] = True
    names = list(parts)
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :] if parts[a].numel() and parts[b].numel()]
    counts = {pair: int((masks[pair[0]] & masks[pair[1]]).sum()) for pair in pairs}
    shared = [f"{count} in {a} and {b}" for (a, b), count in counts.items() if count]
    return f"parts of the split have rows in common: {', '.join(shared)}" if shared else ""


def check_features(who: str, x: Features, rows: int | None) -> None:
    """``x`` is a finite float32 matrix with ``rows`` rows, dense or sparse.

    Raises: DataError with the position of the first value that is not finite.
    """
    sparse = isinstance(x, SparseFeatures)
    shape: tuple[int, ...] = (x.num_rows, x.width) if isinstance(x, SparseFeatures) else tuple(x.shape)
    values = x.scale if isinstance(x, Int8Features) else x.values if isinstance(x, SparseFeatures) else x
    if len(shape) != 2 or shape[1] < 1:
        raise DataError(f"{who}: expected a matrix with at least one column, got shape {shape}")
    if rows is not None and shape[0] != rows:
        raise DataError(f"{who}: expected {rows} rows, one per node, got {shape[0]}")
    if values.dtype != torch.float32:
        raise DataError(f"{who}: expected float32, got {values.dtype}")

    def finite() -> None:
        position = first_not_finite(values)
        if position is not None:
            bad = float(values.reshape(-1)[position])
            row, column = divmod(position, shape[1])
            where = f"entry {position}" if sparse else f"row {row}, column {column}"
            raise DataError(f"{who}: expected finite values, got {bad} at {where}")

    once(values, "finite", finite)


def first_not_finite(values: Tensor) -> int | None:
    """Flat position of the first NaN or infinity; one read of ``values`` where there is none."""
    if values.numel() == 0:
        return None
    low, high = torch.aminmax(values)  # both are NaN if any value is
    if bool(torch.isfinite(low)) and bool(torch.isfinite(high)):
        return None
    return int((~torch.isfinite(values.reshape(-1))).nonzero()[0])


def check_labels(y: Tensor, rows: int, num_classes: int, task: Task) -> None:
    """Labels fit their task and their number of classes. Raises: DataError."""
    if y.dim() == 0 or y.shape[0] != rows:
        raise DataError(f"y: expected {rows} rows, got shape {tuple(y.shape)}")
    if task == "regression" and y.dim() == 1 and y.dtype == torch.float32 and num_classes <= 1:
        return
    if task != "classification":
        if y.dtype != torch.float32 or y.dim() != 2 or y.shape[1] != num_classes:
            raise DataError(f"y: expected float32 of shape {(rows, num_classes)}, got {y.dtype} {tuple(y.shape)}")
        return
    if y.dtype != torch.int64 or y.dim() != 1:
        raise DataError(f"y: expected int64 class ids of shape {(rows,)}, got {y.dtype} {tuple(y.shape)}")

    def in_range() -> None:
        low, high = (int(v) for v in torch.aminmax(y)) if y.numel() else (-1, -1)
        if low < -1 or high >= num_classes:
            position = int(((y < -1) | (y >= num_classes)).nonzero()[0])
            raise DataError(f"y: expected labels in [-1, {num_classes}), got {int(y[position])} at position {position}")

    once(y, ("labels", num_classes), in_range)


def check_idx(who: str, idx: Tensor, rows: int) -> None:
    """Ids of rows, each once. Raises: DataError with the first that is none, or that comes again."""

    def in_range() -> None:
        low, high = (int(v) for v in torch.aminmax(idx)) if idx.numel() else (0, -1)
        if low < 0 or high >= rows:
            position = int(((idx < 0) | (idx >= rows)).nonzero()[0])
            raise DataError(f"{who}: expected ids in [0, {rows}), got {int(idx[position])} at position {position}")
        check_each_once(who, idx, rows)

    once(idx, ("rows", rows), in_range)


def check_each_once(who: str, ids: Tensor, bound: int) -> None:
    """No id in [0, ``bound``) comes twice. Raises: DataError with the first that does."""
    seen = torch.zeros(bound, dtype=torch.bool)
    seen[ids] = True
    if int(seen.sum()) == ids.numel():
        return
    order = torch.argsort(ids, stable=True)
    again = order[1:][ids[order[1:]] == ids[order[:-1]]].min()
    raise DataError(f"{who}: expected each id once, got {int(ids[again])} again at position {int(again)}")


def check_graph_ptr(ptr: Tensor, num_nodes: int) -> None:
    """Offsets of graphs over all nodes. Raises: DataError."""
    if ptr.dtype != torch.int64 or ptr.dim() != 1 or ptr.numel() < 2:
        raise DataError(f"graph_ptr: expected at least two int64 offsets, got {ptr.dtype} {tuple(ptr.shape)}")
    if int(ptr[0]) != 0 or int(ptr[-1]) != num_nodes or bool((ptr[1:] < ptr[:-1]).any()):
        raise DataError(
            f"graph_ptr: expected offsets that rise from 0 to {num_nodes}, got {int(ptr[0])} to {int(ptr[-1])}"
        )


def check_edge_rows(who: str, values: Tensor | None, num_edges: int, dim: int) -> None:
    """Finite float32 numbers per edge. Raises: DataError."""
    if values is None:
        return
    if values.dtype != torch.float32 or values.dim() != dim or values.shape[0] != num_edges:
        raise DataError(f"{who}: expected float32 with {num_edges} rows, got {values.dtype} {tuple(values.shape)}")

    def finite() -> None:
        position = first_not_finite(values)
        if position is not None:
            bad = float(values.reshape(-1)[position])
            raise DataError(f"{who}: expected finite values, got {bad} at position {position}")

    once(values, "finite", finite)
