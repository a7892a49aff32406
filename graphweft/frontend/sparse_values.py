"""Sparse matrices that forward makes of values, such as scores of edges: their places are structure, their numbers not.

Comes in: calls of torch that make such a matrix or take one. Goes out: products with rows as gathers and sums by its
places; other uses are refused. A matrix of ones stands in its place meanwhile. Asked by ``recording_modes.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphweft._torch_private import pytree, without_modes
from graphweft.frontend.layout import UnraisableError

_PRODUCTS = {
    torch.sparse.mm,
    torch.mm,
    torch.spmm,
    torch.matmul,
    Tensor.mm,
    Tensor.matmul,
    Tensor.__matmul__,
}
_TURNED = {torch.t, Tensor.t, torch.transpose, Tensor.transpose, Tensor.T.__get__}  # type: ignore[attr-defined]
_SAME = {Tensor.coalesce}
_OF_PLACES = {
    Tensor.size,
    Tensor.dim,
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.layout.__get__,  # type: ignore[attr-defined]
    Tensor.is_sparse.__get__,  # type: ignore[attr-defined]
}


@dataclass(frozen=True)
class _Matrix:
    """Rows, columns and values of the entries; an entry may be given in parts."""

    row: Tensor
    column: Tensor
    values: Tensor
    shape: tuple[int, int]


class SparseValues:
    """The matrices of one recording."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._held: Any = WeakTensorKeyDictionary()

    def __contains__(self, tensor: Tensor) -> bool:
        return len(self._held) > 0 and tensor in self._held

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that makes or takes a matrix; NotImplemented for other calls.

        Raises: UnraisableError for what has no counterpart.
        """
        if func is torch.sparse_coo_tensor:
            return self._made(*args, **kwargs)
        if not len(self._held) or not any(x in self for x in pytree.tree_leaves((args, kwargs)) if _is_tensor(x)):
            return NotImplemented
        first: Any = args[0] if args else None
        if func in _OF_PLACES or not _is_tensor(first) or first not in self:
            if func in _OF_PLACES:
                return func(*args, **kwargs)
            raise UnraisableError("a sparse matrix of values", self._recorder.line)
        matrix = self._held[first]
        if func in _SAME:
            return first
        if func in _TURNED and len({at % 2 for at in args[1:]} or {0, 1}) == 2:
            return self._keep(_Matrix(matrix.column, matrix.row, matrix.values, matrix.shape[::-1]))
        if func in _PRODUCTS and len(args) == 2 and not kwargs and _is_tensor(args[1]) and args[1] not in self:
            return _product(matrix, args[1])
        raise UnraisableError("a sparse matrix of values", self._recorder.line)

    def _made(self, *args: Any, **kwargs: Any) -> Any:
        """A matrix of values at places that are structure."""
        index, values, size, *more = (*args, *(None,) * 3)[: max(3, len(args))]
        index, values, size = kwargs.get("indices", index), kwargs.get("values", values), kwargs.get("size", size)
        moving = self._recorder.is_moving
        if not _is_tensor(index) or not _is_tensor(values) or not moving(values):
            return NotImplemented
        plain = not more and set(kwargs) <= {"indices", "values", "size", "is_coalesced"}
        if not plain or size is None or len(size) != 2 or moving(index) or values.dim() != 1:
            raise UnraisableError("a sparse matrix of values", self._recorder.line)
        self._recorder.check_known(index)
        with without_modes():
            torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), tuple(size), check_invariants=True)
        return self._keep(_Matrix(index[0], index[1], values, tuple(size)))

    def _keep(self, matrix: _Matrix) -> Tensor:
        with without_modes():
            places, ones = torch.stack([matrix.row, matrix.column]), torch.ones(len(matrix.row))
            made = torch.sparse_coo_tensor(
                places, ones, matrix.shape, dtype=matrix.values.dtype, check_invariants=False
            )
        self._held[made] = matrix
        return made


def _product(matrix: _Matrix, right: Tensor) -> Tensor:
    """The matrix times rows, or a vector."""
    rows = right.view(-1, 1) if right.dim() == 1 else right
    sent = rows.index_select(0, matrix.column) * matrix.values.view(-1, 1)
    made = torch.zeros((matrix.shape[0], rows.shape[1]), dtype=right.dtype).index_add(0, matrix.row, sent)
    return made.view(-1) if right.dim() == 1 else made


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


__all__ = ["SparseValues"]
