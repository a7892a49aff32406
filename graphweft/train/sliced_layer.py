"""A layer of an inference over rows on disk, by slices of columns: sums over in-edges without a row for each of them.

Comes in: a table of rows on disk, the nodes that a layer is computed for, a source of parts. Goes out: for every such
node the sum, mean or maximum of its neighbours' rows. Called by inference over parts where the in-edges of a tile lead
anywhere. Rows of all nodes have no room in memory; a few columns of them do. So the table is written anew, slice of
columns after slice; each slice is read whole, and the list of in-edges is gone through, which is far smaller than the
rows that it leads to. Rows that a weight makes narrower are multiplied by it before they are cut. What is read and
written grows with rows and with edges, not with the bytes of a row times edges.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphweft.graph.adjacency import Adjacency
from graphweft.loader.parts import PartSource
from graphweft.nn.gcn import GCNConv
from graphweft.runtime.dense import matmul
from graphweft.runtime.row_sums import power
from graphweft.runtime.sparse import PANEL_ROW, spmm, spmm_max
from graphweft.storage.block_io import ReadCounts, aligned_empty
from graphweft.train.column_slices import ROWS, ColumnSlices
from graphweft.train.edge_lists import EdgeLists
from graphweft.train.hub_rows import joined_kind, scales_sources
from graphweft.train.node_set import NodeSet
from graphweft.train.row_tables import RowTable

_REAL = 4
_WRITTEN = 2  # times what reading a byte costs, for it is waited for
_SLICE, _PIECE, _CHUNK = 0.65, 0.25, 0.8  # of the memory: a slice; in-edges and their sums; rows that are cut
_COPIES = 3  # of a row that is cut: as read, as float32, and its slices
_OF_NODE, _OF_EDGE, _OF_WEIGHT = 32, 8, 8  # bytes of a piece, beside sums


class SlicedPlan(NamedTuple):
    """How a layer is computed by slices.

    Attributes:
        columns: Of a slice.
        step: Nodes whose in-edges are in memory at once.
        chunk: Rows that are cut into slices at once.
        nbytes: What all reading and writing costs, in bytes read.
    """

    columns: int
    step: int
    chunk: int
    nbytes: int


def planned(
    table: RowTable, nodes: int, edges: int, memory: int, narrow: int | None = None, weighted: bool = False
) -> SlicedPlan | None:
    """Slices as wide as have room in ``memory`` bytes; None where none has.

    ``nodes``: that the layer is computed for, with ``edges`` in-edges. ``narrow``: columns of a row that is multiplied
    by a weight before it is cut. ``weighted``: whether edges have weights.
    """
    width = table.width if narrow is None else narrow
    if not (table.is_far and nodes and width):
        return None
    columns = min(int(_SLICE * memory) // (_REAL * table.count), PANEL_ROW // _REAL, width)
    if columns < 1:
        return None
    of_node = _OF_NODE + 2 * _REAL * columns + (_OF_EDGE + (_OF_WEIGHT if weighted else 0)) * edges / nodes
    step = int(_PIECE * memory / of_node) // ROWS * ROWS
    chunk = int(_CHUNK * memory) // (_COPIES * _REAL * table.width) // ROWS * ROWS
    if step < ROWS or chunk < ROWS:
        return None
    slices, row = -(-width // columns), _REAL * width
    # rows as they lie there, once to be cut and once as a node's own; slices of them and of sums, written and read
    rows = 2 * table.count * table.width * table.dtype.itemsize + (1 + _WRITTEN) * row * (table.count + nodes)
    lists = _REAL * (edges + nodes + (edges if weighted else 0))
    return SlicedPlan(columns, step, chunk, rows + lists * (slices + _WRITTEN))


class Reduced:
    """The neighbours' rows of each node put together, on disk.

    Args:
        rows: Of every node.
        has_any: bool (nodes,): which have in-edges. Kept as an attribute.
    """

    def __init__(self, rows: ColumnSlices, has_any: NDArray[np.bool_]) -> None:
        self._rows, self.has_any = rows, has_any

    def into(self, first: int, end: int, out: Tensor, counts: ReadCounts | None) -> None:
        """The rows of the nodes ``first`` to ``end``, into ``out``; ``counts``: adds what was read."""
        self._rows.rows(first, end, out, counts)

    def stretch(self, first: int, end: int, out: Tensor) -> tuple[Tensor, int]:
        """Which of the nodes ``first`` to ``end`` have in-edges, bool (n,), and how many; their rows, into ``out``."""
        has_any = torch.from_numpy(self.has_any[first:end])
        found, count = self._rows.rows(first, end, out[: end - first]), int(has_any.sum())
        if count < end - first:
            out[:count] = found[has_any]
        return has_any, count


def reduced(
    layer: nn.Module,
    table: RowTable,
    nodes: NodeSet,
    source: PartSource,
    degrees: Tensor,
    plan: SlicedPlan,
    folder: Path | None,
    weight: Tensor | None = None,
    weighted: bool = False,
) -> Reduced:
    """The neighbours' rows of ``nodes`` put together as ``layer``, which is reducible, does.

    ``degrees``: float32 (N,) edges into each node, self-loops left out. ``weight``: what rows are multiplied by before.
    ``weighted``: each row is multiplied by the weight of its edge, and ``degrees`` are the weights of a node's in-edges
    with that of its own row.

    Raises: NoRoomError.
    """
    lists = EdgeLists(source, nodes, table, plan.step, isinstance(layer, GCNConv), weighted, folder)
    given = (degrees, 0.0 if weighted else 1.0) if scales_sources(layer) else None
    slices = _cut(table, given, weight, plan, folder)
    made, kind = ColumnSlices(nodes.count, slices.width, plan.columns, folder), joined_kind(layer)
    for number in range(len(slices)):
        held = slices.slice(number)
        for first, edges, weights in lists.pieces():
            made.put_slice(number, first, _put_together(edges, held, kind, weights))
        del held
    return Reduced(made, lists.has_any)


def _cut(
    table: RowTable, degrees: tuple[Tensor, float] | None, weight: Tensor | None, plan: SlicedPlan, folder: Path | None
) -> ColumnSlices:
    """The rows by slices of columns.

    ``degrees``: those by whose factors rows are scaled, and what a node's own row adds to them. ``weight``: as above.
    """
    slices = ColumnSlices(table.count, table.width if weight is None else weight.shape[1], plan.columns, folder)
    for first in range(0, table.count, plan.chunk):
        ids = table.ids(first, min(first + plan.chunk, table.count))
        rows = aligned_empty((len(ids), table.width), torch.float32)
        table.fill(ids, rows, torch.arange(len(ids)))
        if degrees is not None:
            rows *= power(degrees[0][torch.from_numpy(ids)], -0.5, degrees[1]).unsqueeze(1)
        slices.put(first, rows if weight is None else matmul(rows, weight))
        table.let_go()
    return slices


def _put_together(edges: Adjacency, rows: Tensor, kind: str, weights: Tensor | None) -> Tensor:
    """Rows of sources by destination; 0 without in-edges. Maxima have no ``weights``."""
    if kind == "max":
        return spmm_max(edges, rows, want_arg=False)[0]
    return spmm(edges, rows, reduce=kind, weight=weights)


__all__ = ["Reduced", "SlicedPlan", "planned", "reduced"]
