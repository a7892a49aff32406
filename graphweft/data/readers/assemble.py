"""From raw arrays to the checked parts of a Dataset: graph, features, labels, split.

Comes in: NumPy arrays of any integer or float dtype, as a file has them. Goes out: tensors and a Graph that are safe
to hand to native code, or a DataError. Used by every reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._errors import DataError
from graphweft._memory import empty
from graphweft.data.checks import check_each_once, first_not_finite
from graphweft.data.given import Task
from graphweft.data.random_rows import random_rows
from graphweft.graph.graph import Graph
from graphweft.storage.feature import SparseFeatures

Array = NDArray[Any]
MAX_CLASSES = 10_000


@dataclass(frozen=True)
class ReadOptions:
    """What a caller may choose about reading.

    Attributes:
        name: Which set of a folder that holds several; also the dataset's name.
        seed: Of the random split where the source has none.
        split: Which of several splits: a number, or a name that the source uses.
    """

    name: str | None = None
    seed: int = 0
    split: int | str | None = None


class Labels(NamedTuple):
    """Labels as a Dataset wants them."""

    y: Tensor
    num_classes: int
    task: Task


class Split(NamedTuple):
    """Row ids of the three parts."""

    train: Tensor
    val: Tensor
    test: Tensor

    def fields(self) -> dict[str, Any]:
        """The three parts under the names of a Dataset's fields."""
        return {"train_idx": self.train, "val_idx": self.val, "test_idx": self.test}


def no_labels(rows: int) -> Labels:
    """Labels of a source that has none."""
    return Labels(torch.full((rows,), -1, dtype=torch.int64), 0, "classification")


def as_ids(who: str, array: Array) -> Tensor:
    """An integer array as int32 or int64 ids, values kept.

    Raises: DataError for floats, or unsigned values beyond int64.
    """
    if array.dtype.kind not in "iu":
        raise DataError(f"{who}: expected integers, got {array.dtype}")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{who}: expected ids below 2**63, got {int(array.max())}")
    wide = np.int32 if array.dtype.itemsize < 4 or array.dtype == np.int32 else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, dtype=wide))


def check_range(who: str, ids: Tensor, bound: int) -> None:
    """All ids lie in [0, bound).

    Raises: DataError with the first position that does not.
    """
    if ids.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(ids))
    if low < 0 or high >= bound:
        flat = ids.reshape(-1)
        position = int(((flat < 0) | (flat >= bound)).nonzero()[0])
        raise DataError(f"{who}: expected ids in [0, {bound}), got {int(flat[position])} at position {position}")


def check_indptr(who: str, indptr: Array, rows: int | None, entries: int) -> Tensor:
    """Offsets of ``rows`` rows that rise from 0 to ``entries``, as int64.

    Raises: DataError.
    """
    offsets = as_ids(who, indptr).to(torch.int64)
    if offsets.dim() != 1 or offsets.numel() < 1 or (rows is not None and offsets.numel() != rows + 1):
        wanted = "at least one offset" if rows is None else f"{rows + 1} offsets, one more than rows"
        raise DataError(f"{who}: expected {wanted}, got shape {tuple(offsets.shape)}")
    if int(offsets[0]) != 0 or int(offsets[-1]) != entries:
        raise DataError(f"{who}: expected offsets from 0 to {entries}, got {int(offsets[0])} to {int(offsets[-1])}")
    falls = offsets[1:] < offsets[:-1]
    if bool(falls.any()):
        raise DataError(f"{who}: expected offsets that never fall, got a fall at row {int(falls.nonzero()[0])}")
    return offsets


def csr_graph(indptr: Array, indices: Array, num_nodes: int | None = None) -> Graph:
    """The square graph of a CSR adjacency whose rows are sources; edge i is entry i.

    Raises: DataError.
    """
    targets = as_ids("indices", indices)
    offsets = check_indptr("indptr", indptr, num_nodes, targets.numel())
    check_range("indices", targets, offsets.numel() - 1)
    return Graph.from_csc(offsets, targets).reverse()  # rows are sources: the in-edges of the reversed graph


