"""Type rules of the operations on trailing dimensions: row by row, or over rows where EINSUM's result has none.

Comes in: operand types and attributes. Goes out: the result type, or an IRError. Operands of one operation have the
same rows or are shared. Listed in ``ops.py``; exact semantics in docs/ir.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from graphweft._errors import IRError
from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.expect import expect_dense, require
from graphweft.ir.residency import Residency, TensorType, Type

ROWS = "n"  # the letter of the row axis in an einsum


def const(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """A shared scalar."""
    require("const", isinstance(attrs.get("value"), bool | int | float), "a number", attrs.get("value"))
    return TensorType(Residency.SHARED, None, (), attrs["dtype"])


def cast(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Another dtype."""
    return replace(expect_dense("cast", types[0]), dtype=attrs["dtype"])


def detach(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """The same type."""
    return expect_dense("detach", types[0])


def joint_rows(op: str, operands: Sequence[TensorType]) -> TensorType:
    """The operand that says what the rows of the result are; all operands with rows have the same."""
    rowed = [x for x in operands if x.rows is not None]
    for x in rowed:
        require(op, x.rows == rowed[0].rows, "operands of equal rows, or shared", *operands)
    return rowed[0] if rowed else operands[0]


def ewise(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Rows of the operands, their trailing dimensions broadcast from the right."""
    fn = attrs.get("fn")
    if fn not in FUNCTIONS:
        raise IRError(f"ewise: expected a function of elementwise.py, got {fn!r}")
    function = FUNCTIONS[fn]
    operands = [expect_dense(f"ewise {fn}", type_) for type_ in types]
    require(f"ewise {fn}", len(operands) == function.arity, f"{function.arity} operands", len(operands))
    values = operands[1:] if fn == "where" else operands
    for x in values:
        require(f"ewise {fn}", x.dtype == values[0].dtype, "operands of one dtype", *operands)
    if fn == "where":
        require("ewise where", operands[0].dtype == torch.bool, "a bool condition", operands[0])
    first = joint_rows(f"ewise {fn}", operands)
    dims = broadcast_dims(f"ewise {fn}", [x.dims for x in operands])
    return replace(first, dims=dims, dtype=torch.bool if function.to_bool else values[0].dtype)


def broadcast_dims(op: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Trailing dimensions broadcast from the right."""
    depth = max(map(len, shapes), default=0)
    dims = []
    for sizes in zip(*((1,) * (depth - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise IRError(f"{op}: expected dimensions that broadcast, got {' and '.join(map(str, shapes))}")
        dims.append(wide.pop() if wide else 1)
    return tuple(dims)


def split_spec(spec: str) -> tuple[list[str], str]:
    """Letters of every operand, and of the result."""
    left, _, right = spec.partition("->")
    return left.split(","), right


def einsum(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """``spec`` over the operands; ``n`` first exactly where an operand has rows, and in the result unless summed."""
    spec = attrs["spec"]
    inputs, result = split_spec(spec)
    operands = [expect_dense("einsum", type_) for type_ in types]
    require("einsum", len(inputs) == len(operands), f"{len(inputs)} operands for {spec}", len(operands))
    sizes: dict[str, int] = {}
    for letters, x in zip(inputs, operands, strict=True):
        own = letters.removeprefix(ROWS)
        require("einsum", (letters[:1] == ROWS) == (x.rows is not None) and ROWS not in own, f"{spec}", x)
        require("einsum", len(set(own)) == len(own) == len(x.dims), f"dimensions {letters} without repeats", x)
        for letter, size in zip(own, x.dims, strict=True):
            require("einsum", sizes.setdefault(letter, size) == size, f"one size for {letter} in {spec}", *operands)
            elsewhere = result + "".join(other for other in inputs if other is not letters)
            require("einsum", letter in elsewhere or inputs.count(letters) > 1, f"{letter} elsewhere in {spec}", x)
    for x in operands:
        require("einsum", x.dtype == operands[0].dtype, "operands of one dtype", *operands)
    first = joint_rows("einsum", operands)
    own = result.removeprefix(ROWS)
    require("einsum", set(own) <= set(sizes) and len(set(own)) == len(own), f"a result of known letters in {spec}", own)
    dims = tuple(sizes[letter] for letter in own)
    if result[:1] != ROWS:
        return TensorType(Residency.SHARED, None, dims, first.dtype)
    require("einsum", first.rows is not None, f"an operand with rows for {spec}", *operands)
    return replace(first, dims=dims)


def reshape(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """``dims`` in place of the trailing dimensions, in row-major order."""
    x, dims = expect_dense("reshape", types[0]), tuple(attrs["dims"])
    require("reshape", prod(dims) == prod(x.dims), f"{prod(x.dims)} elements a row", dims)
    return replace(x, dims=dims)


def permute(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Trailing dimension i of the result is ``order[i]`` of the operand."""
    x, order = expect_dense("permute", types[0]), tuple(attrs["order"])
    require("permute", sorted(order) == list(range(len(x.dims))), f"an order of {len(x.dims)} dimensions", order)
    return replace(x, dims=tuple(x.dims[i] for i in order))


def expand(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Trailing dimensions of size 1, or missing at the left, repeated to ``dims``."""
    x, dims = expect_dense("expand", types[0]), tuple(attrs["dims"])
    require("expand", broadcast_dims("expand", [x.dims, dims]) == dims, f"dimensions that expand to {dims}", x)
    return replace(x, dims=dims)


def _axis(op: str, x: TensorType, axis: int) -> int:
    require(op, 0 <= axis < len(x.dims), f"an axis below {len(x.dims)}", axis)
    return axis


def slice_dim(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """``start:stop:step`` of trailing dimension ``axis``."""
    x = expect_dense("slice", types[0])
    axis = _axis("slice", x, attrs["axis"])
    taken = range(attrs["start"], attrs["stop"], attrs["step"])
    inside = 0 <= taken.start <= taken.stop <= x.dims[axis] and taken.step >= 1
    require("slice", inside, f"a slice of {x.dims[axis]}", taken)
    return replace(x, dims=(*x.dims[:axis], len(taken), *x.dims[axis + 1 :]))


def unslice(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """``size`` along ``axis``, zeros outside ``start:stop:step``."""
    x = expect_dense("unslice", types[0])
    axis = _axis("unslice", x, attrs["axis"])
    taken = range(attrs["start"], attrs["stop"], attrs["step"])
    inside = 0 <= taken.start <= taken.stop <= attrs["size"] and len(taken) == x.dims[axis]
    require("unslice", inside, f"a slice of {attrs['size']} with {x.dims[axis]} places", taken)
    return replace(x, dims=(*x.dims[:axis], attrs["size"], *x.dims[axis + 1 :]))


def cat(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """Operands one after the other along trailing dimension ``axis``; all have rows, or none has."""
    operands = [expect_dense("cat", type_) for type_ in types]
    first = operands[0]
    axis = _axis("cat", first, attrs["axis"])
    for x in operands:
        same = x.rows == first.rows and x.dtype == first.dtype and len(x.dims) == len(first.dims)
        others = all(a == b for i, (a, b) in enumerate(zip(x.dims, first.dims, strict=False)) if i != axis)
        require("cat", same and others, f"operands alike but for axis {axis}", *operands)
    return replace(first, dims=(*first.dims[:axis], sum(x.dims[axis] for x in operands), *first.dims[axis + 1 :]))


def sum_dims(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """The trailing dimensions ``axes`` are gone."""
    x = expect_dense("sum_dims", types[0])
    axes = {_axis("sum_dims", x, axis) for axis in attrs["axes"]}
    return replace(x, dims=tuple(size for axis, size in enumerate(x.dims) if axis not in axes))


def max_dims(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """As a sum; ``kind`` max or min."""
    x = expect_dense("max_dims", types[0])
    require("max_dims", attrs.get("kind") in ("max", "min"), "max or min", attrs.get("kind"))
    require("max_dims", attrs.get("ties") in ("first", "split"), "ties first or split", attrs.get("ties"))
    require("max_dims", all(x.dims[axis] for axis in attrs["axes"]), "dimensions that are not empty", x)
    return sum_dims(types, attrs)


def max_dims_mask(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    """As the operand."""
    max_dims(types, attrs)
    return expect_dense("max_dims_mask", types[0])
