"""Buffers of one shape for what the first stage of a batch makes, by bounds on its sizes.

Comes in: a plan and what its first stage made for one batch after the other. Goes out: :class:`Bounds` on sizes hop by
hop, and :class:`BatchBuffers` with the same numbers at addresses and in shapes that stay. Rows beyond the batch are 0
and have no edges, so sums over edges spend nothing on them, and the loss does not read them. Called by captured steps
and, for the bounds alone, by the padding of loaders. Source: Joestar, section 5.4 (kernel invocation grouping).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.graph import Graph
from graphweft.graph.placed import PlacedGraph
from graphweft.ir.ops import SPECS
from graphweft.ir.residency import Movement, StructType, TensorType
from graphweft.runtime.plan import Form, Plan, form_of
from graphweft.runtime.targets import target_of
from graphweft.storage.feature import is_dense

SEEDS, NODES = "B", "N"  # the symbols of the seeds and of all nodes in programs of batches
# kernels that read nothing of a graph but its sizes and the arrays of one form: what they derive from it would be that
# of the first batch
READERS = frozenset({
    "spmm", "matmul_terms", "contract_terms", "own_rows", "attention", "attention_grad", "matmul", "rows", "contract",
    "pad_rows", "row_nest",
})  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """Sizes that batches stay below.

    Attributes:
        rows: Seeds, then nodes of all hops up to the first, the second and so on.
        edges: Edges of every hop, the seeds' first.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]

    def joined(self, other: Bounds) -> Bounds:
        """The larger of both, size by size."""
        return Bounds(tuple(map(max, self.rows, other.rows)), tuple(map(max, self.edges, other.edges)))

    def holds(self, other: Bounds) -> bool:
        """Whether sizes are within these bounds.

        Example:
            >>> Bounds((4, 9), (7,)).holds(Bounds((4, 8), (7,))), Bounds((4, 9), (7,)).holds(Bounds((4, 8), (8,)))
            (True, False)
        """
        return self.joined(other) == self

    def widened(self, slack: float) -> Bounds:
        """Larger by a share, but for the seeds.

        Example:
            >>> Bounds((4, 9), (10,)).widened(0.25)
            Bounds(rows=(4, 12), edges=(13,))
        """
        more = [math.ceil(count * (1 + slack)) for count in (*self.rows[1:], *self.edges)]
        return Bounds((self.rows[0], *more[: len(self.rows) - 1]), tuple(more[len(self.rows) - 1 :]))


class Shapes:
    """Which sizes the hoisted values of a batch's plan have.

    Args:
        plan: Of the second stage.

    Attributes:
        refused: Why its batches cannot be padded; "" where they can.
    """

    def __init__(self, plan: Plan) -> None:
        self.types = [item.value.type for item in plan.hoisted]
        program = plan.compiled.program
        self.forms = [form_of(item.value, program, ()) for item in plan.hoisted]
        nodes, edges = {SEEDS}, set[str]()
        for type_ in self.types:
            if isinstance(type_, StructType):
                nodes |= {type_.src, type_.dst}
                edges.add(type_.edge)
        self._nodes = (SEEDS, *sorted(nodes - {SEEDS, NODES}))
        self._edges = tuple(sorted(edges))
        self.refused = self._refused(plan, edges)

    def _refused(self, plan: Plan, edges: set[str]) -> str:
        graphs = {item.slot for item in plan.hoisted if isinstance(item.value.type, StructType)}
        if "graph" in plan.fixed:
            return "the step reads the whole graph"
        if any(isinstance(v.type, TensorType) and v.type.sparse for v in plan.compiled.program.values):
            return "rows of features are sparse"
        if [name for name, _ in plan.outputs] != ["out"]:
            return "normalisation takes statistics over the rows of a batch"
        for call in plan.forward:
            if any(SPECS[value.op].movement is Movement.CONTRACT for value in call.body):
                return f"{call.kernel} adds up the rows of a batch"
        for call in (*plan.forward, *plan.backward):
            if call.kernel not in READERS and any(slot.at in graphs for slot in call.reads):
                return f"{call.kernel} derives more from a batch's edges than their arrays"
            for slot in (*call.reads, *call.writes):
                if isinstance(slot.value.type, TensorType) and slot.value.type.rows in edges:
                    return f"{call.kernel} has rows of edges"
        return ""

    def of(self, seeds: int, values: tuple[Any, ...]) -> Bounds:
        """The sizes of a batch."""
        found = {SEEDS: seeds}
        for type_, value in zip(self.types, values, strict=True):
            if isinstance(type_, StructType):
                found |= {type_.src: value.num_src, type_.dst: value.num_dst, type_.edge: value.num_edges}
            elif type_.rows is not None:
                found[type_.rows] = value.shape[0]
        return Bounds(tuple(found[name] for name in self._nodes), tuple(found[name] for name in self._edges))

    def named(self, bounds: Bounds) -> dict[str, int]:
        """Sizes by symbol."""
        return dict(zip((*self._nodes, *self._edges), (*bounds.rows, *bounds.edges), strict=True))


