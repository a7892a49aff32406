"""Late transform of additive attention: rows are attended to as they are, and each head's result is transformed.

Comes in: a forward program with ATTENTION over rows that are a product with a weight. Goes out: an equal one in which
the product stands behind the sum. Scores need no transformed rows, as ``<a_h, W_h x> = <W_h^T a_h, x>``; the sum takes
``sum_j s_hj x_j`` with rows that all heads share, then the head's own ``W_h``. Worth it where an aggregation goes from
many rows to few, as blocks of a mini-batch do, for few heads or narrow inputs; ``pipeline.py`` decides by cost, as for
the other orders of ``placement.py``. Source: Joestar, section 5.4.
"""

from __future__ import annotations

from typing import NamedTuple

from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value


class _Site(NamedTuple):
    """A product, the attention over it, and the scores' dot products with it: on sources, or on destinations' rows."""

    product: Value
    attention: Value
    dots: frozenset[Value]
    heads: int
    channels: int


def is_late_site(program: Program, users: dict[Value, list[Value]], product: Value) -> bool:
    """Whether attention over ``product`` can go before it."""
    return _site(program, users, product) is not None


def transform_late(program: Program, product: Value) -> Program:
    """``program`` with ``product`` behind the attention over it; as it is where that cannot be."""
    site = _site(program, program.users(), product)
    if site is None:
        return program
    b = Builder()
    x, weight = product.inputs
    new: dict[Value, Value] = {}
    for value in program.values:
        if value in site.dots:
            new[value] = _folded_dot(b, value, site, new)
        elif value is site.attention:
            graph, _, *others = (new[operand] for operand in value.inputs)
            rows = b.add(Op.RESHAPE, new[x], dims=(1, *x.tensor.dims))
            near = b.add(Op.ATTENTION, graph, rows, *others, **dict(value.attrs))
            new[value] = _transformed(b, near, new[weight], site)
        else:
            new[value] = b.like(value, tuple(new[operand] for operand in value.inputs))
    return Program(program.inputs, tuple((name, new[value]) for name, value in program.outputs))


def _site(program: Program, users: dict[Value, list[Value]], product: Value) -> _Site | None:
    if product.inputs[0].tensor.sparse or product.get("tb") or product in {value for _, value in program.outputs}:
        return None
    readers = users[product]
    if len(readers) != 1 or readers[0].op is not Op.RESHAPE or len(readers[0].tensor.dims) != 2:
        return None
    rows = readers[0]
    attended = [v for v in users[rows] if v.op is Op.ATTENTION and v.inputs[1] is rows and v["score"] == "add"]
    dots: set[Value] = set()
    for value in users[rows]:
        reads = users[value] if value.op is Op.OWN_ROWS else [value]
        dots |= {v for v in reads if v.op is Op.EINSUM and v["spec"] == "nhc,hc->nh"}
        if any(v not in dots and v not in attended for v in reads):
            return None
    if len(attended) != 1 or attended[0].inputs[2] not in dots:
        return None
    return _Site(product, attended[0], frozenset(dots), *rows.tensor.dims)


def _folded_dot(b: Builder, dot: Value, site: _Site, new: dict[Value, Value]) -> Value:
    """``<z_h, a_h>`` of ``z = x W`` as ``x`` times the weights of all heads folded with ``a``."""
    rows, a = dot.inputs
    x, weight = (new[operand] for operand in site.product.inputs)
    if rows.op is Op.OWN_ROWS:
        x = b.add(Op.OWN_ROWS, new[rows.inputs[0]], x)
    folded = b.add(Op.EINSUM, _by_head(b, weight, site), new[a], spec="fhc,hc->fh")
    return b.add(Op.MATMUL, x, folded)


def _transformed(b: Builder, near: Value, weight: Value, site: _Site) -> Value:
    """Each head's rows times its own weight."""
    if site.heads > 1:
        return b.add(Op.EINSUM, near, _by_head(b, weight, site), spec="nhf,fhc->nhc")
    product = b.add(Op.MATMUL, b.add(Op.RESHAPE, near, dims=near.tensor.dims[1:]), weight)
    return b.add(Op.RESHAPE, product, dims=(1, site.channels))


def _by_head(b: Builder, weight: Value, site: _Site) -> Value:
    return b.add(Op.RESHAPE, weight, dims=(weight.tensor.dims[0], site.heads, site.channels))