def whole_ids(who: str, table: Array) -> NDArray[np.int64]:
    """Ids that were read as float64, in which whole numbers up to 2**53 are exact.

    Raises: DataError with the first row that holds anything else.
    """
    whole = np.isfinite(table) & (np.abs(table) < 2**53) & (table == np.floor(table))
    if not whole.all():
        row = int((~whole).any(axis=1).argmax())
        raise DataError(f"{who}: expected whole ids below 2**53, got another at edge {row}")
    return table.astype(np.int64)


def coo_graph(src: Tensor, dst: Tensor, num_nodes: int) -> Graph:
    """The graph of checked edges src -> dst."""
    check_range("edge sources", src, num_nodes)
    check_range("edge targets", dst, num_nodes)
    return Graph(src, dst, num_nodes=num_nodes)


def both_directions(src: Array, dst: Array, num_nodes: int, keep_loops: bool = True) -> tuple[Array, Array]:
    """Each pair in both directions, duplicates once, ordered by source; (src, dst) as int64."""
    matrix = scipy.sparse.coo_array(
        (np.ones(2 * len(src), np.uint8), (np.concatenate([src, dst]), np.concatenate([dst, src]))),
        shape=(num_nodes, num_nodes),
    ).tocsr()
    rows = np.repeat(np.arange(num_nodes, dtype=np.int64), np.diff(matrix.indptr))
    columns = matrix.indices.astype(np.int64)
    if keep_loops:
        return rows, columns
    keep = rows != columns
    return rows[keep], columns[keep]


