"""All in-edges of some rows, in NumPy.

Comes in: a graph, or offsets of its rows, and node ids. Goes out: an entry for every in-edge, row after row. Called by
the samplers that weigh edges before they draw, and by what reads rows of parts.
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


def entries_of(offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """How many entries each of some rows has, and their places, row after row.

    Example:
        >>> [found.tolist() for found in entries_of(np.array([0, 2, 3, 6]), np.array([2, 0]))]
        [[3, 2], [3, 4, 5, 0, 1]]
    """
    counts = offsets[rows + 1] - offsets[rows]
    firsts = np.cumsum(counts) - counts
    return counts, np.arange(int(counts.sum())) + np.repeat(offsets[rows] - firsts, counts)


def in_edges(graph: Graph, rows: Ints) -> InEdges:
    """The in-edges of the nodes ``rows``.

    Example:
        >>> found = in_edges(Graph([1, 2, 0], [0, 0, 2]), np.array([2, 0]))
        >>> found.row.tolist(), found.source.tolist(), found.offset.tolist()
        ([0, 1, 1], [0, 1, 2], [0, 0, 1])
    """
    csc = graph.csc
    indptr = csc.indptr.numpy()
    degrees, place = entries_of(indptr, rows)
    row = np.repeat(np.arange(len(rows)), degrees)
    return InEdges(row, csc.indices.numpy()[place].astype(np.int64), place, place - indptr[rows][row])
