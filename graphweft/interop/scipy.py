"""Graphs to and from SciPy sparse matrices: entry (i, j) is the edge i -> j.

Comes in: a SciPy matrix, or a Graph. Goes out: the other. Called by users. Nothing is copied where types fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from graphweft._errors import DtypeError, GraphError
from graphweft.graph.graph import Graph
from graphweft.graph.ids import borrow


def from_scipy(matrix: Any, *, weight: str | None = None) -> Graph:
    """Converts a sparse matrix: entry (i, j) is the edge i -> j. ``weight`` names the edge field for the values.

    Edges are numbered row by row. A square matrix gives a square graph, any other matrix a bipartite one. Explicit
    zeros are edges.

    Raises: DtypeError for anything but a SciPy sparse matrix; GraphError, IndexRangeError for a damaged one.

    Example:
        >>> g = from_scipy(sp.csr_array(np.array([[0.0, 2.0], [3.0, 0.0]])), weight="w")
        >>> [t.tolist() for t in g.edges()], g.edata["w"].tolist()
        ([[0, 1], [1, 0]], [2.0, 3.0])
    """
    is_sparse = sp.issparse(matrix)
    if not is_sparse:
        raise DtypeError(f"from_scipy: expected a SciPy sparse matrix, got {type(matrix).__name__}")
    if matrix.ndim != 2:
        raise GraphError(f"from_scipy: expected a matrix, got {matrix.ndim} dimension")
    rows = sp.csr_array(matrix)
    graph = Graph.from_csc(rows.indptr, rows.indices, num_src=rows.shape[1]).reverse()
    if weight is not None:
        graph.edata[weight] = borrow(rows.data)
    return graph


def to_scipy(graph: Graph, *, weight: str | torch.Tensor | None = None) -> sp.csr_array:
    """A CSR array (num_src, num_dst) with an entry per edge. ``weight``: an edge field or a tensor (num_edges,); None:
    ones.

    Parallel edges are separate entries, which SciPy adds up.

    Example:
        >>> to_scipy(Graph([0, 0], [1, 1], num_nodes=2)).toarray().tolist()
        [[0.0, 2.0], [0.0, 0.0]]
    """
    values = graph.edata.get(weight) if isinstance(weight, str) else weight
    if isinstance(weight, str) and values is None:
        raise GraphError(f"to_scipy: expected an edge field, one of {', '.join(graph.edata) or 'none'}, got {weight!r}")
    csr = graph.csr
    if values is None:
        data = np.ones(graph.num_edges, dtype=np.float32)
    elif values.shape != (graph.num_edges,):
        raise GraphError(f"to_scipy: expected {graph.num_edges} weights, one per edge, got shape {tuple(values.shape)}")
    else:
        data = (values if csr.edge_ids is None else values[csr.edge_ids]).detach().cpu().numpy()
    return sp.csr_array((data, csr.indices.numpy(), csr.indptr.numpy()), shape=(graph.num_src, graph.num_dst))