def dense_features(who: str, array: Array, rows: int) -> Tensor:
    """A matrix of numbers as float32.

    Raises: DataError for another shape; values are checked by the Dataset.
    """
    if array.ndim != 2 or array.shape[0] != rows:
        raise DataError(f"{who}: expected a matrix of {rows} rows, one per node, got shape {array.shape}")
    if array.dtype == np.float32:
        return torch.from_numpy(np.ascontiguousarray(array))
    out = empty(array.shape, torch.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes inf, which the Dataset refuses
        out.numpy()[...] = array
    return out


def sparse_features(
    who: str, indptr: Array, indices: Array, data: Array | None, shape: Sequence[int]
) -> SparseFeatures:
    """CSR parts as sparse features; columns sorted, repeated entries summed.

    Raises: DataError.
    """
    rows, width = (int(size) for size in shape)
    if not 1 <= width < 2**31:
        raise DataError(f"{who}_shape: expected between 1 and 2**31 - 1 columns, got {width}")
    columns = as_ids(f"{who}_indices", indices)
    offsets = check_indptr(f"{who}_indptr", indptr, rows, columns.numel())
    check_range(f"{who}_indices", columns, width)
    if data is None:
        data = np.ones(columns.numel(), np.float32)
    if data.shape != (columns.numel(),):
        raise DataError(f"{who}_data: expected {columns.numel()} values, one per index, got shape {data.shape}")
    values = empty((len(data),), torch.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        values.numpy()[...] = data
    position = first_not_finite(values)
    if position is not None:
        raise DataError(f"{who}_data: expected finite values, got {float(values[position])} at position {position}")
    return SparseFeatures(offsets, columns, values, (rows, width))


def labels(who: str, array: Array, rows: int, num_classes: int | None = None) -> Labels:
    """One class id a row, or a 0/1 matrix with a column per label.

    Raises: DataError for another number of rows, fractions, ids below -1 or far beyond the number of rows.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim not in (1, 2) or array.shape[0] != rows:
        raise DataError(f"{who}: expected {rows} labels, one per row, got shape {array.shape}")
    if array.ndim == 2:
        return _label_matrix(who, array)
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (np.abs(array) < 2**53)
        whole[whole] = array[whole] == np.floor(array[whole])
        if not whole.all():
            position = int(np.flatnonzero(~whole)[0])
            raise DataError(f"{who}: expected whole class ids, got {array[position]} at position {position}")
    y = torch.from_numpy(array.astype(np.int64))
    if array.dtype == np.uint64 and y.numel() and int(array.max()) > 2**62:
        raise DataError(f"{who}: expected class ids, got {int(array.max())}")
    if y.numel() and int(y.min()) < -1:
        raise DataError(f"{who}: expected class ids from 0, or -1 for none, got {int(y.min())} at {int(y.argmin())}")
    found = int(y.max()) + 1 if y.numel() else 0
    bound = max(MAX_CLASSES, rows)
    if found > bound:
        raise DataError(f"{who}: expected class ids below {bound}, got {found - 1} at position {int(y.argmax())}")
    if num_classes is not None and not found <= num_classes <= bound:
        raise DataError(f"num_classes: expected between {found} and {bound}, got {num_classes}")
    return Labels(y, found if num_classes is None else num_classes, "classification")


def _label_matrix(who: str, array: Array) -> Labels:
    if not 1 <= array.shape[1] <= MAX_CLASSES:
        raise DataError(f"{who}: expected between 1 and {MAX_CLASSES} label columns, got {array.shape[1]}")
    y = torch.from_numpy(array.astype(np.float32))
    wrong = (y != 0) & (y != 1)
    if bool(wrong.any()):
        row, column = (int(v) for v in wrong.nonzero()[0])
        raise DataError(
            f"{who}: expected 0 or 1 for each label, got {float(y[row, column])} at row {row}, column {column}"
        )
    return Labels(y, array.shape[1], "multilabel")


def mask_idx(who: str, mask: Array, rows: int, split: int = 0) -> Tensor:
    """Row ids where a mask is set; of a (splits, rows) mask the row ``split``.

    Raises: DataError for another size, values other than 0 and 1, or a split that is not there.
    """
    if mask.ndim == 2 and mask.shape[1] != rows and mask.shape[0] == rows:
        mask = mask.T
    if mask.ndim not in (1, 2) or mask.shape[-1] != rows:
        raise DataError(f"{who}: expected {rows} entries, one per row, got shape {mask.shape}")
    if mask.ndim == 2:
        if not 0 <= split < mask.shape[0]:
            raise DataError(f"split: expected a number in [0, {mask.shape[0]}), got {split}")
        mask = mask[split]
    if mask.dtype.kind not in "biu" or (mask.size and (int(mask.max()) > 1 or int(mask.min()) < 0)):
        raise DataError(f"{who}: expected true and false, got other values of {mask.dtype}")
    return torch.from_numpy(np.flatnonzero(mask).astype(np.int64))


def index_idx(who: str, array: Array, rows: int) -> Tensor:
    """A list of row ids, checked and sorted."""
    return listed_rows(who, array, rows).sort().values


def listed_rows(who: str, array: Array, rows: int) -> Tensor:
    """A list of row ids, int64, in its order. Raises: DataError for ids of no row, or one that comes twice."""
    ids = as_ids(who, array.reshape(-1)).to(torch.int64)
    check_range(who, ids, rows)
    check_each_once(who, ids, rows)
    return ids


def random_split(labels: Labels, seed: int) -> Split:
    """60/20/20 of the labelled rows at random by ``seed``; the same on every machine."""
    if labels.num_classes == 0:
        nothing = torch.empty(0, dtype=torch.int64)
        return Split(nothing, nothing, nothing)
    return Split(*random_rows(labels.y, seed))


def split_number(split: int | str | None, names: Sequence[str] = ()) -> int:
    """``split`` as a position: None is the first, a name is looked up.

    Raises: DataError for a name that is not there.
    """
    if split is None:
        return 0
    if str(split) in names:
        return list(names).index(str(split))
    if isinstance(split, int) or split.lstrip("-").isdigit():
        return int(split)
    raise DataError(f"split: expected a number{' or one of ' + ', '.join(names) if names else ''}, got {split!r}")


def named(texts: Array) -> tuple[str, ...]:
    """An array of short texts as strings."""
    return tuple(t.decode("latin-1") if isinstance(t, bytes) else str(t) for t in texts.reshape(-1).tolist())
