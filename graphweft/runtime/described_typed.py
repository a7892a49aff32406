"""Products with a matrix a relation by their description: relation by relation, sums over edges and products of rows.

Comes in: a call of such a product that a target has no kernel for. Goes out: a launcher, of walks over the edges of
each relation, between the nodes of its types alone, and of dense products; None for any other call. A sum of sources'
rows times a matrix is the sum times that matrix, so no edge is multiplied. Called by ``target.py``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from graphweft.graph.derived import derived
from graphweft.graph.graph import Graph
from graphweft.ir.elementwise_grad import Formula
from graphweft.ir.ops import Op
from graphweft.ir.program import Builder, Program, Value
from graphweft.ir.residency import Residency, StructType, TensorType
from graphweft.runtime.described import Bind, by_walks
from graphweft.runtime.kernel_call import KernelCall, Launch, Slots

_EDGES = StructType("S", "D", "E")  # of one relation
_RESIDENCIES = {"S": Residency.SRC, "D": Residency.DST, "E": Residency.EDGE, None: Residency.SHARED}
# what the rows of the operands after the graph are; None: a matrix a relation
_ROWS = {Op.TYPED_SPMM: ("S", None, "E"), Op.TYPED_SDDMM: ("S", None, "D"), Op.TYPED_OUTER: ("S", "D", "E")}


class _Part(NamedTuple):
    """The edges of a relation over ids local to its types, and where rows of these and its edges begin and end."""

    graph: Graph
    rows: dict[str | None, slice]


def described_typed(call: KernelCall, bind: Bind) -> Launch | None:
    """The launcher of a product with a matrix a relation; ``bind`` finds those of its walks."""
    value = call.value
    walked = by_walks(_of_one_relation(value), bind) if value.op in _ROWS else None
    if walked is None:
        return None
    graph, *places = (slot.at for slot in call.reads)
    rows, out = _ROWS[value.op], call.writes[0].at

    def run(slots: Slots) -> None:
        made = [slots[places[0]].new_zeros((slots[graph].num_dst, *value.tensor.dims))]  # sums, of all relations
        parts = derived(slots[graph], _parts)
        for relation, part in enumerate(parts):
            whole = [slots[place] for place in places]
            own = [x[relation] if r is None else x[part.rows[r]] for x, r in zip(whole, rows, strict=False)]
            (found,) = walked({"graph": part.graph, **{str(k): x.contiguous() for k, x in enumerate(own)}})
            if value.op is Op.TYPED_SPMM:
                made[0][part.rows["D"]] += found
            else:
                made.append(found)
        slots[out] = _joined(value, made)

    return run


def _joined(value: Value, made: list[Tensor]) -> Tensor:
    """Sums, or what every relation gives, one after the other; after an empty piece of the right shape."""
    if value.op is Op.TYPED_SPMM:
        return made[0]
    more = made[1:] if value.op is Op.TYPED_SDDMM else [found[None] for found in made[1:]]
    return torch.cat([made[0].new_zeros((0, *value.tensor.dims)), *more])


def _parts(graph: Graph) -> list[_Part]:
    """A graph for every relation, in order."""
    layout, (src, dst) = graph.layout, graph.edges()
    found = []
    for (source, _, target), (begin, end) in zip(layout.relations, pairwise(layout.edge_offsets), strict=True):
        a, b = layout.node_range(source), layout.node_range(target)
        own = Graph(src[begin:end] - a.start, dst[begin:end] - b.start, num_nodes=(len(a), len(b)))
        found.append(_Part(own, {"S": slice(a.start, a.stop), "D": slice(b.start, b.stop), "E": slice(begin, end)}))
    return found


def _of_one_relation(value: Value) -> Program:
    """What ``value`` is for the edges of one relation and its matrix; inputs have numbers for names."""
    b, operands = Builder(), list[Value]()
    graph = b.add(Op.GRAPH, name="graph", type=_EDGES)
    for number, (operand, rows) in enumerate(zip(value.inputs[1:], _ROWS[value.op], strict=False)):
        kind = TensorType(_RESIDENCIES[rows], rows, operand.tensor.dims, operand.tensor.dtype)
        operands.append(b.add(Op.INPUT, name=str(number), type=kind))
    x, second, *third = operands
    spec = "nhi,hoi->nho" if value.get("transposed") else "nhi,hio->nho"
    if value.op is Op.TYPED_SPMM:
        made = b.add(Op.EINSUM, _sums(b, graph, x, *third), second, spec=spec)
    elif value.op is Op.TYPED_OUTER:
        made = b.add(Op.EINSUM, _sums(b, graph, x, *third), second, spec="nhi,nho->hio")
    else:
        ends = b.add(Op.BROADCAST_SRC, graph, b.add(Op.EINSUM, x, second, spec=spec))
        product = Formula(b).mul(ends, b.add(Op.BROADCAST_DST, graph, *third))
        made = b.add(Op.SUM_DIMS, product, axes=(1,) if value["by_head"] else (0, 1))
    return Program((graph, *operands), (("out", made),))


def _sums(b: Builder, graph: Value, x: Value, *weight: Value) -> Value:
    """Of sources' rows over the edges into every destination, weighted by edge, or by edge and head."""
    brought = b.add(Op.BROADCAST_SRC, graph, x)
    for each in weight:
        wide = b.add(Op.RESHAPE, each, dims=(*each.tensor.dims, *(1,) * len(each.tensor.dims)))
        brought = Formula(b).mul(brought, wide)
    return b.add(Op.REDUCE, graph, brought, kind="sum")


__all__ = ["described_typed"]
