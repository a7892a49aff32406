"""In-edges of the nodes that a layer is computed for, by the rows of the table that the layer reads, in a file.

Comes in: parts of a graph, the nodes, a table of rows. Goes out: pieces of as many nodes each, again and again, each an
adjacency from rows of the table. Called by inference over slices of columns, which goes through all edges once a slice:
the numbers are looked up once, and a piece is one request wherever parts begin. Weights of edges lie beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphweft._distinct import Ids
from graphweft.graph.adjacency import Adjacency
from graphweft.loader.parts import PartSource
from graphweft.sample.in_edges import entries_of
from graphweft.storage.block_io import aligned_empty
from graphweft.storage.requests import SECTOR
from graphweft.train.node_set import NodeSet
from graphweft.train.row_tables import RowTable
from graphweft.train.scratch import Scratch

_TAKES = 4  # of a piece: nodes whose in-edges are looked up at a time, which takes several numbers an edge


class EdgeLists:
    """In-edges of some nodes.

    Args:
        source: The parts.
        nodes: The nodes.
        table: The rows that their in-edges lead to.
        step: Nodes of a piece.
        without_loops: Leaves edges from a node to itself out.
        weighted: Whether edges have their weights beside them.
        folder: Of the file; None: the system's folder of such files.

    Attributes:
        has_any: bool (nodes,): which have in-edges.

    Raises: NoRoomError.
    """

    def __init__(
        self,
        source: PartSource,
        nodes: NodeSet,
        table: RowTable,
        step: int,
        without_loops: bool,
        weighted: bool,
        folder: Path | None,
    ) -> None:
        self._file, self._rows, self._weighted = Scratch(folder, 1 << 20), table.count, weighted
        self._dtype = torch.int32 if table.count < 1 << 31 else torch.int64
        self._pieces: list[tuple[int, int, int]] = []  # offset, nodes, edges
        self._end = 0
        self.has_any = np.zeros(nodes.count, np.bool_)
        degrees: list[Ids] = []
        columns: list[NDArray[np.integer]] = []
        weights: list[NDArray[np.float32]] = []
        held = row = 0
        for counts, some, own in _taken(source, nodes, table, step, without_loops, weighted):
            self.has_any[row : row + len(counts)] = counts > 0
            degrees.append(counts)
            columns.append(some.astype(np.int32 if self._dtype == torch.int32 else np.int64))
            if own is not None:
                weights.append(own)
            held, row = held + len(counts), row + len(counts)
            if held == step or row == nodes.count:
                self._add(degrees, columns, weights)
                degrees, columns, weights, held = [], [], [], 0

    def _add(self, degrees: list[Ids], columns: list[NDArray[np.integer]], weights: list[NDArray[np.float32]]) -> None:
        """Writes a piece: edges of each node, then their rows, then their weights."""
        nodes, edges = sum(map(len, degrees)), sum(map(len, columns))
        held = _piece(nodes, edges, self._dtype, self._weighted)
        held.degrees.numpy()[:] = np.concatenate(degrees)
        held.columns.numpy()[:] = np.concatenate(columns)
        if held.weights is not None:
            held.weights.numpy()[:] = np.concatenate(weights)
        self._pieces.append((self._end, nodes, edges))
        self._file.write_pages(held.content, self._end)
        self._end += held.content.nbytes

    def pieces(self) -> Iterator[tuple[int, Adjacency, Tensor | None]]:
        """The first node of each piece, its in-edges, and their weights."""
        first = 0
        with self._file.opened() as file:
            for offset, nodes, edges in self._pieces:
                held = _piece(nodes, edges, self._dtype, self._weighted)
                file.read_into(offset, held.content)
                indptr = torch.zeros(nodes + 1, dtype=torch.int64)
                torch.cumsum(held.degrees, 0, out=indptr[1:])
                yield first, Adjacency(indptr, held.columns, None, self._rows), held.weights
                first += nodes


class _Piece(NamedTuple):
    """Memory of a piece: numbers of edges, rows, weights or None, and all of them as bytes."""

    degrees: Tensor
    columns: Tensor
    weights: Tensor | None
    content: Tensor


def _piece(nodes: int, edges: int, dtype: torch.dtype, weighted: bool) -> _Piece:
    """Memory of a piece, whole sectors."""
    begin = -(-4 * nodes // 8) * 8
    end = begin + dtype.itemsize * edges
    last = end + (4 * edges if weighted else 0)
    content = aligned_empty((-(-last // SECTOR) * SECTOR,), torch.uint8)
    weights = content[end:last].view(torch.float32) if weighted else None
    return _Piece(content[: 4 * nodes].view(torch.int32), content[begin:end].view(dtype), weights, content)


def _taken(
    source: PartSource, nodes: NodeSet, table: RowTable, step: int, without_loops: bool, weighted: bool
) -> Iterator[tuple[Ids, Ids, NDArray[np.float32] | None]]:
    """Edges of some nodes, the rows that they lead to, and their weights.

    No take goes beyond a multiple of ``step`` nodes.
    """
    row = 0
    for number, start in enumerate(source.bounds[:-1].tolist()):
        own = nodes.within(start, int(source.bounds[number + 1])) - start
        if not len(own):
            continue
        offsets, sources = source.structure(number)
        weights = source.edge_columns(number)[1] if weighted else None
        done = 0
        while done < len(own):
            stop = min(done + max(step // _TAKES, 1), done + step - row % step, len(own))
            some = own[done:stop]
            degrees, places = entries_of(offsets, some)
            taken = sources[places].astype(np.int64)
            weight = None if weights is None else weights[places]
            if without_loops:
                of = np.repeat(np.arange(len(some)), degrees)
                is_other = taken != some[of] + start
                taken, degrees = taken[is_other], np.bincount(of[is_other], minlength=len(some))
                weight = None if weight is None else weight[is_other]
            yield degrees, table.places(taken), weight
            row, done = row + len(some), stop


__all__ = ["EdgeLists"]
