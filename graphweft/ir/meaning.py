"""The meaning of the operations on types, tables and trailing dimensions, in plain torch.

Comes in: a value and its concrete operands. Goes out: its result. Part of the oracle's table in ``interpret.py``. A
tensor with rows has them first; ``value.inputs[i].tensor`` tells whether an operand has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.ir.elementwise import FUNCTIONS
from graphweft.ir.ops import Op
from graphweft.ir.program import Value


def _lead(value: Value) -> int:
    """How many leading axes of the operand are rows."""
    return 0 if value.inputs[0].tensor.rows is None else 1


def _axes(value: Value) -> tuple[int, ...]:
    """The trailing axes of an attribute as axes of the tensor."""
    lead = _lead(value)
    return tuple(axis + lead for axis in value["axes"])


def _ewise(value: Value, *operands: Tensor) -> Tensor:
    depth = len(value.tensor.dims)
    aligned = []
    for x, given in zip(operands, value.inputs, strict=True):
        type_ = given.tensor
        rows = () if type_.rows is None else (x.shape[0],)
        ones = (1,) * (depth - len(type_.dims)) if rows else ()
        aligned.append(x.reshape((*rows, *ones, *type_.dims)))
    attrs = {key: item for key, item in value.attrs if key != "fn"}
    return FUNCTIONS[value["fn"]].apply(*aligned, **attrs)


def _reshape(value: Value, x: Tensor) -> Tensor:
    return x.reshape((*x.shape[: _lead(value)], *value["dims"]))


def _permute(value: Value, x: Tensor) -> Tensor:
    lead = _lead(value)
    return x.permute(*range(lead), *(axis + lead for axis in value["order"]))


def _expand(value: Value, x: Tensor) -> Tensor:
    rows = x.shape[: _lead(value)]
    dims, own = value["dims"], value.inputs[0].tensor.dims
    return x.reshape((*rows, *([1] * (len(dims) - len(own))), *own)).expand((*rows, *dims))


def _slices(value: Value) -> tuple[slice, ...]:
    before = (slice(None),) * (_lead(value) + value["axis"])
    return (*before, slice(value["start"], value["stop"], value["step"]))


def _unslice(value: Value, x: Tensor) -> Tensor:
    out = x.new_zeros((*x.shape[: _lead(value)], *value.tensor.dims))
    axis = _lead(value) + value["axis"]
    places = torch.arange(value["start"], value["stop"], value["step"], device=x.device)
    return out.index_copy(axis, places, x)


def _sum_dims(value: Value, x: Tensor) -> Tensor:
    return x.sum(_axes(value), dtype=x.dtype) if value["axes"] else x


def _max_dims(value: Value, x: Tensor) -> Tensor:
    reduce = torch.amax if value["kind"] == "max" else torch.amin
    return reduce(x, _axes(value))


def _share(x: Tensor, top: Tensor, axes: tuple[int, ...], ties: str) -> Tensor:
    """Where ``x`` equals ``top``: all of it at the first place along ``axes``, or equal shares."""
    hit = x == top
    if ties == "split":
        return hit.to(x.dtype) / hit.sum(axes, keepdim=True)
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    order = [*kept, *axes]
    moved = hit.permute(order).flatten(len(kept))
    first = (moved & (moved.cumsum(-1) == 1)).reshape([x.shape[axis] for axis in order])
    return first.permute([order.index(axis) for axis in range(x.dim())]).to(x.dtype)


def _max_dims_mask(value: Value, x: Tensor) -> Tensor:
    reduce = torch.amax if value["kind"] == "max" else torch.amin
    axes = _axes(value)
    return _share(x, reduce(x, axes, keepdim=True), axes, value["ties"])


def _max_rows(value: Value, x: Tensor) -> Tensor:
    return (torch.amax if value["kind"] == "max" else torch.amin)(x, 0)


def _max_rows_mask(value: Value, x: Tensor) -> Tensor:
    if not x.shape[0]:
        return x
    return _share(x, _max_rows(value, x)[None], (0,), value["ties"])


def _broadcast_shared(value: Value, graph: Graph, x: Tensor) -> Tensor:
    rows = {"edge": graph.num_edges, "src": graph.num_src, "dst": graph.num_dst}[value["to"]]
    return x.expand((rows, *x.shape))


def _add_by(numbers: Tensor, rows: Tensor, count: int) -> Tensor:
    """Rows added up by number."""
    return rows.new_zeros((count, *rows.shape[1:])).index_add(0, numbers, rows)


def _lookup_sum(value: Value, x: Tensor, index: Tensor) -> Tensor:
    flat = index.reshape(-1).long()
    size = value["size"]
    wrapped = torch.where(flat < 0, flat + size, flat)
    return _add_by(wrapped, x.reshape(flat.numel(), *value.tensor.dims[1:]), size)


MEANING: dict[Op, Callable[..., Any]] = {
    Op.BROADCAST_NTYPE: lambda v, g, x: x[g.node_type()],
    Op.BROADCAST_ETYPE: lambda v, g, x: x[g.edge_type()],
    Op.REDUCE_NTYPE: lambda v, g, x: _add_by(g.node_type(), x, len(g.node_types)),
    Op.REDUCE_ETYPE: lambda v, g, x: _add_by(g.edge_type(), x, len(g.relations)),
    Op.BROADCAST_SHARED: _broadcast_shared,
    Op.LOOKUP: lambda v, table, index: table[index.long()],
    Op.LOOKUP_SUM: _lookup_sum,
    Op.MAX_ROWS: _max_rows,
    Op.MAX_ROWS_MASK: _max_rows_mask,
    Op.CONST: lambda v: torch.tensor(v["value"], dtype=v["dtype"]),
    Op.CAST: lambda v, x: x.to(v["dtype"]),
    Op.DETACH: lambda v, x: x.detach(),
    Op.EWISE: _ewise,
    Op.EINSUM: lambda v, *xs: torch.einsum(v["spec"], *xs),
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.SLICE: lambda v, x: x[_slices(v)],
    Op.UNSLICE: _unslice,
    Op.CAT: lambda v, *xs: torch.cat(xs, _lead(v) + v["axis"]),
    Op.SUM_DIMS: _sum_dims,
    Op.MAX_DIMS: _max_dims,
    Op.MAX_DIMS_MASK: _max_dims_mask,
}
