"""Raises products with a matrix per type: no edge and no node gets a copy of its type's matrix.

Comes in: a forward program from a front end, in EINSUM over BROADCAST_NTYPE and BROADCAST_ETYPE. Goes out: TYPE_MATMUL
where nodes are multiplied by their type's matrix; TYPED_SPMM where sources are multiplied by their edge's relation's
and summed, weighted or not; TYPED_SDDMM where the product meets the destination's row in a number per head. Source:
Graphiler, MLSys 2022, section 5 (broadcast-compute fusion).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.trailing import split_spec
from graphweft.passes.attention import seen_through

_FLOATS = (torch.float32, torch.float64)


class _Product(NamedTuple):
    """Rows of one end of the edges times the matrix of the edge's relation; all with heads."""

    graph: Value
    end: Op  # BROADCAST_SRC or BROADCAST_DST
    rows: Value  # (H, I)
    matrices: Value  # (H, I, O), or (H, O, I) where transposed
    transposed: bool

    @property
    def dims(self) -> tuple[int, int]:
        """Heads and columns of the result."""
        heads, first, last = self.matrices.tensor.dims
        return heads, first if self.transposed else last


def raise_typed(program: Program) -> Program:
    """EINSUM with a matrix per type, and what reads it, as the operations that have kernels."""
    return rewrite(program, _raise)


def _raise(b: Builder, v: Value) -> Value | None:
    if v.op is Op.EINSUM and v.tensor.dtype in _FLOATS:
        return _node_product(b, v) or _dots(b, v)
    if v.op is Op.SUM_DIMS and v.tensor.dtype in _FLOATS:
        return _dots(b, v)
    if v.op is Op.REDUCE and v["kind"] in ("sum", "mean") and v.tensor.dtype in _FLOATS:
        return _aggregation(b, v)
    return None


def _node_product(b: Builder, v: Value) -> Value | None:
    for x, matrices, transposed in _matrix_operands(v, Op.BROADCAST_NTYPE):
        graph, table = matrices.inputs
        if len(x.tensor.dims) == 1 and x.tensor.rows == graph.struct.dst:
            return b.add(Op.TYPE_MATMUL, graph, x, table, transposed=transposed)
    return None


def _matrix_operands(v: Value, broadcast: Op) -> list[tuple[Value, Value, bool]]:
    """(rows, broadcast matrices, whether these are transposed) of an einsum that multiplies the two, heads apart."""
    if v.op is not Op.EINSUM or len(v.inputs) != 2:
        return []
    inputs, result = split_spec(v["spec"])
    found = []
    for side in (0, 1):
        x, w = v.inputs[side], v.inputs[1 - side]
        rows, matrix = inputs[side], inputs[1 - side]
        if w.op is not broadcast or x.tensor.rows is None or len(rows) not in (2, 3) or len(matrix) != len(rows) + 1:
            continue
        heads, inner = rows[:-1], rows[-1]
        if matrix[: len(heads)] != heads or result[:-1] != heads:
            continue
        if matrix[len(heads) :] == inner + result[-1]:
            found.append((x, w, False))
        elif matrix[len(heads) :] == result[-1] + inner:
            found.append((x, w, True))
    return found


def _product(b: Builder, v: Value) -> _Product | None:
    """``v`` as rows of an end times the matrix of each edge's relation; sizes of 1 are seen through."""
    v = seen_through(v)
    for x, matrices, transposed in _matrix_operands(v, Op.BROADCAST_ETYPE):
        graph, table = matrices.inputs
        rows = seen_through(x)
        if rows.op not in (Op.BROADCAST_SRC, Op.BROADCAST_DST) or rows.inputs[0] is not graph:
            continue
        heads = x.tensor.dims[0] if len(x.tensor.dims) == 2 else 1
        full = (heads, x.tensor.dims[-1])
        wide = table if len(table.tensor.dims) == 3 else b.add(Op.RESHAPE, table, dims=(1, *table.tensor.dims))
        return _Product(graph, rows.op, _shaped(b, rows.inputs[1], full), wide, transposed)
    return None


