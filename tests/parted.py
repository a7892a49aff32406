"""A graph in the numbers of its parts, for tests of groups of parts."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch

import graphweft as gw
from graphweft.loader.group_loader import GroupLoader
from graphweft.loader.parts import MemoryParts

PARTS = 8


def matrix_of(ds: gw.Dataset, source: MemoryParts) -> scipy.sparse.csr_array:
    """(N, N) edges into rows, in the numbers of the source."""
    src, dst = (source.new_id[ends.numpy()] for ends in ds.graph.edges())
    return scipy.sparse.coo_array((np.ones(len(src)), (dst, src)), shape=(ds.num_nodes,) * 2).tocsr()


def seeds_of(ds: gw.Dataset, source: MemoryParts) -> torch.Tensor:
    return torch.from_numpy(np.sort(source.new_id[ds.train_idx.numpy()]))


def assert_each_seed_is_in_one_batch(loader: GroupLoader, seeds: torch.Tensor, labels: torch.Tensor) -> None:
    """In two epochs; ``labels`` of all nodes, in the numbers of the parts."""
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += batch.input_id.tolist()
            assert torch.equal(batch.y[: batch.batch_size], labels[seeds[batch.input_id]])
        assert sorted(seen) == list(range(len(seeds)))
