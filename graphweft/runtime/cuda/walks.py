"""Launchers of generated kernels: walks over the edges of a graph, and regions over rows.

Comes in: calls that a plan has. Goes out: a function of the slots for each, or None for a nest that has no Triton text,
whose values the interpreter then computes. Registered in ``target.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from graphweft._errors import IRError
from graphweft.codegen.edge_nest import EdgeNest
from graphweft.codegen.edge_triton import EdgeKernel, padded, render_walk
from graphweft.codegen.loops import row_nest
from graphweft.codegen.triton_text import render_rows
from graphweft.graph.graph import Graph
from graphweft.ir.program import Value
from graphweft.runtime.cuda import functions
from graphweft.runtime.cuda.jit import Kernel, generated, launch, warps_for
from graphweft.runtime.described import walk_of
from graphweft.runtime.kernel_call import KernelCall, Slots
from graphweft.runtime.target import Launch

_FUNCTIONS = tuple((name, item) for name, item in vars(functions).items() if isinstance(item, Kernel))
_TILE = 256  # elements of the largest block
_EDGES, _FEW = 16, 1  # most edges of a block; where dimensions are added up, whose blocks take more registers
_DENSE = 4  # times as many warps as for a kernel with one block: walks hold several, in 64 registers a thread
_PROGRAMS = 1024  # of a walk that adds up totals: each is a result per program
_BLOCK = 1024  # elements of a region over rows that a program computes


def edge_walk(call: KernelCall) -> Launch | None:
    """A walk over the edges of a graph, in one kernel."""
    try:
        return walk_of(call, lambda nest, results, graph: Walk(nest, render_walk(nest), results, graph))
    except IRError:
        return None


def tile_of(kernel: EdgeKernel) -> tuple[int, int]:
    """Edges of a block, and warps of a program."""
    edges = max(1, min(_FEW if kernel.sums else _EDGES, _TILE // padded(kernel.block)))
    return edges, warps_for(_DENSE * edges * kernel.block)


class Walk:
    """A generated kernel over edges: from the graph and what is read to the results.

    Attributes:
        kernel: Its text.
        edges: Edges of a block.
        warps: Of a program.
    """

    def __init__(self, nest: EdgeNest, kernel: EdgeKernel, results: Sequence[Value], graph: Value) -> None:
        self.kernel, self._struct = kernel, graph.struct
        self.edges, self.warps = tile_of(kernel)
        self._made = [(value.tensor.rows, value.tensor.dims) for value in results]
        self._real = torch.float64 if nest.real == "double" else torch.float32

    def __call__(self, graph: Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Results in order, on the device of the graph."""
        csc = graph.csc
        device, rows = csc.indptr.device, csc.num_rows
        sizes = {self._struct.edge: graph.num_edges, self._struct.dst: graph.num_dst}
        share = -(-rows // _PROGRAMS) if self.kernel.totals else 1
        programs = -(-rows // share) if rows else 0
        made = []
        for k, (own, dims) in enumerate(self._made):
            lead = (programs,) if k in self.kernel.totals else () if own is None else (sizes[own],)
            made.append(torch.empty((*lead, *dims), dtype=self._real, device=device))
        given = [t.to(self._real).contiguous() for t in tensors]
        ids = csc.indices if csc.edge_ids is None else csc.edge_ids
        arrays = (csc.indptr, csc.indices, ids, *given, *made)
        fixed: dict[str, Any] = {"HAS_IDS": csc.edge_ids is not None, "BE": self.edges}
        compiled = generated(self.kernel.text, "walk", _FUNCTIONS)
        launch(compiled, (programs,), *arrays, rows, share, warps=self.warps, fusion=not self.kernel.sums, **fixed)
        return [t.sum(0) if k in self.kernel.totals else t for k, t in enumerate(made)]


def row_region(call: KernelCall) -> Launch | None:
    """Elementwise functions of matrices of one shape, in one kernel."""
    try:
        nest, read = row_nest(call.body)
        text = render_rows(nest)
    except IRError:
        return None
    at = {slot.value: slot.at for slot in call.reads}
    places, out = [at[value] for value in read], call.writes[0].at
    matrix = next(k for k in range(nest.inputs) if k not in nest.vectors)
    width = max(prod(call.value.tensor.dims), 1)

    def run(slots: Slots) -> None:
        given = [slots[i].contiguous() for i in places]
        slots[out] = made = torch.empty_like(given[matrix])
        count = prod(made.shape)
        compiled = generated(text, "rows", _FUNCTIONS)
        launch(compiled, (-(-count // _BLOCK),), *given, made, count, warps=4, F=width, BLOCK=_BLOCK)

    return run


__all__ = ["Walk", "edge_walk", "row_region", "tile_of"]