class BatchBuffers:
    """Buffers for the values of a batch, its seeds and its labels.

    Args:
        shapes: Of the plan.
        bounds: What they hold.
        values: Of some batch, for dtypes and for what does not grow with a batch.
        labels: Of some seeds, likewise.
        device: Where they lie.

    Attributes:
        values: What the second stage reads: the same objects for every batch.
        labels: Of the seeds.
    """

    def __init__(
        self, shapes: Shapes, bounds: Bounds, values: tuple[Any, ...], labels: Tensor, device: torch.device
    ) -> None:
        self.bounds, self._shapes, self._device = bounds, shapes, device
        self._pinned = target_of(device).pinned
        sizes, seeds = shapes.named(bounds), bounds.rows[0]
        made = [self._buffer(*kind, sizes) for kind in zip(shapes.types, shapes.forms, values, strict=True)]
        self._arrays = [arrays for _, arrays in made]
        self.values = tuple(value for value, _ in made)
        self._held: list[Any] = [None] * len(values)
        self.labels = labels.new_zeros((seeds, *labels.shape[1:]), device=device)
        self.seeds = torch.zeros(seeds, dtype=torch.int64, device=device)

    def _buffer(self, type_: Any, form: Form, value: Any, sizes: Mapping[str, int]) -> tuple[Any, tuple[Any, ...]]:
        """A value of the bounds' size, and the arrays behind it."""
        if not isinstance(type_, StructType):
            if not is_dense(value):
                return value, ()
            rows = value.shape[0] if type_.rows in (None, NODES) and value.dim() else sizes.get(str(type_.rows))
            shape = value.shape if rows is None else (rows, *value.shape[1:])
            there = value.new_zeros(shape, device=self._device)
            return there, (there,)
        given = _form(value, form)
        columns = value.num_src if type_.src == NODES else sizes[type_.src]
        sizes_of = (sizes[type_.dst] + 1, sizes[type_.edge], sizes[type_.edge])
        arrays = tuple(
            None if array is None else array.new_zeros(count, device=self._device)
            for array, count in zip((given.indptr, given.indices, given.edge_ids), sizes_of, strict=True)
        )
        return placed(Adjacency(arrays[0], arrays[1], arrays[2], columns)), arrays  # type: ignore[arg-type]

    def fill(self, seeds: Tensor, values: tuple[Any, ...], labels: Tensor) -> None:
        """Writes a batch into the buffers; rows beyond it become 0, without edges."""
        for at, (form, value, arrays) in enumerate(zip(self._shapes.forms, values, self._arrays, strict=True)):
            type_ = self._shapes.types[at]
            if not isinstance(type_, StructType) and type_.rows in (None, NODES):
                if value is self._held[at]:  # of the whole graph, the same for every batch
                    continue
                self._held[at] = value
            if isinstance(value, Graph):
                given = _form(value, form)
                for target, source in zip(arrays, (given.indptr, given.indices, given.edge_ids), strict=True):
                    if source is not None:
                        target[: source.numel()].copy_(self._pinned(source), non_blocking=True)
                arrays[0][given.num_rows + 1 :].fill_(given.num_edges)
            elif arrays:
                _padded(arrays[0], self._pinned(value))
        _padded(self.seeds, self._pinned(seeds))
        _padded(self.labels, self._pinned(labels))


def _form(value: Graph, form: Form) -> Adjacency:
    """The compressed form that the step reads."""
    return value.csc_structure if form is Form.ROWS else value.csc


def _padded(target: Tensor, source: Tensor) -> None:
    """``source``, then zeros."""
    if not source.dim():
        target.copy_(source)
        return
    count = source.shape[0]
    target[:count].copy_(source, non_blocking=True)
    if count < target.shape[0]:
        target[count:].zero_()


def placed(csc: Adjacency) -> Graph:
    """The bipartite graph of arrays that may lie on a device."""
    device = csc.indptr.device
    if device.type == "cpu":
        return Graph.from_adjacency(csc, bipartite=True)
    rows = torch.zeros(csc.num_rows + 1, dtype=torch.int64)  # of the host's copy nothing is read but sizes
    host = Adjacency(rows, torch.empty_like(csc.indices, device="cpu"), None, csc.num_cols)
    host.keep_twin(csc)
    return PlacedGraph.over(Graph.from_adjacency(host, bipartite=True), device)


__all__ = ["BatchBuffers", "Bounds", "Shapes", "placed"]
