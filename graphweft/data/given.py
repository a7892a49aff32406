"""The parts of a dataset as people give them, in the form in which a dataset keeps them.

Comes in: tensors, arrays, lists, SciPy matrices or columns of a table, of any fitting dtype; masks or ids. Goes out:
float32 features, labels with their task, int64 ids. What is a tensor of the right kind stays that tensor. Called by
:class:`Dataset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphweft._errors import DataError, GraphWeftError
from graphweft._memory import empty
from graphweft._native import declare
from graphweft.graph.graph import Graph
from graphweft.graph.ids import borrow
from graphweft.graph.node_ids import NodeIds
from graphweft.storage.feature import Features, SparseFeatures
from graphweft.storage.int8_features import Int8Features

_normalize_rows = declare("gw_dense_normalize_rows")

_ROWS = 16_384  # at a time

Task = Literal["classification", "multilabel", "regression"]
_TASKS = ("classification", "multilabel", "regression")


def given_features(who: str, x: Any) -> Features | None:
    """Features as float32: a tensor, or sparse rows of a sparse matrix; None for None.

    Raises: DataError for anything but numbers.

    Example:
        >>> given_features("x", np.array([[1, 2], [3, 4]], np.int8)).dtype
        torch.float32
    """
    if x is None:
        return None
    if isinstance(x, Int8Features):
        return x
    if isinstance(x, SparseFeatures):
        return x if x.dtype == torch.float32 else x.to(torch.float32)
    if isinstance(x, Tensor) and x.layout != torch.strided:
        entries = x.detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        x = scipy.sparse.coo_array((entries.values().numpy(), entries.indices().numpy()), shape=tuple(x.shape))
    if scipy.sparse.issparse(x):
        try:
            return SparseFeatures.from_scipy(x)
        except GraphWeftError as error:
            raise DataError(f"{who}: {error}") from None
    return given_floats(who, x)


def given_floats(who: str, values: Any) -> Tensor:
    """Numbers of any kind as float32. Raises: DataError for texts and other objects."""
    tensor = _tensor(who, values, "numbers")
    if tensor.is_complex():
        raise DataError(f"{who}: expected real numbers, got {tensor.dtype}")
    return tensor if tensor.dtype == torch.float32 else tensor.float()


def given_times(who: str, values: Any, rows: int) -> Tensor | None:
    """Times, int64 or float64; None for None. Raises: DataError for another length, or times that are not finite."""
    if values is None:
        return None
    tensor = _tensor(who, values, "numbers")
    if tensor.shape != (rows,):
        raise DataError(f"{who}: expected {rows} times, got shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        return tensor.long()
    if not bool(tensor.isfinite().all()):
        raise DataError(f"{who}: expected finite times, got {float(tensor[~tensor.isfinite()][0])}")
    return tensor.double()


_MANY_CLASSES = 1_000  # of more classes most should be in use


def given_labels(y: Any, rows: int, num_classes: int | None, task: Any) -> tuple[Tensor, int, Task]:
    """Labels, the number of classes or columns, and the task, which follow from the labels where they are not given.

    Integers in one column are class ids; 0 and 1 in several columns are several labels a node. Float values in one
    column are not guessed at.

    Raises: DataError that names ``task=`` where labels can mean two things.

    Example:
        >>> given_labels([0, 2, -1], 3, None, None)
        (tensor([ 0,  2, -1]), 3, 'classification')
    """
    if task is not None and task not in _TASKS:
        raise DataError(f"task: expected classification, multilabel or regression, got {task!r}")
    if y is None:
        return torch.full((rows,), -1, dtype=torch.int64), num_classes or 0, task or "classification"
    labels = _tensor("y", y, "class ids as integers (np.unique(y, return_inverse=True) makes them)")
    if labels.dim() == 0 or labels.shape[0] != rows:
        raise DataError(f"y: expected {rows} rows, got shape {tuple(labels.shape)}")
    if labels.dim() == 2 and labels.shape[1] == 1 and not labels.is_floating_point() and task in (None, _TASKS[0]):
        labels = labels.reshape(-1)
    found = task or _task_of(labels)
    if found == "classification":
        if labels.is_floating_point() or labels.is_complex():
            got = f"{labels.dtype} {tuple(labels.shape)}"
            raise DataError(f"y: expected int64 class ids, or task='regression' for values, got {got}")
        labels = labels.long()
        count = int(labels.max()) + 1 if labels.numel() else 0
        if num_classes is None:
            _check_gaps(labels, count)
    else:
        labels = labels.float()
        columns = labels.shape[1] if labels.dim() == 2 else 0
        count = 1 if found == "regression" and labels.dim() == 1 else columns
    return labels, count if num_classes is None else int(num_classes), found


def _check_gaps(labels: Tensor, count: int) -> None:
    """Refuses ids that are no classes counted from 0: a model would have an output for every number between."""
    if count <= _MANY_CLASSES:
        return
    distinct = len(np.unique(labels[labels >= 0].cpu().numpy()))
    if count > 10 * distinct:
        raise DataError(
            f"y: expected class ids from 0 without large gaps, got {distinct} different ones up to {count - 1}; "
            f"np.unique(y, return_inverse=True)[1] numbers them, num_classes={count} keeps them as they are"
        )


def _task_of(labels: Tensor) -> Task:
    """What labels mean of which nobody said."""
    if labels.dim() == 1 or (labels.dim() == 2 and labels.shape[1] == 1):
        return "classification"
    if _are_marks(labels):
        return "multilabel"
    raise DataError(
        f"y: expected class ids in one column, 0 and 1 in several, or task='regression' for values, "
        f"got shape {tuple(labels.shape)}"
    )


def _are_marks(labels: Tensor) -> bool:
    """Whether all known labels are 0 or 1."""
    known = labels[~labels.isnan()] if labels.is_floating_point() else labels
    return bool(((known == 0) | (known == 1)).all())


def by_type(features: Any) -> dict[str, Any]:
    """Features of node types. Raises: DataError for what is no mapping."""
    if features is not None and not isinstance(features, Mapping):
        got = type(features).__name__
        raise DataError(f"features: expected a dict by node type, got {got}; x= takes the features of all nodes")
    for kind, x in (features or {}).items():
        if isinstance(x, Int8Features):
            raise DataError(f"features of {kind!r}: expected float32 or sparse features, got Int8Features")
    return {kind: given_features(f"features of {kind!r}", x) for kind, x in (features or {}).items()}


def given_rows(who: str, idx: Any, rows: int) -> Tensor:
    """int64 ids of one part of the split, from ids of any integer dtype or from a mask; none for None.

    Raises: DataError for a mask of another length, several masks, or numbers that may be either.

    Example:
        >>> given_rows("train_idx", [True, False, True], 3)
        tensor([0, 2])
    """
    if idx is None:
        return torch.empty(0, dtype=torch.int64)
    tensor = _tensor(who, idx, "a boolean mask or ids")
    if tensor.dtype == torch.bool:
        if tensor.dim() == 2:
            raise DataError(f"{who}: expected one mask, got {tuple(tensor.shape)}; one split of several is mask[:, 0]")
        if tuple(tensor.shape) != (rows,):
            raise DataError(f"{who}: expected a mask of {rows} rows, got shape {tuple(tensor.shape)}")
        return tensor.nonzero().reshape(-1)
    if tensor.numel() == 0 and tensor.dim() == 1:
        return tensor.long()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() != 1:
        raise DataError(
            f"{who}: expected a vector of ids or a boolean mask, got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if rows > 2 and tensor.numel() == rows and int(tensor.max()) <= 1:
        raise DataError(f"{who}: expected ids or a boolean mask, got a 0 or 1 for every row; a mask needs dtype bool")
    return tensor.long()


def given_node_ids(node_ids: Any) -> tuple[Tensor | None, tuple[str, ...]]:
    """int64 ids, and names, one of which the nodes of a source have. Raises: DataError."""
    if node_ids is None:
        return None, ()
    values = node_ids.values if isinstance(node_ids, NodeIds) else node_ids
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if not isinstance(array, Tensor) and array.dtype.kind in "UO":
        return None, tuple(map(str, array.tolist()))
    return _tensor("node_ids", array, "ids").long(), ()


def _tensor(who: str, value: Any, what: str) -> Tensor:
    """``value`` as a tensor: the same one, or over the memory of an array."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise DataError(f"{who}: expected {what}, got a tensor of layout {value.layout}")
        return value if value.device.type == "cpu" else value.cpu()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        raise DataError(f"{who}: expected {what}, got rows of unequal lengths or mixed kinds") from None
    if array.dtype.kind == "O" and array.size:
        array = _plain(array)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{who}: expected {what}, got {array.dtype}")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise DataError(f"{who}: expected {what} that fit 64 bits with a sign, got {array.max()}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return borrow(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Python numbers, as columns of tables hold them, as numbers; other objects as they are."""
    kinds = {type(item) for item in array.reshape(-1).tolist()}
    if kinds == {bool}:
        return array.astype(np.bool_)
    if kinds <= {int, bool}:
        return array.astype(np.int64)
    return array.astype(np.float64) if kinds <= {int, float, bool} else array


def given_pairs(pairs: Any, num_nodes: int) -> Tensor:
    """int64 (2, P): pairs of nodes. Raises: DataError for another shape, or a number that is no node."""
    try:
        found = torch.as_tensor(pairs)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"edge_label_index: expected two rows of node ids, got {type(pairs).__name__}") from None
    if found.dim() != 2 or found.shape[0] != 2 or found.is_floating_point() or found.dtype == torch.bool:
        raise DataError(f"edge_label_index: expected int64 of shape (2, P), got {found.dtype} {tuple(found.shape)}")
    found = found.long().contiguous()
    wrong = found[(found < 0) | (found >= num_nodes)]
    if wrong.numel():
        raise DataError(f"edge_label_index: expected node ids from 0 to {num_nodes - 1}, got {int(wrong[0])}")
    return found


def row_normalized(x: Features) -> Features:
    """Every row divided by the sum of its magnitudes, with the same bits whether zeros are stored or not."""
    if isinstance(x, SparseFeatures):
        return x.row_normalized()
    if isinstance(x, Int8Features):
        raise DataError("row_normalized: expected float32 or sparse features, got Int8Features; normalise before")
    out = empty(tuple(x.shape), torch.float32)
    for begin in range(0, x.shape[0], _ROWS):  # without a copy of all
        block = x[begin : begin + _ROWS].float().contiguous()
        _normalize_rows(0, *block.shape, block.shape[1], block.data_ptr(), out[begin : begin + _ROWS].data_ptr())
    return out


def check_head(name: Any, graph: Any) -> None:
    """Raises: DataError for what is no name or no graph."""
    if not isinstance(name, str):
        raise DataError(
            f"Dataset: expected a name first, as in gw.Dataset('mine', graph, x, y), got {type(name).__name__}"
        )
    if not isinstance(graph, Graph):
        raise DataError(f"graph: expected a gw.Graph, got {type(graph).__name__}; gw.Graph(edge_index) makes one")
    if graph.num_nodes < 1:
        raise DataError("graph: expected at least one node, got none")
