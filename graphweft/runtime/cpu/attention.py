"""Launchers of attention, of all its gradients together, and of products of node rows by head.

Comes in: a :class:`KernelCall`. Goes out: a function of the slots. Registered in ``cpu/target.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from graphweft.ir.head_product import head_product, vector_product
from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.passes.work import Sizes
from graphweft.runtime.attention import Attention, Score, attend, attend_grad, head_dots, head_products, head_sums
from graphweft.runtime.by_head import head_matmul, head_outer
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch

_SCORES = {"add": Score.ADD, "add2": Score.ADD2, "dot": Score.DOT}


def _kind(call: KernelCall) -> Attention:
    value = call.value
    forward = call.kernel == "attention"
    rows, out = value.inputs[1 if forward else 2], value if forward else value.inputs[-3]
    heads = out.tensor.dims[0]
    return Attention(
        score=_SCORES[value["score"]],
        heads=heads,
        slope=value["alpha"],
        scale=value["scale"],
        drop=value["p"],
        stream=value["stream"],
        shared=rows.tensor.dims[0] != heads,
    )


def _flat(x: Tensor) -> Tensor:
    """Rows of heads times channels, side by side."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def _shared(x: Tensor) -> Tensor:
    return x.reshape(-1)


def _operands(kind: Attention) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """How the two operands of the score are passed on."""
    return _flat, _shared if kind.score is Score.ADD2 else _flat


def forward(call: KernelCall) -> Launch:
    """Attention over in-edges, and what its gradients read of it."""
    kind, dims = _kind(call), call.value.tensor.dims
    graph, x, a, b = (call.operand(role) for role in ("graph", "x", "a", "b"))
    seed, out, stats = call.reading("seed"), call.writes[0].at, call.writing("stats")
    first, second = _operands(kind)

    def run(slots: Slots) -> None:
        adjacency = slots[graph].csc_structure if seed is None else slots[graph].csc
        others = (first(slots[a]), second(slots[b]))
        drawn = 0 if seed is None else int(slots[seed])
        result, kept = attend(adjacency, kind, _flat(slots[x]), others, drawn, stats is not None)
        slots[out] = result.view(-1, *dims)
        if stats is not None:
            slots[stats] = kept

    return run


def scratch(call: KernelCall, sizes: Sizes) -> int:
    """Bytes of what the gradients' walks leave to each other, and of what a destination computes with."""
    graph, rows = next(slot.value.struct for slot in call.reads if slot.role == "graph"), call.value.inputs[-3].tensor
    count, edges = sizes.rows.get(graph.dst, 0), sizes.rows.get(graph.edge, 0)
    kind = _kind(call)
    return rows.dtype.itemsize * (kind.kept_slopes(edges, count, math.prod(rows.dims)) + count * kind.room_width)


def backward(call: KernelCall) -> Launch:
    """All gradients of one attention together."""
    kind = _kind(call)
    graph, turned, x, a, b = (call.operand(role) for role in ("graph", "turned", "x", "a", "b"))
    seed, out, stats, dout = call.reading("seed"), *(call.operand(role) for role in ("out", "stats", "dout"))
    first, second = _operands(kind)
    wanted = [(slot.at, slot.value["wrt"], slot.value.tensor.dims) for slot in call.writes]
    shared = kind.score is Score.ADD2

    def run(slots: Slots) -> None:
        edges, rows, width = slots[graph].num_edges, slots[graph].num_dst, slots[out].shape[1:].numel()
        by_id = seed is not None or kind.kept_slopes(edges, rows, width) > 0
        along = slots[graph].csc if by_id else slots[graph].csc_structure
        against = slots[turned].csc if by_id else slots[turned].csc_structure
        others = (first(slots[a]), second(slots[b]))
        drawn = 0 if seed is None else int(slots[seed])
        kept = (_flat(slots[out]), slots[stats])
        found = attend_grad(along, against, kind, _flat(slots[x]), others, kept, _flat(slots[dout]), drawn)
        for place, wrt, dims in wanted:
            slots[place] = found[wrt].view(dims) if wrt == 2 and shared else found[wrt].view(-1, *dims)

    return run


def einsum(call: KernelCall) -> Launch | None:
    """A product of node rows by head in float32, its addend included; None for another einsum."""
    value = next(v for v in call.body if v.op is Op.EINSUM)
    if value.tensor.dtype != torch.float32 or len(value.inputs) != 2:
        return None
    out, addend = call.writes[0].at, call.reading("addend")
    return _with_vectors(value, call.operand("x0"), call.operand("x1"), addend, out) or _by_head(call, value, out)


def _with_vectors(value: Value, first: int, second: int, addend: int | None, out: int) -> Launch | None:
    """A product with one vector per head; None where this is another einsum."""
    found = vector_product(value["spec"])
    if found is None:
        return None
    a, b = (second, first) if found.swapped else (first, second)
    if found.kind == "products":
        return _product(a, b, addend, out)
    return _two(head_dots if found.kind == "dots" else head_sums, a, b, out)


def _two(kernel: Callable[[Tensor, Tensor], Tensor], a: int, b: int, out: int) -> Launch:
    def run(slots: Slots) -> None:
        slots[out] = kernel(slots[a].contiguous(), slots[b].contiguous())

    return run


def _product(s: int, a: int, addend: int | None, out: int) -> Launch:
    def run(slots: Slots) -> None:
        more = None if addend is None else slots[addend].contiguous()
        slots[out] = head_products(slots[s].contiguous(), slots[a].contiguous(), more)

    return run


def _by_head(call: KernelCall, value: Value, out: int) -> Launch | None:
    """A product with one matrix per head."""
    found = head_product(value["spec"])
    if found is None:
        return None
    first, second = call.operand("x0"), call.operand("x1")
    first, second = (second, first) if found.swapped else (first, second)
    order = found.order

    def product(slots: Slots) -> None:
        slots[out] = head_matmul(slots[first], slots[second].permute(order))

    def outer(slots: Slots) -> None:
        slots[out] = head_outer(slots[first], slots[second]).permute(order).contiguous()

    return outer if found.outer else product
