"""Late transform of additive attention: rows are attended to as they are, and each head's result is transformed.

Comes in: a forward program with ATTENTION over rows that are a product with a weight. Goes out: an equal one in which
the product stands behind the sum. Scores need no transformed rows, as ``<a_h, W_h x> = <W_h^T a_h, x>``; the sum takes
``sum_j s_hj x_j`` with rows that all heads share, then the head's own ``W_h``. Worth it where an aggregation goes from
many rows to few, as blocks of a mini-batch do, for few heads or narrow inputs; ``pipeline.py`` decides by cost, as for
the other orders of ``placement.py``. Source: Joestar, section 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value


class _Site(NamedTuple):
    """A product, the attention over it, and the scores' dot products with it: on sources, or on destinations' rows.

    ``rows`` are those of the product, a bias added where there is one.
    """

    product: Value
    rows: Value
    attention: Value
    dots: frozenset[Value]
    heads: int
    channels: int

    @property
    def bias(self) -> Value | None:
        """What is added to the product."""
        return None if self.rows is self.product else self.rows.inputs[1]


_DOTS = ("nhc,hc->nh", "na,a->n")  # by head; or of whole rows, of the one head that there is


def is_late_site(program: Program, users: Mapping[Value, list[Value]], product: Value) -> bool:
    """Whether attention over ``product`` can go before it."""
    return _site(program, users, product) is not None


def transform_late(program: Program, product: Value) -> Program:
    """``program`` with ``product`` behind the attention over it; as it is where that cannot be."""
    site = _site(program, program.users(), product)
    if site is None:
        return program
    b = Builder()
    x = product.inputs[0]
    new: dict[Value, Value] = {}
    for value in program.values:
        if value in site.dots:
            new[value] = _folded_dot(b, value, site, new)
        elif value is site.attention:
            graph, _, *others = (new[operand] for operand in value.inputs)
            rows = b.add(Op.RESHAPE, new[x], dims=(1, *x.tensor.dims))
            near = b.add(Op.ATTENTION, graph, rows, *others, **dict(value.attrs))
            new[value] = _transformed(b, near, site, new)
        else:
            new[value] = b.like(value, tuple(new[operand] for operand in value.inputs))
    return Program(program.inputs, tuple((name, new[value]) for name, value in program.outputs))


def _site(program: Program, users: Mapping[Value, list[Value]], product: Value) -> _Site | None:
    outputs = {value for _, value in program.outputs}
    if product.inputs[0].tensor.sparse or product.get("tb") or product in outputs:
        return None
    flat, readers = product, users[product]
    if [v.op for v in readers] == [Op.BIAS]:
        flat, readers = readers[0], users[readers[0]]
    shaped = [v for v in readers if v.op is Op.RESHAPE and len(v.tensor.dims) == 2]
    if flat in outputs or len(shaped) != 1:
        return None
    rows = shaped[0]
    attended = [v for v in users[rows] if v.op is Op.ATTENTION and v.inputs[1] is rows and v["score"] == "add"]
    read = [own for value in (*readers, *users[rows]) for own in _own_readers(value, users)]
    dots = {v for v in read if v.op is Op.EINSUM and v["spec"] in _DOTS}
    if len(attended) != 1 or any(v not in (*dots, *attended, rows) for v in read):
        return None
    if flat is not product and attended[0]["p"]:  # weights that are left do not add up to 1
        return None
    return _Site(product, flat, attended[0], frozenset(dots), *rows.tensor.dims)


def _own_readers(value: Value, users: Mapping[Value, list[Value]]) -> list[Value]:
    """Who reads destinations' rows; another reader itself."""
    return users[value] if value.op is Op.OWN_ROWS else [value]


def _folded_dot(b: Builder, dot: Value, site: _Site, new: dict[Value, Value]) -> Value:
    """``<z_h, a_h>`` of ``z = x W`` as ``x`` times the weights of all heads folded with ``a``."""
    rows, a = dot.inputs
    x, weight = (new[operand] for operand in site.product.inputs)
    if rows.op is Op.OWN_ROWS:
        x = b.add(Op.OWN_ROWS, new[rows.inputs[0]], x)
    shape = a.tensor.dims if len(a.tensor.dims) == 2 else (1, *a.tensor.dims)
    by_head = new[a] if shape == a.tensor.dims else b.add(Op.RESHAPE, new[a], dims=shape)
    folded = b.add(Op.EINSUM, _by_head(b, weight, shape), by_head, spec="fhc,hc->fh")
    made = b.add(Op.MATMUL, x, folded)
    if site.bias is not None:
        bias = b.add(Op.RESHAPE, new[site.bias], dims=shape)
        made = b.add(Op.BIAS, made, b.add(Op.EINSUM, bias, by_head, spec="hc,hc->h"))
    return made if dot.tensor.dims == made.tensor.dims else b.add(Op.RESHAPE, made, dims=dot.tensor.dims)


def _transformed(b: Builder, near: Value, site: _Site, new: dict[Value, Value]) -> Value:
    """Each head's rows times its own weight; a bias where there is an in-edge, as weights of a row add up to 1."""
    weight, shape = new[site.product.inputs[1]], (site.heads, site.channels)
    if site.heads > 1:
        made = b.add(Op.EINSUM, near, _by_head(b, weight, shape), spec="nhf,fhc->nhc")
    else:
        made = b.add(Op.MATMUL, b.add(Op.RESHAPE, near, dims=near.tensor.dims[1:]), weight)
    if site.bias is not None:
        made = made if site.heads == 1 else b.add(Op.RESHAPE, made, dims=(site.heads * site.channels,))
        some = b.add(Op.EWISE, b.add(Op.IN_DEGREE, near.inputs[0], dtype=near.tensor.dtype), fn="sign")
        made = b.add(Op.ROW_SCALE, b.add(Op.BIAS, made, new[site.bias]), some)
    return made if made.tensor.dims == shape else b.add(Op.RESHAPE, made, dims=shape)


def _by_head(b: Builder, weight: Value, shape: tuple[int, ...]) -> Value:
    return b.add(Op.RESHAPE, weight, dims=(weight.tensor.dims[0], *shape))
