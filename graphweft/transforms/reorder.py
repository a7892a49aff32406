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
    """The graph with neighbours near each other, and which node stands at each place; in O(E).

    A sum over edges reads a row for each of them. In a large graph with communities whose numbers say nothing of these,
    most of such rows come from memory; where the nodes of a community follow each other they come from the cache. Node
    i of the new graph is node ``nodes[i]``: take ``x[nodes]`` and ``y[nodes]``, and put results back by
    ``out[nodes] = found``. What the graph carries in ``ndata`` and ``edata`` follows; edges keep their order. Small
    graphs, and those without communities, gain nothing.

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
