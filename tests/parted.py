"""A graph in the numbers of its parts, for tests of groups of parts."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch

import graphweft as gw
from graphweft.loader.parts import MemoryParts

PARTS = 8


def matrix_of(ds: gw.Dataset, source: MemoryParts) -> scipy.sparse.csr_array:
    """(N, N) edges into rows, in the numbers of the source."""
    src, dst = (source.new_id[ends.numpy()] for ends in ds.graph.edges())
    return scipy.sparse.coo_array((np.ones(len(src)), (dst, src)), shape=(ds.num_nodes,) * 2).tocsr()


def seeds_of(ds: gw.Dataset, source: MemoryParts) -> torch.Tensor:
    return torch.from_numpy(np.sort(source.new_id[ds.train_idx.numpy()]))
