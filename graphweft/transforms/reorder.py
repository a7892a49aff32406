"""A graph whose nodes are numbered anew, so that sums over edges find their rows in the cache.

Comes in: a graph. Goes out: the same graph under other numbers. Called by users.
"""

from __future__ import annotations

from jaxtyping import Int64
from torch import Tensor

from graphweft._errors import GraphError
from graphweft.graph.graph import Graph
from graphweft.partitioning.partition import order_of


def reorder(graph: Graph) -> tuple[Graph, Int64[Tensor, "nodes"]]:
    """Renumbers the nodes so that neighbours have near numbers. Returns the graph and the old number of each node.

    A sum over edges reads a row for each edge. In a large graph with communities and arbitrary numbers, most of these
    rows come from memory. If the nodes of a community have consecutive numbers, the rows come from the cache. Node i of
    the new graph is node ``nodes[i]`` of the old one. Use ``x[nodes]`` and ``y[nodes]``, and put results back by
    ``out[nodes] = found``. ``ndata`` and ``edata`` are kept, and edges keep their order. Small graphs, and graphs
    without communities, do not become faster. The time is O(E).

    Raises: GraphError for a graph with types or between two sets of nodes.

    Example:
        >>> found, nodes = reorder(Graph([0, 2, 4, 1], [2, 4, 1, 3]))
        >>> [nodes[ends].tolist() for ends in found.edges()]
        [[0, 2, 4, 1], [2, 4, 1, 3]]
    """
    if not isinstance(graph, Graph) or not graph.is_square or graph.is_typed:
        raise GraphError(f"reorder: expected an untyped graph over one set of nodes, got {graph!r}")
    nodes = order_of(graph)
    return graph.subgraph(nodes), nodes


__all__ = ["reorder"]
