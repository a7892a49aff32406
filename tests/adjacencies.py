"""A compressed adjacency made with NumPy, so that kernels are tested apart from the graph layer."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from graphweft import _native


class Layout:
    """Rows list ``cols`` in order; ``edge_ids`` None means position p is edge p."""

    def __init__(self, rows, cols, num_rows, num_cols, *, wide=False, ids=True):
        rows, cols = np.asarray(rows, np.int64), np.asarray(cols, np.int64)
        order = np.lexsort((cols, rows)) if ids else np.argsort(rows, kind="stable")
        if not ids:  # edges are numbered by position: renumber them
            rows, cols, order = rows[order], cols[order], np.arange(len(rows))
        dtype = torch.int64 if wide else torch.int32
        self.num_rows, self.num_cols, self.num_edges = num_rows, num_cols, len(rows)
        self.edge_rows, self.edge_cols = rows, cols  # by edge id
        counts = np.bincount(rows, minlength=num_rows) if len(rows) else np.zeros(num_rows, np.int64)
        self.indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        self.indices = torch.from_numpy(cols[order]).to(dtype)
        self.edge_ids = torch.from_numpy(order.astype(np.int64)).to(dtype) if ids else None
        self.native = _native.Adjacency(
            num_rows,
            num_cols,
            len(rows),
            self.indptr.data_ptr(),
            self.indices.data_ptr(),
            None if self.edge_ids is None else self.edge_ids.data_ptr(),
            int(wide),
        )

    @classmethod
    def of(cls, edges, **options):
        """In-edges of ``zoo.Edges``."""
        return cls(edges.dst, edges.src, edges.num_nodes, edges.num_nodes, **options)

    def transposed(self):
        """Rows are the columns of this one; edges keep their ids."""
        wide = self.indices.dtype == torch.int64
        return Layout(self.edge_cols, self.edge_rows, self.num_cols, self.num_rows, wide=wide, ids=True)

    def matrix(self, values=None):
        """SciPy CSR in float64; repeated entries add up."""
        values = np.ones(self.num_edges) if values is None else np.asarray(values, np.float64)
        return sp.csr_matrix((values, (self.edge_rows, self.edge_cols)), shape=(self.num_rows, self.num_cols))

    def degrees(self):
        return np.diff(self.indptr.numpy())
