"""Memory that a sampler writes drawn edges to.

Comes in: numbers of rows and edges. Goes out: arrays whose addresses native samplers take, and the same as edges of a
graph. Called by the samplers beside this module.
"""

from __future__ import annotations

import torch

from graphweft._memory import empty
from graphweft.graph.block import DrawnEdges, Runs
from graphweft.graph.graph import Graph


class DrawnBuffers:
    """Memory for the drawn edges of some rows."""

    def __init__(self, rows: int, edges: int) -> None:
        self.indptr = empty((rows + 1,), torch.int64)
        self.indices, self.offsets = empty((edges,), torch.int32), empty((edges,), torch.int32)
        self.pointers = (self.indptr.data_ptr(), self.indices.data_ptr(), self.offsets.data_ptr())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.indptr.nbytes + self.indices.nbytes + self.offsets.nbytes

    def head(self, rows: int) -> DrawnBuffers:
        """The first rows, over the same memory."""
        part = DrawnBuffers.__new__(DrawnBuffers)
        part.indptr = self.indptr[: rows + 1]
        edges = int(part.indptr[-1])
        part.indices, part.offsets = self.indices[:edges], self.offsets[:edges]
        return part

    def edges(self, graph: Graph, n_id: torch.Tensor, first: int = 0, runs: Runs | None = None) -> DrawnEdges:
        """As edges of ``graph``."""
        made = DrawnEdges(graph, n_id, self.indptr, self.indices, self.offsets, first)
        made.runs = runs
        return made
