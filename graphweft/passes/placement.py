"""Order of aggregation and transform: ``A(XW)`` or ``(AX)W``, per occurrence; A may be additive attention.

Comes in: a forward program and, for every weight at whose product there is a choice, which order to take. Goes out:
the program in that order. Which order is the better is decided in ``pipeline.py`` by the predicted cost of the whole
training step, so that hoisting, a first layer without input gradient, and fused epilogues all count. Sources:
GraphTensor, section IV (dynamic kernel placement); Joestar, section 5.4.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from graphweft.ir.ops import Op
from graphweft.ir.pattern import substitute
from graphweft.ir.program import Builder, Program, Value, topological
from graphweft.passes.late import is_late_site, transform_late


class Order(enum.Enum):
    """Which comes first."""

    AGGREGATE = "aggregate first"
    TRANSFORM = "transform first"

    @property
    def other(self) -> Order:
        """The one that this is not."""
        return Order.TRANSFORM if self is Order.AGGREGATE else Order.AGGREGATE


# Linear over rows: these commute with a product from the right.
_LINEAR = frozenset({Op.SPMM, Op.OWN_ROWS, Op.ROW_SCALE, Op.MUL_SCALAR, Op.SCALE, Op.ADD})


def sites(program: Program) -> dict[str, Order]:
    """Weights at whose product the order can be changed, with the order the program has now."""
    found: dict[str, Order] = {}
    users = program.users()
    for value in program.values:
        if not _is_transform(value):
            continue
        name = value.inputs[1]["name"]
        if _linear_leaf(value.inputs[0]) is not None:
            found[name] = Order.AGGREGATE
        elif not value.inputs[0].tensor.sparse and _is_free(program, users, value):
            found[name] = Order.TRANSFORM
    return found


def alike(program: Program) -> list[list[str]]:
    """The sites, those together that have weights of one size and one order now, and read an input or none."""
    orders, found = sites(program), dict[tuple[Any, ...], list[str]]()
    for value in program.values:
        if not _is_transform(value) or value.inputs[1]["name"] not in orders:
            continue
        name = value.inputs[1]["name"]
        leaf = _linear_leaf(value.inputs[0]) or value.inputs[0]
        names = found.setdefault((value.inputs[1].type, orders[name], leaf.op is Op.INPUT), [])
        if name not in names:
            names.append(name)
    return list(found.values())


def _is_free(program: Program, users: dict[Value, list[Value]], product: Value) -> bool:
    """Whether the aggregation behind ``product`` can go before it."""
    return _region(program, users, product) is not None or is_late_site(program, users, product)


def place(program: Program, orders: Mapping[str, Order]) -> Program:
    """``program`` with the product of each named weight moved to the order asked for."""
    for name, order in orders.items():
        value = next((v for v in program.values if _is_transform(v) and v.inputs[1]["name"] == name), None)
        if value is None:
            continue
        if order is Order.TRANSFORM:
            program = _transform_first(program, value)
        elif not value.inputs[0].tensor.sparse:
            late = _region(program, program.users(), value) is None
            program = transform_late(program, value) if late else _aggregate_first(program, value)
    return program


def _is_transform(value: Value) -> bool:
    """A product of node rows with a weight that is an input of the program."""
    return (
        value.op is Op.MATMUL
        and not value.get("ta")
        and value.inputs[0].tensor.rows is not None
        and value.inputs[1].op is Op.INPUT
    )


def _linear_operands(value: Value) -> tuple[Value, ...]:
    """The operands through which ``value`` is linear over rows."""
    if value.op in (Op.SPMM, Op.OWN_ROWS):
        return (value.inputs[1],)
    return value.inputs if value.op is Op.ADD else value.inputs[:1]


def _linear_leaf(value: Value) -> Value | None:
    """The one value that a tree of linear operations with an aggregation in it starts from, or None."""
    leaves: set[Value] = set()
    stack, aggregates = [value], False
    while stack:
        item = stack.pop()
        if item.op in _LINEAR:
            aggregates |= item.op is Op.SPMM
            stack.extend(_linear_operands(item))
        else:
            leaves.add(item)
    return leaves.pop() if aggregates and len(leaves) == 1 else None


def _transform_first(program: Program, product: Value) -> Program:
    leaf = _linear_leaf(product.inputs[0])
    if leaf is None:
        return program
    builder = Builder()
    moved: dict[Value, Value] = {leaf: builder.add(Op.MATMUL, leaf, product.inputs[1], **dict(product.attrs))}
    for value in topological([product.inputs[0]], [leaf]):
        if value is not leaf and value.op in _LINEAR and all(o in moved for o in _linear_operands(value)):
            moved[value] = builder.like(value, tuple(moved.get(o, o) for o in value.inputs))
    return substitute(program, {product: moved[product.inputs[0]]})


def _aggregate_first(program: Program, product: Value) -> Program:
    region = _region(program, program.users(), product)
    if region is None:
        return program
    builder = Builder()
    moved: dict[Value, Value] = {product: product.inputs[0]}
    for value in region:
        moved[value] = builder.like(value, tuple(moved.get(o, o) for o in value.inputs))
    root = region[-1]
    return substitute(program, {root: builder.add(Op.MATMUL, moved[root], product.inputs[1], **dict(product.attrs))})


def _region(program: Program, users: dict[Value, list[Value]], product: Value) -> list[Value] | None:
    """Linear operations that all start from ``product`` and end in one value; in order, None without an aggregation."""
    outputs = {value for _, value in program.outputs}
    region: list[Value] = []
    inside = {product}
    for value in program.values:
        if value.op in _LINEAR and all(o in inside for o in _linear_operands(value)):
            region.append(value)
            inside.add(value)
    # drop linear operations behind the last aggregation: moving them gains nothing and they may fuse where they are
    for cut in range(len(region), 0, -1):
        part = region[:cut]
        closed = {product, *part}
        leaving = [v for v in closed if v in outputs or any(u not in closed for u in users[v])]
        if leaving == [part[-1]] and any(v.op is Op.SPMM for v in part):
            return part
    return None
