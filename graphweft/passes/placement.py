"""Order of aggregation and transform: ``A(XW)`` or ``(AX)W``, per occurrence; A may be additive attention.

Comes in: a forward program and, for every weight at whose product there is a choice, which order to take. Goes out:
the program in that order. Which order is the better is decided in ``pipeline.py`` by the predicted cost of the whole
training step, so that hoisting, a first layer without input gradient, and fused epilogues all count. Sources:
GraphTensor, section IV (dynamic kernel placement); Joestar, section 5.4.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Mapping, Sequence
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


def _is_free(program: Program, users: Mapping[Value, list[Value]], product: Value) -> bool:
    """Whether the aggregation behind ``product`` can go before it."""
    return _region(program, users, product) is not None or is_late_site(program, users, product)


def place(program: Program, orders: Mapping[str, Order]) -> Program:
    """``program`` with the product of each named weight moved to the order asked for.

    Neighbours in ``orders`` that are aggregated first are moved at once: their regions have nothing in common, and
    rebuilding a program takes as long for one as for all.
    """
    together: list[str] = []
    products, known = _products(program), program
    for name, order in orders.items():
        if order is Order.AGGREGATE:
            together.append(name)
            continue
        program, together = _aggregated(program, together), []
        if program is not known:
            products, known = _products(program), program
        value = products.get(name)
        program = program if value is None else _transform_first(program, value)
    return _aggregated(program, together)


def _products(program: Program) -> dict[str, Value]:
    """The first product with each weight, by its name."""
    found: dict[str, Value] = {}
    for value in program.values:
        if _is_transform(value):
            found.setdefault(value.inputs[1]["name"], value)
    return found


def _aggregated(program: Program, names: Sequence[str]) -> Program:
    """``program`` with these products behind their aggregations: those of sums at once, then those of attention."""
    products, users = _products(program) if names else {}, program.users()
    regions: dict[Value, list[Value]] = {}
    late: list[str] = []
    for name in names:
        value = products.get(name)
        if value is None or value.inputs[0].tensor.sparse:
            continue
        region = _region(program, users, value)
        if region is None:
            late.append(name)
        else:
            regions[value] = region
    program = _aggregate_first(program, regions) if regions else program
    for name in late:
        value = _products(program).get(name)
        program = program if value is None else transform_late(program, value)
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


def _aggregate_first(program: Program, regions: Mapping[Value, list[Value]]) -> Program:
    """``program`` with every product of ``regions`` behind the operations of its region."""
    builder = Builder()
    ends = {region[-1] for region in regions.values()}
    inside = {value: product for product, region in regions.items() for value in region}
    moved: dict[Value, Value] = {}  # of each region what its operations come to before the product
    new: dict[Value, Value] = {}
    for value in program.values:
        if value in regions:
            moved[value] = new[value.inputs[0]]
        elif value in inside:
            product = inside[value]
            own = [o is product or inside.get(o) is product for o in value.inputs]
            operands = [moved[o] if is_own else new[o] for o, is_own in zip(value.inputs, own, strict=True)]
            moved[value] = builder.like(value, tuple(operands))
            if value in ends:
                new[value] = builder.add(Op.MATMUL, moved[value], new[product.inputs[1]], **dict(product.attrs))
        else:
            new[value] = builder.like(value, tuple([new[operand] for operand in value.inputs]))
    return Program(program.inputs, tuple((name, new[value]) for name, value in program.outputs))


def _region(program: Program, users: Mapping[Value, list[Value]], product: Value) -> list[Value] | None:
    """Linear operations that all start from ``product`` and end in one value; in order, None without an aggregation."""
    outputs = {value for _, value in program.outputs}
    region: list[Value] = []
    inside, places = {product}, program.places
    left = [places[user] for user in users[product]]  # what may follow; smaller places, and so operands, first
    heapq.heapify(left)
    while left:
        value = program.values[heapq.heappop(left)]
        if value not in inside and value.op in _LINEAR and all(o in inside for o in _linear_operands(value)):
            region.append(value)
            inside.add(value)
            for user in users[value]:
                heapq.heappush(left, places[user])
    # drop linear operations behind the last aggregation: moving them gains nothing and they may fuse where they are
    for cut in range(len(region), 0, -1):
        part = region[:cut]
        closed = {product, *part}
        leaving = [v for v in closed if v in outputs or any(u not in closed for u in users[v])]
        if leaving == [part[-1]] and any(v.op is Op.SPMM for v in part):
            return part
    return None
