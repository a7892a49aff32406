"""Batch norms as operations: type rules and meanings.

``batch_stats(x)`` are the means of the columns and their variances over the count of rows.
``batch_norm(x, stats, weight, bias; eps)`` normalises by the statistics of these very rows,
``normalise(x, mean, variance, weight, bias; eps)`` by others; a norm without learned numbers has neither weight nor
bias. ``batch_norm_dot(x, stats, dy; eps)`` sums the products of the normalised rows with ``dy``, the gradient by the
weight; with it and the sums of ``dy`` the gradient by x, through the statistics too, is
``batch_norm_grad(x, stats, dy, products, sums[, weight]; eps)``.

Listed in ``ops.py`` and ``interpret.py``; exact semantics in docs/ir.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, stack

from graphweft.ir.expect import expect_dense, require
from graphweft.ir.residency import Residency, TensorType, Type


def _rows(op: str, x: Type, *vectors: Type) -> tuple[TensorType, TensorType]:
    """The types of x and of a vector of its columns, as ``vectors`` are."""
    rows = expect_dense(op, x)
    require(op, rows.rows is not None and len(rows.dims) == 1, "a matrix of rows", rows)
    column = replace(rows, residency=Residency.SHARED, rows=None)
    for type_ in vectors:
        require(op, type_ == column, f"a shared vector of {rows.dims}", type_)
    return rows, column


def batch_stats(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(x) -> shared (2, columns)."""
    _, column = _rows("batch_stats", types[0])
    return replace(column, dims=(2, *column.dims))


def batch_norm(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(x, stats[, weight, bias]) -> as x."""
    rows, _ = _rows("batch_norm", types[0], *types[2:])
    require("batch_norm", types[1] == batch_stats(types[:1], attrs), "the statistics of x", types[1])
    return rows


def normalise(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(x, mean, variance[, weight, bias]) -> as x."""
    return _rows("normalise", *types)[0]


def batch_norm_dot(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(x, stats, dy) -> a shared vector."""
    rows, column = _rows("batch_norm_dot", batch_norm(types[:2], attrs))
    dy = expect_dense("batch_norm_dot", types[2])
    require("batch_norm_dot", (dy.rows, dy.dims) == (rows.rows, rows.dims), f"rows as {rows}", dy)
    return column


def batch_norm_grad(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """(x, stats, dy, products, sums[, weight]) -> as x."""
    batch_norm_dot(types[:3], attrs)
    return _rows("batch_norm_grad", types[0], *types[3:])[0]


def _batch_stats(value: Any, x: Tensor) -> Tensor:
    count = max(x.shape[0], 1)
    mean = x.sum(0) / count
    return stack([mean, ((x - mean) ** 2).sum(0) / count])


def _normalise(value: Any, x: Tensor, mean: Tensor, variance: Tensor, *vectors: Tensor) -> Tensor:
    rows: Tensor = (x - mean) * (variance + value["eps"]) ** -0.5
    return rows * vectors[0] + vectors[1] if vectors else rows


def _batch_norm(value: Any, x: Tensor, stats: Tensor, *vectors: Tensor) -> Tensor:
    return _normalise(value, x, stats[0], stats[1], *vectors)


def _batch_norm_dot(value: Any, x: Tensor, stats: Tensor, dy: Tensor) -> Tensor:
    total: Tensor = (dy * _batch_norm(value, x, stats)).sum(0)
    return total


def _batch_norm_grad(
    value: Any, x: Tensor, stats: Tensor, dy: Tensor, products: Tensor, sums: Tensor, *weight: Tensor
) -> Tensor:
    inverse: Tensor = (stats[1] + value["eps"]) ** -0.5
    count = max(x.shape[0], 1)
    rows: Tensor = dy - sums / count - (x - stats[0]) * inverse * (products / count)
    return rows * (inverse * weight[0] if weight else inverse)


MEANING: dict[str, Callable[..., Tensor]] = {
    "BATCH_STATS": _batch_stats,
    "BATCH_NORM": _batch_norm,
    "BATCH_NORM_DOT": _batch_norm_dot,
    "BATCH_NORM_GRAD": _batch_norm_grad,
    "NORMALISE": _normalise,
}
