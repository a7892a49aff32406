"""Slices of a product of rows become products by slices of the weight: nothing is computed, stored and cut apart.

Comes in: a forward program of the front ends, with products as einsums. Goes out: an equal one in which a product of
which only slices are read is computed slice by slice, a bias added to it likewise. Called by ``pipeline.py``. Slices of
gates, of the halves of a modulation and of concatenated projections have this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.trailing import ROWS, split_spec

_LEAST = 8  # columns from which a product of its own is worth it


def slice_products(program: Program) -> Program:
    """The program with slices moved from products to their weights."""
    users = program.users()
    outputs = {value for _, value in program.outputs}
    builder = Builder()
    new: dict[Value, Value] = {}
    for value in program.values:
        found = _found(value, users, outputs)
        if found is None:
            operands = tuple(new[operand] for operand in value.inputs)
            new[value] = builder.like(value, operands) if operands else value
        else:
            new[value] = found.written(builder, new)
    return Program(program.inputs, tuple((name, new[value]) for name, value in program.outputs))


@dataclass(frozen=True)
class _Cut:
    """A slice of ``product + bias`` along the dimension ``axis``, which is dimension ``place`` of operand ``side``."""

    slice_: Value
    product: Value
    bias: Value | None
    side: int
    place: int

    def written(self, b: Builder, new: Mapping[Value, Value]) -> Value:
        """The product by the slice of the weight."""
        operands = [new[operand] for operand in self.product.inputs]
        operands[self.side] = self._part(b, operands[self.side], self.place)
        made = b.like(self.product, tuple(operands))
        if self.bias is None:
            return made
        bias = new[self.bias]
        behind = len(self.slice_.inputs[0].tensor.dims) - self.slice_["axis"]
        axis = len(bias.tensor.dims) - behind
        if axis >= 0 and bias.tensor.dims[axis] != 1:
            bias = self._part(b, bias, axis)
        return b.add(Op.EWISE, made, bias, fn="add")

    def _part(self, b: Builder, x: Value, axis: int) -> Value:
        start, stop = self.slice_["start"], self.slice_["stop"]
        return b.add(Op.SLICE, x, axis=axis, start=start, stop=stop, step=1)


def _found(value: Value, users: Mapping[Value, Sequence[Value]], outputs: set[Value]) -> _Cut | None:
    if value.op is not Op.SLICE or value["step"] != 1 or value.tensor.rows is None:
        return None
    if value["stop"] - value["start"] < _LEAST:
        return None

    def only_cut(x: Value) -> bool:
        cuts = [user.op is Op.SLICE and user["axis"] == value["axis"] for user in users[x]]
        return x not in outputs and all(cuts)

    product, bias = value.inputs[0], None
    if not only_cut(product):
        return None
    if product.op is Op.EWISE and product["fn"] == "add":
        whole = product
        product, bias = product.inputs
        if product.tensor.rows is None:
            product, bias = bias, product
        alone = users[product] == [whole] and product not in outputs
        if bias.tensor.rows is not None or not alone or product.tensor.dims != whole.tensor.dims:
            return None
    if product.op is not Op.EINSUM or len(product.inputs) != 2:
        return None
    inputs, result = split_spec(product["spec"])
    letter = result.removeprefix(ROWS)[value["axis"]]
    sides = [at for at, own in enumerate(inputs) if letter in own]
    if len(sides) != 1 or product.inputs[sides[0]].tensor.rows is not None:
        return None
    return _Cut(value, product, bias, sides[0], inputs[sides[0]].index(letter))


__all__ = ["slice_products"]
