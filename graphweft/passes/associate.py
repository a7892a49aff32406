"""Products of edge rows taken in the order that multiplies least: no matrix per edge, no wide row for a narrow result.

Comes in: a forward program from a front end, in EINSUM and EWISE. Goes out: an equal one in which a node's row times a
matrix of the edge, itself a product by a weight, is the edge's row times a matrix of the node; and in which the score
``(x W * a).sum(-1)`` of edge rows is a product by the narrow ``W a``. Called by ``pipeline.py`` before
``reorder.py``. Layers whose weights follow from edge features (Gilmer et al., 2017), and attention over edge features,
have these forms.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value, reached
from graphweft.ir.residency import StructType, TensorType
from graphweft.ir.trailing import ROWS, split_spec

_BROADCASTS = (Op.BROADCAST_SRC, Op.BROADCAST_DST)


def associate(program: Program, rows: Mapping[str, int]) -> Program:
    """The program with products of edge rows in the cheaper order; ``rows`` are the sizes behind the symbols."""
    edges = {v.struct.edge for v in program.values if isinstance(v.type, StructType)}

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op not in (Op.SUM_DIMS, Op.EINSUM) or v.tensor.rows not in edges:
            return None
        return _score(b, v) if v.op is Op.SUM_DIMS else _by_matrix(b, v, rows)

    return rewrite(program, rule)


def _score(b: Builder, v: Value) -> Value | None:
    """``(x W * a).sum(-1)``, a head after the other, as ``x (W a)``."""
    product, heads = v.inputs[0], v.tensor.dims
    dims = product.tensor.dims
    if product.op is not Op.EWISE or product["fn"] != "mul" or len(dims) > 2 or v["axes"] != (len(dims) - 1,):
        return None
    for wide, a in (product.inputs, product.inputs[::-1]):
        made = wide.inputs[0] if wide.op is Op.RESHAPE else wide
        weight = _weight(b, made)
        if weight is None or wide.tensor.dims != dims or a.tensor.rows is not None or a.tensor.dims != dims:
            continue
        ends = _ends(made)
        if len(ends) == 1 and None not in ends:  # it moves to the nodes, where others read the wide row as well
            continue
        inner = weight.tensor.dims[0]
        by_head = b.add(Op.RESHAPE, weight, dims=(inner, *dims))
        narrow = b.add(Op.EINSUM, by_head, a, spec="khc,hc->kh" if heads else "kc,c->k")
        return b.add(Op.EINSUM, _rows_of(made), narrow, spec="nk,kh->nh" if heads else "nk,k->n")
    return None


def _by_matrix(b: Builder, v: Value, rows: Mapping[str, int]) -> Value | None:
    """``x_a (h W + c)_ab`` as ``h_k (x W)_kb + (x c)_b``, where x comes from fewer rows than there are edges."""
    if len(v.inputs) != 2:
        return None
    inputs, result = split_spec(v["spec"])
    for side in (0, 1):
        x, matrix = v.inputs[side], v.inputs[1 - side]
        row, both = inputs[side].removeprefix(ROWS), inputs[1 - side].removeprefix(ROWS)
        if x.op not in _BROADCASTS or len(row) != 1 or len(both) != 2 or matrix.op is not Op.RESHAPE:
            continue
        made, shift = _apart(matrix.inputs[0])
        weight = _weight(b, made)
        nodes, edges = rows.get(str(x.inputs[1].tensor.rows), 0), rows.get(str(x.tensor.rows), 0)
        if weight is None or row not in both or result != ROWS + both.replace(row, ""):
            continue
        inner, (first, second) = weight.tensor.dims[0], matrix.tensor.dims
        if nodes * inner > edges * x.tensor.dims[0]:
            continue
        of_node = _flat_product(b, x.inputs[1], weight, both.index(row), (inner, first, second))
        near = b.add(x.op, x.inputs[0], of_node)
        total = b.add(Op.EINSUM, _rows_of(made), near, spec=f"nk,nk{result[1:]}->{result}")
        if shift is not None:
            constant = b.add(Op.RESHAPE, shift, dims=(first, second))
            moved = b.add(Op.EINSUM, x.inputs[1], constant, spec=f"n{row},{both}->{result}")
            total = b.add(Op.EWISE, total, b.add(x.op, x.inputs[0], moved), fn="add")
        return total
    return None


def _flat_product(b: Builder, x: Value, weight: Value, axis: int, dims: tuple[int, int, int]) -> Value:
    """Node rows times all matrices of a weight, as one product by a matrix."""
    inner, *pair = dims
    outer = pair[1 - axis]
    order = (1, 0, 2) if axis == 0 else (2, 0, 1)
    flat = b.add(Op.PERMUTE, b.add(Op.RESHAPE, weight, dims=dims), order=order)
    flat = b.add(Op.RESHAPE, flat, dims=(pair[axis], inner * outer))
    return b.add(Op.RESHAPE, b.add(Op.EINSUM, x, flat, spec="na,ac->nc"), dims=(inner, outer))


def _ends(x: Value) -> set[tuple[Op, Value] | None]:
    """The ends of edges that edge rows come from; None for rows of the edges themselves."""

    def rowed(y: Value) -> list[Value]:
        if y.op in _BROADCASTS:
            return []
        return [z for z in y.inputs if isinstance(z.type, TensorType) and z.tensor.rows is not None]

    return {(y.op, y.inputs[0]) if y.op in _BROADCASTS else None for y in reached([x], rowed) if not rowed(y)}


def _apart(x: Value) -> tuple[Value, Value | None]:
    """A product and the shared vector that is added to it, if there is one."""
    if x.op is Op.EWISE and x["fn"] == "add":
        for product, shift in (x.inputs, x.inputs[::-1]):
            if shift.tensor.rows is None and shift.tensor.dims == x.tensor.dims == product.tensor.dims:
                return product, shift
    return x, None


def _weight(b: Builder, product: Value) -> Value | None:
    """The weight of a product of rows and a matrix, its first dimension the one that is summed over."""
    if product.op is not Op.EINSUM or len(product.inputs) != 2:
        return None
    inputs, result = split_spec(product["spec"])
    side = 0 if product.inputs[0].tensor.rows is not None else 1
    weight, row, matrix = product.inputs[1 - side], inputs[side], inputs[1 - side]
    if weight.tensor.rows is not None or product.inputs[side].tensor.rows is None:
        return None
    if len(row) != 2 or len(matrix) != 2 or len(result) != 2 or row[1] == result[1] or row[1] not in matrix:
        return None
    return weight if matrix[0] == row[1] else b.add(Op.PERMUTE, weight, order=(1, 0))


def _rows_of(product: Value) -> Value:
    """The operand of a product that has rows."""
    return next(x for x in product.inputs if x.tensor.rows is not None)
