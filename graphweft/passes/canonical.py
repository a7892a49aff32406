"""Generic operations on rows written as the specific ones that have kernels.

Comes in: a forward program from a front end, in EWISE and EINSUM. Goes out: an equal one in which products with a
weight are MATMUL, and, on node rows, biases, scales, ReLU and sums are the operations that fuse into them, and sums of
products with a vector are one EINSUM. Called before ``message.py`` and ``placement.py``, which know only those.
"""

from __future__ import annotations

import torch

from graphweft.ir.ops import Op
from graphweft.ir.pattern import rewrite
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.trailing import split_spec

_FLOATS = (torch.float32, torch.float64)


def canonicalise(program: Program) -> Program:
    """EINSUM, EWISE and SUM_DIMS as MATMUL, BIAS, ROW_SCALE, SCALE, ADD, MUL, RELU and dot products by head."""
    edges = {value.struct.edge for value in program.values if value.op is Op.GRAPH}

    def rule(b: Builder, v: Value) -> Value | None:
        if v.op not in (Op.EINSUM, Op.EWISE, Op.SUM_DIMS) or v.tensor.rows is None or v.tensor.dtype not in _FLOATS:
            return None
        if v.op is Op.SUM_DIMS:
            return None if v.tensor.rows in edges else _dots(b, v)
        if v.op is Op.EINSUM:
            return _product(b, v)
        return None if v.tensor.rows in edges or len(v.tensor.dims) != 1 else _rows(b, v)

    return rewrite(program, rule)


def _product(b: Builder, v: Value) -> Value | None:
    """Rows times a shared matrix."""
    if len(v.inputs) != 2:
        return None
    inputs, result = split_spec(v["spec"])
    side = 0 if v.inputs[0].tensor.rows is not None else 1
    x, weight = v.inputs[side], v.inputs[1 - side]
    rows, matrix = inputs[side], inputs[1 - side]
    if weight.tensor.rows is not None or x.tensor.rows is None or len(rows) != 2 or len(matrix) != 2:
        return None
    if len(result) != 2 or rows[1] not in matrix or result[1] not in matrix or result[1] == rows[1]:
        return None
    transposed = matrix[1] == rows[1]
    if weight.op is Op.PERMUTE and weight["order"] == (1, 0):  # a Linear's weight, as torch keeps it
        weight, transposed = weight.inputs[0], not transposed
    return b.add(Op.MATMUL, x, weight, **({"tb": True} if transposed else {}))


def _dots(b: Builder, v: Value) -> Value | None:
    """``(x * a).sum(-1)`` of node rows and a shared vector, or one a head, without the product being stored."""
    product = v.inputs[0]
    dims = product.tensor.dims
    multiplied = product.op is Op.COL_SCALE or (product.op is Op.EWISE and product["fn"] == "mul")
    if not multiplied or len(dims) not in (1, 2) or v["axes"] != (len(dims) - 1,):
        return None
    for x, a in (product.inputs, product.inputs[::-1]):
        if x.tensor.rows is None or x.tensor.dims != dims or a.tensor.rows is not None:
            continue
        if [n for n in a.tensor.dims if n != 1] != [n for n in dims if n != 1]:
            continue
        heads = dims if len(dims) == 2 else (1, *dims)
        rows, vectors = (y if y.tensor.dims == heads else b.add(Op.RESHAPE, y, dims=heads) for y in (x, a))
        dots = b.add(Op.EINSUM, rows, vectors, spec="nhc,hc->nh")
        return dots if len(dims) == 2 else b.add(Op.RESHAPE, dots, dims=())
    return None


def _rows(b: Builder, v: Value) -> Value | None:
    """One elementwise function on node rows of one dimension."""
    fn, dims = v["fn"], v.tensor.dims
    if fn == "relu":
        return b.add(Op.RELU, v.inputs[0])
    if fn == "div":
        return _divided(b, v)
    if fn not in ("add", "mul"):
        return None
    for x, y in (v.inputs, v.inputs[::-1]):
        if x.tensor.rows is None or x.tensor.dims != dims:
            continue
        if y.op is Op.CONST:
            return b.add(Op.SCALE, x, factor=float(y["value"])) if fn == "mul" else None
        if y.tensor.rows is None and y.tensor.dims == dims:
            return b.add(Op.BIAS if fn == "add" else Op.COL_SCALE, x, y)
        if y.tensor.rows is None and y.tensor.dims in ((), (1,)) and fn == "mul" and y.tensor.dtype == v.tensor.dtype:
            return b.add(Op.MUL_SCALAR, x, y if not y.tensor.dims else b.add(Op.RESHAPE, y, dims=()))
        if y.tensor.rows is not None and y.tensor.dims == dims:
            return b.add(Op.ADD if fn == "add" else Op.MUL, x, y)
        if y.tensor.rows is not None and y.tensor.dims in ((), (1,)) and fn == "mul":
            return b.add(Op.ROW_SCALE, x, y if not y.tensor.dims else b.add(Op.RESHAPE, y, dims=()))
    return None


def _divided(b: Builder, v: Value) -> Value | None:
    """Rows over one number each, as sums over degrees: times its reciprocal, which is a stage of the kernel before."""
    (x, y), dims = v.inputs, v.tensor.dims
    if x.tensor.rows is None or x.tensor.dims != dims or dims == (1,) or y.tensor.rows is None:
        return None
    if y.tensor.dims not in ((), (1,)) or y.tensor.dtype != v.tensor.dtype:
        return None
    each = y if not y.tensor.dims else b.add(Op.RESHAPE, y, dims=())
    return b.add(Op.ROW_SCALE, x, b.add(Op.EWISE, each, fn="reciprocal"))
