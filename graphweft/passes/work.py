"""What the kernel of a group does: operations, bytes and gathered lines, for the cost model.

Comes in: a group of values and the sizes behind the symbols. Goes out: :class:`graphweft.cost.Work`. Called by
``pipeline.py``, which compares programs by it, and for the predictions that ``gw.explain`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from math import prod

import torch

from graphweft.cost import (
    Work,
    attention_work,
    contraction_work,
    gather_work,
    product_work,
    routed_work,
    rows_work,
    winners_pay,
)
from graphweft.ir.head_product import head_product
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.ir.residency import StructType, TensorType
from graphweft.passes.groups import EdgeWalk, Group

_TURNED = 6  # passes over the entries of sparse rows that are turned around


@dataclass(frozen=True)
class Sizes:
    """Numbers behind the symbols of a program.

    Attributes:
        rows: Leading sizes by symbol (nodes, edges, listed rows).
        nonzeros: Stored entries of each sparse input by name.
        memory: Bytes that hoisted matrices may take together.
        halves: Values that lie in bfloat16, whatever their type says.
    """

    rows: Mapping[str, int]
    nonzeros: Mapping[str, int] = field(default_factory=dict)
    memory: float = float("inf")
    halves: Set[Value] = frozenset()

    def itemsize(self, value: Value) -> int:
        """Bytes of an element as it lies in memory."""
        return torch.bfloat16.itemsize if value in self.halves else value.tensor.dtype.itemsize


def tensor_bytes(value: Value, sizes: Sizes) -> float:
    """Memory of a value's result; structures count nothing here."""
    if not isinstance(value.type, TensorType):
        return 0.0
    count = 1.0 if value.type.rows is None else float(sizes.rows.get(value.type.rows, 1))
    for size in value.type.dims:
        count *= size
    return count * sizes.itemsize(value)


def stored_entries(value: Value, sizes: Sizes) -> float:
    """Entries of sparse rows: of features, or of some rows of them, with dropout or without."""
    source = value
    while source.inputs:  # through dropout and row selection
        source = source.inputs[0]
    rows = sizes.rows.get(value.tensor.rows or "", 1)
    share = min(1.0, rows / max(1, sizes.rows.get(source.tensor.rows or "", rows)))
    return share * sizes.nonzeros.get(source["name"], 1)


def turns_rows(value: Value) -> bool:
    """Whether a product by the columns of sparse rows turns them around: those of a batch, which differ each time."""
    rows = value.inputs[0] if value.op is Op.MATMUL and value.get("ta") else value
    while rows.op is Op.DROPOUT:
        rows = rows.inputs[0]
    return rows is not value and rows.op is Op.TAKE_ROWS and rows.tensor.sparse


def group_work(group: Group, sizes: Sizes) -> Work:
    """What the kernel of ``group`` does, with the bytes of its epilogue's operands."""
    if isinstance(group, EdgeWalk):
        return _walk_work(group, sizes)
    extra = sum(tensor_bytes(operand, sizes) for operand in group.stages.values() if operand is not None)
    parts = [_anchor_work(term.product, group, sizes) for term in group.as_terms()]
    return Work(parts[0].kind, sum(part.amount for part in parts), sum(part.bytes for part in parts) + extra)


def group_works(group: Group, sizes: Sizes) -> tuple[Work, ...]:
    """As :func:`group_work`, then what it does on the way: sums over edges, rows of a table, rows turned around."""
    sums = [_anchor_work(made.anchor or made.result, made, sizes) for made in group.sums()]
    taken = dict.fromkeys(term.gather for term in group.as_terms() if term.gather is not None)
    turned = [] if group.anchor is None or not turns_rows(group.anchor) else [group.anchor.inputs[0]]
    around = [rows_work(stored_entries(rows, sizes), _TURNED, plain=True) for rows in turned]
    return group_work(group, sizes), *sums, *(_taken_work(value, sizes) for value in taken), *around


def _taken_work(value: Value, sizes: Sizes) -> Work:
    """Rows that are read one by one where they lie in a table."""
    rows, table = value.tensor, value.inputs[0].tensor
    count, of = (sizes.rows.get(kind.rows or "", 1) for kind in (rows, table))
    return gather_work(0, count, prod(rows.dims), of, sizes.itemsize(value.inputs[0]))


def _walk_work(group: EdgeWalk, sizes: Sizes) -> Work:
    """A walk over edges reads rows of the far ends, which may be anywhere."""
    graph = group.walk.struct
    rows = {o for o in group.operands() if isinstance(o.type, TensorType)}
    width = sum(prod(o.tensor.dims) for o in rows if o.tensor.rows in (graph.src, graph.dst))
    counts = [sizes.rows.get(name, 1) for name in (graph.dst, graph.edge, graph.src)]
    return gather_work(counts[0], counts[1], max(width, 1), counts[2], group.result.tensor.dtype.itemsize)


