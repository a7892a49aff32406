"""All in-edges of some rows, in NumPy.

Comes in: a graph and node ids. Goes out: an entry for every in-edge, row after row. Called by the samplers that weigh
edges before they draw.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphweft.graph.graph import Graph

Ints = NDArray[np.int64]


class InEdges(NamedTuple):
    """Place of the row among those asked for, source, place in the graph's rows, and place within the row."""

    row: Ints
    source: Ints
    place: Ints
    offset: Ints


def in_edges(graph: Graph, rows: Ints) -> InEdges:
    """The in-edges of the nodes ``rows``.

    Example:
        >>> found = in_edges(Graph([1, 2, 0], [0, 0, 2]), np.array([2, 0]))
        >>> found.row.tolist(), found.source.tolist(), found.offset.tolist()
        ([0, 1, 1], [0, 1, 2], [0, 0, 1])
    """
    csc = graph.csc
    indptr = csc.indptr.numpy()
    degrees = indptr[rows + 1] - indptr[rows]
    row = np.repeat(np.arange(len(rows)), degrees)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    place = indptr[rows][row] + offset
    return InEdges(row, csc.indices.numpy()[place].astype(np.int64), place, offset)
