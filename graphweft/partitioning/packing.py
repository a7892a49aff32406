"""Parts by weight alone: whole components, or single nodes, the heaviest first, each to the lightest part.

Comes in: a graph and a number of parts. Goes out: the part of every node. Called by
:mod:`graphweft.partitioning.partition` and :mod:`graphweft.partitioning.hierarchy`. Source: Morphling, section IV-E1,
algorithm 4, phases II and III. The rule is that of Graham's longest processing time first (SIAM J. Appl. Math. 1969):
the heaviest part is within 4/3 of the least possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphweft.graph.graph import Graph


def lightest_first(weights: Iterable[int], k: int) -> list[int]:
    """The bin of every item, taken in the given order, each into the lightest of ``k`` bins, the lowest among equals.

    Example:
        >>> lightest_first([5, 4, 3, 3, 3], 2)
        [0, 1, 1, 0, 1]
    """
    loads, bins = [(0, number) for number in range(k)], []
    for weight in weights:
        load, number = loads[0]
        heapq.heapreplace(loads, (load + weight, number))
        bins.append(number)
    return bins


def components(graph: Graph) -> tuple[int, Tensor]:
    """The number of connected components and the component of every node, int64 (N,); directions do not count.

    Example:
        >>> found = components(Graph([0, 2], [1, 3]))
        >>> found[0], found[1].tolist()
        (2, [0, 0, 1, 1])
    """
    csc, nodes = graph.csc, graph.num_nodes
    ones = np.broadcast_to(np.int8(1), (csc.indices.numel(),))
    matrix = scipy.sparse.csr_array((ones, csc.indices.numpy(), csc.indptr.numpy()), shape=(nodes, nodes))
    count, of_node = scipy.sparse.csgraph.connected_components(matrix, directed=True, connection="weak")
    return int(count), torch.from_numpy(of_node).long()


def packed_components(of_node: Tensor, count: int, k: int) -> Tensor:
    """The part of every node, int32 (N,): components go to parts as wholes, the largest first.

    Shape: of_node (N,) int64 in [0, count).

    Example:
        >>> packed_components(torch.tensor([0, 0, 0, 1, 1, 2]), 3, 2).tolist()
        [0, 0, 0, 1, 1, 1]
    """
    sizes = torch.bincount(of_node, minlength=count)
    order = torch.argsort(sizes, descending=True, stable=True)
    part = torch.empty(count, dtype=torch.int32)
    part[order] = torch.tensor(lightest_first(sizes[order].tolist(), k), dtype=torch.int32)
    return part[of_node]


def greedy(degrees: Tensor, k: int) -> Tensor:
    """The part of every node, int32 (N,), by degree alone, the highest first; a node weighs its degree and one.

    The one spreads nodes without edges, too. Hubs go to different parts, and sums of degrees are nearly equal. Takes
    O(N log N).

    Shape: degrees (N,) integers.

    Example:
        >>> greedy(torch.tensor([3, 1, 1, 1]), 2).tolist()
        [0, 1, 1, 0]
    """
    order = torch.argsort(degrees, descending=True, stable=True)
    part = torch.empty(degrees.numel(), dtype=torch.int32)
    weights: Sequence[int] = (degrees[order].long() + 1).tolist()
    part[order] = torch.tensor(lightest_first(weights, k), dtype=torch.int32)
    return part