def _anchor_work(value: Value, group: Group, sizes: Sizes) -> Work:
    if not isinstance(value.type, TensorType):
        return rows_work(0)
    item = value.type.dtype.itemsize
    width = value.type.dims[-1] if value.type.dims else 1
    rows = 1 if value.type.rows is None else sizes.rows.get(value.type.rows, 1)
    if group.anchor is None:
        return rows_work(rows * width)
    if value.op in (Op.OWN_ROWS, Op.RESHAPE, Op.PAD_ROWS):  # the first two are views
        return rows_work(rows * width if value.op is Op.PAD_ROWS else 0)
    if value.op is Op.TAKE_ROWS and value.tensor.sparse:
        return rows_work(2 * stored_entries(value, sizes), plain=True)  # a column and a number each
    if value.op in (Op.ATTENTION, Op.ATTENTION_STATS, Op.ATTENTION_GRAD):
        return _attention_work(value, sizes)
    if value.op is Op.EINSUM:
        found = _einsum_work(value, sizes)
        if found is not None:
            return found
    graph = next((o.type for o in value.inputs if isinstance(o.type, StructType)), None)
    if graph is not None and value.op is Op.SPMM_MAX_GRAD:
        targets = sizes.rows.get(graph.dst, 1)
        if winners_pay(targets, sizes.rows.get(graph.edge, 1)):
            return routed_work(targets, width, rows, item)
    if graph is not None and value.op in (Op.SPMM, Op.SPMM_MAX, Op.SPMM_ARG, Op.SPMM_MAX_GRAD, Op.SDDMM):
        source = sizes.rows.get(graph.src, 1)
        read = sizes.itemsize(value.inputs[1]) if value.op is Op.SPMM else item
        plain = value.op is Op.SPMM and len(value.inputs) == 2 and read == item == 4  # sums of float32 rows as they are
        work = gather_work(rows, sizes.rows.get(graph.edge, 1), width, source, read, may_order=plain)
        return replace(work, bytes=work.bytes + rows * width * (sizes.itemsize(group.result) - read))
    if value.op is Op.MATMUL:
        left = value.inputs[0].tensor
        if left.sparse:
            return _sparse_product(value, left, width, sizes, item)
        n, k = sizes.rows.get(left.rows or "", 1), left.dims[-1]
        other = value.inputs[1] if value.get("ta") else group.result  # as many rows as those of the left operand
        work = contraction_work(n, k, width, item) if value.get("ta") else product_work(rows, k, width, item)
        lies = k * sizes.itemsize(value.inputs[0]) + width * sizes.itemsize(other)
        return replace(work, bytes=work.bytes * lies / max(1, (k + width) * item))
    if graph is not None:
        return gather_work(rows, sizes.rows.get(graph.edge, 1), width, sizes.rows.get(graph.src, 1), item)
    return rows_work(rows * width, passes=1 + len(value.inputs), item=item, plain=True)


def _attention_work(value: Value, sizes: Sizes) -> Work:
    """Of all results of one attention, or all its gradients: they come from one call."""
    backward = value.op is Op.ATTENTION_GRAD
    graph, rows = value.inputs[0].type, value.inputs[2 if backward else 1].tensor
    assert isinstance(graph, StructType)  # an attention's first operand
    heads = value.inputs[4 if backward else 3].tensor.dims[0]
    heads = rows.dims[0] if value["score"] != "add" else heads
    counts = [sizes.rows.get(name, 1) for name in (graph.dst, graph.edge, graph.src)]
    shared = rows.dims[0] != heads
    return attention_work(counts[0], counts[1], heads, rows.dims[1], counts[2], shared, backward)


def _einsum_work(value: Value, sizes: Sizes) -> Work | None:
    """Of products with one matrix per head."""
    found = head_product(value["spec"])
    if found is None:
        return None
    x, y = (operand.tensor for operand in (value.inputs[::-1] if found.swapped else value.inputs))
    n = sizes.rows.get(x.rows or "", 1) * x.dims[0]
    if found.outer:
        return contraction_work(n, x.dims[1], y.dims[1])
    return product_work(n, x.dims[1], value.tensor.dims[1])


def _sparse_product(value: Value, left: TensorType, width: int, sizes: Sizes, item: int) -> Work:
    """Sparse features times weights, or its transpose: one gathered row per stored entry."""
    n, features = sizes.rows.get(left.rows or "", 1), left.dims[-1]
    entries = round(stored_entries(value.inputs[0], sizes))
    rows, table = (features, n) if value.get("ta") else (n, features)
    return gather_work(rows, entries, width, table, item, is_sparse=True)
