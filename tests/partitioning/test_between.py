"""The graph between clusters, put together from pieces, against SciPy's products."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from graphweft.graph.adjacency import Adjacency
from graphweft.partitioning.between import Between


def _piece(matrix: sp.csr_matrix, first: int, last: int) -> Adjacency:
    rows = matrix[first:last]
    indptr, indices = torch.from_numpy(rows.indptr.astype(np.int64)), torch.from_numpy(rows.indices.astype(np.int32))
    return Adjacency(indptr, indices, None, matrix.shape[1])


def _graph(nodes: int, edges: int, seed: int) -> sp.csr_matrix:
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, nodes, (2, edges))
    made = sp.coo_matrix((np.ones(edges, np.int64), (src, dst)), (nodes, nodes)).tocsr()
    made = ((made + made.T) > 0).astype(np.int64)
    made.setdiag(0)
    made.eliminate_zeros()
    return made.tocsr()


@pytest.mark.parametrize("cuts", [(0, 900), (0, 300, 301, 700, 900)])
def test_entries_are_those_of_the_product_with_the_clusters(cuts: tuple[int, ...]) -> None:
    matrix, clusters = _graph(900, 6000, 0), 70
    of = np.random.default_rng(1).integers(0, clusters, 900).astype(np.int32)
    of[:clusters] = np.arange(clusters)
    between = Between(clusters, 1 << 20)
    for first, last in pairwise(cuts):
        between.add(first, _piece(matrix, first, last), None, of)
    csc, weights = between.graph()
    member = sp.csr_matrix((np.ones(900, np.int64), (np.arange(900), of)), (900, clusters))
    expected = (member.T @ matrix @ member).tolil()
    expected.setdiag(0)
    found = sp.csr_matrix((weights.astype(np.int64), csc.indices.numpy(), csc.indptr.numpy()), (clusters, clusters))
    assert (found != expected.tocsr()).nnz == 0


def test_a_sample_has_whole_pairs_of_clusters_with_their_weights() -> None:
    matrix, clusters, most = _graph(900, 6000, 0), 300, 800
    of = (np.arange(900) % clusters).astype(np.int32)
    between = Between(clusters, most)
    for first in range(0, 900, 100):
        between.add(first, _piece(matrix, first, first + 100), None, of)
    csc, weights = between.graph()
    member = sp.csr_matrix((np.ones(900, np.int64), (np.arange(900), of)), (900, clusters))
    whole = (member.T @ matrix @ member).tocsr()
    found = sp.csr_matrix((weights.astype(np.int64), csc.indices.numpy(), csc.indptr.numpy()), (clusters, clusters))
    assert most // 8 < found.nnz <= most < whole.nnz
    assert (found != found.T).nnz == 0
    rows, columns = found.nonzero()
    assert np.array_equal(np.asarray(found[rows, columns]), np.asarray(whole[rows, columns]))