def _aggregation(b: Builder, v: Value) -> Value | None:
    """``reduce((weight *) x_src W_relation)``."""
    graph, message = v.inputs
    for weight, rows in [(None, message), *_factors(message)]:
        product = _product(b, rows)
        if product is None or product.graph is not graph or product.end is not Op.BROADCAST_SRC:
            continue
        if _size(rows) != _size(message):
            continue
        operands = [graph, product.rows, product.matrices]
        if weight is not None:
            fitted = _edge_weight(b, weight, rows, product.dims[0])
            if fitted is None:
                continue
            operands.append(fitted)
        total = b.add(Op.TYPED_SPMM, *operands, transposed=product.transposed)
        total = _shaped(b, total, v.tensor.dims)
        if v["kind"] == "sum":
            return total
        degree = b.add(Op.POW, b.add(Op.IN_DEGREE, graph, dtype=v.tensor.dtype), exponent=-1.0)
        return b.add(Op.ROW_SCALE, total, degree)
    return None


def _edge_weight(b: Builder, weight: Value, rows: Value, heads: int) -> Value | None:
    """One number per edge, or per head, of what ``rows`` is multiplied by; None where it is more."""
    if weight.op is Op.EXPAND and weight.inputs[0].tensor.dims[-1:] == (1,):
        weight = weight.inputs[0]
    if weight.tensor.rows is None:
        return None
    per_head = len(rows.tensor.dims) == 2 and weight.tensor.dims == (heads, 1)
    if not per_head and _size(weight) != 1:
        return None
    weight = _shaped(b, seen_through(weight), (heads,) if per_head else ())
    base = seen_through(weight)
    if base.op is Op.EDGE_SOFTMAX and not base.get("log"):
        whole = b.add(Op.EDGE_SOFTMAX, *base.inputs, whole=True)
        return _shaped(b, whole, weight.tensor.dims)
    return weight


def _dots(b: Builder, v: Value) -> Value | None:
    """``sum over columns of (x_src W_relation) * y_dst``, or with the matrix at the destination."""
    for x, y in _contracted(v):
        product, far = _product(b, x), seen_through(y)
        if product is None or far.op not in (Op.BROADCAST_SRC, Op.BROADCAST_DST) or far.op is product.end:
            continue
        if far.inputs[0] is not product.graph or _size(far) != product.dims[0] * product.dims[1]:
            continue
        other = _shaped(b, far.inputs[1], product.dims)
        src, dst, transposed = product.rows, other, product.transposed
        if product.end is Op.BROADCAST_DST:
            src, dst, transposed = other, product.rows, not transposed
        by_head = bool(v.tensor.dims)
        attrs = {"transposed": transposed, "by_head": by_head}
        made = b.add(Op.TYPED_SDDMM, product.graph, src, product.matrices, dst, **attrs)
        return _shaped(b, made, v.tensor.dims)
    return None


def _contracted(v: Value) -> list[tuple[Value, Value]]:
    """Both ways around, x and y of a sum of x * y over the last dimension; with heads or without."""
    if v.op is Op.EINSUM and len(v.inputs) == 2:
        (left, right), result = split_spec(v["spec"])
        if left == right and len(left) in (2, 3) and result == left[:-1]:
            return [(v.inputs[0], v.inputs[1]), (v.inputs[1], v.inputs[0])]
        return []
    if v.op is Op.SUM_DIMS:
        rank = len(v.inputs[0].tensor.dims)
        if rank in (1, 2) and v["axes"] == (rank - 1,):
            return [(x, y) for x, y in _factors(v.inputs[0]) if x.tensor.dims == y.tensor.dims]
    return []


def _factors(v: Value) -> list[tuple[Value, Value]]:
    """The operands of a product of edge rows, either way around."""
    if v.op is Op.ROW_SCALE:
        return [(v.inputs[1], v.inputs[0])]
    if v.op is Op.MUL or (v.op is Op.EWISE and v["fn"] == "mul"):
        x, y = v.inputs
        return [(x, y), (y, x)]
    return []


def _size(v: Value) -> int:
    """Numbers of a row."""
    count = 1
    for size in v.tensor.dims:
        count *= size
    return count


def _shaped(b: Builder, v: Value, dims: tuple[int, ...]) -> Value:
    return v if v.tensor.dims == dims else b.add(Op.RESHAPE, v, dims=dims)
