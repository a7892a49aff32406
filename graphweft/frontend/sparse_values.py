"""Sparse matrices that forward makes of values, such as scores of edges: their places are structure, their numbers not.

Comes in: calls of torch that make such a matrix or take one. Goes out: products with rows as gathers and sums by its
places, its values, a softmax of its rows, and the matrix itself as a result; other uses are refused. A matrix of ones
stands in its place meanwhile. Asked by ``recording_modes.py`` and ``recorder.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphweft._torch_private import pytree, stored_entries, stored_places, stored_values, without_modes
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
_COMPRESSED: dict[Any, torch.layout] = {
    torch.sparse_csr_tensor: torch.sparse_csr,
    torch.sparse_csc_tensor: torch.sparse_csc,
}
_MAKERS: dict[Any, torch.layout] = {torch.sparse_coo_tensor: torch.sparse_coo, **_COMPRESSED}
_OF_PLACES = {
    Tensor.size,
    Tensor.dim,
    Tensor.sparse_dim,
    Tensor.dense_dim,
    stored_entries,
    Tensor.is_coalesced,
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.layout.__get__,  # type: ignore[attr-defined]
    Tensor.is_sparse.__get__,  # type: ignore[attr-defined]
    Tensor.is_sparse_csr.__get__,  # type: ignore[attr-defined]
    Tensor.crow_indices,
    Tensor.col_indices,
    Tensor.ccol_indices,
    Tensor.row_indices,
    stored_places,
    Tensor.indices,
}
_VALUES = {Tensor.values, stored_values}
_SCALED = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.div, Tensor.div, Tensor.__truediv__}
_ALLOWED = {"indices", "values", "size", "is_coalesced", "device", "dtype", "check_invariants", "requires_grad"}
_ALLOWED |= {"crow_indices", "col_indices", "ccol_indices", "row_indices"}


@dataclass(frozen=True, eq=False)
class Places:
    """Where the entries of a matrix are, in the order of its values.

    Attributes:
        indices: Rows and columns (2, entries), or the two arrays of a compressed layout.
        shape: Of the matrix, dimensions that each entry has behind it included.
        layout: How torch stores it.
        coalesced: Whether torch knows that the entries are in order and none is given in parts.
    """

    indices: tuple[Tensor, Tensor]
    shape: tuple[int, ...]
    layout: torch.layout
    coalesced: bool = False

    def __eq__(self, other: object) -> bool:
        """Whether matrices of equal values there are the same."""
        if not isinstance(other, Places):
            return NotImplemented
        same = (self.shape, self.layout, self.coalesced) == (other.shape, other.layout, other.coalesced)
        return same and all(map(torch.equal, self.indices, other.indices))

    __hash__ = None  # type: ignore[assignment]

    @functools.cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the entries."""
        one, two = self.indices
        if self.layout == torch.sparse_coo:
            return one, two
        along = torch.repeat_interleave(torch.arange(len(one) - 1), one.diff())
        return (along, two) if self.layout == torch.sparse_csr else (two, along)

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix of values at these places."""
        if self.layout == torch.sparse_coo:
            stacked = torch.stack(self.indices)
            return torch.sparse_coo_tensor(
                stacked, values, self.shape, is_coalesced=self.coalesced or None, check_invariants=False
            )
        make = torch.sparse_csr_tensor if self.layout == torch.sparse_csr else torch.sparse_csc_tensor
        return make(*self.indices, values, self.shape, check_invariants=False)


class _Result:
    """A matrix among the results of forward: its values are one, its places a part of their form."""

    def __init__(self, values: Tensor, places: Places) -> None:
        self.values, self.places = values, places


pytree.register_pytree_node(
    _Result,
    lambda result: ([result.values], result.places),
    lambda values, places: places.matrix(next(iter(values))),
)


@dataclass(frozen=True, eq=False)
class _Matrix:
    """Values, and where they are; an entry may be given in parts.

    Attributes:
        places: Where torch has the values.
        given: The values as forward gave them, in another order or in parts where the matrix was coalesced since.
        ends: Rows and columns of those.
        order: From ``given`` to the values at ``places``; None: they are the same.
    """

    places: Places
    given: Tensor
    ends: tuple[Tensor, Tensor]
    order: Callable[[Tensor], Tensor] | None = None

    @functools.cached_property
    def values(self) -> Tensor:
        """The values at the places; products do not need them, and rows of edges that change places are a step."""
        return self.given if self.order is None else self.order(self.given)


class SparseValues:
    """The matrices of one recording."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._held: Any = WeakTensorKeyDictionary()

    def __contains__(self, tensor: Tensor) -> bool:
        return len(self._held) > 0 and tensor in self._held

    def results(self, tree: Any) -> Any:
        """What forward returned, with the values of matrices in their place."""
        if not len(self._held):
            return tree

        def opened(leaf: Any) -> Any:
            if not _is_tensor(leaf) or leaf not in self:
                return leaf
            matrix = self._held[leaf]
            return _Result(matrix.values, matrix.places)

        return pytree.tree_map(opened, tree)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that makes or takes a matrix; NotImplemented for other calls.

        Raises: UnraisableError for what has no counterpart.
        """
        if func in _MAKERS:
            return self._made(_MAKERS[func], args, kwargs)
        if not len(self._held) or not any(x in self for x in pytree.tree_leaves((args, kwargs)) if _is_tensor(x)):
            return NotImplemented
        first: Any = args[0] if args else None
        if func in _OF_PLACES:
            with without_modes():
                made = func(*args, **kwargs)
            return self._recorder.know(made)
        found = None
        if _is_tensor(first) and first in self:
            found = self._taken(func, self._held[first], args[1:], kwargs)
        elif func in _SCALED and len(args) == 2 and not kwargs and "div" not in func.__name__:  # a number times one
            found = self._taken(func, self._held[args[1]], args[:1], kwargs)
        if found is None:
            raise UnraisableError("a sparse matrix of values", self._recorder.line)
        return self._keep(found) if isinstance(found, _Matrix) else found

    def _taken(self, func: Any, matrix: _Matrix, more: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call makes of a matrix; None where it has no counterpart."""
        places = matrix.places
        if func is Tensor.coalesce:
            return self._coalesced(matrix)
        if func in _VALUES and (func is not Tensor.values or places.coalesced or places.layout != torch.sparse_coo):
            return matrix.values
        if func is Tensor.to_dense and not kwargs and matrix.given.dim() == 1:
            zeros = torch.zeros(places.shape, dtype=matrix.given.dtype)
            return zeros.index_put(matrix.ends, matrix.given, accumulate=True)
        if func in (torch.sparse.sum, torch.sum, Tensor.sum) and not more and not kwargs:
            return matrix.given.sum()
        if func is torch.sparse.softmax and (*more, *kwargs.values()) in ((1,), (-1,)):
            return self._softmax(self._coalesced(matrix))
        if len(more) != (len(more) if func in _TURNED else 1) or kwargs:
            return None
        if func in _TURNED and len({at % 2 for at in more} or {0, 1}) == 2 and len(places.shape) == 2:
            return replace(matrix, places=_turned(places), ends=matrix.ends[::-1])
        if func in _SCALED and not isinstance(more[0], bool) and isinstance(more[0], int | float):
            return replace(matrix, given=matrix.given / more[0] if "div" in func.__name__ else matrix.given * more[0])
        if func in _PRODUCTS and _is_tensor(more[0]) and more[0] not in self and matrix.given.dim() == 1:
            return _product(matrix, more[0])
        return None

    def _made(self, layout: torch.layout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A matrix of values at places that are structure."""
        names = {
            torch.sparse_coo: ("indices", "values", "size"),
            torch.sparse_csr: ("crow_indices", "col_indices", "values", "size"),
            torch.sparse_csc: ("ccol_indices", "row_indices", "values", "size"),
        }[layout]
        given = dict(zip(names, args, strict=False)) | kwargs
        found: list[Any] = [given.get(name) for name in names]
        ids, values, size = found[:-2], found[-2], found[-1]
        moving = self._recorder.is_moving
        if not _is_tensor(values) or not all(map(_is_tensor, ids)) or not moving(values):
            return NotImplemented
        plain = len(args) <= len(names) and set(kwargs) <= _ALLOWED and not kwargs.get("requires_grad")
        plain = plain and kwargs.get("dtype") in (None, values.dtype)
        if not plain or size is None or len(size) != 1 + values.dim() or any(map(moving, ids)):
            raise UnraisableError("a sparse matrix of values", self._recorder.line)
        for index in ids:
            self._recorder.check_known(index)
        with without_modes():  # what the caller gave may be written into later
            ids = [self._recorder.know(index.clone()) for index in ids]
        indices = (ids[0][0], ids[0][1]) if layout == torch.sparse_coo else (ids[0], ids[1])
        places = Places(indices, tuple(size), layout, bool(kwargs.get("is_coalesced")))
        with without_modes():
            ones = torch.ones(values.shape, dtype=values.dtype)
            _MADE_BY[layout](*ids, ones, tuple(size), check_invariants=True)
        return self._keep(_Matrix(places, values, places.ends))

    def _coalesced(self, matrix: _Matrix) -> _Matrix:
        """The same with every entry once and in order."""
        places = matrix.places
        if places.coalesced or places.layout != torch.sparse_coo:
            return matrix
        row, column = places.indices
        width = max(places.shape[1], 1)
        keys, at = torch.unique(row * width + column, return_inverse=True)
        there = (torch.div(keys, width, rounding_mode="floor"), keys % width)
        found = replace(matrix, places=replace(places, indices=there, coalesced=True))
        if len(keys) == len(row) and torch.equal(at, torch.arange(len(at))):
            return found

        def ordered(given: Tensor) -> Tensor:
            values = given if matrix.order is None else matrix.order(given)
            if len(keys) == len(row):
                return values.index_select(0, torch.argsort(at))
            return torch.zeros((len(keys), *values.shape[1:]), dtype=values.dtype).index_add(0, at, values)

        return replace(found, order=ordered)

    def _softmax(self, matrix: _Matrix) -> _Matrix | None:
        """A softmax of the entries of every row."""
        row, values = matrix.places.ends[0], matrix.values
        if values.dim() != 1:
            return None
        start = torch.full((matrix.places.shape[0],), -torch.inf, dtype=values.dtype)
        most = start.scatter_reduce(0, row, values, "amax").detach().index_select(0, row)
        power = (values - most).exp()
        total = torch.zeros_like(start).index_add(0, row, power)
        return _Matrix(matrix.places, power / total.index_select(0, row), matrix.places.ends)

    def _keep(self, matrix: _Matrix) -> Tensor:
        places = matrix.places
        with without_modes():
            ones = torch.ones((len(places.indices[1]), *matrix.given.shape[1:]), dtype=matrix.given.dtype)
            made = places.matrix(ones)
        self._held[made] = matrix
        return made


_MADE_BY = {layout: make for make, layout in _MAKERS.items()}


def _turned(places: Places) -> Places:
    """Those of the transposed matrix."""
    layout = {torch.sparse_csr: torch.sparse_csc, torch.sparse_csc: torch.sparse_csr}.get(places.layout)
    if layout is None:
        return Places((places.indices[1], places.indices[0]), places.shape[::-1], places.layout)
    return Places(places.indices, places.shape[::-1], layout)


def _product(matrix: _Matrix, right: Tensor) -> Tensor:
    """The matrix times rows, or a vector."""
    rows = right.view(-1, 1) if right.dim() == 1 else right
    row, column = matrix.ends
    sent = rows.index_select(0, column) * matrix.given.view(-1, 1)
    made = torch.zeros((matrix.places.shape[0], rows.shape[1]), dtype=right.dtype).index_add(0, row, sent)
    return made.view(-1) if right.dim() == 1 else made


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


__all__ = ["SparseValues"]
