"""Calls of the attention kernels from groups of IR values.

Comes in: a group whose anchor is ATTENTION (its statistics beside it) or ATTENTION_GRAD (all gradients of one attention
together), or an EINSUM of node rows with one vector per head. Goes out: a closure over slots. Called by ``lower.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweft.ir.ops import Op
from graphweft.ir.program import Value
from graphweft.passes.fuse import Group
from graphweft.runtime.attention import Attention, Score, attend, attend_grad, head_dots, head_products, head_sums

Slots = list[Any]
_SCORES = {"add": Score.ADD, "add2": Score.ADD2, "dot": Score.DOT}


def lower(group: Group, slot: Mapping[Value, int]) -> Callable[[Slots], None]:
    """The call that computes a group of float32 attention values."""
    value = group.anchor
    assert value is not None  # the anchor is what brought us here
    forward = value.op is Op.ATTENTION
    rows, out = value.inputs[1 if forward else 2], value if forward else value.inputs[-3]
    heads = out.tensor.dims[0]
    kind = Attention(
        score=_SCORES[value["score"]],
        heads=heads,
        slope=value["alpha"],
        scale=value["scale"],
        drop=value["p"],
        stream=value["stream"],
        shared=rows.tensor.dims[0] != heads,
    )
    return _forward(group, slot, kind) if forward else _backward(group, slot, kind)


def lower_einsum(group: Group, slot: Mapping[Value, int]) -> Callable[[Slots], None] | None:
    """The call of a product with one vector per head, or None where this is another einsum."""
    value = group.anchor
    assert value is not None  # the anchor is what brought us here
    if value.tensor.dtype != torch.float32 or len(value.inputs) != 2:
        return None
    left, right, result = re.split(",|->", value["spec"])
    first, second = (slot[v] for v in value.inputs)
    out, addend = slot[group.result], group.stages.get("addend")
    for x, y, a, b in ((left, right, first, second), (right, left, second, first)):
        if (len(x), len(y)) == (3, 2) and x[0] == "n" and y == x[1:] and result == x[:2]:
            return _two(head_dots, a, b, out)
        if (len(x), len(y)) == (2, 3) and x[0] == "n" and y[0] == "n" and y[1] == x[1] and result == y[1:]:
            return _two(head_sums, a, b, out)
        if (len(x), len(y)) == (2, 2) and x[0] == "n" and y[0] == x[1] and result == "n" + y:
            return _product(a, b, None if addend is None else slot[addend], out)
    return None


def _two(kernel: Callable[[Tensor, Tensor], Tensor], a: int, b: int, out: int) -> Callable[[Slots], None]:
    def call(env: Slots) -> None:
        env[out] = kernel(env[a].contiguous(), env[b].contiguous())

    return call


def _product(s: int, a: int, addend: int | None, out: int) -> Callable[[Slots], None]:
    def call(env: Slots) -> None:
        more = None if addend is None else env[addend].contiguous()
        env[out] = head_products(env[s].contiguous(), env[a].contiguous(), more)

    return call


def _flat(x: Tensor) -> Tensor:
    """Rows of heads times channels, side by side."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def _shared(x: Tensor) -> Tensor:
    return x.reshape(-1)


def _operands(kind: Attention) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """How the two operands of the score are passed on."""
    return _flat, _shared if kind.score is Score.ADD2 else _flat


def _forward(group: Group, slot: Mapping[Value, int], kind: Attention) -> Callable[[Slots], None]:
    value = group.result
    graph, x, a, b, *seeds = [slot[v] for v in group.operands()]
    out, stats = slot[value], slot[group.taps[0]] if group.taps else None
    first, second = _operands(kind)
    dims = value.tensor.dims

    def call(env: Slots) -> None:
        adjacency = env[graph].csc if seeds else env[graph].csc_structure
        others = (first(env[a]), second(env[b]))
        seed = int(env[seeds[0]]) if seeds else 0
        result, kept = attend(adjacency, kind, _flat(env[x]), others, seed, stats is not None)
        env[out] = result.view(-1, *dims)
        if stats is not None:
            env[stats] = kept

    return call


def _backward(group: Group, slot: Mapping[Value, int], kind: Attention) -> Callable[[Slots], None]:
    graph, turned, x, a, b, *rest = [slot[v] for v in group.operands()]
    *seeds, out, stats, dout = rest
    first, second = _operands(kind)
    wanted = [(slot[v], v["wrt"], v.tensor.dims) for v in (group.result, *group.taps)]
    shared = kind.score is Score.ADD2

    def call(env: Slots) -> None:
        forward = env[graph].csc if seeds else env[graph].csc_structure
        backward = env[turned].csc if seeds else env[turned].csc_structure
        others = (first(env[a]), second(env[b]))
        seed = int(env[seeds[0]]) if seeds else 0
        kept = (_flat(env[out]), env[stats])
        found = attend_grad(forward, backward, kind, _flat(env[x]), others, kept, _flat(env[dout]), seed)
        for place, wrt, dims in wanted:
            env[place] = found[wrt].view(dims) if wrt == 2 and shared else found[wrt].view(-1, *dims)

    return call
