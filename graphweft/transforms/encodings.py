"""Encodings of nodes by where they are in the graph, as columns to put beside the features.

Comes in: a graph. Goes out: a float32 matrix with a row for each node. Called by users. Sources: Dwivedi et al., ICLR
2022 (random walks), Cai and Wang, 2018 (local degree profile).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float32
from torch import Tensor

from graphweft._checks import as_integer
from graphweft._errors import ConfigError, GraphError
from graphweft.data.structure_features import structure_features
from graphweft.graph.graph import Graph

_ENTRIES = 1 << 22  # of the dense block that walks are followed in


def laplacian_encoding(graph: Graph, width: int, seed: int = 0) -> Float32[Tensor, "nodes {width}"]:
    """The first eigenvectors of the normalised Laplacian of the undirected graph, without the trivial one.

    Shape: (N, width) float32, columns of mean square 1, the largest entry positive.

    Raises: ConfigError for a width that is too large for the graph.

    Example:
        >>> laplacian_encoding(Graph([0, 1, 2], [1, 2, 0]), 2).shape
        torch.Size([3, 2])
    """
    found = structure_features(_square("laplacian_encoding", graph), "laplacian", width, seed)
    assert isinstance(found, Tensor)  # only one-hot features are sparse
    return found


def random_walk_encoding(graph: Graph, steps: int) -> Float32[Tensor, "nodes {steps}"]:
    """Return probabilities of random walks: column t is the probability that a walk of t + 1 steps ends at its start.

    Every step takes one of the out-edges with equal probability. The time is proportional to steps x N x E, so the
    function is meant for graphs of some ten thousand nodes and for sets of small graphs.

    Shape: (N, steps) float32.

    Raises: ConfigError, GraphError.

    Example:
        >>> random_walk_encoding(Graph([0, 1], [1, 0]), 2).tolist()
        [[0.0, 1.0], [0.0, 1.0]]
    """
    _square("random_walk_encoding", graph)
    number = as_integer(steps)
    if number is None or number < 1:
        raise ConfigError(f"random_walk_encoding: expected steps as an integer >= 1, got {steps!r}")
    nodes = graph.num_nodes
    src, dst = (ends.numpy() for ends in graph.edges())
    out_degrees = graph.out_degrees().numpy()
    chances = 1.0 / out_degrees[src]
    back: Any = scipy.sparse.csr_array((chances, (dst, src)), shape=(nodes, nodes))
    encoding = np.zeros((nodes, number))
    width = max(_ENTRIES // max(nodes, 1), 1)
    for first in range(0, nodes, width):
        here = np.arange(first, min(first + width, nodes))
        reached = np.zeros((nodes, len(here)))
        reached[here, here - first] = 1.0
        for step in range(number):
            reached = back @ reached
            encoding[here, step] = reached[here, here - first]
    return torch.from_numpy(encoding.astype(np.float32))


def local_degree_profile(graph: Graph) -> Float32[Tensor, "nodes 5"]:
    """In-degree of a node, and minimum, maximum, mean and deviation of the in-degrees of its in-neighbours.

    Rows of nodes without in-edges are zero. The deviation is that of a population, as in PyTorch Geometric.

    Shape: (N, 5) float32.

    Example:
        >>> local_degree_profile(Graph([0, 1, 2, 2], [1, 0, 0, 1])).tolist()[0]
        [2.0, 0.0, 2.0, 1.0, 1.0]
    """
    _square("local_degree_profile", graph)
    src, dst = graph.edges()
    degree = graph.in_degrees().double()
    of_source = degree[src]
    columns = [degree]
    for name in ("amin", "amax", "mean"):
        columns.append(torch.zeros_like(degree).scatter_reduce(0, dst, of_source, name, include_self=False))
    squares = torch.zeros_like(degree).index_add(0, dst, (of_source - columns[3][dst]) ** 2)
    columns.append((squares / degree.clamp(min=1)).sqrt())
    return torch.stack(columns, dim=1).float()


def _square(who: str, graph: Graph) -> Graph:
    if not isinstance(graph, Graph) or not graph.is_square or graph.is_typed:
        raise GraphError(f"{who}: expected an untyped graph over one set of nodes, got {graph!r}")
    return graph
