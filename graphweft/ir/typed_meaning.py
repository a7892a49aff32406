"""The meaning of the products with a matrix per type, in plain torch: relation by relation, type by type.

Comes in: a value and its concrete operands. Goes out: its result. Part of the oracle's table in ``interpret.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from graphweft.graph.graph import Graph
from graphweft.graph.typed_pairs import same_type_degrees
from graphweft.ir.ops import Op
from graphweft.ir.program import Value


def _turned(value: Value, w: Tensor) -> Tensor:
    return w.transpose(-1, -2) if value["transposed"] else w


def _by_relation(graph: Graph) -> Iterator[tuple[int, slice]]:
    return enumerate(slice(begin, end) for begin, end in pairwise(graph.layout.edge_offsets))


def _factor(weight: Tensor, edges: slice) -> Tensor:
    """Of the edges' rows (H, ...)."""
    taken = weight[edges]
    return taken[:, :, None] if taken.dim() == 2 else taken[:, None, None]


def _typed_spmm(value: Value, graph: Graph, x: Tensor, w: Tensor, weight: Tensor | None = None) -> Tensor:
    (src, dst), matrices = graph.edges(), _turned(value, w)
    out = x.new_zeros((graph.num_dst, *value.tensor.dims))
    for relation, edges in _by_relation(graph):
        messages = torch.einsum("ehi,hio->eho", x[src[edges]], matrices[relation])
        messages = messages if weight is None else messages * _factor(weight, edges)
        out = out.index_add(0, dst[edges], messages)
    return out


def _typed_sddmm(value: Value, graph: Graph, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    (src, dst), matrices = graph.edges(), _turned(value, w)
    parts = [
        (torch.einsum("ehi,hio->eho", x[src[edges]], matrices[relation]) * y[dst[edges]]).sum(2)
        for relation, edges in _by_relation(graph)
    ]
    out = torch.cat(parts) if parts else x.new_zeros((0, x.shape[1]))
    return out if value["by_head"] else out.sum(1)


def _typed_outer(value: Value, graph: Graph, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    src, dst = graph.edges()
    parts = []
    for _, edges in _by_relation(graph):
        rows = x[src[edges]] if weight is None else x[src[edges]] * _factor(weight, edges)
        parts.append(torch.einsum("ehi,eho->hio", rows, y[dst[edges]]))
    return torch.stack(parts) if parts else x.new_zeros((0, *value.tensor.dims))


def _by_node_type(graph: Graph) -> Iterator[tuple[int, slice]]:
    return enumerate(slice(begin, end) for begin, end in pairwise(graph.layout.node_offsets))


def _type_matmul(value: Value, graph: Graph, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    matrices = _turned(value, w)
    product = torch.cat([x[rows] @ matrices[kind] for kind, rows in _by_node_type(graph)])
    return product if bias is None else product + bias[graph.node_type()]


def _type_outer(value: Value, graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x[rows].T @ y[rows] for _, rows in _by_node_type(graph)])


MEANING: dict[Op, Callable[..., Any]] = {
    Op.TYPED_SPMM: _typed_spmm,
    Op.TYPED_SDDMM: _typed_sddmm,
    Op.TYPED_OUTER: _typed_outer,
    Op.TYPE_MATMUL: _type_matmul,
    Op.TYPE_OUTER: _type_outer,
    Op.SAME_DEGREE: lambda v, g: same_type_degrees(g, v.tensor.dtype),
}
