"""Rows of many edges, cut into pieces that programs of their own compute.

Comes in: the structure of a graph. Goes out: its hubs with their pieces, made once and kept with the graph, or None
where no row has more edges than one program takes. Called by the launchers of kernels over edges, which run a kernel on
the pieces, then on the rows: a hub has no edges of its own there and joins its pieces in their order. Which of these it
does is the constant ``PART`` of a kernel. Source: Merrill and Garland, merge-based SpMV (SC 2016), where parts
of rows are joined by a second step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweft.graph.adjacency import Adjacency
from graphweft.graph.derived import derived
from graphweft.graph.far_adjacency import FarAdjacency
from graphweft.graph.graph import Graph
from graphweft.graph.placed import host_of
from graphweft.runtime.cuda.jit import Kernel

HUB = 128  # edges that one program takes; rows of more are cut into pieces of so many
ROWS, PIECES, JOINED, SECOND = range(4)  # PART: rows as they are; pieces; rows joined from pieces; pieces again


class Hubs(NamedTuple):
    """Rows of more edges than one program takes in good time, in pieces.

    Attributes:
        pieces: int32 (rows + 1,): from which piece to which a row is joined, where it is a hub.
        rows: int32 (size,): the row of a piece.
        offsets: int64 (2 * size,): where the edges of each piece begin and end.
        size: How many pieces.
    """

    pieces: Tensor
    rows: Tensor
    offsets: Tensor
    size: int

    def parts(self, like: Tensor) -> Tensor:
        """Room for what pieces give, where rows give ``like``: 16 bits are kept in 32."""
        dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        return torch.empty((self.size, *like.shape[1:]), dtype=dtype, device=like.device)


def hubs_of(graph: Graph, labelled: bool = True) -> Hubs | None:
    """The hubs of a graph that stays; None where it has none, or was drawn for a batch.

    ``labelled``: of the form with edge ids.
    """
    host = host_of(graph)
    if host.is_drawn or host.num_edges <= HUB:
        return None
    csc = host.csc if labelled else host.csc_structure
    return None if isinstance(csc, FarAdjacency) else hubs_in(csc, graph.device)


def hubs_in(csc: Adjacency, device: torch.device) -> Hubs | None:
    """The hubs among the rows of a structure in host memory, on ``device``."""
    return derived(csc, _cut, device, HUB) if csc.num_edges > HUB else None


def run_by_pieces(
    kernel: Kernel,
    csc: Adjacency,
    hubs: Hubs | None,
    tiles: int,
    read: Sequence[Any],
    results: Sequence[Tensor],
    more: Sequence[Any] = (),
    passes: Sequence[int] = (PIECES,),
    **fixed: Any,
) -> None:
    """Runs a kernel on the pieces of hubs, if there are any, and on all rows.

    Args:
        kernel: Takes offsets, ``read``, results, the tables of pieces, what pieces gave, and ``more``.
        csc: The rows, on the device.
        hubs: Those among them.
        tiles: Programs of a row.
        read: The same in all launches.
        results: A row each.
        more: Such as the words of draws.
        passes: Over the pieces: PIECES, SECOND, which reads what the pieces of a row gave in the first one, or both.
        fixed: Constants.
    """
    if hubs is None:
        tables = csc.indices, csc.indices  # of nothing
        kernel((csc.num_rows, tiles), csc.indptr, *read, *results, *tables, *results, *more, PART=ROWS, **fixed)
        return
    tables, parts = (hubs.pieces, hubs.rows), tuple(map(hubs.parts, results))
    for part in passes:
        kernel((hubs.size, tiles), hubs.offsets, *read, *parts, *tables, *parts, *more, PART=part, **fixed)
    kernel((csc.num_rows, tiles), csc.indptr, *read, *results, *tables, *parts, *more, PART=JOINED, **fixed)


def _cut(csc: Adjacency, device: torch.device, most: int) -> Hubs | None:
    counts = (csc.degrees() + most - 1) // most
    counts[csc.degrees() <= most] = 0
    pieces = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    size = int(pieces[-1])
    if not size:
        return None
    rows = torch.arange(csc.num_rows).repeat_interleave(counts)
    begins = csc.indptr[rows] + (torch.arange(size) - pieces[rows]) * most
    offsets = torch.stack([begins, torch.minimum(begins + most, csc.indptr[rows + 1])], dim=1)
    return Hubs(pieces.int().to(device), rows.int().to(device), offsets.reshape(-1).to(device), size)


__all__ = ["HUB", "JOINED", "PIECES", "ROWS", "SECOND", "Hubs", "hubs_in", "hubs_of", "run_by_pieces"]
